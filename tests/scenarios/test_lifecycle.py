"""Rings and queue pairs come and go, several at a time, and some do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scenarios.scenario import DATA, LIMIT_PS, QUICK, SMALL, Scenario

from netreduce.errors import AdmissionError
from netreduce.soak.checkers import check, psns_are_free_of_gaps
from netreduce.switch import SwitchLimits
from netreduce.units import PS_PER_MS
from netreduce.wire.control import Geometry


def whole_numbers(count: int, ranks: int) -> list[np.ndarray]:
    return [np.arange(count, dtype=np.float32) * (rank + 1) for rank in range(ranks)]


def test_queue_pairs_are_destroyed_and_created_again_with_the_same_psns() -> None:
    scenario = Scenario().run()
    scenario.rig.close(scenario.ring)
    ring = scenario.rig.ring(SMALL, first_psns=scenario.first_psns, reliability=QUICK)
    arrays = whole_numbers(3000, 3)
    ring.all_reduce(arrays)
    scenario.rig.simulator.run_until(lambda: ring.done, limit_ps=LIMIT_PS)
    assert all(np.array_equal(array, np.arange(3000) * 6.0) for array in arrays)


def test_frames_of_a_destroyed_queue_pair_do_not_disturb_its_successor() -> None:
    scenario = Scenario()
    scenario.data_up(0).delay(2 * PS_PER_MS, opcode=DATA, every=2)
    scenario.rig.simulator.run_for(5_000_000)
    scenario.rig.close(scenario.ring)
    ring = scenario.rig.ring(SMALL, first_psns=scenario.first_psns, reliability=QUICK)
    arrays = whole_numbers(30000, 3)
    ring.all_reduce(arrays)
    scenario.rig.simulator.run_until(lambda: ring.done, limit_ps=LIMIT_PS)
    assert ring.errors == []
    assert all(np.array_equal(array, np.arange(30000, dtype=np.float32) * 6) for array in arrays)
    assert psns_are_free_of_gaps(scenario.rig) == []


def test_two_rings_interleave_on_the_same_hosts_with_losses() -> None:
    scenario = Scenario()
    other = scenario.rig.ring(Geometry(3, 2, 512), hosts=[2, 0, 1], first_psns=[7, 8, 9], reliability=QUICK)
    arrays = whole_numbers(4000, 3)
    other.all_reduce(arrays)
    scenario.rig.simulator.drop(probability=0.03)
    scenario.rig.simulator.run_until(lambda: other.done, limit_ps=LIMIT_PS)
    scenario.run()
    assert all(np.array_equal(array, np.arange(4000) * 6.0) for array in arrays)


def test_rings_over_different_hosts_do_not_touch_each_other() -> None:
    scenario = Scenario(4)
    pairs = [scenario.rig.ring(SMALL, hosts=hosts, reliability=QUICK) for hosts in ([0, 1], [3, 2], [1, 2])]
    groups = [whole_numbers(2000, 2) for _ in pairs]
    for ring, arrays in zip(pairs, groups, strict=True):
        ring.all_reduce(arrays)
    scenario.data_up(1).drop(every=7, times=9)
    scenario.rig.simulator.run_until(lambda: all(ring.done for ring in pairs), limit_ps=LIMIT_PS)
    scenario.run()
    for arrays in groups:
        assert all(np.array_equal(array, np.arange(2000) * 3.0) for array in arrays)


def test_a_ring_that_does_not_fit_is_refused_with_a_reason_and_others_go_on() -> None:
    scenario = Scenario(switch_limits=SwitchLimits(memory_bytes=64 * 1024))
    with pytest.raises(AdmissionError, match="memory"):
        scenario.rig.ring(Geometry(message_window=16, message_packets=256, path_mtu=4096))
    scenario.run()


def test_a_ring_of_two() -> None:
    scenario = Scenario(2)
    scenario.data_up(0).drop(every=5, times=6)  # for ever, each go-back of five packets would lose the same one
    scenario.result_down(1).drop(every=3, times=6)
    scenario.run()


def test_a_ring_of_twelve_with_losses_everywhere() -> None:
    scenario = Scenario(12)
    scenario.rig.simulator.drop(probability=0.01)
    scenario.run()


def test_the_same_faults_through_a_switch_that_only_forwards() -> None:
    """The transport owes nothing to the splice: the same queue pairs recover by themselves."""
    scenario = Scenario()
    scenario.rig.close(scenario.ring)
    ring = scenario.rig.ring(SMALL, splice=False, reliability=QUICK)
    results = [np.zeros_like(array) for array in scenario.arrays]
    ring.all_reduce(scenario.arrays, results=results)
    scenario.rig.simulator.drop(probability=0.05)
    scenario.rig.simulator.duplicate(probability=0.05)
    scenario.rig.simulator.reorder(2, probability=0.05)
    scenario.rig.simulator.run_until(lambda: ring.done, limit_ps=LIMIT_PS)
    scenario.rig.simulator.run_until_quiet(limit_ps=LIMIT_PS)
    assert check(scenario.rig) == []
    assert all(np.array_equal(results[rank], scenario.arrays[rank - 1]) for rank in range(3))
