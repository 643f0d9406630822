"""Every collective, over real NICs and a real switch in a for-loop, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np
import pytest
from tests.collectives.harness import Cluster

from netreduce.collectives.algorithms import Algorithm
from netreduce.collectives.reductions import DTYPES, Reduction, plan_reduction
from netreduce.errors import UnsupportedError

LENGTHS = (0, 1, 7, 1009, 2048)
"""Nothing, one, fewer than some worlds divide, a prime of several messages, and a round number."""
both = pytest.mark.parametrize("algorithm", [Algorithm.NETREDUCE, Algorithm.RING])
WAYS = [way for way in Algorithm if way not in (Algorithm.AUTO, Algorithm.PARALLEL)]  # no machines here
every = pytest.mark.parametrize("algorithm", WAYS)


@pytest.fixture(scope="module", params=[1, 2, 3, 5], ids=lambda size: f"ranks{size}")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(request.param)
    yield cluster
    assert all(engine.error is None for engine in cluster.engines)
    cluster.close()


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    cluster = Cluster(3)
    yield cluster
    cluster.close()


def world(cluster: Cluster) -> range:
    return range(len(cluster.engines))


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Floats whose sums are exact in any order."""
    return rng.integers(-1000, 1000, shape).astype(np.float32)


@every
@pytest.mark.parametrize("count", LENGTHS)
def test_all_reduce_in_place(cluster: Cluster, rng: np.random.Generator, count: int, algorithm: Algorithm) -> None:
    data = integers(rng, len(cluster.engines), count)
    expected = data.sum(axis=0)
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank], algorithm=algorithm))
    for row in data:
        assert np.array_equal(row, expected)


@every
@pytest.mark.parametrize("count", LENGTHS)
def test_all_reduce_out_of_place_spares_the_input(
    cluster: Cluster, rng: np.random.Generator, count: int, algorithm: Algorithm
) -> None:
    data = integers(rng, len(cluster.engines), count)
    before, out = data.copy(), np.full_like(data, -1)
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank], out=out[rank], algorithm=algorithm))
    assert np.array_equal(data, before)
    for row in out:
        assert np.array_equal(row, before.sum(axis=0))


@both
@pytest.mark.parametrize("count", [1, 1009])
def test_reduce_changes_only_the_root(
    cluster: Cluster, rng: np.random.Generator, count: int, algorithm: Algorithm
) -> None:
    for root in {0, len(cluster.engines) - 1}:
        data = integers(rng, len(cluster.engines), count)
        before = data.copy()
        cluster.call(lambda e, rank, d=data, r=root: e.reduce(d[rank], r, algorithm=algorithm))
        for rank in world(cluster):
            assert np.array_equal(data[rank], before.sum(axis=0) if rank == root else before[rank])


@both
@pytest.mark.parametrize("count", [0, 1, 503])
@pytest.mark.parametrize("as_list", [True, False])
def test_reduce_scatter_leaves_block_r_at_rank_r(
    cluster: Cluster, rng: np.random.Generator, count: int, as_list: bool, algorithm: Algorithm
) -> None:
    size = len(cluster.engines)
    data = integers(rng, size, size, count)
    before, out = data.copy(), np.full((size, count), -1, np.float32)
    cluster.call(
        lambda e, rank: e.reduce_scatter([*data[rank]] if as_list else data[rank], out[rank], algorithm=algorithm)
    )
    assert np.array_equal(data, before)
    assert np.array_equal(out, before.sum(axis=0))


@pytest.mark.parametrize("count", LENGTHS)
def test_broadcast(cluster: Cluster, rng: np.random.Generator, count: int) -> None:
    for root in {0, len(cluster.engines) - 1}:
        data = integers(rng, len(cluster.engines), count)
        given = data[root].copy()
        cluster.call(lambda e, rank, d=data, r=root: e.broadcast(d[rank], r))
        for row in data:
            assert np.array_equal(row, given)


@pytest.mark.parametrize("count", [0, 1, 503])
@pytest.mark.parametrize("as_list", [True, False])
def test_all_gather(cluster: Cluster, rng: np.random.Generator, count: int, as_list: bool) -> None:
    size = len(cluster.engines)
    data = integers(rng, size, count)
    out = np.full((size, size, count), -1, np.float32)
    cluster.call(lambda e, rank: e.all_gather(data[rank], [*out[rank]] if as_list else out[rank]))
    for row in out:
        assert np.array_equal(row, data)


def test_all_gather_of_blocks_that_differ_in_length(cluster: Cluster) -> None:
    size = len(cluster.engines)
    out = [[np.zeros(3 * source, np.int64) for source in range(size)] for _ in range(size)]
    cluster.call(lambda e, rank: e.all_gather(np.full(3 * rank, rank), out[rank]))
    for row in out:
        for source, block in enumerate(row):
            assert np.array_equal(block, np.full(3 * source, source))


@pytest.mark.parametrize("count", [0, 1, 503])
def test_scatter_undoes_gather(cluster: Cluster, rng: np.random.Generator, count: int) -> None:
    size = len(cluster.engines)
    root = size - 1
    data = integers(rng, size, count)
    gathered, back = np.full_like(data, -1), np.full_like(data, -1)
    cluster.call(lambda e, rank: e.gather(data[rank], gathered if rank == root else None, root))
    assert np.array_equal(gathered, data)
    cluster.call(lambda e, rank: e.scatter([*gathered] if rank == root else None, back[rank], root))
    assert np.array_equal(back, data)


def test_all_to_all_transposes(cluster: Cluster, rng: np.random.Generator) -> None:
    size = len(cluster.engines)
    data = integers(rng, size, size, 31)
    out = np.full_like(data, -1)
    cluster.call(lambda e, rank: e.all_to_all(data[rank], out[rank]))
    assert np.array_equal(out, data.transpose(1, 0, 2))


def test_all_to_all_with_uneven_counts(cluster: Cluster) -> None:
    size = len(cluster.engines)
    counts = [[(source + 2 * target) % 4 for target in range(size)] for source in range(size)]
    given = [np.concatenate([np.full(n, 10 * s + t) for t, n in enumerate(counts[s])]) for s in range(size)]
    taken_counts = [[counts[source][rank] for source in range(size)] for rank in range(size)]
    taken = [np.full(sum(row), -1) for row in taken_counts]
    cluster.call(lambda e, r: e.all_to_all(given[r], taken[r], counts[r], taken_counts[r]))
    for target in range(size):
        expected = [np.full(n, 10 * source + target) for source, n in enumerate(taken_counts[target])]
        assert np.array_equal(taken[target], np.concatenate(expected))


@both
def test_a_barrier_ends_when_the_last_rank_has_come(cluster: Cluster, algorithm: Algorithm) -> None:
    early = [engine.barrier(algorithm=algorithm) for engine in cluster.engines[1:]]
    for _ in range(20):
        cluster.step()
    assert not any(operation.done for operation in early)
    cluster.run([*early, cluster.engines[0].barrier(algorithm=algorithm)])


def exact_values(rng: np.random.Generator, dtype: np.dtype, count: int) -> list[np.ndarray]:
    """Values of three ranks whose sums and products are exact even in eight bits of float."""
    return [rng.integers(0 if dtype.kind == "b" else 1, 3, count).astype(dtype) for _ in range(3)]


@pytest.mark.parametrize("op", Reduction, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", [Algorithm.AUTO, Algorithm.RING])
def test_every_dtype_and_operation(
    three: Cluster, rng: np.random.Generator, dtype: np.dtype, op: Reduction, algorithm: Algorithm
) -> None:
    data = exact_values(rng, dtype, 37)
    try:
        plan_reduction(dtype, op, 3)
    except UnsupportedError:
        with pytest.raises(UnsupportedError):
            three.engines[0].all_reduce(data[0], op)
        return
    numpy_ops = {
        Reduction.SUM: np.add,
        Reduction.AVERAGE: np.add,
        Reduction.PRODUCT: np.multiply,
        Reduction.MIN: np.minimum,
        Reduction.MAX: np.maximum,
        Reduction.BITWISE_AND: np.bitwise_and,
        Reduction.BITWISE_OR: np.bitwise_or,
        Reduction.BITWISE_XOR: np.bitwise_xor,
    }
    expected = reduce(numpy_ops[op], data)
    if op == Reduction.AVERAGE:
        parts = expected.view(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else expected
        expected = (parts.astype(np.float64) / 3).astype(parts.dtype)
    three.call(lambda engine, rank: engine.all_reduce(data[rank], op, algorithm=algorithm))
    for row in data:
        assert np.array_equal(row.view(np.uint8), expected.view(np.uint8))


def test_the_sum_of_floats_is_bitwise_equal_on_all_ranks(cluster: Cluster, rng: np.random.Generator) -> None:
    data = rng.standard_normal((len(cluster.engines), 999)).astype(np.float32)
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank]))
    for row in data[1:]:
        assert np.array_equal(row.view(np.uint32), data[0].view(np.uint32))


def test_an_array_without_dimensions_is_one_element(cluster: Cluster) -> None:
    data = [np.array(float(rank + 1)) for rank in world(cluster)]
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank], Reduction.AVERAGE))
    assert all(value == (len(data) + 1) / 2 for value in data)


def test_unaligned_memory_is_fine(cluster: Cluster) -> None:
    raw = [np.zeros(4 * 301 + 1, np.uint8) for _ in world(cluster)]
    data = [memory[1:].view(np.float32) for memory in raw]
    for row in data:
        row[:] = 2
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank]))
    assert all(np.all(row == 2 * len(data)) for row in data)


def test_the_switch_is_asked_only_for_what_it_can_do(three: Cluster) -> None:
    with pytest.raises(UnsupportedError, match="SUM of int16"):
        three.engines[0].all_reduce(np.zeros(3, np.int16), algorithm=Algorithm.NETREDUCE)


def test_in_network_each_byte_is_sent_once() -> None:
    cluster = Cluster(4)
    data = np.ones((4, 3000), np.float32)
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank]))
    for engine in cluster.engines:
        statistics = engine.statistics()
        assert statistics.in_network_bytes_sent == statistics.in_network_bytes_received == 12000
        assert statistics.ring_bytes == 18000  # 2 (4-1)/4 of the array
        assert statistics.peer_bytes_sent == 0
        assert not statistics.in_network_active  # nothing has proven it yet
    cluster.call(lambda engine, rank: engine.barrier())
    assert all(engine.statistics().in_network_active for engine in cluster.engines)
    cluster.close()


def test_a_ring_sends_two_times_three_quarters() -> None:
    cluster = Cluster(4, algorithm=Algorithm.RING)
    data = np.ones((4, 3000), np.float32)
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank]))
    assert [engine.statistics().peer_bytes_sent for engine in cluster.engines] == [18000] * 4
    assert cluster.switch.ring_counters(7)["packets_spliced"] == 0
    cluster.close()
