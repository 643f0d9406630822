"""The program's side: states, posting, memory regions, numbers and limits."""

import itertools

import numpy as np
import pytest
from tests.nic.harness import IPS, MACS, RW, SMALL, attributes, connect, make_end, make_wire

from netreduce.errors import ConfigurationError, VerbsError
from netreduce.nic import Nic, NicLimits
from netreduce.nic import verbs as v
from netreduce.nic.enums import QpAttrMask, QpState, WrOpcode
from netreduce.nic.transitions import TRANSITIONS
from netreduce.units import NEVER_PS

RESET, INIT, RTR, RTS, SQD, ERR = (
    v.IBV_QPS_RESET,
    v.IBV_QPS_INIT,
    v.IBV_QPS_RTR,
    v.IBV_QPS_RTS,
    v.IBV_QPS_SQD,
    v.IBV_QPS_ERR,
)


@pytest.mark.parametrize(("start", "new"), [*itertools.product((RESET, INIT, RTR, RTS, SQD, ERR), QpState)])
def test_a_queue_pair_goes_only_where_the_specification_lets_it(start: QpState, new: QpState) -> None:
    wire = make_wire()
    a, b = make_end(wire.nics[0]), make_end(wire.nics[1])
    attr = attributes(b)
    for state, move in ((INIT, a.qp.to_init), (RTR, a.qp.to_rtr), (RTS, a.qp.to_rts)):
        if start in (RTS, SQD) or (start in (INIT, RTR) and state <= start):
            move(attr)
    if start in (SQD, ERR):
        a.qp.modify(v.QPAttr(qp_state=start), v.IBV_QP_STATE)
    assert a.qp.qp_state is start
    attr.qp_state = new
    required = TRANSITIONS.get((start, new), (QpAttrMask(0),))[0]
    allowed = {
        RESET: {INIT, RESET, ERR},
        INIT: {INIT, RTR, RESET, ERR},
        RTR: {RTS, RESET, ERR},
        RTS: {RTS, SQD, RESET, ERR},
        SQD: {SQD, RTS, RESET, ERR},
        ERR: {RESET, ERR},
    }[start]
    if new in allowed:
        a.qp.modify(attr, v.IBV_QP_STATE | required)
        assert a.qp.qp_state is new
    else:
        with pytest.raises(VerbsError, match=rf"{start.name}.*{new.name}"):
            a.qp.modify(attr, v.IBV_QP_STATE)
        assert a.qp.qp_state is start


def test_a_missing_attribute_is_named() -> None:
    wire = make_wire()
    a, b = make_end(wire.nics[0]), make_end(wire.nics[1])
    attr = attributes(b)
    a.qp.to_init(attr)
    attr.qp_state = RTR
    with pytest.raises(VerbsError, match="IBV_QP_DEST_QPN"):
        a.qp.modify(attr, v.IBV_QP_STATE | v.IBV_QP_AV | v.IBV_QP_PATH_MTU)
    with pytest.raises(VerbsError, match="cannot set IBV_QP_TIMEOUT"):
        a.qp.modify(attr, v.IBV_QP_STATE | TRANSITIONS[INIT, RTR][0] | v.IBV_QP_TIMEOUT)


@pytest.mark.parametrize(
    ("name", "value"),
    [("path_mtu", 6), ("timeout", 32), ("retry_cnt", 8), ("rnr_retry", -1), ("sq_psn", 1 << 24), ("min_rnr_timer", 32)],
)
def test_an_attribute_out_of_range_is_refused_with_the_range(name: str, value: int) -> None:
    wire = make_wire()
    a, b = make_end(wire.nics[0]), make_end(wire.nics[1])
    with pytest.raises(VerbsError, match=rf"{name} is {value}, \d+ to \d+ are possible"):
        a.qp.to_rts(attributes(b, **{name: value}))


def test_an_address_without_a_known_mac_is_an_error_that_names_it() -> None:
    wire = make_wire()
    a, b = make_end(wire.nics[0]), make_end(wire.nics[1])
    attr = attributes(b)
    attr.ah_attr = v.AHAttr(gr=v.GlobalRoute(dgid=v.GID("10.78.0.77")))
    with pytest.raises(VerbsError, match=r"10\.78\.0\.77"):
        a.qp.to_rts(attr)
    for gid in ("fe80::1", "nonsense"):
        attr.ah_attr = v.AHAttr(gr=v.GlobalRoute(dgid=v.GID(gid)))
        with pytest.raises(VerbsError, match=gid):
            a.qp.to_rtr(attr)
    attr.ah_attr = None
    with pytest.raises(VerbsError, match="ah_attr"):
        a.qp.to_rtr(attr)


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_sending_needs_rts_and_receiving_needs_init(moves: int) -> None:
    wire = make_wire()
    a, b = make_end(wire.nics[0]), make_end(wire.nics[1])
    for move in (a.qp.to_init, a.qp.to_rtr)[:moves]:
        move(attributes(b))
    with pytest.raises(VerbsError, match="cannot send in state"):
        a.send(0, 0, 1)
    if moves == 0:
        with pytest.raises(VerbsError, match="RESET"):
            a.receive(0, 0, 1)
    else:
        a.receive(0, 0, 1)


def test_full_queues_too_many_elements_and_too_much_inline_data_are_refused() -> None:
    wire = make_wire()
    a, _ = connect(wire)
    for i in range(32):
        a.send(i, 0, 1)
        a.receive(i, 0, 1)
    with pytest.raises(VerbsError, match="send queue of 0x11 is full: 32"):
        a.send(0, 0, 1)
    with pytest.raises(VerbsError, match="receive queue of 0x11 is full: 32"):
        a.receive(0, 0, 1)
    a, _ = connect(wire)
    with pytest.raises(VerbsError, match="5 scatter-gather elements"):
        a.qp.post_send(v.SendWR(0, v.IBV_WR_SEND, 5, 0, [a.sge(0, 1)] * 5))
    with pytest.raises(VerbsError, match="5 scatter-gather elements"):
        a.qp.post_recv(v.RecvWR(0, 5, [a.sge(0, 1)] * 5))
    with pytest.raises(VerbsError, match="65 bytes inline"):
        a.qp.post_send(v.SendWR(0, v.IBV_WR_SEND, 1, 0, [a.sge(0, 65)], v.IBV_SEND_INLINE))
    with pytest.raises(VerbsError, match=str(1 << 31)):
        a.qp.post_send(v.SendWR(0, v.IBV_WR_SEND, 1, 0, [a.sge(0, (1 << 31) + 1)]))


@pytest.mark.parametrize("opcode", [v.IBV_WR_RDMA_READ, v.IBV_WR_ATOMIC_CMP_AND_SWP, v.IBV_WR_ATOMIC_FETCH_AND_ADD])
def test_reads_and_atomics_are_refused_when_they_are_posted(opcode: WrOpcode) -> None:
    a, _ = connect(make_wire())
    with pytest.raises(VerbsError, match=f"{opcode.name} is not supported"):
        a.send(0, 0, 8, opcode)


def test_queue_pairs_of_other_types_and_impossible_sizes_are_refused() -> None:
    end = make_end(make_wire().nics[0])
    with pytest.raises(VerbsError, match="IBV_QPT_RC"):
        v.QP(end.pd, v.QPInitAttr(v.IBV_QPT_UD, scq=end.cq, rcq=end.cq))
    with pytest.raises(VerbsError, match="scq"):
        v.QP(end.pd, v.QPInitAttr(rcq=end.cq))
    for cap in (
        v.QPCap(max_send_wr=65),
        v.QPCap(max_recv_wr=-1),
        v.QPCap(max_send_sge=5),
        v.QPCap(max_inline_data=257),
    ):
        with pytest.raises(VerbsError, match=r"max_.* are possible"):
            v.QP(end.pd, v.QPInitAttr(scq=end.cq, rcq=end.cq, cap=cap))
    for cqe in (0, 257):
        with pytest.raises(VerbsError, match="completion queue"):
            v.CQ(end.context, cqe)


def test_queue_pair_numbers_depend_on_the_order_of_calls_only_and_are_not_reused_at_once() -> None:
    numbers = []
    for _ in range(2):
        nic = Nic("n", MACS[0], IPS[0], limits=SMALL)
        ends = [make_end(nic, 64) for _ in range(3)]
        ends[1].qp.close()
        numbers.append([end.qp.qp_num for end in ends] + [make_end(nic, 64).qp.qp_num])
    assert numbers == [[0x11, 0x12, 0x13, 0x14]] * 2


def test_every_queue_pair_row_can_be_used_and_one_more_is_refused() -> None:
    nic = Nic("n", MACS[0], IPS[0], limits=SMALL)
    end = make_end(nic, 64)
    init = v.QPInitAttr(scq=end.cq, rcq=end.cq)
    others = [v.QP(end.pd, init) for _ in range(15)]
    with pytest.raises(VerbsError, match="all 16 queue pairs are in use"):
        v.QP(end.pd, init)
    others[3].close()
    again = v.QP(end.pd, init)
    assert again.qp_num not in {qp.qp_num for qp in others}
    assert again.qp_num % 16 == others[3].qp_num % 16


def test_memory_keys_are_not_reused_at_once() -> None:
    nic = Nic("n", MACS[0], IPS[0], limits=SMALL._replace(memory_regions=4))
    pd = v.PD(v.Context(nic))
    seen = []
    for _ in range(40):
        with v.MR(pd, 8, RW) as region:
            seen.append(region.lkey)
    assert len(set(seen)) == 40
    assert 0 not in seen
    regions = [v.MR(pd, 8, RW) for _ in range(4)]
    with pytest.raises(VerbsError, match="all 4 memory regions"):
        v.MR(pd, 8, RW)
    regions[2].close()
    v.MR(pd, 8, RW)


def test_a_memory_region_reads_and_writes_only_its_own_bytes() -> None:
    pd = v.PD(v.Context(Nic("n", MACS[0], IPS[0], limits=SMALL)))
    memory = np.arange(100, dtype=np.uint8)
    region = v.MR(pd, 50, RW, address=memory.ctypes.data + 10)
    assert region.read(3, 2) == bytes([12, 13, 14])
    region.write(b"\xff\xfe\x00", 2, 48)
    assert list(memory[57:61]) == [57, 255, 254, 60]
    for length, offset in ((51, 0), (1, 50), (1, -1), (-1, 0)):
        with pytest.raises(VerbsError, match="memory region of 50"):
            region.read(length, offset)
    region.close()
    with pytest.raises(VerbsError):
        region.read(1)
    with pytest.raises(VerbsError, match="LOCAL_WRITE"):
        v.MR(pd, 8, v.IBV_ACCESS_REMOTE_WRITE)


def test_closing_a_parent_closes_what_was_made_from_it() -> None:
    nic = Nic("n", MACS[0], IPS[0], limits=SMALL)
    end = make_end(nic)
    end.context.close()
    assert end.qp.closed
    assert end.mr.closed
    assert end.cq.closed
    with pytest.raises(VerbsError, match="Context is closed"):
        v.PD(end.context)
    end.context.close()
    assert make_end(nic).qp.qp_num == 0x12


def test_reset_forgets_all_work_and_the_queue_pair_can_be_used_again() -> None:
    wire = make_wire()
    a, b = connect(wire)
    wire.hooks[0] = lambda frame: []
    a.send(1, 0, 100)
    a.receive(2, 0, 100)
    wire.step()
    for end in (a, b):
        end.qp.modify(v.QPAttr(qp_state=RESET), v.IBV_QP_STATE)
    wire.hooks[0] = lambda frame: [frame]
    wire.run()
    assert a.nic.next_timer_ps() == NEVER_PS
    assert a.completions() == []
    a.qp.to_rts(attributes(b, sq_psn=500, rq_psn=600))
    b.qp.to_rts(attributes(a, sq_psn=600, rq_psn=500))
    b.receive(4, 0, 100)
    a.send(3, 0, 100)
    wire.run()
    assert a.statuses() == [(3, "IBV_WC_SUCCESS")]
    assert b.statuses() == [(4, "IBV_WC_SUCCESS")]


def test_a_send_queue_drains_in_sqd_and_goes_on_in_rts() -> None:
    wire = make_wire(SMALL._replace(psn_window=4))
    a, b = connect(wire)
    for i in range(3):
        b.receive(i, 0, 2560)
        a.send(i, 0, 2560)
    wire.step()
    a.qp.modify(v.QPAttr(qp_state=SQD), v.IBV_QP_STATE)
    assert a.qp.query().sq_draining == 1
    wire.run()
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")], "the message that had begun was finished, no other begun"
    assert a.qp.query().sq_draining == 0
    assert a.context.get_async_event() == (v.IBV_EVENT_SQ_DRAINED, a.qp.qp_num)
    assert a.context.get_async_event() is None
    a.qp.modify(v.QPAttr(qp_state=RTS), v.IBV_QP_STATE)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS"), (2, "IBV_WC_SUCCESS")]


def test_polling_gives_at_most_what_was_asked_for_in_order() -> None:
    wire = make_wire()
    a, b = connect(wire)
    for i in range(5):
        b.receive(i, 0, 10)
        a.send(i, 0, 10)
    wire.run()
    assert b.cq.poll()[0] == 1
    count, found = b.cq.poll(3)
    assert (count, [wc.wr_id for wc in found]) == (3, [1, 2, 3])
    assert [wc.wr_id for wc in b.cq.poll(9)[1]] == [4]
    assert b.cq.poll(9) == (0, [])


def test_description_and_counters_read_like_an_operators_tools() -> None:
    wire = make_wire()
    a, b = connect(wire, psns=(0x100, 0x200))
    b.receive(0, 0, 100)
    a.send(0, 0, 100)
    wire.run()
    text = a.nic.describe()
    assert a.nic.name in text
    for word in ("0x11", "RTS", "0x101", "0x200", "expected", "unacked"):
        assert word in text
    counters = a.nic.counters()
    assert (counters["sent_pkts"], counters["rcvd_pkts"], counters["rdma_sends"]) == (1, 1, 1)
    assert counters["drop_bad_icrc"] == 0


def test_limits_that_the_tables_cannot_have_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="queue_pairs is 100"):
        Nic("n", MACS[0], IPS[0], limits=NicLimits(queue_pairs=100))
    with pytest.raises(ValueError, match="MAC"):
        Nic("n", "02:00", IPS[0], limits=SMALL)
