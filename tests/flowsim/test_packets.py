"""Flows against packets: the packet simulator runs the real NIC, switch and engine, and must take what flows say.

What the communicator's protocol adds to the flows is known: a step between hosts is a clear-to-send, the data and an
acknowledgement, one after the other; an in-network all-reduce is over when its last message is acknowledged, or, if it
is short, when its result is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from netreduce.collectives.aggregation import STAGED_BYTES_MAX
from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.flowsim import aggregators
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.fabrics import single_switch
from netreduce.flowsim.packets import roce
from netreduce.flowsim.pricing import Pricer
from netreduce.flowsim.schemes import SCHEMES
from netreduce.flowsim.traffic import Settings
from netreduce.nic import NicLimits
from netreduce.soak.engines import EngineRig, EngineRigSettings
from netreduce.units import GBPS
from netreduce.wire.control import Geometry

SEED = 20230325
CASES = 32
PARTS = 4
ALLOWED = 0.05
CHUNK_BYTES_MAX = 1 << 20
"""The engine cuts longer chunks into slices that follow each other; a price takes a chunk as a whole."""
CONTROL_FRAME_BYTES = 150
"""Between an acknowledgement (82 bytes on the wire) and a clear-to-send (162)."""


@dataclass(frozen=True)
class Case:
    algorithm: Algorithm
    ranks: int
    size_bytes: int
    rate_bps: int
    delay_ps: int
    geometry: Geometry


def draw(generator: np.random.Generator, number: int) -> Case:
    """A case on one switch; half of them in the network. Packets are limited so that the test stays short."""
    algorithm = (Algorithm.NETREDUCE, Algorithm.RING, Algorithm.NETREDUCE, Algorithm.HALVING)[number % 4]
    mtu = int(generator.choice([1024, 4096]))
    ranks = int(generator.integers(2, 17))
    if algorithm == Algorithm.HALVING:
        ranks = 1 << int(generator.integers(1, 5))
    packets = int(generator.integers(150, 3000)) // ranks
    return Case(
        algorithm,
        ranks,
        min(max(packets * mtu, ranks * 4), ranks * CHUNK_BYTES_MAX) // (4 * ranks) * 4 * ranks,
        int(generator.choice([10, 25, 40, 100, 200])) * GBPS,
        int(generator.integers(100, 5001)) * 1000,
        Geometry(int(generator.integers(1, 9)), int(generator.integers(8, 171)), mtu),
    )


def by_packets(case: Case) -> float:
    """Seconds in the packet simulator, in exact mode."""
    tuning = Tuning(channels=(tuple(range(case.ranks)),)) if case.algorithm == Algorithm.RING else Tuning()
    settings = EngineRigSettings(
        case.ranks, case.geometry, tuning, rate_bps=case.rate_bps, delay_ps=case.delay_ps, ack_timeout=14
    )
    rig = EngineRig(settings)
    arrays = [np.full(case.size_bytes // 4, rank, np.float32) for rank in range(case.ranks)]
    operations = [e.all_reduce(a, algorithm=case.algorithm) for e, a in zip(rig.engines, arrays, strict=True)]
    time_ps = rig.run(operations)
    assert all(np.all(array == sum(range(case.ranks))) for array in arrays)
    return time_ps * 1e-12


def by_flows(case: Case) -> float:
    """Seconds in the flow simulator."""
    cluster = Cluster(single_switch(case.ranks, capacity=case.rate_bps / 8, latency_s=case.delay_ps * 1e-12))
    control_s = 2 * case.delay_ps * 1e-12 + 2 * CONTROL_FRAME_BYTES * 8 / case.rate_bps
    packets = roce(case.geometry.path_mtu)
    if case.algorithm == Algorithm.NETREDUCE:
        aggregator = aggregators.netreduce(
            window=case.geometry.message_window,
            packets_per_message=case.geometry.message_packets,
            payload_bytes=case.geometry.path_mtu,
        )
        scheme = replace(
            SCHEMES["netreduce"], aggregator=replace(aggregator, answer_queue_bytes=NicLimits().egress_bytes)
        )
        is_short = case.size_bytes <= STAGED_BYTES_MAX
        settings = Settings(packets, 0.0 if is_short else control_s, store_and_forward=True)
    else:
        scheme = SCHEMES[case.algorithm.value]
        settings = Settings(packets, 2 * control_s, store_and_forward=True)
    return Pricer(scheme, cluster, settings).price(case.size_bytes).time_s


@pytest.mark.parametrize("part", range(PARTS))
def test_flows_take_what_packets_take_within_five_per_cent(part: int) -> None:
    generator = np.random.default_rng(SEED + part)
    errors = []
    for number in range(CASES // PARTS):
        case = draw(generator, number)
        packets_s, flows_s = by_packets(case), by_flows(case)
        errors.append(flows_s / packets_s - 1)
        print(f"{errors[-1]:+7.2%}  packets {packets_s * 1e6:10.2f} us  flows {flows_s * 1e6:10.2f} us  {case}")
    size = np.abs(errors)
    print(f"seed {SEED + part}: {len(errors)} cases, mean error {size.mean():.2%}, worst {size.max():.2%}")
    assert size.max() <= ALLOWED
