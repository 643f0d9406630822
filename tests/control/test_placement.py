"""Rings on trees of switches: who sums what, on which port, in which order, and which rings cannot be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreduce.control.placement import parts, place
from netreduce.control.topology import Topology, leaf_spine_topology, star_topology, three_level_topology
from netreduce.errors import AdmissionError
from netreduce.switch import RingSpec
from netreduce.wire.control import Endpoint, Geometry

PODS = three_level_topology([[3, 1], [2], [1, 1]], 2, 2)


def hosts_of(topology: Topology) -> list[str]:
    return [host.name for host in topology.hosts]


def spec(count: int) -> RingSpec:
    endpoints = tuple(Endpoint(rank, f"10.7.0.{rank}", "02:00:00:00:00:00", 1, 2, 0) for rank in range(count))
    return RingSpec(1, endpoints, Geometry())


def test_a_ring_in_one_rack_meets_at_its_leaf_whatever_is_above() -> None:
    placement = place(PODS, 1, ["worker0", "worker1", "worker2"])
    assert placement.above == {"leaf0": None}
    (part,) = parts(PODS, placement, spec(3), ["worker0", "worker1", "worker2"]).values()
    assert (part.children, part.leaving, part.entering) == ((0, 1, 2), None, None)


def test_a_ring_in_one_pod_meets_at_a_spine_of_that_pod() -> None:
    assert place(PODS, 0, hosts_of(PODS)[:4]).root == "spine0"
    assert place(PODS, 1, hosts_of(PODS)[:4]).root == "spine1"


def test_sums_are_nested_as_the_racks_and_pods_are() -> None:
    assert place(PODS, 1, hosts_of(PODS)).order() == (((0, 1, 2), (3,)), ((4, 5),), ((6,), (7,)))
    assert place(star_topology(4), 1, hosts_of(star_topology(4))).order() == (0, 1, 2, 3)


def test_a_rack_in_which_the_ring_begins_and_ends_is_summed_by_rank_and_first() -> None:
    topology = leaf_spine_topology([3, 2])
    hosts = ["worker1", "worker3", "worker4", "worker0", "worker2"]
    placement = place(topology, 1, hosts)
    assert placement.order() == ((0, 3, 4), (1, 2))
    leaf, other = (parts(topology, placement, spec(5), hosts)[name] for name in ("leaf0", "leaf1"))
    assert (leaf.children, leaf.leaving, leaf.entering) == ((0, 3, 4), 0, 2)
    assert (other.children, other.leaving, other.entering) == ((1, 2), 2, 0)


def test_each_part_knows_its_ports_and_the_spine_only_the_connections_between_racks() -> None:
    topology = leaf_spine_topology([2, 1])
    placement = place(topology, 1, hosts_of(topology))
    found = parts(topology, placement, spec(3), hosts_of(topology))
    assert found["leaf0"].ports == {0: (0, 1), 1: (1, 2), 2: (2, 0)}
    assert found["leaf1"].ports == {2: (0, 1), 1: (1, 0)}
    assert found["spine0"].children == (1, 2)
    assert found["spine0"].ports == {1: (0, 1), 2: (1, 0)}


def test_rings_take_turns_at_the_spines() -> None:
    topology = leaf_spine_topology([2, 2], 4)
    roots = Counter(place(topology, ring_id, hosts_of(topology)).root for ring_id in range(12))
    assert roots == {f"spine{i}": 3 for i in range(4)}


def test_a_switch_to_avoid_is_gone_round() -> None:
    placement = place(PODS, 1, hosts_of(PODS), avoid={"spine1", "core1"})
    assert placement.root == "core0"
    assert placement.above["leaf0"] == placement.above["leaf1"] == "spine0"


def test_racks_of_a_pod_meet_in_the_pod_so_that_one_stream_leaves_it() -> None:
    for ring_id in range(8):
        placement = place(PODS, ring_id, hosts_of(PODS))
        assert len(placement.below(placement.root)) == 3


def test_ranks_of_a_rack_that_are_no_neighbours_are_refused_by_name() -> None:
    topology = leaf_spine_topology([2, 2])
    with pytest.raises(AdmissionError, match=r"ring 5: ranks 0, 2 under leaf0 are not neighbours on the ring"):
        place(topology, 5, ["worker0", "worker2", "worker1", "worker3"])


def test_a_host_that_no_switch_joins_with_the_others_is_named() -> None:
    one, other = leaf_spine_topology([2]), leaf_spine_topology([2])
    renamed = {"worker0": "far0", "worker1": "far1", "leaf0": "far", "spine0": "farther"}
    islands = Topology(
        one.hosts + tuple(type(h)(renamed[h.name], "far") for h in other.hosts),
        one.switches + tuple(type(s)(renamed[s.name]) for s in other.switches),
        one.cables + tuple(type(c)(("far", "farther")) for c in other.cables),
    )
    with pytest.raises(AdmissionError, match="ring 2: no switch is above leaf0 and far, so host far1 of rank 1 is out"):
        place(islands, 2, ["worker0", "far1"])
    with pytest.raises(AdmissionError, match="ring 2: host worker9 of rank 1 is not in the topology"):
        place(islands, 2, ["worker0", "worker9"])


@given(
    pods=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    spines=st.integers(1, 3),
    cores=st.integers(1, 3),
    ring_id=st.integers(0, 9),
    shift=st.integers(0, 26),
)
def test_whatever_the_shape_every_connection_leads_from_port_to_port_through_the_tree(
    pods: list[list[int]], spines: int, cores: int, ring_id: int, shift: int
) -> None:
    """Follow each connection hop by hop: it rises to where both ends are below, and comes down to its successor."""
    topology = three_level_topology(pods, spines, cores)
    names = hosts_of(topology)
    hosts = [names[(i + shift) % len(names)] for i in range(len(names))]
    placement = place(topology, ring_id, hosts)
    found = parts(topology, placement, spec(len(hosts)), hosts)
    assert sorted(flat(placement.order())) == list(range(len(hosts)))
    for rank, host in enumerate(hosts):
        at, hops, peer = host, [], next(h.switch for h in topology.hosts if h.name == host)
        while peer in found:
            at, switch = peer, peer
            sender_port, successor_port = found[switch].ports[rank]
            assert (hops or [host])[-1] == topology.ports[switch][sender_port]
            hops.append(switch)
            peer = topology.ports[switch][successor_port]
            assert len(hops) <= 2 * len(placement.above)
        assert peer == hosts[(rank + 1) % len(hosts)]
        assert at in placement.above


def flat(order: object) -> list[int]:
    return [order] if isinstance(order, int) else [rank for item in order for rank in flat(item)]  # type: ignore[attr-defined]
