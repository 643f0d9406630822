"""A scheme's traffic on given workers of a cluster: what its schedules start, turned into flows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.flowsim.aggregators import Admission, admit
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.flows import Floats, Flows, Ints, concatenated, routed
from netreduce.flowsim.packets import Packets, roce
from netreduce.flowsim.programs import Matcher, Started
from netreduce.flowsim.schemes import Scheme


@dataclass(frozen=True)
class Settings:
    """packets: of point-to-point transfers; without headers, aggregated packets have none either.

    step_s: software latency of each step, on top of the links' latencies (the paper's per-hop alpha). item_bytes:
    size of an element. store_and_forward: switches send a packet on when all of it has arrived, which costs its
    length on each further link.
    """

    packets: Packets = field(default_factory=roce)
    step_s: float = 0.0
    item_bytes: int = 4
    store_and_forward: bool = False


class Traffic:
    """All-reduces by `scheme` among `workers` (int64[ranks], default all): rank r is worker `workers[r]`."""

    def __init__(
        self,
        scheme: Scheme,
        cluster: Cluster,
        settings: Settings | None = None,
        workers: Ints | None = None,
        memory_taken: Counter[str] | None = None,
    ) -> None:
        """`memory_taken`, bytes by switch, is what other jobs hold; this one's share is added."""
        self.scheme, self.cluster, self.settings = scheme, cluster, settings or Settings()
        self.workers = np.arange(cluster.worker_count) if workers is None else workers
        self.world_size, self.machine_size = len(self.workers), self._machine_size()
        if self.world_size < 2:
            raise ConfigurationError("an all-reduce needs at least two ranks")
        self.rings = scheme.rings(self.world_size, self.machine_size)
        self.admission = Admission()
        if scheme.aggregator is not None:
            aggregator = scheme.aggregator
            if not self.settings.packets.header_bytes:
                aggregator = replace(aggregator, packets=replace(aggregator.packets, header_bytes=0))
            members = [self.workers[ring] for ring in self.rings]
            frame_bytes = aggregator.packets.frame_bytes if self.settings.store_and_forward else 0
            self.admission = admit(cluster, aggregator, members, memory_taken, frame_bytes=frame_bytes)

    def _machine_size(self) -> int:
        """Workers per machine, if the ranks lie machine by machine with equally many on each; else 1."""
        machine = self.workers // self.cluster.inside.workers
        changes = np.flatnonzero(np.diff(machine)) + 1
        runs = np.diff(np.concatenate(([0], changes, [len(machine)])))
        return int(runs[0]) if len(set(runs.tolist())) == 1 and len(set(machine.tolist())) == len(runs) else 1

    def count(self, size_bytes: int) -> int:
        """Elements of an all-reduce of `size_bytes`, rounded up to a multiple of the ranks."""
        elements = -(-size_bytes // self.settings.item_bytes)
        return -(-elements // self.world_size) * self.world_size

    def matcher(self, size_bytes: int, *, every_rank: bool = False) -> Matcher:
        """The ranks' schedules for `size_bytes`; only one of each kind of rank, unless `every_rank`."""
        make = self.scheme.make(self.world_size, self.machine_size, self.count(size_bytes))
        period = self.world_size if every_rank else self.scheme.period(self.world_size, self.machine_size)
        return Matcher(make, self.world_size, [ring.tolist() for ring in self.rings], period)

    def tax(self, routes: Ints) -> Floats:
        """Wire bytes per payload byte of each route; links inside a machine carry no packets of the network."""
        return np.where(routes[:, 0] < self.cluster.offset, 1.0, self.settings.packets.tax())

    def flows(self, started: Started, period: int) -> Flows:
        """The flows of what starts together, with header tax and latencies: transfers (each with its shifts), then
        aggregations.
        """
        batches = []
        if started.transfers:
            shifts = np.arange(0, self.world_size, period)
            columns = np.array(started.transfers, np.int64)
            source = (columns[:, :1] + shifts).ravel()
            sink = (source + np.repeat(columns[:, 1], len(shifts))) % self.world_size
            size = np.repeat(columns[:, 2], len(shifts)).astype(np.float64) * self.settings.item_bytes
            routes = self.cluster.routes(self.workers[source], self.workers[sink])
            latency_s = self.cluster.latency_s(routes) + self.settings.step_s
            if self.settings.store_and_forward:
                latency_s += self.cluster.forwarding_s(routes, self.settings.packets.frame_bytes)
            batches.append(routed(routes, size, latency_s, use=self.tax(routes)))
        for number, count in started.aggregations:
            ring = self.admission.rings[number]
            batches.append(ring.of(count * self.settings.item_bytes, self.settings.step_s))
        return concatenated(batches)
