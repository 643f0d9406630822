"""Losses of data, results and answers, one at a time: the sums are right to the bit and every queue pair survives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.scenarios.scenario import DATA, Scenario

from netreduce.fabric import Recording
from netreduce.wire.opcodes import Opcode


def test_without_faults_nothing_is_sent_twice() -> None:
    scenario = Scenario().run()
    assert scenario.nics("retransmitted_pkts") == scenario.nics("naks_sent") == 0
    assert scenario.switch("replays") == scenario.switch("rnr_sent") == 0


@pytest.mark.parametrize("packet", [0, 1, 2, 3], ids=["first", "second", "third", "last"])
@pytest.mark.parametrize("message", [0, 3])
def test_one_packet_of_a_message_is_lost(message: int, packet: int) -> None:
    scenario = Scenario()
    scenario.data_up(1).drop(psn=scenario.psn(1, message, packet))
    scenario.run()
    assert scenario.nic(1, "retransmitted_pkts") > 0


def test_the_last_packet_of_all_is_lost() -> None:
    scenario = Scenario()
    scenario.data_up(2).drop(psn=scenario.psn(2, 5, 1))
    scenario.run()
    assert scenario.nic(2, "local_ack_timeout_err") > 0


def test_a_whole_message_is_lost() -> None:
    scenario = Scenario()
    for packet in range(4):
        scenario.data_up(0).drop(psn=scenario.psn(0, 2, packet))
    scenario.run()


def test_first_packets_of_two_messages_in_flight_are_lost() -> None:
    scenario = Scenario()
    scenario.data_up(0).drop(psn=scenario.psn(0, 0))
    scenario.data_up(0).drop(psn=scenario.psn(0, 1))
    scenario.run()
    assert scenario.switch("drop_out_of_sequence") > 0


def test_the_retransmission_is_lost_too() -> None:
    scenario = Scenario()
    scenario.data_up(1).drop(psn=scenario.psn(1, 1, 2), times=3)
    scenario.run()


def test_two_ranks_lose_the_same_packet() -> None:
    scenario = Scenario()
    for rank in (0, 2):
        scenario.data_up(rank).drop(psn=scenario.psn(rank, 1, 1))
    scenario.run()


def test_every_rank_loses_another_packet() -> None:
    scenario = Scenario(4)
    for rank in range(4):
        scenario.data_up(rank).drop(psn=scenario.psn(rank, 1, rank))
    scenario.run()


def test_every_packet_is_lost_once() -> None:
    scenario = Scenario()
    for rank in range(3):
        for packet in range(22):
            scenario.data_up(rank).drop(psn=scenario.psn(rank, 0, packet))
    scenario.run()


@pytest.mark.parametrize("packet", [0, 2, 3], ids=["first", "middle", "last"])
def test_a_result_is_lost_towards_one_successor(packet: int) -> None:
    scenario = Scenario()
    scenario.result_down(1).drop(psn=scenario.psn(1, 1, packet))
    scenario.run()
    assert scenario.nic(1, "retransmitted_pkts") > 0
    assert scenario.switch("replays") > 0


def test_a_result_is_lost_towards_all_successors() -> None:
    scenario = Scenario()
    for rank in range(3):
        scenario.result_down(rank).drop(psn=scenario.psn(rank, 2, 1))
    scenario.run()
    assert scenario.switch("replays") >= 3


def test_the_replayed_result_is_lost_too() -> None:
    scenario = Scenario()
    scenario.result_down(0).drop(psn=scenario.psn(0, 1, 3), times=4)
    scenario.run()


def test_the_very_last_result_is_lost() -> None:
    scenario = Scenario()
    scenario.result_down(0).drop(psn=scenario.psn(0, 5, 1))
    scenario.run()
    assert scenario.nic(0, "local_ack_timeout_err") > 0


def test_a_replay_of_a_complete_slot_is_answered_on_its_own_connection_only() -> None:
    scenario = Scenario()
    scenario.result_down(1).drop(psn=scenario.psn(1, 5, 1))  # nothing follows: only the timer finds out
    recording = Recording()
    scenario.rig.simulator.tap(recording, [scenario.result_down(0), scenario.result_down(2)])
    scenario.run()
    sums = [frame for frame in recording.frames() if frame.data[42] in DATA]
    assert len(sums) == 2 * 22
    replays, again = scenario.switch("replays"), scenario.nic(1, "retransmitted_pkts")
    assert 0 < again <= replays <= again * (2 * scenario.level_count - 1)


def test_a_replay_starts_in_the_middle_of_the_message_before_the_newest() -> None:
    """Both messages of the window are out when the loss is noticed, so go-back-N starts in the older one."""
    scenario = Scenario()
    scenario.at_core = False  # there a switch that holds back would notice too soon
    scenario.result_down(1).drop(psn=scenario.psn(1, 2, 2))
    psns = []
    scenario.data_up(1).drop(opcode=DATA, where=lambda frame: bool(psns.append(int(frame.packet.psn))))
    scenario.run()
    back = [(before, after) for before, after in pairwise(psns) if after <= before]
    assert back[0][1] == scenario.psn(1, 2, 2)
    assert back[0][0] >= scenario.psn(1, 3)


def test_one_acknowledgement_is_lost() -> None:
    scenario = Scenario()
    scenario.answer_down(0).drop(nth=1, opcode=Opcode.ACKNOWLEDGE)
    scenario.run()


@pytest.mark.parametrize("every", [2, 3, 5])
def test_every_kth_acknowledgement_is_lost(every: int) -> None:
    scenario = Scenario()
    for rank in range(3):
        scenario.answer_up(rank).drop(every=every, opcode=Opcode.ACKNOWLEDGE)
    scenario.run()


def test_the_last_acknowledgement_is_lost() -> None:
    scenario = Scenario()
    last = scenario.psn(2, 5, 1)
    scenario.answer_down(2).drop(psn=last, opcode=Opcode.ACKNOWLEDGE)
    scenario.run()
    assert scenario.nic(0, "duplicate_request") > 0


def test_all_acknowledgements_are_lost_for_a_while() -> None:
    scenario = Scenario()
    rules = [scenario.answer_down(rank).drop(opcode=Opcode.ACKNOWLEDGE) for rank in range(3)]
    scenario.rig.simulator.run_for(3_000_000_000)
    assert not scenario.ring.done
    for rule in rules:
        rule.remove()
    scenario.run()


def test_the_sequence_nak_is_lost() -> None:
    scenario = Scenario()
    scenario.result_down(1).drop(psn=scenario.psn(1, 1, 1))
    nak = scenario.answer_down(1).drop(
        where=lambda frame: frame.packet is not None and int(frame.packet.syndrome) == 0x60, times=1
    )
    scenario.run()
    assert nak.struck == 1
    assert scenario.nic(1, "local_ack_timeout_err") > 0


def test_data_results_and_answers_are_lost_at_once() -> None:
    scenario = Scenario()
    scenario.data_up(0).drop(psn=scenario.psn(0, 1, 1))
    scenario.result_down(1).drop(psn=scenario.psn(1, 1, 2))
    scenario.answer_up(2).drop(nth=2, opcode=Opcode.ACKNOWLEDGE)
    scenario.run()
