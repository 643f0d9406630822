"""Frames that are damaged or lie: dropped with a reason and a counter, and the sums are right all the same."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scenarios.scenario import DATA, LIMIT_PS, Scenario, forge

from netreduce.fabric import SeenFrame
from netreduce.wire.frames import queue_put
from netreduce.wire.ina import DataType
from netreduce.wire.opcodes import Opcode


@pytest.mark.parametrize("packet", [0, 1, 3], ids=["first", "middle", "last"])
def test_a_flipped_payload_bit_is_caught_by_the_switch(packet: int) -> None:
    scenario = Scenario()
    scenario.data_up(1).corrupt(8 * 120 + 5, psn=scenario.psn(1, 1, packet))
    scenario.run()
    assert scenario.switch("drop_bad_icrc") == 1


def test_a_flipped_bit_of_a_result_is_caught_by_the_next_that_gets_it() -> None:
    scenario = Scenario()
    scenario.result_down(1).corrupt(-40, psn=scenario.psn(1, 1, 1))
    scenario.run()
    assert scenario.nic(2, "rx_icrc_encapsulated") + scenario.switch("drop_bad_icrc") == 1
    assert scenario.switch("drop_bad_icrc") == scenario.crosses(1)


def test_a_flipped_bit_of_the_icrc_itself_is_caught() -> None:
    scenario = Scenario()
    scenario.data_up(0).corrupt(-1, psn=scenario.psn(0, 0, 0))
    scenario.run()
    assert scenario.switch("drop_bad_icrc") == 1


def test_a_flipped_bit_of_an_acknowledgement_is_caught() -> None:
    scenario = Scenario()
    scenario.answer_up(1).corrupt(8 * 52, nth=1, opcode=Opcode.ACKNOWLEDGE)  # in its PSN
    scenario.run()
    assert scenario.nic(1, "rx_icrc_encapsulated") == 1


@pytest.mark.parametrize("bit", range(0, 8 * 70, 7))
def test_any_flipped_header_bit_is_survived(bit: int) -> None:
    scenario = Scenario()
    scenario.data_up(1).corrupt(bit, psn=scenario.psn(1, 1, 0))
    scenario.run()


@pytest.mark.parametrize("length", [1, 13, 14, 33, 42, 50, 58, 200])
def test_a_truncated_data_packet_is_dropped(length: int) -> None:
    scenario = Scenario()
    scenario.data_up(2).truncate(length, psn=scenario.psn(2, 1, 2))
    scenario.run()


def test_a_truncated_result_is_dropped_by_the_nic() -> None:
    scenario = Scenario()
    scenario.result_down(2).truncate(100, psn=scenario.psn(2, 1, 2))
    scenario.run()
    assert scenario.nic(0, "drop_truncated") + scenario.nic(0, "drop_bad_length") == 1


LIES = {
    "ring": (0, b"\x00\x09"),
    "rank": (2, b"\x00\x02"),
    "message": (4, b"\x00\x00\x00\x07"),
    "length": (8, b"\x00\x10\x00\x00"),
    "dtype": (12, b"\xee"),
    "op": (13, b"\x00"),
    "version": (14, b"\x02"),
    "flags": (15, b"\x80"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_valid_icrc_over_a_lying_ina_header_is_refused(lie: str) -> None:
    scenario = Scenario()
    scenario.data_up(1).alter(lambda frame: forge(frame, *LIES[lie]), psn=scenario.psn(1, 1, 0))
    scenario.run()
    assert scenario.switch("drop_bad_ina_header") == 1


def test_ranks_that_disagree_fail_their_ring_with_a_notice_that_names_both() -> None:
    scenario = Scenario()
    scenario.data_up(1).alter(lambda frame: forge(frame, 12, bytes([DataType.INT32])), psn=scenario.psn(1, 1, 0))
    scenario.rig.simulator.run_for(LIMIT_PS // 100)
    (notice,) = scenario.rig.plane.notices()
    scenario.rig.simulator.run_for(LIMIT_PS // 100)
    assert scenario.rig.plane.notices() == []
    assert {notice.rank_a, notice.rank_b} >= {1}
    assert notice.message_id == 1
    assert {notice.description_a.split()[0], notice.description_b.split()[0]} == {"float32", "int32"}
    assert scenario.ring.errors == [f"rank {rank}: IBV_WC_RETRY_EXC_ERR" for rank in range(3)]
    assert scenario.switch("drop_ring_failed") > 0


def test_a_sender_that_ignores_its_window_is_refused_and_spoils_no_sum() -> None:
    """Message 4 would take over the place of message 0, which rank 2 has not finished: its sums stay what they were."""
    scenario = Scenario(elements=12 * 252)
    scenario.ring.ranks[1].window = 8
    scenario.result_down(1).drop(opcode=DATA, times=30)
    scenario.run()
    assert scenario.switch("drop_bad_ina_header") > 0


def test_a_frame_from_a_port_that_does_not_own_its_address_is_not_aggregated() -> None:
    scenario = Scenario()
    stolen: list[bytes] = []

    def copy(frame: SeenFrame) -> bool:
        if not stolen:
            stolen.append(frame.data.tobytes())
        return False

    scenario.data_up(1).drop(opcode=DATA, where=copy)
    scenario.rig.simulator.run_for(2_000_000)
    egress = scenario.rig.nics[2].egress(0)
    queue_put(egress.data, egress.state[0], np.frombuffer(stolen[0], np.uint8).copy(), scenario.rig.simulator.now_ps)
    scenario.run()
    assert scenario.switch("drop_wrong_port") == 1
