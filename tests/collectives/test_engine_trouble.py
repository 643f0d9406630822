"""Many calls at once, ranks that disagree, lost packets, ranks that give up: what an engine does then."""

from __future__ import annotations

import numpy as np
import pytest
from tests.collectives.harness import Cluster

from netreduce.collectives.algorithms import Algorithm
from netreduce.collectives.executor import COLLECTIVES_MAX
from netreduce.collectives.operation import Operation
from netreduce.collectives.reductions import Reduction
from netreduce.errors import ConfigurationError, MismatchError, NetReduceError, UnsupportedError
from netreduce.nic import verbs as v
from netreduce.wire.control import Geometry
from netreduce.wire.opcodes import Opcode

Check = tuple[Operation, np.ndarray, np.ndarray]
"""A call, the array that takes its result, and what that must hold."""


def start_all(cluster: Cluster, plans: list[tuple[str, int, int]], seed: int) -> list[Check]:
    """Call each plan (kind, count, root) on every rank, rank after rank."""
    size = len(cluster.engines)
    checks: list[Check] = []
    for rank, engine in enumerate(cluster.engines):
        rng = np.random.default_rng(seed)  # all ranks know all data, so that each can be checked
        for kind, count, root in plans:
            data = rng.integers(-99, 99, (size, count)).astype(np.float32)
            own = data[rank].copy()
            if kind == "broadcast":
                checks.append((engine.broadcast(own, root), own, data[root]))
            elif kind == "all_gather":
                out = np.zeros((size, count), np.float32)
                checks.append((engine.all_gather(own, out), out, data))
            elif kind == "reduce":
                checks.append((engine.reduce(own, root), own, data.sum(axis=0) if rank == root else data[rank]))
            else:
                algorithm = Algorithm.RING if kind == "ring" else Algorithm.AUTO
                checks.append((engine.all_reduce(own, algorithm=algorithm), own, data.sum(axis=0)))
    return checks


def test_many_different_collectives_at_once_keep_apart(rng: np.random.Generator, seed: int) -> None:
    cluster = Cluster(3)
    kinds = rng.choice(["all_reduce", "ring", "broadcast", "all_gather", "reduce"], 2 * COLLECTIVES_MAX)
    plans = [(str(kind), int(rng.integers(0, 700)), int(rng.integers(0, 3))) for kind in kinds]
    checks = start_all(cluster, plans, seed)
    cluster.run([operation for operation, _, _ in checks])
    for operation, found, expected in checks:
        assert np.array_equal(found, expected), f"{operation.name} #{operation.sequence}"
    cluster.close()


def test_several_all_reduces_share_the_window() -> None:
    """The second one's messages leave before the first one is done: DDP's buckets overlap."""
    cluster = Cluster(2, geometry=Geometry(message_window=4, message_packets=4, path_mtu=1024))
    data = np.ones((2, 6, 900), np.float32)
    operations = [engine.all_reduce(data[rank, i]) for rank, engine in enumerate(cluster.engines) for i in range(6)]
    for engine in cluster.engines:
        engine.progress(0)
    assert all(nic.tables.qp.sq_posted.max() == 4 for nic in cluster.nics)
    cluster.run(operations)
    assert np.all(data == 2)
    cluster.close()


def is_answer(frame: np.ndarray) -> bool:
    return frame[OPCODE_AT] == Opcode.ACKNOWLEDGE


OPCODE_AT = 14 + 20 + 8


def test_a_short_all_reduce_ends_with_its_result_whatever_becomes_of_the_acknowledgements() -> None:
    cluster = Cluster(3, keep=lambda _port, frame: not is_answer(frame))
    arrays = [np.full(1500, rank + 1, np.float32) for rank in range(3)]
    operations = [engine.all_reduce(array) for engine, array in zip(cluster.engines, arrays, strict=True)]
    for _ in range(20):
        cluster.step()
    assert all(operation.done for operation in operations)
    assert all((array == 6).all() for array in arrays)
    assert all(engine.awaits_acknowledgements for engine in cluster.engines)  # both messages of the window are out
    cluster.keep = None
    cluster.call(lambda engine, rank: engine.all_reduce(arrays[rank]))
    assert all((array == 18).all() for array in arrays)


def test_a_result_that_was_lost_is_sent_again_by_a_rank_that_has_left_and_without_its_array() -> None:
    lost = []

    def keep(wire: int, frame: np.ndarray) -> bool:
        is_lost = wire == -2 and not is_answer(frame) and not lost  # the first result for rank 1, from rank 0
        if is_lost:
            lost.append(frame.size)
        return not is_lost

    cluster = Cluster(3, keep=keep)
    arrays = [np.full(200, rank + 1, np.float32) for rank in range(3)]
    operations = [engine.all_reduce(array) for engine, array in zip(cluster.engines, arrays, strict=True)]
    for _ in range(20):
        cluster.step()
    assert [operation.done for operation in operations] == [True, False, True]
    assert lost
    assert not cluster.engines[0].awaits_acknowledgements
    arrays[0].fill(-1)
    cluster.engines[0].leave(NetReduceError("rank 0 has left"))
    cluster.run(operations)
    assert (arrays[1] == 6).all()
    assert (arrays[0] == -1).all()
    with pytest.raises(NetReduceError, match="rank 0 has left"):
        cluster.engines[0].barrier()


@pytest.mark.parametrize("loss", [0.01, 0.1])
def test_lost_packets_change_nothing_but_the_time(rng: np.random.Generator, seed: int, loss: float) -> None:
    chance = np.random.default_rng(seed)
    cluster = Cluster(3, keep=lambda port, frame: chance.random() >= loss, ack_timeout=8)  # 1 ms
    plans = [(kind, 1009, 1) for kind in ("all_reduce", "ring", "broadcast", "all_gather", "reduce", "all_reduce")]
    checks = start_all(cluster, plans, seed)
    cluster.run([operation for operation, _, _ in checks])
    for operation, found, expected in checks:
        assert np.array_equal(found, expected), operation.name
    cluster.close()


@pytest.mark.parametrize(
    ("other", "op", "words"),
    [
        (np.zeros(1000, np.float32), Reduction.SUM, ("4,", "float32")),
        (np.zeros(1009, np.int32), Reduction.SUM, ("float32", "int32")),
        (np.zeros(1009, np.float32), Reduction.MAX, ("sum", "max")),
        (np.zeros(1009, np.float32), Reduction.AVERAGE, ("sum", "average")),
    ],
    ids=["length", "dtype", "operation", "average"],
)
def test_ranks_that_disagree_about_an_all_reduce_all_fail(other: np.ndarray, op: Reduction, words: tuple) -> None:
    cluster = Cluster(3)
    data = [np.zeros(1009, np.float32), np.zeros(1009, np.float32), other]
    ops = [Reduction.SUM, Reduction.SUM, op]
    operations = [e.all_reduce(data[rank], ops[rank]) for rank, e in enumerate(cluster.engines)]
    with pytest.raises(MismatchError, match="rank 2") as caught:
        cluster.run(operations)
    for word in words:
        assert word in str(caught.value)
    assert all(isinstance(operation.error, MismatchError) for operation in operations)
    cluster.close()


def test_a_rank_that_gives_up_frees_its_memory_and_refuses_more() -> None:
    cluster = Cluster(2)
    data = np.ones((2, 5000), np.float32)
    operations = [cluster.engines[0].all_reduce(data[0]), cluster.engines[0].broadcast(data[1], 0)]
    heard: list[Operation] = []
    operations[0].on_done(heard.append)
    for _ in range(3):
        cluster.step()
    regions = int(cluster.nics[0].tables.mr.valid.sum())
    cluster.engines[0].fail(NetReduceError("enough"))
    assert int(cluster.nics[0].tables.mr.valid.sum()) == regions - 2
    assert heard == [operations[0]]
    assert all(str(operation.error) == "enough" for operation in operations)
    with pytest.raises(NetReduceError, match="enough"):
        cluster.engines[0].barrier()
    cluster.close()


def test_a_peer_that_is_gone_ends_transfers_with_an_error_that_names_it() -> None:
    cluster = Cluster(2, keep=lambda port, frame: port != 1 and port != -2, ack_timeout=4)
    data = np.ones((2, 10), np.float32)
    operation = cluster.engines[0].broadcast(data[1], 1)
    with pytest.raises(NetReduceError, match="rank 1: IBV_WC_RETRY_EXC_ERR: it acknowledged nothing"):
        cluster.run([operation])
    cluster.close()


def test_close_gives_everything_back_to_the_nic() -> None:
    cluster = Cluster(3)
    data = np.ones((3, 500), np.float32)
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank]))
    cluster.close()
    for nic in cluster.nics:
        assert not nic.tables.mr.valid.any()
        assert not nic.tables.qp.qpn.any()
        assert not nic.tables.cq.depth.any()


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    cluster = Cluster(2)
    engine = cluster.engines[0]
    data = np.zeros((4, 4), np.float32)
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(UnsupportedError, match="C-contiguous"):
        engine.all_reduce(data[:, 0])
    with pytest.raises(UnsupportedError, match="read-only"):
        engine.all_reduce(frozen)
    with pytest.raises(ConfigurationError, match="root is 2, 0 to 1"):
        engine.broadcast(data, 2)
    with pytest.raises(ConfigurationError, match="this rank itself"):
        engine.send(data, 0)
    with pytest.raises(ConfigurationError, match="tag is -1"):
        engine.send(data, 1, -1)
    with pytest.raises(ConfigurationError, match="out has 4 elements, 16 are needed"):
        engine.all_reduce(data, out=np.zeros(4, np.float32))
    with pytest.raises(ConfigurationError, match="dtypes float64 and float32"):
        engine.all_reduce(data, out=np.zeros((4, 4)))
    with pytest.raises(ConfigurationError, match="equal blocks"):
        engine.reduce_scatter(np.zeros(3, np.float32), np.zeros(1, np.float32))
    with pytest.raises(ConfigurationError, match="2 ranks"):
        engine.all_gather(data, [data])
    with pytest.raises(ConfigurationError, match="the root gave no arrays"):
        engine.gather(data, None, 0)
    assert not cluster.step()
    cluster.close()


def test_an_engine_that_is_not_connected_says_so() -> None:
    cluster = Cluster(2)
    from netreduce.collectives.engine import Engine

    lonely = Engine(v.Context(cluster.nics[0]), 0, 2, Geometry())
    with pytest.raises(ConfigurationError, match=r"Engine\.connect comes first"):
        lonely.barrier()
    assert not lonely.progress(0)
    lonely.close()
    cluster.close()
