"""Several queue pairs per connection: what each carries is counted in what crosses the wire."""

from __future__ import annotations

import numpy as np
import pytest
from tests.collectives.harness import Cluster

from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.collectives.engine import Engine
from netreduce.errors import ConfigurationError
from netreduce.nic import Nic
from netreduce.nic import verbs as v
from netreduce.wire.control import Geometry
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import make_packet_table, parse_packet

PAGE = Geometry(path_mtu=4096)


class Wire:
    """Notes (sender's port, queue pair, opcode, payload) of every packet but ACKs; loses data to `lost_qpn`."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, int]] = []
        self.lost_qpn = -1
        self._packet = make_packet_table()

    def __call__(self, port: int, frame: np.ndarray) -> bool:
        packet = self._packet[0]
        if port < 0 or parse_packet(frame, packet) != 0 or packet.opcode == Opcode.ACKNOWLEDGE:
            return True
        if packet.destination_qpn == self.lost_qpn:
            return False
        self.seen.append((port, int(packet.destination_qpn), int(packet.opcode), int(packet.payload_bytes)))
        return True

    def opcodes(self, port: int, qpn: int) -> list[int]:
        return [opcode for sender, destination, opcode, _ in self.seen if (sender, destination) == (port, qpn)]


def qpns(cluster: Cluster, rank: int, peer: int) -> list[int]:
    """Of rank `rank`'s end towards `peer`."""
    return [qp.qp_num for qp in cluster.engines[rank]._links.peers[peer].qps]


def test_a_split_mebibyte_takes_half_of_its_packets_over_each_of_two_queue_pairs() -> None:
    wire = Wire()
    cluster = Cluster(2, geometry=PAGE, keep=wire, tuning=Tuning(qps_per_connection=2, split_data_on_qps=True))
    data = np.arange(2 << 20, dtype=np.uint8).reshape(2, -1)
    data[1] = 0
    cluster.run([cluster.engines[0].send(data[0], 1), cluster.engines[1].receive(data[1], 0)])
    assert np.array_equal(*data)
    half = [Opcode.RDMA_WRITE_FIRST, *[Opcode.RDMA_WRITE_MIDDLE] * 126, Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE]
    assert [wire.opcodes(0, qpn) for qpn in qpns(cluster, 1, 0)] == [half, half]
    # One clear to send, on the first queue pair.
    assert [wire.opcodes(1, qpn) for qpn in qpns(cluster, 0, 1)] == [[Opcode.RDMA_WRITE_ONLY], []]
    cluster.close()


def test_in_turn_each_transfer_takes_one_queue_pair() -> None:
    wire = Wire()
    cluster = Cluster(2, geometry=PAGE, keep=wire, tuning=Tuning(qps_per_connection=3))
    data = np.ones((2, 4096), np.uint8)
    for _ in range(7):
        cluster.run([cluster.engines[0].send(data[0], 1), cluster.engines[1].receive(data[1], 0)])
    assert [len(wire.opcodes(0, qpn)) for qpn in qpns(cluster, 1, 0)] == [3, 2, 2]
    assert [len(wire.opcodes(1, qpn)) for qpn in qpns(cluster, 0, 1)] == [7, 0, 0]
    cluster.close()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 257, 1000])
def test_transfers_are_split_at_multiples_of_128_bytes_and_each_queue_pair_says_when_it_is_done(size: int) -> None:
    wire = Wire()
    cluster = Cluster(2, keep=wire, tuning=Tuning(qps_per_connection=3, split_data_on_qps=True))
    given, taken = np.arange(size, dtype=np.uint8), np.zeros(size, np.uint8)
    operations = [cluster.engines[0].send(given, 1), cluster.engines[1].receive(taken, 0)]
    cluster.run(operations)
    assert np.array_equal(given, taken)
    sizes = [payload for sender, *_, payload in wire.seen if sender == 0]
    assert len(sizes) == 3
    assert sum(sizes) == size
    assert sum(payload % 128 != 0 for payload in sizes) <= 1
    cluster.close()


def test_a_receive_is_complete_when_the_last_part_is_there() -> None:
    wire = Wire()
    cluster = Cluster(2, keep=wire, tuning=Tuning(qps_per_connection=2, split_data_on_qps=True))
    wire.lost_qpn = qpns(cluster, 1, 0)[1]
    given, taken = np.ones(1000, np.uint8), np.zeros(1000, np.uint8)
    operations = [cluster.engines[0].send(given, 1), cluster.engines[1].receive(taken, 0)]
    while cluster.step():
        pass
    assert taken.sum() == 512  # the first queue pair has delivered
    assert not operations[0].done
    assert not operations[1].done
    wire.lost_qpn = -1
    cluster.run(operations)
    assert taken.all()
    cluster.close()


@pytest.mark.parametrize("split", [True, False])
def test_collectives_run_over_several_queue_pairs(split: bool, rng: np.random.Generator) -> None:
    cluster = Cluster(3, tuning=Tuning(qps_per_connection=4, split_data_on_qps=split))
    data = rng.integers(0, 100, (3, 20_000)).astype(np.float64)
    total = data.sum(axis=0)
    for algorithm in (Algorithm.RING, Algorithm.TREE):
        arrays = data.copy()
        cluster.call(lambda engine, rank: engine.all_reduce(arrays[rank], algorithm=algorithm))  # noqa: B023
        assert np.all(arrays == total)
    cluster.close()


def test_ranks_whose_connections_differ_are_told_so() -> None:
    tunings = Tuning(qps_per_connection=2), Tuning(qps_per_connection=2, split_data_on_qps=True)
    engines = []
    for rank, tuning in enumerate(tunings):
        nic = Nic(f"nic{rank}", f"02:4e:52:00:00:{rank:02x}", f"10.78.0.{rank + 1}")
        nic.neighbours.update({"10.78.0.1": "02:4e:52:00:00:00", "10.78.0.2": "02:4e:52:00:00:01"})
        engines.append(Engine(v.Context(nic), rank, 2, PAGE, tuning=tuning))
    endpoints = tuple(engine.endpoint() for engine in engines)
    text = "rank 1 has 2 queue pairs per connection, data split over them: all ranks need the same Tuning"
    with pytest.raises(ConfigurationError, match=text):
        engines[0].connect(1, endpoints)


@pytest.mark.parametrize(("count", "world_size", "text"), [(0, 2, "1 to 8"), (9, 2, "1 to 8"), (3, 64, "63 peers")])
def test_more_queue_pairs_than_there_is_room_for_are_refused(count: int, world_size: int, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Tuning(qps_per_connection=count).check(world_size)
