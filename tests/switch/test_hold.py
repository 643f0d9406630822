"""The gap policy `hold`: slots leave in the order of their PSNs, and the sender of a missing packet gets a NAK."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.switch.switch_harness import Packet, Ring, make_ring, powers_of_ten, total_of

from netreduce.errors import ConfigurationError
from netreduce.switch import Switch
from netreduce.wire.ina import INA_BYTES
from netreduce.wire.opcodes import Opcode

NAK = 0x60


def holding_ring(size: int = 3) -> tuple[Ring, list[np.ndarray], list[list[np.ndarray]]]:
    ring = make_ring(size, gap_policy="hold")
    datas = powers_of_ten(size)
    return ring, datas, [ring.message(rank, 0, datas[rank]) for rank in range(size)]


def naks(packets: list[Packet]) -> list[int]:
    return [packet.psn for packet in packets if packet.opcode == Opcode.ACKNOWLEDGE and packet.fields.syndrome == NAK]


def sums(packets: list[Packet]) -> list[int]:
    return [packet.psn for packet in packets if packet.opcode != Opcode.ACKNOWLEDGE]


def test_slots_wait_for_an_earlier_one_and_then_leave_in_order() -> None:
    ring, datas, frames = holding_ring()
    later = [ring.message(rank, 1, datas[rank]) for rank in range(3)]
    for rank in range(3):
        ring.give(rank, frames[rank][0], *frames[rank][2 if rank == 1 else 1 :], *later[rank])
    assert [len(sums(ring.take(rank))) for rank in range(3)] == [1, 1, 1]
    ring.give(1, *frames[1])
    packets = [packet for packet in ring.take(1) if packet.opcode != Opcode.ACKNOWLEDGE]
    first = ring.first_psns[0]
    assert [packet.psn for packet in packets] == [(first + i) & 0xFFFFFF for i in range(1, 6)]
    assert b"".join(packet.payload for packet in packets[2:])[INA_BYTES:] == total_of(datas)


def test_the_sender_of_a_missing_packet_gets_one_nak_at_its_first_unacknowledged_psn() -> None:
    ring, datas, _ = holding_ring()
    ring.next_psns = list(ring.first_psns)  # the frames that were built are not sent
    ring.exchange(0, datas)
    frames = [ring.message(rank, 1, datas[rank]) for rank in range(3)]
    for rank in (0, 2):
        ring.give(rank, *frames[rank])
    ring.give(1, frames[1][0], frames[1][2])
    left = [ring.take(rank) for rank in range(3)]
    assert naks(left[1]) == [(ring.first_psns[1] + 3) & 0xFFFFFF], (
        "not the missing PSN: a NAK acknowledges all before it"
    )
    assert naks(left[0]) == naks(left[2]) == []
    assert ring.switch.ring_counters(7)["naks_sent"] == 1


def test_a_lost_first_packet_draws_a_nak_too() -> None:
    ring, _, frames = holding_ring()
    ring.give(0, *frames[0][1:])
    assert naks(ring.take(0)) == [ring.first_psns[0]]
    assert ring.switch.ring_counters(7)["drop_out_of_sequence"] == 2


def test_each_gap_draws_one_nak_as_from_a_receiver() -> None:
    """NAKs use up the sender's retries; if the go-back loses the packet again, that is left to its timer."""
    ring, _, frames = holding_ring()
    for _ in range(3):
        ring.give(0, frames[0][0], frames[0][2])
    assert len(naks(ring.take(0))) == 1
    ring.give(0, frames[0][1])
    later = ring.message(0, 1, powers_of_ten(3)[0])
    ring.give(0, later[0], later[2])
    assert len(naks(ring.take(0))) == 1


def test_packets_that_are_held_already_are_no_gap_when_a_go_back_loses_them_again() -> None:
    ring, _, frames = holding_ring()
    ring.give(0, frames[0][0], frames[0][2])
    ring.take(0)
    ring.give(0, frames[0][1])  # the rest of the go-back is lost
    ring.give(0, *ring.message(0, 1, powers_of_ten(3)[0]))
    assert naks(ring.take(0)) == []


def test_a_go_back_after_the_switchs_own_nak_is_not_told_to_wait() -> None:
    ring, _, frames = holding_ring()
    ring.give(0, frames[0][0], frames[0][2])
    ring.give(0, *frames[0])
    assert [int(packet.fields.syndrome) for packet in ring.take(0)] == [NAK]
    ring.give(0, *frames[0])
    assert [int(packet.fields.syndrome) for packet in ring.take(0)] == [0x20 | 14]


def test_a_replay_of_a_slot_that_is_complete_but_must_wait_is_not_answered_with_the_sum() -> None:
    ring, _, frames = holding_ring(2)
    ring.give(0, frames[0][0], frames[0][2])
    ring.give(1, *frames[1])
    ring.take(0)
    ring.take(1)
    ring.give(1, *frames[1])
    left = ring.take(0)
    assert sums(left) == [ring.first_psns[1]], "slot 0 has left; slot 2 is complete, but slot 1 is missing"


def test_a_replay_of_a_slot_that_has_left_is_answered() -> None:
    ring, _, frames = holding_ring(2)
    for rank in range(2):
        ring.give(rank, *frames[rank])
    expected = [packet.frame.tobytes() for packet in ring.take(1)]
    ring.give(0, *frames[0])
    assert [packet.frame.tobytes() for packet in ring.take(1)] == expected


@given(
    order=st.permutations([(rank, slot) for rank in range(3) for slot in range(6)]),
    lost=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=3),
)
def test_every_connection_sees_its_psns_in_order_whatever_was_lost(
    order: list[tuple[int, int]], lost: set[tuple[int, int]]
) -> None:
    """Two messages, any arrival order, some packets lost; then everything is sent once more, in order."""
    ring = make_ring(3, gap_policy="hold")
    datas = powers_of_ten(3)
    frames = [ring.message(rank, 0, datas[rank]) + ring.message(rank, 1, datas[rank]) for rank in range(3)]
    for rank, slot in order:
        if (rank, slot) not in lost:
            ring.give(rank, frames[rank][slot])
    received = [0, 0, 0]
    for again in (True, False):
        for rank in range(3):
            for psn in sums(ring.take(rank + 1)):
                ahead = (psn - ring.first_psns[rank]) & 0xFFFFFF
                assert ahead <= received[rank], "a receiver would see a gap"
                received[rank] = max(received[rank], ahead + 1)
        for rank in range(3):
            if again:
                ring.give(rank, *frames[rank])
    assert received == [6, 6, 6]
    assert ring.switch.ring_counters(7)["messages_aggregated"] == 2


def test_long_runs_cross_the_end_of_the_message_places_and_the_psn() -> None:
    ring = make_ring(2, gap_policy="hold", first_psns=(0xFFFFFE, 0xFFFFF0))
    for number in range(20):
        datas = [data + number for data in powers_of_ten(2)]
        assert ring.exchange(number, datas) == [total_of(datas)] * 2


def test_an_unknown_gap_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="gap_policy is 'wait', allowed are pass, hold"):
        Switch("s0", 2, gap_policy="wait")
