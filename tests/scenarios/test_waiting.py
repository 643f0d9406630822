"""Waiting: for a rank that is late, and for a receiver that is not ready."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scenarios.scenario import LIMIT_PS, SMALL, Scenario

from netreduce.soak.program import Reliability
from netreduce.soak.rig import Rig, RigSettings
from netreduce.units import PS_PER_MS, PS_PER_S

ALL_RETRIES_PS = 8 * 1_049 * 1_000_000
"""What QUICK's timer and retry count allow: (7 + 1) times 4.096 us x 2^8."""


@pytest.mark.parametrize("late", [[2], [0, 1]], ids=["one", "two"])
@pytest.mark.parametrize("delay_ps", [3 * PS_PER_MS, 10 * ALL_RETRIES_PS, PS_PER_S], ids=["3ms", "80ms", "1s"])
def test_a_straggler_longer_than_all_retries_together_fails_nobody(late: list[int], delay_ps: int) -> None:
    scenario = Scenario()
    for rank in late:
        scenario.ring.ranks[rank].paused = True
    scenario.rig.simulator.run_for(delay_ps)
    assert scenario.ring.errors == []
    waiting = scenario.rig.plane.waiting(scenario.rig.simulator.now_ps, PS_PER_MS)
    assert all(entry.missing_ranks == tuple(late) for entry in waiting)
    assert waiting
    for rank in late:
        scenario.ring.ranks[rank].paused = False
    begun_ps = scenario.rig.simulator.now_ps
    scenario.run()
    assert scenario.rig.simulator.now_ps - begun_ps < 3 * QUICK_WAIT_PS
    assert scenario.switch("rnr_sent") > 0


QUICK_WAIT_PS = 164 * PS_PER_MS
"""The longest that a sender waits after the switch's RNR NAK if nothing tells it of progress."""


def test_a_rank_that_stops_in_mid_message_is_waited_for() -> None:
    scenario = Scenario()
    rule = scenario.data_up(1).drop(where=lambda frame: int(frame.packet.psn) >= scenario.psn(1, 1, 2))
    scenario.rig.simulator.run_for(5 * PS_PER_MS)
    rule.remove()
    scenario.run()


def test_a_straggler_and_a_loss_at_the_same_time() -> None:
    scenario = Scenario()
    scenario.ring.ranks[2].paused = True
    scenario.data_up(0).drop(psn=scenario.psn(0, 0, 1))
    scenario.result_down(1).drop(psn=scenario.psn(1, 0, 2))
    scenario.rig.simulator.run_for(50 * PS_PER_MS)
    scenario.ring.ranks[2].paused = False
    scenario.run()


def test_the_rnr_nak_of_the_switch_is_lost() -> None:
    scenario = Scenario()
    scenario.ring.ranks[0].paused = True
    for rank in (1, 2):
        scenario.answer_down(rank).drop(
            where=lambda frame: frame.packet is not None and int(frame.packet.syndrome) & 0xE0 == 0x20, times=2
        )
    scenario.rig.simulator.run_for(20 * PS_PER_MS)
    assert scenario.ring.errors == []
    scenario.ring.ranks[0].paused = False
    scenario.run()


def test_a_receiver_without_receives_is_waited_for_through_the_splice() -> None:
    scenario = Scenario()
    scenario.ring.ranks[1].withholding = True
    scenario.rig.simulator.run_for(20 * PS_PER_MS)
    assert scenario.nic(1, "out_of_buffer") > 0
    assert scenario.ring.errors == []
    scenario.ring.ranks[1].withholding = False
    scenario.run()


@pytest.mark.parametrize(("rnr_retry", "naks"), [(0, 1), (3, 4)])
def test_rnr_retries_run_out_and_say_so(rnr_retry: int, naks: int) -> None:
    scenario = Scenario(reliability=Reliability(timeout=8, rnr_retry=rnr_retry))
    scenario.rig.close(scenario.ring)
    ring = scenario.rig.ring(SMALL, splice=False, reliability=Reliability(timeout=8, rnr_retry=rnr_retry))
    ring.all_reduce(scenario.arrays, results=[array.copy() for array in scenario.arrays])
    ring.ranks[1].withholding = True
    scenario.rig.simulator.run_for(50 * PS_PER_MS)
    assert ring.ranks[0].error == "IBV_WC_RNR_RETRY_EXC_ERR"
    assert scenario.nic(0, "rnr_nak_retry_err") == naks
    assert scenario.nic(1, "out_of_buffer") == naks


def test_rnr_retry_7_waits_for_ever() -> None:
    rig = Rig(RigSettings(2))
    ring = rig.ring(SMALL, splice=False, reliability=Reliability(timeout=8, rnr_retry=7, min_rnr_timer=12))  # 0.64 ms
    arrays = [np.ones(1000, np.float32) for _ in range(2)]
    ring.all_reduce(arrays, results=[array.copy() for array in arrays])
    ring.ranks[1].withholding = True
    rig.simulator.run_for(50 * PS_PER_MS)
    assert ring.errors == []
    assert rig.nics[0].counters()["rnr_nak_retry_err"] > 50
    ring.ranks[1].withholding = False
    rig.simulator.run_until(lambda: ring.done, limit_ps=LIMIT_PS)
    assert ring.errors == []
