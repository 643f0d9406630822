"""Collectives on links that lose, repeat, reorder and damage frames: slower, never wrong."""

from __future__ import annotations

import numpy as np
import pytest
from tests.collectives.harness import NIC_LIMITS, RING_ID

from netreduce.collectives.algorithms import Algorithm
from netreduce.collectives.engine import Engine
from netreduce.fabric.simulator import Simulator
from netreduce.nic import Nic
from netreduce.nic import verbs as v
from netreduce.switch import RingSpec, Switch
from netreduce.units import GBPS, PS_PER_S, PS_PER_US
from netreduce.wire.control import Geometry

RANKS = 3
GEOMETRY = Geometry(message_window=2, message_packets=4, path_mtu=512)


def build(seed: int) -> tuple[Simulator, list[Engine]]:
    simulator, switch = Simulator(seed), Switch("switch", RANKS)
    nics = [Nic(f"nic{r}", f"02:4e:52:00:00:0{r}", f"10.78.0.{r + 1}", limits=NIC_LIMITS) for r in range(RANKS)]
    for rank, nic in enumerate(nics):
        switch.attach(rank, nic.mac, nic.ip)
        simulator.connect(nic, 0, switch, rank, rate_bps=10 * GBPS, delay_ps=PS_PER_US)
        nic.neighbours.update({other.ip: other.mac for other in nics})
    engines = [Engine(v.Context(nic), r, RANKS, GEOMETRY, seed=seed, ack_timeout=6) for r, nic in enumerate(nics)]
    endpoints = tuple(engine.endpoint() for engine in engines)
    switch.register_ring(RingSpec(RING_ID, endpoints, GEOMETRY))
    for nic, engine in zip(nics, engines, strict=True):
        engine.connect(RING_ID, endpoints)
        simulator.run_on(nic, engine.progress)
    return simulator, engines


@pytest.mark.parametrize("fault", ["drop", "duplicate", "reorder", "corrupt", "truncate", "all"])
def test_faults_on_every_link_change_no_result(fault: str, rng: np.random.Generator, seed: int) -> None:
    simulator, engines = build(seed % (1 << 16))
    for kind in ("drop", "duplicate", "reorder", "corrupt", "truncate") if fault == "all" else (fault,):
        for line in simulator.lines:
            getattr(line, kind)(probability=0.01 if fault == "all" else 0.03)
    summed = rng.integers(-99, 99, (2, RANKS, 1500)).astype(np.float32)
    expected = summed.sum(axis=1)
    gathered, copied = np.zeros((RANKS, RANKS, 700), np.int32), np.zeros((RANKS, 900), np.int64)
    copied[1] = np.arange(900)
    operations = []
    for rank, engine in enumerate(engines):
        operations += [
            engine.all_reduce(summed[0, rank]),
            engine.all_gather(np.full(700, rank, np.int32), gathered[rank]),
            engine.all_reduce(summed[1, rank], algorithm=Algorithm.RING),
            engine.broadcast(copied[rank], 1),
            engine.barrier(),
        ]
    simulator.run_until(lambda: all(operation.done for operation in operations), limit_ps=10 * PS_PER_S)
    assert [operation.error for operation in operations] == [None] * len(operations)
    assert np.array_equal(summed, np.repeat(expected[:, None], RANKS, axis=1))
    assert np.array_equal(gathered, np.broadcast_to(np.arange(RANKS)[None, :, None], gathered.shape))
    assert np.array_equal(copied, np.broadcast_to(np.arange(900), copied.shape))
