"""The rig itself: rings of verbs programs around a switch give the sums that NumPy gives, in rank order."""

from __future__ import annotations

import numpy as np
import pytest

from netreduce.fabric import Recording
from netreduce.soak.rig import Rig, RigSettings
from netreduce.units import PS_PER_MS, PS_PER_S, PS_PER_US
from netreduce.wire.control import Geometry
from netreduce.wire.ina import DataType, ReduceOp

SMALL = Geometry(message_window=2, message_packets=4, path_mtu=256)


def reduced(arrays: list[np.ndarray], operation: np.ufunc = np.add) -> np.ndarray:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = operation(total, array)
    return total


@pytest.mark.parametrize("quantum_ps", [0, 5 * PS_PER_US])
@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_every_rank_gets_the_sum_in_rank_order_to_the_bit(
    world_size: int, quantum_ps: int, rng: np.random.Generator
) -> None:
    rig = Rig(RigSettings(world_size, quantum_ps=quantum_ps))
    ring = rig.ring(SMALL, first_psns=[0xFFFFF0 + rank for rank in range(world_size)])
    arrays = [rng.standard_normal(3001).astype(np.float32) for _ in range(world_size)]
    expected = reduced(arrays)
    ring.all_reduce(arrays)
    rig.simulator.run_until(lambda: ring.done, limit_ps=PS_PER_S)
    assert ring.errors == []
    assert all(np.array_equal(array, expected) for array in arrays)
    rig.simulator.run_for(PS_PER_MS)
    assert all(nic.counters()["rnr_nak_retry_err"] == 0 for nic in rig.nics)


def test_collectives_follow_one_another_with_their_own_types_and_operations(rng: np.random.Generator) -> None:
    rig = Rig(RigSettings(3))
    ring = rig.ring(SMALL)
    floats = [rng.standard_normal(700) for _ in range(3)]
    integers = [rng.integers(-(2**31), 2**31, 900).astype(np.int32) for _ in range(3)]
    expected = reduced(floats, np.minimum), reduced(integers)
    ring.all_reduce(floats, DataType.FLOAT64, ReduceOp.MIN)
    ring.all_reduce(integers, DataType.INT32, ReduceOp.SUM)
    rig.simulator.run_until(lambda: ring.done, limit_ps=PS_PER_S)
    assert all(np.array_equal(array, expected[0]) for array in floats)
    assert all(np.array_equal(array, expected[1]) for array in integers)


def test_without_splicing_the_same_queue_pairs_pass_each_ranks_data_to_its_successor(rng: np.random.Generator) -> None:
    rig = Rig(RigSettings(3))
    ring = rig.ring(SMALL, splice=False)
    arrays = [rng.standard_normal(500).astype(np.float32) for _ in range(3)]
    results = [np.zeros(500, np.float32) for _ in range(3)]
    ring.all_reduce(arrays, results=results)
    rig.simulator.run_until(lambda: ring.done, limit_ps=PS_PER_S)
    assert all(np.array_equal(results[rank], arrays[rank - 1]) for rank in range(3))


def test_the_same_settings_give_the_same_recording() -> None:
    def digest() -> str:
        rig = Rig(RigSettings(3, seed=5))
        ring = rig.ring(SMALL)
        rig.simulator.drop(probability=0.02)
        recording = Recording()
        rig.simulator.tap(recording)
        ring.all_reduce([np.arange(2000, dtype=np.float32) for _ in range(3)])
        rig.simulator.run_until(lambda: ring.done, limit_ps=PS_PER_S)
        return recording.digest()

    assert digest() == digest()
