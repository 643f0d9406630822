"""Routes are what D-mod-K says, failures are routed around, and trees join every member once."""

import itertools

import numpy as np
import pytest

from netreduce.errors import ConfigurationError
from netreduce.flowsim.cluster import Cluster, Inside
from netreduce.flowsim.fabrics import Fabric, FatTree, leaf_spine, rail_optimised, single_switch
from netreduce.flowsim.links import Change

RATE = 12.5e9


def names(fabric: Fabric | Cluster, source: int, sink: int) -> list[str]:
    [route] = fabric.routes(np.array([source]), np.array([sink]))
    return [fabric.links.names[link] for link in route if link >= 0]


def all_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    source, sink = np.divmod(np.arange(count * count), count)
    return source[source != sink], sink[source != sink]


def assert_connected(fabric: Fabric | Cluster, source: np.ndarray, sink: np.ndarray, start: str, end: str) -> None:
    """Every route begins at its source, ends at its sink, and each link starts where the one before ends."""
    for a, b, route in zip(source, sink, fabric.routes(source, sink), strict=True):
        hops = [fabric.links.names[link].split("->") for link in route if link >= 0]
        assert hops[0][0] == f"{start}{a}"
        assert hops[-1][1] == f"{end}{b}"
        assert all(before[1] == after[0] for before, after in itertools.pairwise(hops)), hops


@pytest.mark.parametrize(
    "fabric",
    [
        single_switch(6, capacity=RATE),
        leaf_spine(12, 4, 3, capacity=RATE),
        leaf_spine(10, 4, 2, capacity=RATE),
        rail_optimised(6, 2, 2, 3, capacity=RATE),
        FatTree(16, 4, capacity=RATE),
        FatTree(13, 4, capacity=RATE),
    ],
)
def test_routes_lead_from_every_endpoint_to_every_other(fabric):
    assert_connected(fabric, *all_pairs(fabric.endpoint_count), "host", "host")


def test_the_spine_is_the_destination_modulo_the_spines():
    fabric = leaf_spine(16, 4, 4, capacity=RATE)
    assert names(fabric, 1, 14) == ["host1->leaf0", "leaf0->spine2", "spine2->leaf3", "leaf3->host14"]
    assert names(fabric, 12, 14) == ["host12->leaf3", "leaf3->host14"]


@pytest.mark.parametrize("fabric", [leaf_spine(64, 8, 8, capacity=RATE), FatTree(128, 8, capacity=RATE)])
def test_a_shift_of_all_ranks_meets_no_other_flow_on_a_full_fabric(fabric):
    source = np.arange(fabric.endpoint_count)
    for distance in (1, 3, 8, 17, fabric.endpoint_count // 2):
        routes = fabric.routes(source, (source + distance) % fabric.endpoint_count)
        assert np.bincount(routes[routes >= 0]).max() == 1


def test_a_failed_uplink_is_routed_around_in_both_directions():
    fabric = leaf_spine(16, 4, 4, capacity=RATE)
    fabric.change([Change("leaf0--spine2", factor=0.0)])
    assert "leaf0->spine3" in names(fabric, 1, 14)
    assert "spine3->leaf0" in names(fabric, 14, 2)
    assert_connected(fabric, *all_pairs(16), "host", "host")


def test_a_fat_tree_routes_around_failed_links_of_both_levels():
    fabric = FatTree(16, 4, capacity=RATE)
    fabric.change([Change("edge0--agg0", factor=0.0), Change("agg1--core2", factor=0.0)])
    source, sink = all_pairs(16)
    routes = fabric.routes(source, sink)
    assert fabric.links.capacity[routes[routes >= 0]].min() > 0
    assert_connected(fabric, source, sink, "host", "host")
    assert fabric.links.capacity[fabric.tree(np.arange(16), 0).up].min() > 0


def test_a_pattern_without_a_link_is_an_error():
    with pytest.raises(ConfigurationError, match=r"no link matches 'leaf9->\*'"):
        leaf_spine(16, 4, 4, capacity=RATE).change([Change("leaf9->*", factor=0.5)])


def test_rails_keep_equal_workers_under_one_leaf():
    fabric = rail_optimised(8, 4, 8, 4, capacity=RATE)
    cluster = Cluster(fabric, Inside(4), ports_per_machine=4)
    assert names(cluster, 1, 29) == ["host1->leaf1", "leaf1->host29"]
    assert len(names(cluster, 1, 30)) == 4


def test_workers_of_a_machine_meet_inside_and_share_its_port():
    cluster = Cluster(leaf_spine(4, 2, 2, capacity=RATE), Inside(4))
    assert names(cluster, 1, 2) == ["gpu1->inside0", "inside0->gpu2"]
    assert names(cluster, 3, 4) == ["host0->leaf0", "leaf0->host1"]
    assert names(cluster, 3, 15) == ["host0->leaf0", "leaf0->spine1", "spine1->leaf1", "leaf1->host3"]


def test_mixed_batches_keep_each_flows_own_route():
    cluster = Cluster(leaf_spine(4, 2, 2, capacity=RATE), Inside(2))
    source, sink = all_pairs(8)
    batch = cluster.routes(source, sink)
    for a, b, route in zip(source, sink, batch, strict=True):
        assert [cluster.links.names[link] for link in route if link >= 0] == names(cluster, int(a), int(b))


def test_a_tree_over_two_leaves_has_one_connection_a_leaf_to_its_spine():
    fabric = leaf_spine(12, 4, 3, capacity=RATE, latency_s=1e-6)
    tree = fabric.tree(np.array([0, 1, 2, 5]), 4)
    assert [fabric.links.names[link] for link in tree.up] == [
        *(f"host{h}->leaf{h // 4}" for h in (0, 1, 2, 5)),
        "leaf0->spine1",
        "leaf1->spine1",
    ]
    assert tree.up_members.tolist() == [1, 1, 1, 1, 3, 1]
    assert tree.ports == {"leaf0": 3, "leaf1": 1, "spine1": 2}
    assert tree.latency_s == pytest.approx(4e-6)
    assert tree.levels == 2


def test_a_tree_within_a_leaf_needs_no_spine():
    tree = leaf_spine(12, 4, 3, capacity=RATE).tree(np.array([4, 5, 5]), 0)
    assert tree.ports == {"leaf1": 3}
    assert tree.up_members.tolist() == [1, 2]


def test_a_tree_over_pods_joins_edges_then_pods():
    fabric = FatTree(16, 4, capacity=RATE, latency_s=1e-6)
    tree = fabric.tree(np.arange(8), 0)
    assert tree.ports == {f"edge{e}": 2 for e in range(4)} | {"agg0": 2, "agg2": 2, "core0": 2}
    assert tree.up_members.tolist() == [1] * 8 + [2] * 4 + [4] * 2
    assert tree.latency_s == pytest.approx(6e-6)


def test_a_ring_whose_leaves_no_common_spine_reaches_is_refused():
    fabric = leaf_spine(8, 4, 2, capacity=RATE)
    fabric.change([Change("leaf0--spine0", factor=0.0), Change("leaf1--spine1", factor=0.0)])
    with pytest.raises(ConfigurationError, match="no spine reaches all"):
        fabric.tree(np.arange(8), 0)


def test_ports_that_do_not_divide_the_workers_are_refused():
    with pytest.raises(ConfigurationError, match="must divide"):
        Cluster(single_switch(6, capacity=RATE), Inside(4), ports_per_machine=3)
