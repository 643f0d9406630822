"""Goodput against loss, in virtual time: the gap policies of the switch, and a ring between the hosts beside them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netreduce.collectives.algorithms import Algorithm
from netreduce.soak.engines import EngineRig, EngineRigSettings
from netreduce.units import PS_PER_S, PS_PER_US
from netreduce.wire.control import Geometry

LOSSES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
"""Probability that a line loses a frame, in either direction."""
GEOMETRY = Geometry(message_window=4, message_packets=64, path_mtu=1024)
LIMIT_PS = 1000 * PS_PER_S


class Method(NamedTuple):
    """A way to all-reduce; `gap_policy` matters to the aggregating switch only."""

    algorithm: Algorithm
    gap_policy: str


METHODS = {
    "pass": Method(Algorithm.NETREDUCE, "pass"),
    "hold": Method(Algorithm.NETREDUCE, "hold"),
    "ring": Method(Algorithm.RING, "pass"),
}


def all_reduce_ps(method: Method, loss: float, seed: int, *, world_size: int, length_bytes: int) -> int | None:
    """Virtual time of one all-reduce of float32 over 100 Gb/s links of 1 us; None if a queue pair gave up."""
    rig = EngineRig(
        EngineRigSettings(
            world_size, geometry=GEOMETRY, gap_policy=method.gap_policy, quantum_ps=PS_PER_US // 2, seed=seed
        )
    )
    if loss:
        rig.simulator.drop(probability=loss)
    arrays = [np.full(length_bytes // 4, 1 << rank, np.float32) for rank in range(world_size)]
    operations = [
        engine.all_reduce(array, algorithm=method.algorithm) for engine, array in zip(rig.engines, arrays, strict=True)
    ]
    rig.simulator.run_until(
        lambda: all(operation.done for operation in operations) or any(operation.error for operation in operations),
        limit_ps=LIMIT_PS,
    )
    if any(operation.error for operation in operations):
        return None
    assert all((array == (1 << world_size) - 1).all() for array in arrays)
    return rig.simulator.now_ps


def goodput_gbps(length_bytes: int, times_ps: list[int]) -> float:
    """Buffer bytes over the mean time, in Gb/s."""
    return length_bytes * 8 * len(times_ps) * 1000 / sum(times_ps)
