"""Hard conditions: heavy loss, partitions, stalls, tiny queues, every message size."""

from __future__ import annotations

import pytest
from tests.scenarios.scenario import QUICK, Scenario

from netreduce.fabric import EcnMarking
from netreduce.nic import NicLimits
from netreduce.soak.program import Reliability
from netreduce.switch import SwitchLimits
from netreduce.units import GBPS, PS_PER_MS, PS_PER_S, PS_PER_US
from netreduce.wire.control import Geometry

NAMED_STATUSES = {"IBV_WC_RETRY_EXC_ERR", "IBV_WC_WR_FLUSH_ERR"}


def lose(scenario: Scenario, percent: float) -> None:
    """Lose frames on all lines. Through more levels there are more on the way, among which the loss is divided.

    10 % on every line of three levels makes one run in ten exhaust seven retries, by name: inherent, and not a fault;
    with 5 % it happens now and then.
    """
    scenario.rig.simulator.drop(probability=percent / 100 / scenario.level_count)


@pytest.mark.parametrize("percent", [1, 5, 10])
def test_random_loss_on_every_line(percent: int, seed: int) -> None:
    scenario = Scenario(seed=seed)
    lose(scenario, percent)
    scenario.run()


@pytest.mark.parametrize("percent", [20, 50])
def test_under_heavy_loss_the_ring_finishes_or_fails_by_name(percent: int, seed: int) -> None:
    """At 20 % on four lossy hops about one run in forty exhausts seven retries: inherent, and not a fault."""
    scenario = Scenario(seed=seed)
    scenario.rig.simulator.drop(probability=percent / 100)
    simulator = scenario.rig.simulator
    while not scenario.ring.done and not scenario.ring.errors and simulator.now_ps < 10 * PS_PER_S:
        simulator.run_for(PS_PER_MS)
    assert scenario.ring.done or scenario.ring.errors
    assert {error.split(": ")[1] for error in scenario.ring.errors} <= NAMED_STATUSES
    frames = sum(line.counters()["frames"] for line in simulator.lines)
    assert frames < 200 * simulator.now_ps / PS_PER_MS + 2000, "the rate of retransmission has no bound"


def test_a_partition_shorter_than_the_retries_heals() -> None:
    scenario = Scenario()
    scenario.rig.simulator.run_for(3 * PS_PER_US)
    with scenario.rig.simulator.link(worker=1).partition():
        scenario.rig.simulator.run_for(4 * PS_PER_MS)
    scenario.run()


def test_a_partition_longer_than_the_retries_fails_the_neighbours_by_name() -> None:
    scenario = Scenario()
    scenario.rig.simulator.run_for(3 * PS_PER_US)
    scenario.rig.simulator.link(worker=1).partition()
    scenario.rig.simulator.run_for(100 * PS_PER_MS)
    assert scenario.ring.ranks[1].error == "IBV_WC_RETRY_EXC_ERR"


def test_a_line_that_carries_nothing_one_way_only_heals() -> None:
    scenario = Scenario()
    with scenario.result_down(0).partition():
        scenario.rig.simulator.run_for(3 * PS_PER_MS)
    scenario.run()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_stalled_line_goes_on_where_it_stopped(direction: str) -> None:
    scenario = Scenario()
    line = getattr(scenario.rig.simulator.link(worker=2), direction)
    scenario.rig.simulator.run_for(2 * PS_PER_US)
    line.stall(until_ps=2 * PS_PER_MS)
    scenario.run()


def test_egress_queues_of_the_switch_that_hold_three_packets_overflow_and_nothing_breaks() -> None:
    scenario = Scenario(4, switch_limits=SwitchLimits(egress_bytes=1024), quantum_ps=2 * PS_PER_US)
    scenario.run()
    assert scenario.switch("egress_drops") > 0


def test_a_nic_whose_egress_queue_holds_one_packet_sends_all_the_same() -> None:
    Scenario(nic_limits=NicLimits(egress_bytes=16 * 1024)).run()


@pytest.mark.parametrize("path_mtu", [256, 512, 1024, 2048, 4096])
def test_every_path_mtu_with_losses(path_mtu: int, seed: int) -> None:
    scenario = Scenario(geometry=Geometry(2, 4, path_mtu), seed=seed)
    lose(scenario, 5)
    scenario.run()


@pytest.mark.parametrize("message_packets", [1, 2, 33])
def test_messages_of_one_two_and_many_packets_with_losses(message_packets: int, seed: int) -> None:
    scenario = Scenario(geometry=Geometry(2, message_packets, 256), elements=2000, seed=seed)
    lose(scenario, 5)
    scenario.run()


@pytest.mark.parametrize("message_window", [1, 3, 16])
def test_windows_of_one_three_and_many_messages_with_losses(message_window: int, seed: int) -> None:
    scenario = Scenario(geometry=Geometry(message_window, 2, 256), elements=4000, seed=seed)
    lose(scenario, 5)
    scenario.run()


@pytest.mark.parametrize("elements", [0, 1, 60, 61, 124, 125, 252, 253])
def test_lengths_around_the_borders_of_packets_and_messages(elements: int) -> None:
    scenario = Scenario(elements=elements)
    scenario.data_up(0).drop(nth=1)
    scenario.result_down(1).drop(nth=1)
    scenario.run()


def test_a_slow_long_link_with_losses() -> None:
    scenario = Scenario(rate_bps=GBPS, delay_ps=2 * PS_PER_MS, reliability=Reliability(timeout=12))
    scenario.rig.simulator.drop(probability=0.02)
    scenario.run()


def test_ecn_marks_change_no_sum() -> None:
    scenario = Scenario(ecn=EcnMarking(0, 0))
    scenario.run()


def test_the_quick_timer_of_these_scenarios_is_what_the_specification_says() -> None:
    scenario = Scenario(reliability=QUICK)
    scenario.data_up(2).drop(psn=scenario.psn(2, 5, 1))
    scenario.run()
    assert 2**8 * 4_096_000 < scenario.rig.simulator.now_ps < 4 * 2**8 * 4_096_000 + 20 * PS_PER_US
