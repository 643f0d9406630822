"""Admission: what fits is taken, what does not is refused by name, and what is given back is used again."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.switch.switch_harness import SMALL, Ring, make_ring

from netreduce.errors import AdmissionError
from netreduce.switch import RingSpec, Switch, SwitchLimits
from netreduce.switch.registry import Ranges
from netreduce.wire.control import Geometry


def test_a_ring_that_does_not_fit_is_refused_with_what_it_needs_and_what_is_free() -> None:
    limits = SMALL._replace(memory_bytes=40_000_000)
    switch = Switch("s0", 8, limits=limits)
    Ring(switch, 8, ring_id=1, geometry=Geometry(message_window=4, message_packets=64, path_mtu=512)).register()
    large = Ring(switch, 8, ring_id=2, geometry=Geometry(message_window=4, message_packets=170, path_mtu=4096))
    with pytest.raises(AdmissionError, match=r"ring of 8 ranks needs 46\.7 MB of aggregator memory, 37\.1 MB of 40 MB"):
        large.register()
    switch.unregister_ring(1)
    Ring(switch, 4, ring_id=2, geometry=Geometry(message_window=4, message_packets=170, path_mtu=4096)).register()


def test_memory_of_rings_that_left_is_used_again() -> None:
    switch = Switch("s0", 4, limits=SMALL)
    for round_ in range(50):
        rings = [Ring(switch, 4, ring_id=i) for i in range(SMALL.rings)]
        for ring in rings:
            ring.register()
        for ring in rings[:: 1 if round_ % 2 else -1]:
            switch.unregister_ring(ring.ring_id)


def test_too_many_rings_are_refused() -> None:
    switch = Switch("s0", 2, limits=SMALL)
    for ring_id in range(4):
        Ring(switch, 2, ring_id=ring_id).register()
    with pytest.raises(AdmissionError, match="all 4 rings of the switch are in use"):
        Ring(switch, 2, ring_id=5).register()


def test_too_many_connections_are_refused() -> None:
    switch = Switch("s0", 3, limits=SMALL._replace(connections=4))
    Ring(switch, 3, ring_id=1).register()
    with pytest.raises(AdmissionError, match="ring of 3 ranks needs 3 connections in a row, 1 of 4 are free"):
        Ring(switch, 3, ring_id=2).register()


def test_a_ring_must_have_its_members_attached_and_in_order_and_its_queue_pairs_to_itself() -> None:
    ring = Ring(Switch("s0", 3, limits=SMALL), 3)
    with pytest.raises(AdmissionError, match=r"ring 7: address 10\.7\.0\.1 of rank 0 is not attached to any port"):
        ring.switch.register_ring(RingSpec(7, ring.endpoints, ring.geometry))
    ring.register()
    with pytest.raises(AdmissionError, match="ring 7 is registered already"):
        ring.switch.register_ring(RingSpec(7, ring.endpoints, ring.geometry))
    with pytest.raises(AdmissionError, match="ring 8: rank 0 shares a queue pair with another connection"):
        ring.switch.register_ring(RingSpec(8, ring.endpoints, ring.geometry))
    with pytest.raises(AdmissionError, match="ring 8: endpoint 0 is that of rank 2; rank order is needed"):
        ring.switch.register_ring(RingSpec(8, ring.endpoints[::-1], ring.geometry))
    with pytest.raises(AdmissionError, match="ring 8 has 0 ranks, 1 to 64 are allowed"):
        ring.switch.register_ring(RingSpec(8, (), ring.geometry))
    with pytest.raises(AdmissionError, match="ring 8 has path_mtu 1000, allowed are"):
        ring.switch.register_ring(RingSpec(8, ring.endpoints, msgspec.structs.replace(ring.geometry, path_mtu=1000)))
    with pytest.raises(AdmissionError, match="ring id 65536 is not within 0 to 65535"):
        ring.switch.register_ring(RingSpec(65536, ring.endpoints, ring.geometry))
    with pytest.raises(AdmissionError, match="ring 9 is not registered"):
        ring.switch.unregister_ring(9)


def test_a_refused_ring_leaves_nothing_behind() -> None:
    ring = make_ring(2)
    before = ring.switch.tables.keys.copy()
    with pytest.raises(AdmissionError):
        ring.switch.register_ring(RingSpec(8, ring.endpoints, ring.geometry))
    assert (ring.switch.tables.keys == before).all()


def test_counters_of_rings_that_left_stay_in_the_totals() -> None:
    ring = make_ring(2)
    ring.exchange(0, [np.ones(4, np.float32)] * 2)
    broken = ring.message(0, 1, np.ones(4, np.float32))[0]
    broken[-1] ^= 1
    ring.give(0, broken)
    ring.switch.unregister_ring(7)
    counters = ring.switch.counters()
    assert counters["messages_aggregated"] == 1
    assert counters["packets_spliced"] == 2
    assert counters["drop_bad_icrc"] == 1


def test_frames_of_a_ring_that_left_are_forwarded_like_any_other() -> None:
    ring = make_ring(2)
    ring.switch.unregister_ring(7)
    frames = ring.message(0, 0, np.ones(4, np.float32))
    ring.give(0, *frames)
    assert [packet.frame.tobytes() for packet in ring.take(1)] == [frame.tobytes() for frame in frames]


def test_a_detached_port_is_no_longer_aggregated() -> None:
    ring = make_ring(3)
    ring.switch.detach(1)
    ring.give(1, *ring.message(1, 0, np.ones(4, np.float32)))
    assert ring.switch.ring_counters(7)["drop_wrong_port"] == 1


def test_a_full_size_switch_costs_address_space_only() -> None:
    Switch("s0", 64, limits=SwitchLimits())


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_ranges_never_overlap_and_grow_together_again(steps: list[tuple[bool, int]]) -> None:
    ranges, held = Ranges(100), []
    for take, length in steps:
        if take and length <= ranges.largest:
            start = ranges.take(length)
            assert all(start + length <= other or other + size <= start for other, size in held)
            assert 0 <= start <= 100 - length
            held.append((start, length))
        elif held:
            ranges.give(*held.pop(length % len(held)))
        assert ranges.free == 100 - sum(size for _, size in held)
    for start, length in held:
        ranges.give(start, length)
    assert ranges.largest == 100
