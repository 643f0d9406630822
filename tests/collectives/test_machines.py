"""Machines with several workers: Parallel NetReduce and its rivals over real engines, NICs and the switch."""

from __future__ import annotations

import numpy as np
import pytest
from tests.collectives.harness import Cluster
from tests.collectives.machine_cluster import MachineCluster

from netreduce.collectives.algorithms import Algorithm
from netreduce.collectives.machines import Machines
from netreduce.collectives.reductions import Reduction
from netreduce.collectives.shared import PLACE_BYTES, PLACES
from netreduce.errors import ConfigurationError, MismatchError, NetReduceError
from netreduce.wire.control import Declined, Filled, Freed, Ok

NAMES = ["a", "a", "b", "b"]
FOR_MACHINES = pytest.mark.parametrize("algorithm", [Algorithm.PARALLEL, Algorithm.HIERARCHICAL, Algorithm.LEADERS])


def all_reduce(cluster: Cluster, arrays: np.ndarray, algorithm: Algorithm, op: int = Reduction.SUM) -> None:
    cluster.call(lambda engine, rank: engine.all_reduce(arrays[rank], op, algorithm=algorithm))


def test_machines_are_told_by_name_and_numbered_by_their_lowest_rank() -> None:
    machines = Machines.named(["b", "a", "a", "b"])
    assert machines.members == ((0, 3), (1, 2))
    assert machines.order == (0, 3, 1, 2)
    assert machines.across(3) == machines.across(2) == (3, 2)
    assert machines.are_several_with_several
    assert machines.describe() == "2 machines of 2 workers"
    uneven = Machines.named(["a", "a", "b"])
    assert not uneven.are_several_with_several
    assert uneven.describe() == "2 machines of unequal size (2, 1 workers)"
    assert not Machines.named(["a", "b"]).are_several_with_several
    assert not Machines.named(["a", "a"]).are_several_with_several


@FOR_MACHINES
@pytest.mark.parametrize("names", [NAMES, ["a", "b", "a", "b"], ["a", "a", "a", "b", "b", "b"]], ids="".join)
def test_every_rank_of_every_machine_is_added_once(algorithm: Algorithm, names: list[str]) -> None:
    cluster = MachineCluster(names)
    size = len(names)
    for count in (0, 1, 3, 20_001):
        arrays = np.repeat(10.0 ** np.arange(size)[:, None], count, axis=1)
        all_reduce(cluster, arrays, algorithm)
        assert np.all(arrays == int("1" * size))
    cluster.close()


def fold(arrays: np.ndarray, machines: Machines, first: int, chunk: slice) -> np.ndarray:
    """What a share is documented to be: workers from `first` on round their machine, then machine by machine."""
    total = None
    for ranks in machines.members:
        turned = [*ranks[first:], *ranks[:first]]
        partial = arrays[turned[0], chunk]
        for rank in turned[1:]:
            partial = partial + arrays[rank, chunk]
        total = partial if total is None else total + partial
    assert total is not None
    return total


def test_sums_are_made_in_the_documented_order_to_the_bit(rng: np.random.Generator) -> None:
    cluster = MachineCluster(["a", "a", "a", "b", "b", "b"])
    given = (rng.standard_normal((6, 300)) * 10.0 ** rng.integers(-6, 6, (6, 300))).astype(np.float32)
    taken = given.copy()
    all_reduce(cluster, taken, Algorithm.AUTO)
    expected = np.concatenate([fold(given, cluster.machines, c, slice(100 * c, 100 * c + 100)) for c in range(3)])
    for row in taken:
        assert row.tobytes() == expected.tobytes()
    cluster.close()


def test_parallel_netreduce_sends_each_workers_share_once_and_nothing_between_hosts() -> None:
    cluster = MachineCluster(NAMES)
    arrays = np.ones((4, 10_000), np.float32)
    all_reduce(cluster, arrays, Algorithm.AUTO)
    for engine, (ring,) in zip(cluster.engines, cluster.more_engines, strict=True):
        statistics = engine.statistics()
        assert ring.statistics().in_network_bytes_sent == 20_000
        assert statistics.in_network_bytes_sent == statistics.peer_bytes_sent == 0
        assert statistics.shared_bytes_sent == statistics.shared_bytes_received == 40_000  # 2 (n-1)/n of the buffer
        assert statistics.in_network_collectives == 1
    cluster.close()


def test_in_leaders_only_the_machines_first_workers_send_to_other_machines() -> None:
    cluster = MachineCluster(NAMES)
    all_reduce(cluster, np.ones((4, 10_000), np.float32), Algorithm.LEADERS)
    assert [engine.statistics().peer_bytes_sent for engine in cluster.engines] == [40_000, 0, 40_000, 0]
    cluster.close()


@pytest.mark.parametrize("op", [Reduction.AVERAGE, Reduction.MIN, Reduction.BITWISE_XOR])
def test_other_operations_go_through_the_switch_if_it_can_do_them_and_round_the_rings_if_not(op: Reduction) -> None:
    cluster = MachineCluster(NAMES)
    dtype = np.float64 if op == Reduction.AVERAGE else np.int32
    arrays = np.arange(4000).reshape(4, 1000).astype(dtype) % 977
    expected = {
        Reduction.AVERAGE: arrays.mean(axis=0),
        Reduction.MIN: arrays.min(axis=0),
        Reduction.BITWISE_XOR: np.bitwise_xor.reduce(arrays.astype(np.int32)),
    }[op]
    all_reduce(cluster, arrays, Algorithm.AUTO, op)
    assert np.all(arrays == expected)
    assert cluster.engines[0].statistics().in_network_collectives == (op != Reduction.BITWISE_XOR)
    cluster.close()


def test_calls_of_all_kinds_stream_without_waiting_for_each_other(rng: np.random.Generator) -> None:
    cluster = MachineCluster(NAMES)
    engines, operations, checks = cluster.engines, [], []
    for _ in range(6):
        parallel, flat = rng.integers(0, 99, (4, 3000)), rng.integers(0, 99, (4, 500))
        passed = np.zeros((4, 64), np.int64)
        checks += [(parallel, parallel.sum(axis=0)), (flat, flat.sum(axis=0)), (passed, np.full(64, 5))]
        for rank, engine in enumerate(engines):
            operations.append(engine.all_reduce(parallel[rank]))
            operations.append(engine.all_reduce(flat[rank], algorithm=Algorithm.NETREDUCE))
            passed[0] = 5
            operations.append(engine.broadcast(passed[rank], 0))
    cluster.run(operations)
    for arrays, expected in checks:
        assert np.all(arrays == expected)
    cluster.close()


def test_long_transfers_between_mates_take_turns_in_the_shared_places(rng: np.random.Generator) -> None:
    cluster = MachineCluster(NAMES)
    given = rng.integers(0, 256, PLACES * PLACE_BYTES * 2 + 13, np.uint8)
    taken = np.zeros_like(given)
    cluster.run([cluster.engines[0].send(given, 1), cluster.engines[1].receive(taken, 0)])
    assert np.array_equal(given, taken)
    assert cluster.engines[0].statistics().peer_bytes_sent == 0
    cluster.close()


def test_more_receives_from_a_mate_than_may_be_asked_for_at_once_wait_their_turn() -> None:
    cluster = MachineCluster(NAMES)
    taken, given = np.zeros((200, 2), np.int32), np.arange(400, dtype=np.int32).reshape(200, 2)
    operations = [cluster.engines[1].receive(row, 0) for row in taken]
    arrays = np.ones((4, 100))
    all_reduce(cluster, arrays, Algorithm.AUTO)  # collectives need not wait for them
    cluster.run(operations + [cluster.engines[0].send(row, 1) for row in given])
    assert np.array_equal(taken, given)
    cluster.close()


@pytest.mark.parametrize("wrong", [0, 1])
def test_mates_that_disagree_name_both_sides(wrong: int) -> None:
    cluster = MachineCluster(NAMES)
    arrays = [np.ones(1000 - 8 * (rank == wrong)) for rank in range(4)]
    operations = [engine.all_reduce(arrays[rank]) for rank, engine in enumerate(cluster.engines)]
    for _ in range(50):
        cluster.step()
    for rank in (0, 1):
        error = operations[rank].error
        assert isinstance(error, MismatchError)
        assert dict(error.sides).keys() == {0, 1}
        assert "called all_reduce of 3" in str(error)
        assert "by parallel" in str(error)
    cluster.close()


def test_machines_that_disagree_are_told_by_the_switch() -> None:
    cluster = MachineCluster(NAMES)
    arrays = [np.ones(1000 - 8 * (rank > 1)) for rank in range(4)]
    operations = [engine.all_reduce(arrays[rank]) for rank, engine in enumerate(cluster.engines)]
    with pytest.raises(MismatchError, match="ranks disagree"):
        cluster.run(operations)
    cluster.close()


def test_a_mate_that_owes_an_answer_is_known() -> None:
    cluster = MachineCluster(NAMES)
    arrays = np.ones((4, 100))
    operations = [engine.all_reduce(arrays[rank]) for rank, engine in enumerate(cluster.engines) if rank != 1]
    for _ in range(20):
        cluster.step()
    assert cluster.engines[0].waits_for_mates() == [1]
    assert cluster.engines[2].waits_for_mates() == []
    cluster.run([*operations, cluster.engines[1].all_reduce(arrays[1])])
    assert np.all(arrays == 4)
    cluster.close()


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (Filled(5, 8), "rank 0 answered request 5, which rank 1 never made"),
        (Declined(1, 0, 0), "rank 0 answered request 1, which rank 1 never made"),
        (Freed(), "rank 0 freed a place that held nothing"),
        (Ok(), "rank 0 said Ok to rank 1"),
    ],
)
def test_nonsense_of_a_mate_ends_the_group(word: object, text: str) -> None:
    cluster = MachineCluster(NAMES)
    cluster.engines[1].hear(0, word)  # type: ignore[arg-type]
    assert isinstance(cluster.engines[1].error, NetReduceError)
    assert text in str(cluster.engines[1].error)
    cluster.close()


def test_a_mate_cannot_send_more_than_was_asked_for() -> None:
    cluster = MachineCluster(NAMES)
    cluster.engines[1].receive(np.zeros(4, np.uint8), 0)
    cluster.step()
    cluster.engines[1].hear(0, Filled(1, 5))
    assert "more than was asked for" in str(cluster.engines[1].error)
    cluster.close()


def test_an_operation_that_failed_takes_no_more_words() -> None:
    cluster = MachineCluster(NAMES)
    memory = np.zeros(4, np.uint8)
    cluster.engines[1].receive(memory, 0)
    cluster.step()
    cluster.engines[1].fail(NetReduceError("over"))
    cluster._memory[0, 1][:] = 7
    cluster.engines[1].hear(0, Filled(1, 4))
    assert not memory.any()
    cluster.close()


def test_without_several_machines_parallel_is_refused() -> None:
    cluster = Cluster(2)
    with pytest.raises(ConfigurationError, match=r"parallel needs several machines .* found 2 machines of 1 worker"):
        cluster.engines[0].all_reduce(np.ones(4), algorithm=Algorithm.PARALLEL)
    cluster.close()
