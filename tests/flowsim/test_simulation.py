"""Latencies, callbacks and closed forms of the event loop."""

import random

import numpy as np
import pytest

from netreduce.flowsim.checks import StalledError
from netreduce.flowsim.fabrics import leaf_spine
from netreduce.flowsim.flows import coupled, routed
from netreduce.flowsim.simulation import Simulation

RATE = 12.5e9


def ends_of(simulation: Simulation, *batches) -> list[list[float]]:
    ends: list[list[float]] = []
    for batch in batches:
        mine = [np.nan] * len(batch)
        ends.append(mine)

        def ended(positions, mine=mine):
            for position in positions.tolist():
                mine[position] = simulation.now_s

        simulation.start(batch, ended)
    simulation.run()
    return ends


def test_a_lone_flow_takes_its_latency_and_its_bytes_over_the_rate():
    assert ends_of(Simulation(np.array([RATE])), routed(np.array([[0]]), 1e6, 3e-6)) == [
        [pytest.approx(83e-6, rel=1e-12)]
    ]


def test_a_spliced_all_reduce_of_100_mb_through_one_switch_takes_8_002_ms_whatever_the_number_of_workers():
    for workers in (2, 8, 128):
        links = np.arange(2 * workers)
        [[end]] = ends_of(Simulation(np.full(2 * workers, RATE)), coupled(links, 100e6, 2e-6))
        assert end == pytest.approx(8.002e-3, rel=1e-12)


def test_50_mb_in_the_background_into_one_worker_slow_all_spliced_connections_to_12_002_ms():
    spliced = coupled(np.arange(16), 100e6, 2e-6)
    background = coupled(np.array([3, 8]), 50e6, 2e-6)
    [[end], [background_end]] = ends_of(Simulation(np.full(16, RATE)), spliced, background)
    assert end == pytest.approx(12.002e-3, rel=1e-12)
    assert background_end == pytest.approx(8.002e-3, rel=1e-12)


def test_an_incast_shares_the_last_link():
    routes = np.array([[sender, 9] for sender in range(9)])
    [ends] = ends_of(Simulation(np.full(10, RATE)), routed(routes, 1e6))
    assert ends == pytest.approx([9e6 / RATE] * 9, rel=1e-12)


def test_a_window_bounds_the_rate():
    [[end]] = ends_of(Simulation(np.array([RATE])), routed(np.array([[0]]), 1e6, bound=64e3 / 10e-6))
    assert end == pytest.approx(1e6 / 6.4e9, rel=1e-12)


def test_flows_that_start_from_a_callback_are_simulated_too():
    simulation = Simulation(np.array([RATE]))
    ends = []

    def again(_):
        ends.append(simulation.now_s)
        if len(ends) < 3:
            simulation.start(routed(np.array([[0]]), 12.5e6, 1e-3), again)

    simulation.start(routed(np.array([[0]]), 12.5e6, 1e-3), again)
    simulation.run()
    assert ends == pytest.approx([2e-3, 4e-3, 6e-3])


def test_an_empty_flow_takes_its_latency():
    assert ends_of(Simulation(np.array([RATE])), routed(np.array([[0]]), 0.0, 5e-6)) == [[5e-6]]


def test_a_flow_over_a_failed_link_is_an_error_instead_of_silence():
    simulation = Simulation(np.array([0.0]))
    simulation.start(routed(np.array([[0]]), 1.0), lambda _: None)
    with pytest.raises(StalledError, match="is a link down"):
        simulation.run()


def test_a_run_can_stop_in_the_middle_and_go_on():
    simulation = Simulation(np.array([RATE]))
    simulation.start(routed(np.array([[0]]), 12.5e6), lambda _: None)
    assert simulation.run(until_s=0.4e-3) == 0.4e-3
    assert simulation.run() == pytest.approx(1e-3)


def test_a_permutation_of_1024_hosts_with_seven_sizes_takes_207_12448_us_as_simgrid_says():
    """2-level fat tree, 1 us a link, spine = sink mod 32; SimGrid 3.32 (CM02) gives the same to all its digits."""
    fabric = leaf_spine(1024, 32, 32, capacity=RATE)
    hosts = list(range(1024))
    random.Random(1).shuffle(hosts)
    source, sink = np.arange(1024), np.array(hosts)
    routes = fabric.routes(source, sink)
    sizes = 97656.0 * (1 + source % 7)
    moved = source != sink
    flows = routed(routes[moved], sizes[moved], (1e-6 * (routes >= 0).sum(axis=1))[moved])
    assert max(ends_of(Simulation(fabric.links.capacity), flows)[0]) == pytest.approx(207.12448e-6, rel=1e-12)
