"""Aggregation: what leaves, on which connection, for what arrives, in whatever order and how often."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.switch.switch_harness import FLOATS, Ring, dissect, drain, make_ring, powers_of_ten, total_of

from netreduce.compiled import JIT_DISABLED
from netreduce.switch import RingSpec
from netreduce.wire.ina import INA_BYTES


@given(order=st.permutations([(rank, slot) for rank in range(4) for slot in range(3)]))
def test_the_sum_does_not_depend_on_the_order_of_arrival(order: list[tuple[int, int]]) -> None:
    """Across ranks anything goes; within a connection the first packet comes first, as the wire has it."""
    ring = make_ring(4)
    datas = [np.random.default_rng(rank).standard_normal(FLOATS).astype(np.float32) for rank in range(4)]
    frames = [ring.message(rank, 0, datas[rank]) for rank in range(4)]
    order.sort(key=lambda item: item[1] != 0)
    for rank, slot in order:
        ring.give(rank, frames[rank][slot])
    expected = datas[0] + datas[1] + datas[2] + datas[3]
    for rank in range(4):
        packets = sorted(ring.take(rank + 1), key=lambda p: (p.psn - ring.first_psns[rank]) & 0xFFFFFF)
        assert b"".join(packet.payload for packet in packets)[INA_BYTES:] == expected.tobytes()


def test_nothing_leaves_before_the_last_rank_came() -> None:
    ring = make_ring(3)
    datas = powers_of_ten(3)
    for rank in (2, 0):
        ring.give(rank, *ring.message(rank, 0, datas[rank]))
    assert ring.switch.counters()["packets_out"] == 0
    ring.give(1, ring.message(1, 0, datas[1])[0])
    assert [len(ring.take(rank)) for rank in range(3)] == [1, 1, 1]


def test_a_replay_of_a_complete_slot_is_answered_on_its_connection_alone_with_the_same_bits() -> None:
    ring = make_ring(3)
    frames = [ring.message(rank, 0, data) for rank, data in enumerate(powers_of_ten(3))]
    for rank in range(3):
        ring.give(rank, *frames[rank])
    first = [ring.take(rank) for rank in range(3)]
    ring.give(1, frames[1][1])
    (again,) = ring.take(2)
    assert again.frame.tobytes() == first[2][1].frame.tobytes()
    assert ring.take(0) == ring.take(1) == []
    assert ring.switch.ring_counters(7)["replays"] == 1


def test_the_first_copy_wins_but_the_newest_headers_leave() -> None:
    """A replay may carry the result, which was scattered over the tensor; it may also ask for an ACK anew."""
    ring = make_ring(2)
    datas = powers_of_ten(2)
    frames = [ring.message(rank, 0, datas[rank]) for rank in range(2)]
    ring.give(0, *frames[0])
    other = ring.message(0, 0, np.full(FLOATS, 99.0, np.float32), psn=ring.first_psns[0])
    ring.header = {"traffic_class": 3}
    marked = ring.message(0, 0, np.full(FLOATS, 98.0, np.float32), psn=ring.first_psns[0])
    ring.give(0, *other)
    ring.give(0, marked[0])
    ring.give(1, *frames[1])
    packets = ring.take(1)
    assert b"".join(packet.payload for packet in packets)[INA_BYTES:] == total_of(datas)
    assert [int(packet.fields.ecn) for packet in packets] == [3, 0, 0]
    ring.take(0)
    ring.give(0, *other)
    assert ring.result(0) == total_of(datas)


def test_a_replay_from_the_middle_of_the_message_before_the_newest_is_answered() -> None:
    ring = make_ring(3)
    datas = powers_of_ten(3)
    early = [ring.message(rank, 0, datas[rank]) for rank in range(3)]
    late = [ring.message(rank, 1, datas[rank]) for rank in range(3)]
    for rank in range(3):
        ring.give(rank, *early[rank], *late[rank])
    sums = ring.take(1)
    ring.give(0, *early[0][1:], *late[0])
    assert [packet.frame.tobytes() for packet in ring.take(1)] == [packet.frame.tobytes() for packet in sums[1:]]


def test_a_replay_older_than_its_places_message_goes_on_unchanged() -> None:
    ring = make_ring(3)
    datas = powers_of_ten(3)
    psn = ring.first_psns[1]
    for number in range(4):
        ring.exchange(number, datas)
    ring.give(0, *ring.message(0, 4, datas[0]))  # takes over the place of message 0 for the whole ring
    old = ring.message(1, 0, datas[1], psn=psn)
    ring.give(1, *old)
    assert [packet.frame.tobytes() for packet in ring.take(2)] == [frame.tobytes() for frame in old]
    ring.exchange(4, datas)
    ring.give(1, *old)  # now its connection has forgotten the message, too
    assert [packet.frame.tobytes() for packet in ring.take(2)] == [frame.tobytes() for frame in old]
    assert ring.switch.ring_counters(7)["stale_passed"] == 6


def test_places_are_reused_for_ever_across_the_wrap_of_the_psn() -> None:
    ring = make_ring(3, first_psns=(0xFFFFFF, 0xFFFFF0, 0))
    for number in range(20):
        datas = [data + number for data in powers_of_ten(3)]
        assert ring.exchange(number, datas) == [total_of(datas)] * 3
    assert ring.switch.ring_counters(7)["messages_aggregated"] == 20


def test_followers_of_a_lost_first_packet_are_dropped_until_it_comes() -> None:
    ring = make_ring(2)
    datas = powers_of_ten(2)
    frames = [ring.message(rank, 0, datas[rank]) for rank in range(2)]
    ring.give(0, *frames[0][1:])
    ring.give(1, *frames[1])
    counters = ring.switch.ring_counters(7)
    assert counters["drop_out_of_sequence"] == 2
    assert counters["packets_spliced"] == 0
    ring.give(0, *frames[0])
    assert ring.result(0) == ring.result(1) == total_of(datas)


def test_a_lost_middle_packet_lets_later_slots_pass() -> None:
    ring = make_ring(2)
    datas = powers_of_ten(2)
    frames = [ring.message(rank, 0, datas[rank]) for rank in range(2)]
    ring.give(0, frames[0][0], frames[0][2])
    ring.give(1, *frames[1])
    first = ring.first_psns[0]
    assert [packet.psn for packet in ring.take(1)] == [first, (first + 2) & 0xFFFFFF]
    ring.give(0, frames[0][1])
    assert [packet.psn for packet in ring.take(1)] == [(first + 1) & 0xFFFFFF]


def test_a_window_of_messages_is_held_while_one_rank_is_late() -> None:
    ring = make_ring(2)
    datas = powers_of_ten(2)
    for number in range(2):
        ring.give(0, *ring.message(0, number, datas[0]))
    for number in range(2):
        ring.give(1, *ring.message(1, number, datas[1]))
    assert len(ring.take(0)) == len(ring.take(1)) == 6


def test_two_rings_interleaved_do_not_touch_each_other() -> None:
    switch = make_ring(4).switch
    one = Ring(switch, 2, ring_id=1, first_port=0).register()
    two = Ring(switch, 2, ring_id=2, first_port=1, carrier="write").register()
    left, right = powers_of_ten(2), [data * 3 for data in powers_of_ten(2)]
    frames = {
        ring.ring_id: [ring.message(rank, 0, data) for rank, data in enumerate(datas)]
        for ring, datas in ((one, left), (two, right))
    }
    for slot in range(3):
        for rank in range(2):
            one.give(rank, frames[1][rank][slot])
            two.give(rank, frames[2][rank][slot])
    packets = {port: [dissect(frame) for frame in drain(switch, port)] for port in range(4)}
    for ring, datas in ((one, left), (two, right)):
        for rank in range(2):
            mac = ring.endpoints[(rank + 1) % 2].mac.replace(":", "")
            mine = [p for p in packets[ring.port(rank + 1)] if p.frame[:6].tobytes().hex() == mac]
            assert b"".join(packet.payload for packet in mine)[INA_BYTES:] == total_of(datas)


def test_every_arrival_order_of_three_ranks_sums_right() -> None:
    """All 1,680 interleavings of three connections with three packets; in plain Python, the 90 of two packets."""
    slots, floats = (2, 124) if JIT_DISABLED else (3, FLOATS)
    ring = make_ring(3)
    spec = RingSpec(7, ring.endpoints, ring.geometry)
    datas = powers_of_ten(3, floats)
    frames = [ring.message(rank, 0, data) for rank, data in enumerate(datas)]
    orders = set(itertools.permutations([0, 1, 2] * slots))
    assert len(orders) == (90 if JIT_DISABLED else 1680)
    expected: list[list[bytes]] | None = None
    for order in orders:
        packets = [iter(of_rank) for of_rank in frames]
        for rank in order:
            ring.give(rank, next(packets[rank]))
        left = [[frame.tobytes() for frame in drain(ring.switch, rank)] for rank in range(3)]
        expected = expected or left
        assert left == expected
        ring.switch.unregister_ring(7)
        ring.switch.register_ring(spec)
    assert expected
    for of_rank in expected:
        body = b"".join(dissect(np.frombuffer(bytearray(frame), np.uint8)).payload for frame in of_rank)
        assert body[INA_BYTES:] == total_of(datas)
