"""The network of classes has the same times and loads as the network itself."""

import numpy as np
import pytest

from netreduce.flowsim.cluster import Cluster, Inside
from netreduce.flowsim.fabrics import FatTree, leaf_spine
from netreduce.flowsim.flows import concatenated, coupled, routed
from netreduce.flowsim.simulation import Simulation
from netreduce.flowsim.symmetry import collapse


def run(flows, capacity):
    simulation = Simulation(capacity)
    ends = np.zeros(len(flows))

    def ended(positions):
        ends[positions] = simulation.now_s

    simulation.start(flows, ended)
    simulation.run()
    return ends, simulation.fluid.carried_bytes


def same(flows, capacity) -> int:
    collapsed = collapse(flows, capacity)
    ends, carried = run(flows, capacity)
    few_ends, few_carried = run(collapsed.flows, collapsed.capacity)
    assert few_ends[collapsed.flow_class] == pytest.approx(ends, rel=1e-9)
    assert collapsed.per_link(few_carried) == pytest.approx(carried, rel=1e-9)
    return len(collapsed.flows)


def test_a_ring_step_of_64_workers_has_a_flow_class_for_each_kind_of_hop():
    cluster = Cluster(leaf_spine(64, 8, 8, capacity=12.5e9))
    source = np.arange(64)
    routes = cluster.routes(source, (source + 1) % 64)
    assert same(routed(routes, 1e6, cluster.latency_s(routes)), cluster.links.capacity) == 2


@pytest.mark.parametrize("seed", range(12))
def test_shifts_and_mixtures_on_many_fabrics_collapse_without_changing_a_time(seed):
    generator = np.random.default_rng(seed)
    fabric = (
        leaf_spine(32, 8, int(generator.choice([2, 4, 8])), capacity=10.0)
        if seed % 2
        else FatTree(32, 8, capacity=10.0)
    )
    cluster = Cluster(fabric, Inside(int(generator.choice([1, 4])), 40.0))
    ranks = cluster.worker_count
    source = np.arange(ranks)
    batches = []
    for _ in range(3):
        routes = cluster.routes(source, (source + int(generator.integers(1, ranks))) % ranks)
        size = generator.choice([1.0, 2.0]) * (1 + source % int(generator.choice([1, 2, 4])))
        batches.append(routed(routes, size.astype(float), cluster.latency_s(routes), use=1.08))
    tree = cluster.tree(source[:: cluster.inside.workers], 0)
    batches.append(coupled(np.concatenate((tree.up, tree.down)), 5.0))
    assert same(concatenated(batches), cluster.links.capacity) < ranks * 3


@pytest.mark.parametrize("seed", range(4))
def test_random_flows_do_not_collapse_and_keep_their_times(seed):
    generator = np.random.default_rng(seed)
    routes = np.stack([generator.permutation(12)[:3] for _ in range(20)])
    flows = routed(routes, generator.uniform(1, 9, 20))
    assert same(flows, generator.uniform(1, 9, 12)) == 20
