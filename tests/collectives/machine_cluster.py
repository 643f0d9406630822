"""Ranks on pretended machines: a ring across them for each worker, and shared memory that is plain arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tests.collectives.harness import GEOMETRY, RING_ID, Cluster

from netreduce.collectives.engine import Engine
from netreduce.collectives.machines import Machines
from netreduce.collectives.shared import SHARED_BYTES, SharedConnection
from netreduce.nic import verbs as v
from netreduce.switch import RingSpec
from netreduce.wire.control import Message


class MachineCluster(Cluster):
    """Rank r is on the machine `names[r]`. Words between mates arrive a step later, in order."""

    def __init__(self, names: Sequence[str], **options: Any) -> None:
        super().__init__(len(names), **options)
        self.machines = Machines.named(names)
        self._words: deque[tuple[int, int, Message]] = deque()
        self._memory: dict[tuple[int, int], np.ndarray] = {}
        rings = self._connect_rings()
        for rank, engine in enumerate(self.engines):
            mates = [mate for mate in self.machines.mates(rank) if mate != rank]
            engine.use_machines(self.machines, rings[rank].ring, {mate: self._shared(rank, mate) for mate in mates})
            self.more_engines[rank].append(rings[rank])

    def _connect_rings(self) -> dict[int, Engine]:
        engines: dict[int, Engine] = {}
        for worker in range(self.machines.size):
            ranks = [ranks[worker] for ranks in self.machines.members]
            ring = [Engine(v.Context(self.nics[r]), i, len(ranks), GEOMETRY) for i, r in enumerate(ranks)]
            endpoints = tuple(engine.endpoint() for engine in ring)
            self.switch.register_ring(RingSpec(RING_ID + 1 + worker, endpoints, GEOMETRY))
            for engine in ring:
                engine.connect(RING_ID + 1 + worker, endpoints)
            engines.update(zip(ranks, ring, strict=True))
        return engines

    def _shared(self, rank: int, mate: int) -> SharedConnection:
        memory = [
            self._memory.setdefault(way, np.zeros(SHARED_BYTES, np.uint8)) for way in ((rank, mate), (mate, rank))
        ]
        return SharedConnection(rank, mate, *memory, say=partial(self._say, rank, mate))

    def _say(self, rank: int, mate: int, word: Message) -> None:
        self._words.append((rank, mate, word))

    def step(self) -> bool:
        moved = False
        for _ in range(len(self._words)):
            rank, mate, word = self._words.popleft()
            self.engines[mate].hear(rank, word)
            moved = True
        return super().step() or moved
