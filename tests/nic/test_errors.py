"""Fatal errors: the right NAK, the right status on both sides, everything behind it flushed in order."""

import numpy as np
import pytest
from tests.nic.harness import IPS, MACS, RW, End, Frame, Wire, attributes, connect, fill, make_end, make_wire, parsed

from netreduce.errors import VerbsError
from netreduce.nic import verbs as v
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.opcodes import Opcode


def request(end: End, opcode: int, payload: bytes = b"", **fields: int) -> Frame:
    """A request from the first NIC to `end`, at the PSN it expects unless said otherwise."""
    return build_frame(
        opcode,
        payload,
        source_ip=IPS[0],
        destination_ip=IPS[1],
        source_mac=MACS[0],
        destination_mac=MACS[1],
        destination_qpn=end.qp.qp_num,
        **{"psn": end.qp.query().rq_psn} | fields,
    )


def inject(wire: Wire, frame: Frame) -> list[int]:
    """Let the second NIC receive a frame; the syndromes that it answers with."""
    start = len(wire.history)
    wire.nics[1].receive(0, build_burst([frame]), wire.now_ps)
    wire.run()
    return [parsed(answer).syndrome for sender, answer in wire.history[start:] if sender == 1]


def events(end: End) -> list[int]:
    """Asynchronous events that wait."""
    found = []
    while (event := end.context.get_async_event()) is not None:
        found.append(event.event_type)
    return found


def test_a_write_with_a_wrong_rkey_fails_at_both_ends_and_touches_nothing() -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=1)
    b.receive(8, 0, 64)
    b.receive(9, 0, 64)
    wr = v.SendWR(1, v.IBV_WR_RDMA_WRITE, 1, 0, [a.sge(0, 600)])
    wr.set_wr_rdma(b.mr.rkey + 1, b.mr.buf)
    a.qp.post_send(wr)
    a.send(2, 0, 10)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_REM_ACCESS_ERR"), (2, "IBV_WC_WR_FLUSH_ERR")]
    assert b.statuses() == [(8, "IBV_WC_WR_FLUSH_ERR"), (9, "IBV_WC_WR_FLUSH_ERR")]
    assert a.qp.qp_state is b.qp.qp_state is v.IBV_QPS_ERR
    assert [packet.syndrome for packet in wire.sent(1)] == [0x62]
    assert events(b) == [v.IBV_EVENT_QP_ACCESS_ERR]
    assert not b.memory.any()
    assert b.nic.counters()["resp_remote_access_errors"] == 1
    assert a.nic.counters()["req_remote_access_errors"] == 1


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 10), (65_536 - 9, 10), (65_536, 1), (1 << 62, 10), (-(1 << 62), 10)],
)
def test_a_write_outside_its_region_is_refused(offset: int, size: int) -> None:
    wire = make_wire()
    _, b = connect(wire)
    address = (b.mr.buf + offset) % (1 << 64)
    frame = request(b, Opcode.RDMA_WRITE_ONLY, bytes(size), remote_address=address, rkey=b.mr.rkey, dma_length=size)
    assert inject(wire, frame) == [0x62]
    assert not b.memory.any()


def test_a_write_to_the_very_end_of_its_region_is_allowed() -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=1)
    a.write(1, 0, 600, b, 65_536 - 600)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS")]
    assert np.array_equal(b.memory[-600:], a.memory[:600])


@pytest.mark.parametrize("case", ["region", "queue pair", "domain", "closed"])
def test_every_right_is_needed_to_write(case: str) -> None:
    wire = make_wire()
    a, b = connect(wire)
    region = b.mr
    if case == "region":
        region = v.MR(b.pd, 64, v.IBV_ACCESS_LOCAL_WRITE)
    elif case == "queue pair":
        b.qp.modify(v.QPAttr(qp_access_flags=0), v.IBV_QP_ACCESS_FLAGS)
    elif case == "domain":
        region = v.MR(v.PD(b.context), 64, RW)
    else:
        b.mr.close()
    wr = v.SendWR(1, v.IBV_WR_RDMA_WRITE, 1, 0, [a.sge(0, 10)])
    wr.set_wr_rdma(region.rkey, region.buf)
    a.qp.post_send(wr)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_REM_ACCESS_ERR")]


def test_the_key_of_a_write_of_no_bytes_does_not_matter() -> None:
    wire = make_wire()
    a, _ = connect(wire)
    a.qp.post_send(v.SendWR(1, v.IBV_WR_RDMA_WRITE, 0))
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS")]


def test_a_region_that_is_closed_during_a_write_stops_it() -> None:
    wire = make_wire()
    _, b = connect(wire)
    first = request(b, Opcode.RDMA_WRITE_FIRST, bytes(256), remote_address=b.mr.buf, rkey=b.mr.rkey, dma_length=400)
    assert inject(wire, first) == []
    b.mr.close()
    assert inject(wire, request(b, Opcode.RDMA_WRITE_LAST, bytes(144))) == [0x62]


def test_a_message_longer_than_its_receive_fails_on_both_sides() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(5, 0, 599)
    b.receive(6, 0, 599)
    a.send(1, 0, 600)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_REM_INV_REQ_ERR")]
    assert b.statuses() == [(5, "IBV_WC_LOC_LEN_ERR"), (6, "IBV_WC_WR_FLUSH_ERR")]
    assert b.nic.counters()["resp_local_length_error"] == 1


def test_a_receive_element_with_a_wrong_key_is_the_receivers_fault() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.qp.post_recv(v.RecvWR(5, 1, [v.SGE(b.mr.buf, 64, b.mr.lkey + 1)]))
    a.send(1, 0, 10)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_REM_OP_ERR")]
    assert b.statuses() == [(5, "IBV_WC_LOC_PROT_ERR")]
    assert [packet.syndrome for packet in wire.sent(1)] == [0x63]


def test_a_receive_into_memory_without_local_write_is_the_receivers_fault() -> None:
    wire = make_wire()
    a, b = connect(wire)
    region = v.MR(b.pd, 64, 0)
    b.qp.post_recv(v.RecvWR(5, 1, [v.SGE(region.buf, 64, region.lkey)]))
    a.send(1, 0, 10)
    wire.run()
    assert b.statuses() == [(5, "IBV_WC_LOC_PROT_ERR")]


def test_a_send_element_with_a_wrong_key_fails_after_what_was_posted_before_it() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(0, 0, 4096)
    a.send(1, 0, 2000)
    a.qp.post_send(v.SendWR(2, v.IBV_WR_SEND, 1, 0, [v.SGE(a.mr.buf, 10, a.mr.lkey + 256)]))
    a.send(3, 0, 10)
    wire.run()
    assert a.statuses() == [
        (1, "IBV_WC_SUCCESS"),
        (2, "IBV_WC_LOC_PROT_ERR"),
        (3, "IBV_WC_WR_FLUSH_ERR"),
    ]
    assert b.statuses() == [(0, "IBV_WC_SUCCESS")]


def test_a_send_with_a_wrong_key_still_repairs_losses_of_what_was_posted_before_it() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(0, 0, 4096)
    lost = [3]
    wire.hooks[0] = lambda frame: [] if lost and parsed(frame).psn == lost[-1] and lost.pop() else [frame]
    a.send(1, 0, 2000)
    a.qp.post_send(v.SendWR(2, v.IBV_WR_SEND, 1, 0, [v.SGE(a.mr.buf, 10, 0)]))
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS"), (2, "IBV_WC_LOC_PROT_ERR")]


UNEXPECTED = [
    (Opcode.SEND_MIDDLE, 256),
    (Opcode.SEND_LAST, 10),
    (Opcode.SEND_LAST_WITH_IMMEDIATE, 10),
    (Opcode.RDMA_WRITE_MIDDLE, 256),
    (Opcode.RDMA_WRITE_LAST, 10),
    (Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE, 10),
]


@pytest.mark.parametrize(("opcode", "size"), UNEXPECTED)
def test_a_message_that_goes_on_without_having_begun_is_an_invalid_request(opcode: int, size: int) -> None:
    wire = make_wire()
    _, b = connect(wire)
    b.receive(0, 0, 4096)
    assert inject(wire, request(b, opcode, bytes(size))) == [0x61]
    assert b.statuses() == [(0, "IBV_WC_WR_FLUSH_ERR")]
    assert events(b) == [v.IBV_EVENT_QP_REQ_ERR]


@pytest.mark.parametrize("opcode", [Opcode.SEND_FIRST, Opcode.SEND_ONLY, Opcode.RDMA_WRITE_MIDDLE])
def test_another_message_inside_one_that_has_begun_is_an_invalid_request(opcode: int) -> None:
    wire = make_wire()
    _, b = connect(wire)
    b.receive(0, 0, 4096)
    b.receive(1, 0, 4096)
    assert inject(wire, request(b, Opcode.SEND_FIRST, bytes(256))) == []
    assert inject(wire, request(b, opcode, bytes(256))) == [0x61]
    assert b.statuses() == [(0, "IBV_WC_REM_INV_REQ_ERR"), (1, "IBV_WC_WR_FLUSH_ERR")]


def test_an_unexpected_opcode_after_a_gap_only_draws_the_sequence_nak() -> None:
    wire = make_wire()
    _, b = connect(wire)
    b.receive(0, 0, 4096)
    assert inject(wire, request(b, Opcode.SEND_MIDDLE, bytes(256), psn=1)) == [0x60]
    assert inject(wire, request(b, Opcode.SEND_LAST, bytes(256), psn=2)) == []
    assert b.qp.qp_state is v.IBV_QPS_RTS


@pytest.mark.parametrize(
    ("opcode", "size", "fields"),
    [
        (Opcode.SEND_FIRST, 255, {}),
        (Opcode.SEND_FIRST, 260, {}),
        (Opcode.SEND_ONLY, 257, {}),
        (Opcode.RDMA_WRITE_FIRST, 256, {"dma_length": 256}),
        (Opcode.RDMA_WRITE_FIRST, 256, {"dma_length": 0}),
        (Opcode.RDMA_WRITE_ONLY, 10, {"dma_length": 11}),
        (Opcode.RDMA_WRITE_ONLY, 10, {"dma_length": 9}),
        (Opcode.RDMA_WRITE_FIRST, 256, {"dma_length": (1 << 31) + 1}),
    ],
)
def test_lengths_that_do_not_fit_the_opcode_are_invalid_requests(opcode: int, size: int, fields: dict) -> None:
    wire = make_wire()
    _, b = connect(wire)
    b.receive(0, 0, 4096)
    if opcode in (Opcode.RDMA_WRITE_FIRST, Opcode.RDMA_WRITE_ONLY):
        fields = fields | {"remote_address": b.mr.buf, "rkey": b.mr.rkey}
    assert inject(wire, request(b, opcode, bytes(size), **fields)) == [0x61]
    assert not b.memory.any()


@pytest.mark.parametrize("size", [0, 143, 145, 256])
def test_a_write_whose_last_packet_does_not_complete_the_announced_length_is_invalid(size: int) -> None:
    wire = make_wire()
    _, b = connect(wire)
    fields = {"remote_address": b.mr.buf, "rkey": b.mr.rkey, "dma_length": 400}
    assert inject(wire, request(b, Opcode.RDMA_WRITE_FIRST, bytes(256), **fields)) == []
    assert inject(wire, request(b, Opcode.RDMA_WRITE_LAST, bytes(size))) == [0x61]


def test_a_last_packet_carries_at_least_one_byte() -> None:
    wire = make_wire()
    _, b = connect(wire)
    b.receive(0, 0, 4096)
    assert inject(wire, request(b, Opcode.SEND_FIRST, bytes(256))) == []
    assert inject(wire, request(b, Opcode.SEND_LAST)) == [0x61]


@pytest.mark.parametrize("opcode", [Opcode.RDMA_READ_REQUEST, Opcode.COMPARE_SWAP, Opcode.FETCH_ADD])
def test_reads_and_atomics_of_a_peer_are_invalid_requests(opcode: int) -> None:
    wire = make_wire()
    _, b = connect(wire)
    assert inject(wire, request(b, opcode)) == [0x61]


def test_a_fatal_nak_completes_what_came_before_it_first() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(0, 0, 512)
    for i in range(4):
        a.send(i, 0, 512)
    a.nic.advance(0)
    nak = build_frame(
        Opcode.ACKNOWLEDGE,
        source_ip=IPS[1],
        destination_ip=IPS[0],
        source_mac=MACS[1],
        destination_mac=MACS[0],
        destination_qpn=a.qp.qp_num,
        psn=3,
        syndrome=0x63,
    )
    a.nic.receive(0, build_burst([nak]), 0)
    assert a.statuses() == [
        (0, "IBV_WC_SUCCESS"),
        (1, "IBV_WC_REM_OP_ERR"),
        (2, "IBV_WC_WR_FLUSH_ERR"),
        (3, "IBV_WC_WR_FLUSH_ERR"),
    ]


def test_unsignaled_work_that_fails_is_reported_all_the_same() -> None:
    wire = make_wire()
    a, _ = connect(wire, retry_cnt=0)
    wire.hooks[0] = lambda frame: []
    a.qp.post_send(v.SendWR(1, v.IBV_WR_SEND, 1, 0, [a.sge(0, 10)], 0))
    a.qp.post_send(v.SendWR(2, v.IBV_WR_SEND, 1, 0, [a.sge(0, 10)], 0))
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_RETRY_EXC_ERR"), (2, "IBV_WC_WR_FLUSH_ERR")]


def test_work_posted_in_the_error_state_is_flushed() -> None:
    wire = make_wire()
    a, _ = connect(wire)
    a.send(1, 0, 10)
    a.qp.modify(v.QPAttr(qp_state=v.IBV_QPS_ERR), v.IBV_QP_STATE)
    a.send(2, 0, 10)
    a.receive(3, 0, 10)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_WR_FLUSH_ERR"), (2, "IBV_WC_WR_FLUSH_ERR"), (3, "IBV_WC_WR_FLUSH_ERR")]
    assert wire.history == []


def test_a_completion_queue_that_overflows_says_so_and_fails_its_queue_pair() -> None:
    wire = make_wire()
    a, b = make_end(wire.nics[0]), make_end(wire.nics[1])
    short = v.CQ(b.context, 2)
    cap = v.QPCap(max_send_wr=4, max_recv_wr=8)
    qp = v.QP(b.pd, v.QPInitAttr(scq=b.cq, rcq=short, cap=cap))
    b.qp = qp
    a.qp.to_rts(attributes(b))
    b.qp.to_rts(attributes(a))
    for i in range(4):
        b.receive(i, 0, 64)
        a.send(i, 0, 8)
    b.send(77, 0, 8)  # nobody receives: it waits, and is flushed to the queue that still works
    wire.run()
    count, found = short.poll(8)
    assert (count, [wc.wr_id for wc in found]) == (2, [0, 1])
    with pytest.raises(VerbsError, match="overflowed"):
        short.poll(8)
    assert b.qp.qp_state is v.IBV_QPS_ERR
    assert events(b) == [v.IBV_EVENT_CQ_ERR, v.IBV_EVENT_QP_FATAL]
    assert b.statuses() == [(77, "IBV_WC_WR_FLUSH_ERR")]
    assert b.nic.counters()["cq_overflow"] >= 1


def test_an_overflow_of_the_send_completions_flushes_the_receives() -> None:
    wire = make_wire()
    a, b = make_end(wire.nics[0]), make_end(wire.nics[1])
    a.qp = v.QP(a.pd, v.QPInitAttr(scq=v.CQ(a.context, 1), rcq=a.cq, cap=v.QPCap(max_send_wr=4)))
    a.qp.to_rts(attributes(b))
    b.qp.to_rts(attributes(a))
    a.receive(9, 0, 64)
    for i in range(3):
        b.receive(i, 0, 64)
        a.send(i, 0, 8)
    wire.run()
    assert events(a) == [v.IBV_EVENT_CQ_ERR, v.IBV_EVENT_QP_FATAL]
    assert a.statuses() == [(9, "IBV_WC_WR_FLUSH_ERR")]
