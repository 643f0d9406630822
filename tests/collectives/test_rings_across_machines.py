"""Groups whose only rings through the switch are those across machines (`Tuning.machine_size`)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.collectives.harness import Cluster

from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.collectives.reductions import Reduction
from netreduce.errors import ConfigurationError

machines = pytest.mark.parametrize(("machine_count", "machine_size"), [(2, 2), (3, 2), (2, 3), (1, 3), (3, 1)])
ways = pytest.mark.parametrize("algorithm", [Algorithm.NETREDUCE, Algorithm.LEADERS, Algorithm.RING])


def group(machine_count: int, machine_size: int) -> Cluster:
    return Cluster(machine_count * machine_size, tuning=Tuning(machine_size=machine_size))


@machines
@ways
def test_every_rank_gets_the_sum_of_all(
    machine_count: int, machine_size: int, algorithm: Algorithm, rng: np.random.Generator
) -> None:
    cluster = group(machine_count, machine_size)
    for count in (0, 1, 5, 6007):
        data = rng.integers(-1000, 1000, (machine_count * machine_size, count)).astype(np.float32)
        before, out = data.copy(), np.full_like(data, -1)
        cluster.call(
            lambda engine, rank, data=data, out=out: engine.all_reduce(data[rank], out=out[rank], algorithm=algorithm)
        )
        assert np.array_equal(data, before)
        assert np.array_equal(out, np.broadcast_to(before.sum(axis=0), out.shape))
    cluster.close()


def test_each_worker_gives_the_switch_its_share_only() -> None:
    cluster = group(3, 2)
    data = np.array([np.full(6000, 1 << rank, np.float32) for rank in range(6)])
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank]))
    for engine in cluster.engines:
        statistics = engine.statistics()
        assert statistics.in_network_bytes_sent == 6000 * 4 // 2
        assert statistics.peer_bytes_sent == 2 * 6000 * 4 // 2  # half of it in each direction of the exchange
    assert np.all(data == 63)
    assert sorted(cluster.switch.rings()) == [7, 8]
    cluster.close()


def test_an_average_is_divided_once_and_a_barrier_counts_all_ranks() -> None:
    cluster = group(2, 2)
    data = np.array([np.full(101, 4 * rank, np.float32) for rank in range(4)])
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank], Reduction.AVERAGE))
    assert np.all(data == 6)
    cluster.call(lambda engine, rank: engine.barrier())
    assert all(engine.statistics().in_network_active for engine in cluster.engines)
    cluster.close()


def test_many_calls_at_once_keep_their_order(rng: np.random.Generator) -> None:
    cluster = group(2, 2)
    data = rng.integers(-1000, 1000, (9, 4, 3001)).astype(np.float32)
    expected = data.sum(axis=1)
    cluster.run(
        [engine.all_reduce(data[call, rank]) for call in range(9) for rank, engine in enumerate(cluster.engines)]
    )
    assert np.array_equal(data, np.broadcast_to(expected[:, None], data.shape))
    cluster.close()


def test_other_reductions_go_between_the_hosts(rng: np.random.Generator) -> None:
    cluster = group(2, 2)
    data = rng.integers(-1000, 1000, (4, 400)).astype(np.float32)
    shares = np.zeros((4, 100), np.float32)
    cluster.call(lambda engine, rank: engine.reduce_scatter(data[rank], shares[rank]))
    assert np.array_equal(shares.ravel(), data.sum(axis=0))
    assert [engine.statistics().in_network_bytes_sent for engine in cluster.engines] == [0] * 4
    cluster.close()


@pytest.mark.parametrize("machine_size", [0, 3, 8])
def test_ranks_that_do_not_fill_machines_are_refused(machine_size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"4 ranks are not machines of {machine_size} workers each"):
        Tuning(machine_size=machine_size).check(4)
