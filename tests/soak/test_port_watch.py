"""What the switch sees: one sender a port for one ring, collisions of several, and the pile-up of the naive way."""

from __future__ import annotations

import numpy as np
import pytest

from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.fabric import EcnMarking
from netreduce.soak.engines import EngineRig, EngineRigSettings
from netreduce.soak.port_watch import PortSummary, PortWatch
from netreduce.switch import SwitchLimits
from netreduce.units import KIB, PS_PER_US
from netreduce.wire.control import Geometry

HOSTS = 4
BUFFER_BYTES = 128 * KIB
FORWARD, BACKWARD, CROSSED = (0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3)


def watched(algorithm: Algorithm, *channels: tuple[int, ...], egress_bytes: int = 64 * KIB) -> PortWatch:
    """All-reduce through ports that hold `egress_bytes` and mark from an eighth of that on."""
    marking = EcnMarking(kmin_bytes=egress_bytes // 8, kmax_bytes=egress_bytes // 2)
    rig = EngineRig(
        EngineRigSettings(
            HOSTS,
            Geometry(message_window=2, message_packets=8, path_mtu=4096),
            Tuning(channels=channels),
            ecn=marking,
            switch_limits=SwitchLimits(egress_bytes=egress_bytes),
        )
    )
    watch = PortWatch(rig, 2 * PS_PER_US)
    arrays = [np.full(BUFFER_BYTES // 4, 1 << rank, np.float32) for rank in range(HOSTS)]
    rig.run([e.all_reduce(array, algorithm=algorithm) for e, array in zip(rig.engines, arrays, strict=True)])
    assert all(np.all(array == 15) for array in arrays)
    return watch


def summaries(algorithm: Algorithm, *channels: tuple[int, ...]) -> list[PortSummary]:
    return list(watched(algorithm, *channels).summaries())


@pytest.mark.parametrize("channels", [(FORWARD,), (FORWARD,) * 3], ids=["one", "three"])
def test_channels_of_one_order_have_one_sender_at_each_port_and_no_queue(channels: tuple[tuple[int, ...], ...]) -> None:
    watch = watched(Algorithm.RING, *channels)
    for port, samples in enumerate(watch.samples):
        senders = {host for sample in samples.values() for host in sample.bytes_from}
        assert senders == {(port - 1) % HOSTS}
    for summary in watch.summaries():
        assert summary.queue_bytes < 2 * 4200
        assert summary.marked == summary.dropped == 0
        assert summary.data_bytes > 2 * (HOSTS - 1) * BUFFER_BYTES // HOSTS


def test_rings_of_different_orders_collide() -> None:
    found = summaries(Algorithm.RING, FORWARD, BACKWARD, CROSSED)
    assert max(summary.senders for summary in found) > 1
    assert max(summary.queue_bytes for summary in found) > 2 * 4200


def test_everything_to_one_host_piles_up_at_its_port_with_marks_and_drops() -> None:
    found = summaries(Algorithm.CENTRAL)
    host, others = found[0], found[1:]
    assert host.senders == HOSTS - 1
    assert host.queue_bytes > 50 * KIB
    assert host.marked > 0
    assert host.dropped > 0
    assert host.data_bytes >= 3 * BUFFER_BYTES
    for other in others:
        assert other.senders == 1
        assert other.dropped == 0


def test_through_the_switch_each_port_sends_the_buffer_once() -> None:
    for summary in summaries(Algorithm.NETREDUCE):
        assert summary.senders == 1
        assert BUFFER_BYTES < summary.data_bytes < 1.05 * BUFFER_BYTES
        assert summary.dropped == 0


def test_counters_over_time_add_up_to_the_switchs_own() -> None:
    watch = watched(Algorithm.CENTRAL)
    samples = watch.samples[0]
    assert len(samples) > 10
    assert sorted(samples) == list(samples), "time goes forward"
    full = [number for number, sample in samples.items() if sample.queue_bytes > 48 * KIB]
    drops = [number for number, sample in samples.items() if sample.dropped]
    assert drops
    assert min(drops) >= min(full) - 1, "a queue drops when it is full"
