"""The control plane: rings that move to a switch with room, or are refused with every reason and leave nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netreduce.control.plane import ControlPlane, make_switches
from netreduce.control.topology import Topology, leaf_spine_topology, three_level_topology
from netreduce.errors import AdmissionError
from netreduce.switch import RingSpec, SwitchLimits
from netreduce.units import MIB
from netreduce.wire.control import Endpoint, Geometry

LIMITS = SwitchLimits(memory_bytes=1 << 25, egress_bytes=1 << 14, rings=8, connections=64, macs=64)
GEOMETRY = Geometry(message_window=1, message_packets=512, path_mtu=256)
CONNECTION_BYTES = 2 * 512 * 448
"""Slots of both messages, each with 192 bytes for headers."""


def plane_of(topology: Topology, **changes: object) -> ControlPlane:
    """A plane with every host attached; `changes` are fields of switches, by their names."""
    switches = tuple(replace(entry, **changes.get(entry.name, {})) for entry in topology.switches)  # type: ignore[arg-type]
    topology = replace(topology, switches=switches)
    plane = ControlPlane(topology, make_switches(topology, LIMITS, "hold"))
    for number, host in enumerate(topology.hosts):
        plane.attach(host.name, f"02:00:00:00:00:{number + 1:02x}", f"10.7.0.{number}")
    return plane


def spec(ring_id: int, count: int, geometry: Geometry = GEOMETRY) -> RingSpec:
    endpoints = tuple(
        Endpoint(rank, f"10.7.0.{rank}", f"02:00:00:00:00:{rank + 1:02x}", 64 * ring_id, 64 * ring_id + 1, 0)
        for rank in range(count)
    )
    return RingSpec(ring_id, endpoints, geometry)


def test_a_ring_moves_to_another_spine_when_its_own_is_full_and_is_refused_with_all_reasons_when_all_are() -> None:
    plane = plane_of(leaf_spine_topology([2, 2], 2), spine0={"rings_max": 1}, spine1={"rings_max": 2})
    assert plane.register_ring(spec(2, 4)).root == "spine0"
    assert plane.register_ring(spec(4, 4)).root == "spine1", "it would have liked spine0"
    assert plane.register_ring(spec(5, 4)).root == "spine1"
    with pytest.raises(AdmissionError) as error:
        plane.register_ring(spec(6, 4))
    words = str(error.value)
    assert "spine0: all 1 rings of the switch are in use" in words
    assert "spine1: all 2 rings of the switch are in use" in words
    assert words.endswith("ring 6: no other switches join its hosts")
    assert "\n" not in words
    plane.unregister_ring(2)
    assert plane.register_ring(spec(6, 4)).root == "spine0"


def test_a_refused_ring_leaves_nothing_behind_at_any_switch() -> None:
    plane = plane_of(leaf_spine_topology([2, 2]), leaf1={"memory_bytes": 2 * CONNECTION_BYTES})
    with pytest.raises(AdmissionError, match=r"leaf1: ring of 3 ranks needs 1\.4 MB of aggregator memory"):
        plane.register_ring(spec(1, 4))
    assert plane.placements == {}
    assert all(switch.rings() == {} for switch in plane.switches.values())
    assert plane.register_ring(spec(1, 2)).root == "leaf0", "a ring of the first rack needs nothing of the second"


def test_a_quota_bounds_what_one_ring_takes_of_a_switch_that_has_room() -> None:
    quota = {"memory_bytes": 16 * MIB, "ring_memory_bytes": 3 * CONNECTION_BYTES}
    plane = plane_of(leaf_spine_topology([4, 4]), leaf0=quota)
    plane.register_ring(spec(1, 3))
    with pytest.raises(AdmissionError, match=r"leaf0: ring of 4 ranks needs 1\.8 MB .*one ring may take 1\.4 MB"):
        plane.register_ring(spec(2, 4))
    plane.register_ring(spec(2, 3))


def test_three_levels_go_round_a_full_spine_of_one_pod_only() -> None:
    plane = plane_of(three_level_topology([[1, 1], [1, 1]], 2), spine1={"rings_max": 1})
    for ring_id in (1, 3):
        plane.register_ring(spec(ring_id, 4))
    above = plane.placements[3].above
    assert (above["leaf0"], above["leaf2"]) == ("spine0", "spine3")


@pytest.mark.parametrize(
    ("ring", "reason"),
    [
        (spec(1, 3), "ring 1 is registered already"),
        (replace(spec(2, 2), endpoints=spec(2, 1).endpoints * 2), "ring 2: endpoint 1 is that of rank 0"),
        (spec(1 << 16, 2), "ring id 65536 is not within"),
        (
            RingSpec(2, (Endpoint(0, "10.9.9.9", "02:00:00:00:00:09", 1, 2, 0),), GEOMETRY),
            "10.9.9.9 of rank 0 is not",
        ),
        (replace(spec(1, 2), ring_id=2), "shares a queue pair with another connection"),
    ],
    ids=["twice", "rank order", "id", "stranger", "queue pairs"],
)
def test_a_wrong_ring_is_refused_by_name(ring: RingSpec, reason: str) -> None:
    plane = plane_of(leaf_spine_topology([2, 2]))
    plane.register_ring(spec(1, 3))
    with pytest.raises(AdmissionError, match=reason):
        plane.register_ring(ring)
    assert set(plane.placements) == {1}


def test_who_is_not_registered_cannot_be_unregistered() -> None:
    with pytest.raises(AdmissionError, match="ring 3 is not registered"):
        plane_of(leaf_spine_topology([1])).unregister_ring(3)
