"""Duplicates, reordering, delay, and sequence numbers that wrap."""

from __future__ import annotations

import pytest
from tests.scenarios.scenario import DATA, Scenario

from netreduce.units import PS_PER_MS, PS_PER_US
from netreduce.wire.opcodes import Opcode


@pytest.mark.parametrize("packet", [0, 2, 3], ids=["first", "middle", "last"])
def test_a_data_packet_arrives_twice(packet: int) -> None:
    scenario = Scenario()
    scenario.data_up(1).duplicate(psn=scenario.psn(1, 1, packet))
    scenario.run()


def test_every_frame_everywhere_arrives_twice() -> None:
    scenario = Scenario()
    scenario.rig.simulator.duplicate()
    scenario.run()


def test_a_result_arrives_twice_and_draws_a_duplicate_acknowledgement() -> None:
    scenario = Scenario()
    scenario.result_down(0).duplicate(3, psn=scenario.psn(0, 2, 1))
    scenario.run()
    assert scenario.nic(1, "duplicate_request") == 3


def test_a_nak_arrives_twice() -> None:
    scenario = Scenario()
    scenario.result_down(0).drop(psn=scenario.psn(0, 2, 1))
    scenario.answer_down(0).duplicate(
        where=lambda frame: frame.packet is not None and int(frame.packet.syndrome) == 0x60
    )
    scenario.run()


@pytest.mark.parametrize("by", [1, 2, 5])
def test_a_data_packet_is_overtaken(by: int) -> None:
    scenario = Scenario()
    scenario.data_up(2).reorder(by, psn=scenario.psn(2, 1, 1))
    scenario.run()


@pytest.mark.parametrize("by", [1, 4])
def test_the_first_packet_of_a_message_is_overtaken(by: int) -> None:
    scenario = Scenario()
    scenario.data_up(2).reorder(by, psn=scenario.psn(2, 1, 0))
    scenario.run()


def test_a_result_is_overtaken() -> None:
    scenario = Scenario()
    scenario.result_down(2).reorder(2, psn=scenario.psn(2, 1, 1))
    scenario.run()


def test_acknowledgements_overtake_one_another() -> None:
    scenario = Scenario()
    for rank in range(3):
        scenario.answer_up(rank).reorder(1, every=3, opcode=Opcode.ACKNOWLEDGE)
    scenario.run()


def test_a_data_packet_is_late_beyond_the_retransmission_timer() -> None:
    scenario = Scenario()
    scenario.data_up(0).delay(5 * PS_PER_MS, psn=scenario.psn(0, 1, 1))
    scenario.run()


def test_a_stale_copy_arrives_after_its_slot_was_taken_over() -> None:
    """Slots are reused after 2 N = 4 messages: the copy of a packet of message 0 comes during message 4 or 5."""
    scenario = Scenario(elements=40 * 252)
    psn = scenario.psn(1, 0, 1)
    scenario.data_up(1).duplicate(after_ps=12 * PS_PER_US, psn=psn)
    scenario.run()
    assert scenario.switch("stale_passed") > 0
    assert scenario.nic(2, "duplicate_request") == 1


def test_a_stale_result_arrives_messages_later() -> None:
    scenario = Scenario(elements=40 * 252)
    scenario.result_down(1).duplicate(after_ps=12 * PS_PER_US, psn=scenario.psn(1, 0, 1))
    scenario.run()
    assert scenario.nic(2, "duplicate_request") == 1


def test_a_stale_acknowledgement_changes_nothing() -> None:
    scenario = Scenario(elements=40 * 252)
    scenario.answer_down(1).delay(20 * PS_PER_US, nth=2, opcode=Opcode.ACKNOWLEDGE)
    scenario.run()


def test_psns_wrap_inside_a_message() -> None:
    Scenario(first_psns=[0xFFFFFE, 0xFFFFFD, 0xFFFFFF]).run()


@pytest.mark.parametrize("packet", range(4))
def test_a_loss_where_psns_wrap(packet: int) -> None:
    scenario = Scenario(first_psns=[0xFFFFFE, 0xFFFFF9, 0xFFFFF5])
    scenario.data_up(0).drop(psn=scenario.psn(0, 0, packet))
    scenario.result_down(1).drop(psn=scenario.psn(1, 1, packet))
    scenario.answer_up(2).drop(every=2, opcode=Opcode.ACKNOWLEDGE)
    scenario.run()


def test_everything_everywhere_is_reordered_and_delayed_by_chance(seed: int) -> None:
    scenario = Scenario(seed=seed)
    scenario.rig.simulator.reorder(2, probability=0.05)
    scenario.rig.simulator.delay(7 * PS_PER_US, probability=0.05)
    scenario.run()


def test_data_packets_of_one_rank_arrive_backwards_by_pairs() -> None:
    scenario = Scenario()
    scenario.data_up(1).reorder(1, every=2, opcode=DATA, times=6)
    scenario.run()
