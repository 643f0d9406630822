"""The transport between hosts: matching by tag, more receives than slots, refusals, and what goes over the wire."""

from __future__ import annotations

import numpy as np
import pytest
from tests.collectives.harness import Cluster

from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.collectives.data_stream import WRITE_BYTES_MAX
from netreduce.collectives.slots import FIFO_SLOTS
from netreduce.errors import MismatchError, NetReduceError
from netreduce.wire.control import Geometry
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import make_packet_table, parse_packet


def test_sends_and_receives_find_each_other_by_tag(rng: np.random.Generator) -> None:
    cluster = Cluster(2)
    tags = [int(tag) for tag in rng.integers(0, 5, 40)]
    given = [np.full(3, index, np.int32) for index in range(40)]
    order = sorted(range(40), key=lambda index: (tags[index] * 7 % 5, index))  # other tags first, same tag in order
    taken = {index: np.zeros(3, np.int32) for index in order}
    operations = [cluster.engines[0].send(array, 1, tag) for array, tag in zip(given, tags, strict=True)]
    operations += [cluster.engines[1].receive(taken[index], 0, tags[index]) for index in order]
    cluster.run(operations)
    for index, array in taken.items():
        assert np.array_equal(array, given[index])
    cluster.close()


def test_more_receives_than_slots_wait_their_turn_and_leave_room_for_collectives() -> None:
    cluster = Cluster(2)
    taken, given = np.zeros((400, 2), np.int32), np.arange(800, dtype=np.int32).reshape(400, 2)
    operations = [cluster.engines[1].receive(row, 0) for row in taken]
    both = np.array([[1.0], [2.0]])
    cluster.call(lambda engine, rank: engine.all_reduce(both[rank], algorithm=Algorithm.RING))
    assert np.all(both == 3)
    operations += [cluster.engines[0].send(row, 1) for row in given]
    cluster.run(operations)
    assert np.array_equal(taken, given)
    cluster.close()


@pytest.mark.parametrize("tuning", [Tuning(), Tuning(qps_per_connection=3)], ids=["one", "three"])
@pytest.mark.parametrize("sender_is_wrong", [True, False])
def test_both_sides_of_a_transfer_that_disagree_name_both(sender_is_wrong: bool, tuning: Tuning) -> None:
    cluster = Cluster(2, tuning=tuning)
    data = [np.zeros(409600, np.int8), np.zeros(409598, np.int8)]
    root = 1 if sender_is_wrong else 0
    operations = [engine.broadcast(data[rank], root) for rank, engine in enumerate(cluster.engines)]
    with pytest.raises(MismatchError):
        cluster.run(operations)
    for _ in range(20):
        cluster.step()
    for operation in operations:
        text = str(operation.error)
        assert isinstance(operation.error, MismatchError)
        assert "rank 0 called broadcast" in text
        assert "rank 1 called broadcast" in text
        assert dict(operation.error.sides).keys() == {0, 1}
    cluster.close()


def test_different_collectives_at_the_same_place_are_a_mismatch() -> None:
    cluster = Cluster(2)
    row, block = np.zeros(8, np.float32), np.zeros((2, 4), np.float32)
    operations = [cluster.engines[0].broadcast(row, 0), cluster.engines[1].all_gather(row[:4], block)]
    with pytest.raises(MismatchError):
        cluster.run(operations)
    assert "broadcast of 32 bytes float32 root 0" in str(operations[0].error)
    assert "all_gather of 16 bytes float32" in str(operations[0].error)
    cluster.close()


def test_a_mebibyte_goes_as_nccl_sends_it() -> None:
    """64 bytes of clear to send against the stream, then WRITE First, 254 Middle, Last with Immediate."""
    seen: list[tuple[int, int, int]] = []
    packet = make_packet_table()

    def watch(port: int, frame: np.ndarray) -> bool:
        if port >= 0 and parse_packet(frame, packet[0]) == 0:
            seen.append((port, int(packet[0].opcode), int(packet[0].payload_bytes)))
        return True

    cluster = Cluster(2, geometry=Geometry(path_mtu=4096), keep=watch)
    data = np.ones((2, 1 << 20), np.uint8)
    cluster.run([cluster.engines[0].send(data[0], 1), cluster.engines[1].receive(data[1], 0)])
    stream = [opcode for port, opcode, _ in seen if port == 0 and opcode != Opcode.ACKNOWLEDGE]
    against = [(opcode, size) for port, opcode, size in seen if port == 1 and opcode != Opcode.ACKNOWLEDGE]
    assert against == [(Opcode.RDMA_WRITE_ONLY, 64)]
    first, last = Opcode.RDMA_WRITE_FIRST, Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE
    assert stream == [first, *[Opcode.RDMA_WRITE_MIDDLE] * 254, last]
    cluster.close()


def test_one_clear_to_send_in_a_pass_round_the_fifo_is_signaled() -> None:
    cluster = Cluster(2)
    passes = 3
    word = np.zeros(1, np.int32)
    for _ in range(passes * FIFO_SLOTS // 64):
        receives = [cluster.engines[1].receive(word, 0) for _ in range(64)]
        cluster.run([*receives, *(cluster.engines[0].send(word, 1) for _ in range(64))])
    assert int(cluster.nics[1].tables.cq.posted.sum()) == passes * FIFO_SLOTS + passes
    assert int(cluster.nics[0].tables.cq.posted.sum()) == passes * FIFO_SLOTS  # every data write is signaled
    cluster.close()


@pytest.mark.parametrize("size", [WRITE_BYTES_MAX - 1, WRITE_BYTES_MAX, WRITE_BYTES_MAX + 1])
def test_long_transfers_are_cut_into_work_requests(size: int) -> None:
    cluster = Cluster(2, geometry=Geometry(path_mtu=4096))
    given = np.arange(size, dtype=np.uint8)
    taken = np.zeros_like(given)
    before = int(cluster.nics[0].tables.qp.sq_posted.sum())
    cluster.run([cluster.engines[0].send(given, 1), cluster.engines[1].receive(taken, 0)])
    assert np.array_equal(given, taken)
    assert int(cluster.nics[0].tables.qp.sq_posted.sum()) - before == -(-size // WRITE_BYTES_MAX)
    cluster.close()


def test_an_answer_to_a_question_that_nobody_asked_ends_the_group() -> None:
    cluster = Cluster(2)
    with pytest.raises(NetReduceError, match="rank 0 answered request 5, which rank 1 never made"):
        cluster.engines[1]._links.peers[0].receives.complete(5)
    cluster.close()
