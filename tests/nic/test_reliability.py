"""What the wire loses, doubles and reorders is repaired by go-back-N, within the limits that the user set."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nic.harness import (
    SMALL,
    End,
    Frame,
    Hook,
    Wire,
    answer_to,
    attributes,
    connect,
    fill,
    frames_of,
    lose,
    make_end,
    make_wire,
    parsed,
)

from netreduce.nic import verbs as v
from netreduce.units import PS_PER_US
from netreduce.wire.build import build_burst


def lose_when(predicate: Callable[[np.record], bool], times: int = 1) -> Hook:
    """Lose the first `times` frames that the predicate picks."""
    left = [times]

    def hook(frame: Frame) -> list[Frame]:
        if left[0] and predicate(parsed(frame)):
            left[0] -= 1
            return []
        return [frame]

    return hook


def transfer(wire: Wire, a: End, b: End, size: int = 20 * 256) -> None:
    """One message from a to b that must arrive."""
    fill(a, seed=size)
    b.receive(0, 0, size)
    a.send(0, 0, size)
    wire.run()
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")]
    assert b.statuses() == [(0, "IBV_WC_SUCCESS")]
    assert np.array_equal(a.memory[:size], b.memory[:size])


@pytest.mark.parametrize("lost", [0, 7, 18])
def test_a_lost_packet_draws_one_nak_and_is_sent_again_with_all_behind_it(lost: int) -> None:
    wire = make_wire()
    a, b = connect(wire)
    wire.hooks[0] = lose(lost)
    transfer(wire, a, b)
    assert b.nic.counters()["naks_sent"] == 1
    psns = [packet.psn for packet in wire.sent(0)]
    assert psns == [*range(20), *range(lost, 20)]
    opcodes = {packet.psn: packet.opcode for packet in wire.sent(0)[:20]}
    assert all(opcodes[packet.psn] == packet.opcode for packet in wire.sent(0)[20:])
    assert a.nic.counters()["local_ack_timeout_err"] == 0
    assert a.nic.counters()["packet_seq_err"] == 1
    assert a.nic.counters()["retransmitted_pkts"] == 20 - lost


def test_the_last_packet_lost_is_found_by_the_timer() -> None:
    wire = make_wire()
    a, b = connect(wire, timeout=10)
    wire.hooks[0] = lose(19)
    transfer(wire, a, b)
    assert a.nic.counters()["local_ack_timeout_err"] == 1
    assert b.nic.counters()["naks_sent"] == 0


def test_a_lost_ack_costs_a_timeout_and_the_duplicate_is_acknowledged_but_not_delivered_again() -> None:
    wire = make_wire()
    a, b = connect(wire)
    wire.hooks[1] = lose(0)
    transfer(wire, a, b)
    assert b.nic.counters()["duplicate_request"] == 20
    assert b.nic.counters()["rdma_recvs"] == 1
    assert [packet.psn for packet in wire.sent(1)] == [19, 19]


def test_a_lost_nak_is_not_repeated_and_the_timer_recovers() -> None:
    wire = make_wire()
    a, b = connect(wire)
    wire.hooks[0] = lose(5)
    wire.hooks[1] = lose_when(lambda packet: packet.syndrome == 0x60)
    transfer(wire, a, b)
    assert b.nic.counters()["naks_sent"] == 1
    assert a.nic.counters()["local_ack_timeout_err"] == 1


def test_a_nak_acknowledges_everything_before_it() -> None:
    wire = make_wire()
    a, b = connect(wire)
    for i in range(3):
        b.receive(i, 0, 512)
        a.send(i, 0, 512)
    wire.hooks[0] = lose(4)
    wire.hooks[1] = lambda frame: [frame] if parsed(frame).syndrome == 0x60 else []
    wire.run(until_ps=3 * PS_PER_US)
    assert a.statuses() == [(0, "IBV_WC_SUCCESS"), (1, "IBV_WC_SUCCESS")]


def test_a_partial_retry_goes_on_in_the_middle_of_an_rdma_write() -> None:
    wire = make_wire()
    a, b = connect(wire)
    fill(a, seed=1)
    wire.hooks[0] = lose(2, 6)
    a.write(0, 0, 5 * 256, b, 0)
    wire.run()
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")]
    assert np.array_equal(a.memory[:1280], b.memory[:1280])
    assert b.nic.counters()["rx_write_requests"] == 1


def test_reordered_packets_are_repaired() -> None:
    wire = make_wire()
    a, b = connect(wire)
    held: list[Frame] = []

    def swap(frame: Frame) -> list[Frame]:
        if parsed(frame).psn == 4 and not held:
            held.append(frame)
            return []
        if parsed(frame).psn == 6 and len(held) == 1:
            held.append(frame)
            return [frame, held[0]]
        return [frame]

    wire.hooks[0] = swap
    transfer(wire, a, b)


def test_duplicated_packets_and_answers_do_no_harm() -> None:
    wire = make_wire()
    a, b = connect(wire)
    wire.hooks = [lambda frame: [frame, frame], lambda frame: [frame, frame, frame]]
    transfer(wire, a, b)
    transfer(wire, a, b)


def test_a_ghost_ack_for_packets_never_sent_is_dropped() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(0, 0, 512)
    a.send(0, 0, 512)
    wire.hooks[1] = lambda frame: []
    wire.run(until_ps=2 * PS_PER_US)
    ghost = answer_to(a, psn=2)
    a.nic.receive(0, build_burst([ghost]), wire.now_ps)
    assert a.completions() == []
    assert a.nic.counters()["drop_out_of_sequence"] == 1
    a.nic.receive(0, build_burst([answer_to(a, psn=1)]), wire.now_ps)
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")]


def test_an_ack_for_a_queue_pair_that_sends_nothing_is_a_ghost_too() -> None:
    wire = make_wire()
    a, _ = connect(wire)
    a.nic.receive(0, build_burst([answer_to(a, psn=psn) for psn in (0, 1, 0xFFFFFF, 1 << 23)]), 0)
    assert a.qp.query().sq_psn == 0
    transfer(wire, a, _)


def test_an_ack_that_overtakes_a_retransmission_spares_the_rest_of_it() -> None:
    wire = make_wire(SMALL._replace(egress_bytes=4096))
    a, _ = connect(wire)
    a.send(0, 0, 20 * 256)
    a.nic.advance(0)
    while a.nic.egress(0).state[0].frames:
        frames_of(a.nic.egress(0))
        a.nic.advance(0)
    a.nic.receive(0, build_burst([answer_to(a, psn=2, syndrome=0x60)]), 0)
    a.nic.advance(0)
    again = [parsed(frame).psn for frame in frames_of(a.nic.egress(0))]
    assert again == list(range(2, 2 + len(again)))
    assert len(again) < 15
    a.nic.receive(0, build_burst([answer_to(a, psn=17)]), 0)
    a.nic.advance(0)
    assert [parsed(frame).psn for frame in frames_of(a.nic.egress(0))] == [18, 19]


def test_a_duplicate_does_not_take_the_place_of_a_nak_that_waits_to_be_sent() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(0, 0, 4096)
    a.send(0, 0, 1024)
    a.nic.advance(0)
    first, _, third, _ = frames_of(a.nic.egress(0))
    b.nic.receive(0, build_burst([first, third, first]), 0)
    b.nic.advance(0)
    assert [(parsed(frame).syndrome, parsed(frame).psn) for frame in frames_of(b.nic.egress(0))] == [(0x60, 1)]


def test_a_gap_that_closes_within_a_burst_draws_no_nak() -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(0, 0, 4096)
    a.send(0, 0, 1024)
    a.nic.advance(0)
    first, second, third, _ = frames_of(a.nic.egress(0))
    b.nic.receive(0, build_burst([first, third, second]), 0)
    b.nic.advance(0)
    assert [(parsed(frame).syndrome, parsed(frame).psn) for frame in frames_of(b.nic.egress(0))] == [(0x1F, 1)]


def test_the_psn_window_is_filled_exactly_and_no_further() -> None:
    wire = make_wire(SMALL._replace(psn_window=16, ack_every=8))
    a, b = connect(wire, psns=(0xFFFFF0, 7))
    fill(a, seed=1)
    b.receive(0, 0, 64 * 256)
    a.send(0, 0, 64 * 256)
    a.nic.advance(0)
    assert a.nic.egress(0).state[0].frames == 16
    wire.run()
    assert a.statuses() == [(0, "IBV_WC_SUCCESS")]
    assert np.array_equal(a.memory[: 64 * 256], b.memory[: 64 * 256])
    assert a.nic.counters()["local_ack_timeout_err"] == 0


def test_a_full_egress_queue_holds_packets_back_and_loses_none() -> None:
    wire = make_wire(SMALL._replace(egress_bytes=4096))
    a, b = connect(wire, path_mtu=v.IBV_MTU_1024)
    transfer(wire, a, b, size=40_000)
    assert a.nic.egress(0).state[0].dropped_frames == 0
    assert a.nic.egress(0).state[0].peak_bytes <= 4096
    assert a.nic.counters()["retransmitted_pkts"] == 0


def test_a_nic_with_a_full_egress_queue_is_not_due_before_there_is_room() -> None:
    wire = make_wire(SMALL._replace(egress_bytes=16_384))
    a, _ = connect(wire, timeout=0)
    a.send(0, 0, 65_536)
    assert a.nic.next_timer_ps() == 0
    a.nic.advance(5)
    assert a.nic.next_timer_ps() > 10**18


def test_a_queue_pair_made_anew_is_not_disturbed_by_packets_of_the_old_one() -> None:
    wire = make_wire()
    a, b = connect(wire)
    transfer(wire, a, b)
    old_qpn = b.qp.qp_num
    old_frames = [frame for sender, frame in wire.history if sender == 0]
    b.qp.close()
    again = make_end(wire.nics[1])
    assert again.qp.qp_num != old_qpn
    again.qp.to_rts(attributes(a))
    b.nic.receive(0, build_burst(old_frames), wire.now_ps)
    assert b.nic.counters()["drop_not_for_me"] == 20
    assert again.qp.query().rq_psn == 0


@given(
    seed=st.integers(0, 1 << 32),
    sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=12),
    loss=st.sampled_from([0.0, 0.05, 0.2, 0.5]),
    duplication=st.sampled_from([0.0, 0.1]),
    reordering=st.sampled_from([0.0, 0.1]),
    window=st.sampled_from([1, 4, 64]),
)
def test_whatever_the_wire_does_every_message_arrives_once_in_order_or_fails_by_name(
    seed: int, sizes: list[int], loss: float, duplication: float, reordering: float, window: int
) -> None:
    wire = make_wire(SMALL._replace(psn_window=window, ack_every=8))
    a, b = connect(wire, psns=(seed % (1 << 24), (seed * 7) % (1 << 24)))
    rng = np.random.default_rng(seed)
    late: list[Frame] = []

    def mishap(frame: Frame) -> list[Frame]:
        if rng.random() < loss:
            return []
        if rng.random() < reordering:
            late.append(frame)
            return []
        frames = [frame] * (2 if rng.random() < duplication else 1) + late
        late.clear()
        return frames

    wire.hooks = [mishap, mishap]
    fill(a, seed)
    offsets = np.cumsum([0, *sizes])
    for i, size in enumerate(sizes):
        b.receive(i, int(offsets[i]), 1500)
        if rng.random() < 0.3 and size:
            a.write(i, int(offsets[i]), size, b, int(offsets[i]), imm=i)
        else:
            a.send(i, int(offsets[i]), size)
    wire.run()
    sent, got = a.statuses(), b.completions()
    delivered = [wc for wc in got if wc.status == v.IBV_WC_SUCCESS]
    assert [wc.wr_id for wc in delivered] == list(range(len(delivered)))
    assert [wc.byte_len for wc in delivered] == sizes[: len(delivered)]
    for wc in delivered:
        piece = slice(int(offsets[wc.wr_id]), int(offsets[wc.wr_id]) + wc.byte_len)
        assert np.array_equal(a.memory[piece], b.memory[piece])
    succeeded = [wr_id for wr_id, status in sent if status == "IBV_WC_SUCCESS"]
    assert [wr_id for wr_id, _ in sent] == list(range(len(sizes)))
    assert succeeded == list(range(len(succeeded)))
    assert len(succeeded) <= len(delivered)
    if len(succeeded) < len(sizes):
        statuses = [status for _, status in sent[len(succeeded) :]]
        assert statuses == ["IBV_WC_RETRY_EXC_ERR"] + ["IBV_WC_WR_FLUSH_ERR"] * (len(statuses) - 1)
        assert loss >= 0.2
