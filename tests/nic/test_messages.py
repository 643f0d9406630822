"""Messages arrive byte for byte: sizes, operations, scatter-gather, immediate data, sequence numbers."""

import numpy as np
import pytest
from scapy.contrib.roce import AETH, BTH
from scapy.layers.l2 import Ether
from tests.nic.harness import attributes, connect, fill, make_end, make_wire

from netreduce.nic import verbs as v
from netreduce.wire.opcodes import Opcode

SIZES = [0, 1, 2, 3, 5, 255, 256, 257, 511, 512, 513, 1021, 2048, 2049, 4096, 4097]


@pytest.mark.parametrize("size", SIZES)
def test_a_send_of_any_size_arrives_whole(size: int) -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=size)
    b.receive(7, 0, 8192)
    a.send(1, 0, size)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS")]
    [wc] = b.completions()
    assert (wc.wr_id, wc.opcode, wc.byte_len, wc.qp_num) == (7, v.IBV_WC_RECV, size, b.qp.qp_num)
    assert np.array_equal(a.memory[:size], b.memory[:size])
    assert not b.memory[size:].any()


@pytest.mark.parametrize("size", SIZES)
def test_an_rdma_write_of_any_size_arrives_whole_and_tells_the_peer_nothing(size: int) -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=size)
    a.write(1, 0, size, b, 100)
    wire.run()
    assert a.statuses() == [(1, "IBV_WC_SUCCESS")]
    assert b.completions() == []
    assert np.array_equal(a.memory[:size], b.memory[100 : 100 + size])
    assert not b.memory[:100].any()
    assert not b.memory[100 + size :].any()


@pytest.mark.parametrize("mtu", [v.IBV_MTU_256, v.IBV_MTU_512, v.IBV_MTU_1024, v.IBV_MTU_2048, v.IBV_MTU_4096])
def test_packets_are_full_to_the_path_mtu_but_for_the_last(mtu: int) -> None:
    bytes_of_mtu = 128 << mtu
    for size, expected in [
        (bytes_of_mtu - 1, [bytes_of_mtu - 1]),
        (bytes_of_mtu, [bytes_of_mtu]),
        (bytes_of_mtu + 1, [bytes_of_mtu, 1]),
        (2 * bytes_of_mtu, [bytes_of_mtu, bytes_of_mtu]),
        (2 * bytes_of_mtu + 1, [bytes_of_mtu, bytes_of_mtu, 1]),
    ]:
        wire = make_wire()
        a, b = connect(wire, path_mtu=mtu)
        b.receive(0, 0, 3 * bytes_of_mtu)
        a.send(0, 0, size)
        wire.run()
        assert [packet.payload_bytes for packet in wire.sent(0)] == expected
        assert a.statuses() == [(0, "IBV_WC_SUCCESS")]


def test_opcodes_follow_the_packets_place_in_its_message() -> None:
    wire = make_wire()
    a, b = connect(wire)
    for i in range(4):
        b.receive(i, 0, 4096)
    a.send(0, 0, 768)
    a.send(1, 0, 512, v.IBV_WR_SEND_WITH_IMM)
    a.send(2, 0, 10, v.IBV_WR_SEND_WITH_IMM)
    a.write(3, 0, 768, b, 0)
    a.write(4, 0, 257, b, 0, imm=1)
    a.write(5, 0, 10, b, 0)
    wire.run()
    assert [Opcode(packet.opcode) for packet in wire.sent(0)] == [
        Opcode.SEND_FIRST,
        Opcode.SEND_MIDDLE,
        Opcode.SEND_LAST,
        Opcode.SEND_FIRST,
        Opcode.SEND_LAST_WITH_IMMEDIATE,
        Opcode.SEND_ONLY_WITH_IMMEDIATE,
        Opcode.RDMA_WRITE_FIRST,
        Opcode.RDMA_WRITE_MIDDLE,
        Opcode.RDMA_WRITE_LAST,
        Opcode.RDMA_WRITE_FIRST,
        Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE,
        Opcode.RDMA_WRITE_ONLY,
    ]
    assert [wr_id for wr_id, _ in a.statuses()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("imm", [0, 0xDEADBEEF, 0xFFFFFFFF])
@pytest.mark.parametrize("size", [0, 10, 600])
def test_a_write_with_immediate_consumes_an_empty_receive_and_reports_the_written_bytes(imm: int, size: int) -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=1)
    b.qp.post_recv(v.RecvWR(5, 0, None))
    a.write(1, 0, size, b, 64, imm=imm)
    wire.run()
    [wc] = b.completions()
    assert (wc.wr_id, wc.opcode, wc.byte_len, wc.imm_data) == (5, v.IBV_WC_RECV_RDMA_WITH_IMM, size, imm)
    assert wc.wc_flags & v.IBV_WC_WITH_IMM
    assert np.array_equal(b.memory[64 : 64 + size], a.memory[:size])


def test_immediate_data_of_a_send_is_unsigned_and_comes_with_its_flag() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(1, 0, 64)
    b.receive(2, 0, 64)
    a.send(0, 0, 4, v.IBV_WR_SEND_WITH_IMM, imm=0xFFFFFFFF)
    a.send(0, 0, 4)
    wire.run()
    first, second = b.completions()
    assert (first.imm_data, first.wc_flags) == (0xFFFFFFFF, v.IBV_WC_WITH_IMM)
    assert (second.imm_data, second.wc_flags) == (0, 0)


def test_a_message_of_no_bytes_takes_exactly_one_psn() -> None:
    wire = make_wire()
    a, b = connect(wire, psns=(100, 0))
    for i in range(3):
        b.receive(i, 0, 64)
    a.send(0, 0, 10)
    a.send(1, 0, 0)
    a.write(2, 0, 0, b, 0)
    a.send(3, 0, 10)
    wire.run()
    assert [packet.psn for packet in wire.sent(0)] == [100, 101, 102, 103]
    assert [wc.byte_len for wc in b.completions()] == [10, 0, 10]


def test_sequence_numbers_wrap_inside_a_message() -> None:
    wire = make_wire()
    a, b = connect(wire, psns=(0xFFFFF0, 0))
    fill(a, seed=3)
    b.receive(0, 0, 65536)
    a.send(0, 0, 64 * 256)
    wire.run()
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")]
    assert [packet.psn for packet in wire.sent(0)] == [(0xFFFFF0 + i) % (1 << 24) for i in range(64)]
    assert np.array_equal(a.memory[: 64 * 256], b.memory[: 64 * 256])


def test_data_is_gathered_and_scattered_across_elements_that_straddle_packets() -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=4)
    pieces = [(5000, 16), (0, 700), (9000, 0), (2000, 301)]
    a_elements = [a.sge(offset, length) for offset, length in pieces]
    b_elements = [b.sge(100, 7), b.sge(1000, 509), b.sge(4000, 600)]
    b.qp.post_recv(v.RecvWR(1, 3, b_elements))
    a.qp.post_send(v.SendWR(1, v.IBV_WR_SEND, 4, 0, a_elements))
    wire.run()
    sent = np.concatenate([a.memory[offset : offset + length] for offset, length in pieces])
    got = np.concatenate([b.memory[100:107], b.memory[1000:1509], b.memory[4000:4600]])
    assert np.array_equal(got[: sent.size], sent)
    assert not got[sent.size :].any()


def test_inline_data_may_be_overwritten_at_once() -> None:
    wire = make_wire()
    a, b = connect(wire)
    a.memory[:64] = 7
    b.receive(0, 0, 64)
    flags = v.IBV_SEND_INLINE | v.IBV_SEND_SIGNALED
    a.qp.post_send(v.SendWR(0, v.IBV_WR_SEND, 2, 0, [v.SGE(a.mr.buf, 40, 0), v.SGE(a.mr.buf, 24, 0)], flags))
    a.memory[:64] = 9
    wire.run()
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")]
    assert (b.memory[:64] == 7).all()


def test_unsignaled_work_retires_without_a_completion() -> None:
    wire = make_wire()
    a, b = connect(wire)
    for turn in range(3):
        for i in range(32):
            b.receive(i, 0, 64)
            a.qp.post_send(v.SendWR(i, v.IBV_WR_SEND, 1, 0, [a.sge(0, 8)], v.IBV_SEND_SIGNALED if i == 31 else 0))
        wire.run()
        assert a.statuses() == [(31, "IBV_WC_SUCCESS")], turn
        assert len(b.completions()) == 32


def test_both_directions_of_a_connection_carry_messages_at_the_same_time() -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=5)
    fill(b, seed=6)
    before_a, before_b = a.memory.copy(), b.memory.copy()
    a.receive(0, 30000, 10000)
    b.receive(0, 30000, 10000)
    a.send(1, 0, 10000)
    b.send(1, 0, 10000)
    wire.run()
    assert np.array_equal(b.memory[30000:40000], before_a[:10000])
    assert np.array_equal(a.memory[30000:40000], before_b[:10000])


def test_a_nic_talks_to_itself_over_its_port() -> None:
    wire = make_wire()
    nic = wire.nics[0]
    a, b = make_end(nic), make_end(nic)
    a.qp.to_rts(attributes(b))
    b.qp.to_rts(attributes(a))
    fill(a, seed=8)
    b.receive(0, 0, 1000)
    a.send(0, 0, 1000)
    loop = make_wire()
    loop.nics = (nic, nic)
    loop.run()
    assert np.array_equal(a.memory[:1000], b.memory[:1000])


def test_queue_pairs_share_the_wire_in_turns() -> None:
    wire = make_wire()
    pairs = [connect(wire) for _ in range(3)]
    for a, b in pairs:
        fill(a, seed=a.qp.qp_num)
        b.receive(0, 0, 65536)
        a.send(0, 0, 65536)
    wire.nics[0].advance(0)
    queue = wire.nics[0].egress(0)
    assert queue.state[0].frames == 3 * 256
    wire.run()
    first_half = wire.sent(0)[: 3 * 128]
    assert {packet.destination_qpn for packet in first_half} == {b.qp.qp_num for _, b in pairs}
    for a, b in pairs:
        assert np.array_equal(a.memory, b.memory)


def test_every_frame_is_what_scapy_makes_of_its_fields() -> None:
    wire = make_wire()
    a, b = connect(wire, psns=(0xABCDEF, 5))
    fill(a, seed=9)
    for i in range(3):
        b.receive(i, 0, 4096)
    a.send(0, 0, 1021)
    a.send(1, 0, 3, v.IBV_WR_SEND_WITH_IMM, imm=0x01020304)
    a.write(2, 0, 700, b, 0, imm=99)
    wire.run()
    assert len(wire.history) > 8
    for sender, frame in wire.history:
        raw = frame.tobytes()
        packet = Ether(raw)
        assert packet[BTH].dqpn == (b if sender == 0 else a).qp.qp_num
        assert packet["IP"].tos & 3 == 2, "ECN-capable"
        if packet[BTH].opcode == Opcode.ACKNOWLEDGE:
            assert packet[AETH].syndrome == 0x1F
        del packet["IP"].chksum, packet["IP"].len, packet["UDP"].len, packet[BTH].icrc
        packet["UDP"].chksum = 0  # RoCEv2 senders leave it out
        assert bytes(packet) == raw


def test_the_last_packet_and_some_before_ask_for_an_acknowledgement() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(0, 0, 65536)
    a.send(0, 0, 100 * 256)
    wire.run()
    assert [i for i, packet in enumerate(wire.sent(0)) if packet.ack_request] == [31, 63, 95, 99]
    acks = wire.sent(1)
    assert [packet.opcode for packet in acks] == [Opcode.ACKNOWLEDGE], "one for the burst"
    assert acks[0].msn == 1
