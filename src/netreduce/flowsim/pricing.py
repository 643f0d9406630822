"""What a scheme costs on an otherwise idle cluster: its schedules in lockstep, each distinct superstep solved once.

The price comes with what explains it: the latency part (alpha), the rest (beta), and the link that is busy the longest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from netreduce.flowsim.checks import check_bus_bandwidth
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.flows import Floats, Ints
from netreduce.flowsim.programs import Started, supersteps
from netreduce.flowsim.schemes import Scheme
from netreduce.flowsim.simulation import Simulation
from netreduce.flowsim.symmetry import collapse
from netreduce.flowsim.traffic import Settings, Traffic


@dataclass(frozen=True)
class Price:
    """What an all-reduce costs. Times in seconds, sizes in bytes.

    alpha_s is the part of time_s that no bandwidth would save; bottleneck the link that is busy the longest, and for
    which part of the time. memory_bytes and ports: of the aggregating switch that needs most of it.
    """

    scheme: str
    title: str
    ranks: int
    size_bytes: int
    time_s: float
    alpha_s: float
    steps: int
    distinct_steps: int
    bottleneck: str
    busy: float
    memory_bytes: float
    ports: int
    notes: tuple[str, ...]
    bus_factor: int = 2

    @property
    def algbw(self) -> float:
        """Bytes a second as nccl-tests defines it: size / time."""
        return self.size_bytes / self.time_s

    @property
    def busbw(self) -> float:
        """nccl-tests' bus bandwidth; schemes that aggregate in the network may exceed the link."""
        return self.algbw * self.bus_factor * (self.ranks - 1) / self.ranks

    @property
    def beta_s_per_gb(self) -> float:
        """Seconds per 1e9 bytes beyond alpha."""
        return (self.time_s - self.alpha_s) / self.size_bytes * 1e9

    def explain(self) -> str:
        """One line: why the time is what it is."""
        line = (
            f"{self.steps} steps: alpha {self.alpha_s * 1e6:.6g} us + beta {self.beta_s_per_gb * 1e3:.6g} ms/GB;"
            f" {self.bottleneck} is busy {self.busy:.0%} of the time"
        )
        if self.memory_bytes:
            line += f"; {self.memory_bytes / 1e6:.3g} MB and {self.ports} ports in the fullest switch"
        return "; ".join([line, *self.notes])


@dataclass(frozen=True, eq=False)
class _Solved:
    time_s: float
    alpha_s: float
    carried_bytes: Floats


class Pricer:
    """Prices one scheme on one cluster (or some `workers` of it, int64[ranks]) for any size."""

    def __init__(
        self, scheme: Scheme, cluster: Cluster, settings: Settings | None = None, workers: Ints | None = None
    ) -> None:
        self.traffic = Traffic(scheme, cluster, settings, workers)

    def price(self, size_bytes: int) -> Price:
        """An all-reduce of `size_bytes` per rank. Raises ConservationError when the result cannot be true."""
        times: Counter[_Solved] = Counter(step for _, step in self._supersteps(size_bytes))
        return self._summary(size_bytes, list(times.items()))

    def steps(self, size_bytes: int) -> Iterator[tuple[list[tuple[int, int, int]], float]]:
        """Each superstep's transfers (sending worker, receiving worker, bytes), and how long it takes in seconds."""
        item_bytes, workers = self.traffic.settings.item_bytes, self.traffic.workers.tolist()
        ranks, period = self.traffic.world_size, self.traffic.matcher(size_bytes).period
        for started, step in self._supersteps(size_bytes):
            yield (
                [
                    (workers[rank], workers[(rank + distance) % ranks], count * item_bytes)
                    for first, distance, count in started.transfers
                    for rank in range(first, ranks, period)
                ],
                step.time_s,
            )

    def _supersteps(self, size_bytes: int) -> Iterator[tuple[Started, _Solved]]:
        matcher = self.traffic.matcher(size_bytes)
        solved: dict[object, _Solved] = {}
        for started in supersteps(matcher):
            key = started.key()
            if key not in solved:
                solved[key] = self._solve(started, matcher.period)
            yield started, solved[key]

    def _solve(self, started: Started, period: int) -> _Solved:
        collapsed = collapse(self.traffic.flows(started, period), self.traffic.cluster.links.capacity)
        simulation = Simulation(collapsed.capacity)
        simulation.start(collapsed.flows, lambda _: None)
        time_s = simulation.run()
        carried = collapsed.per_link(simulation.fluid.carried_bytes)
        return _Solved(time_s, float(collapsed.flows.latency_s.max()), carried)

    def _summary(self, size_bytes: int, steps: list[tuple[_Solved, int]]) -> Price:
        scheme, cluster, admission = self.traffic.scheme, self.traffic.cluster, self.traffic.admission
        time_s = sum(step.time_s * count for step, count in steps)
        carried = np.sum([step.carried_bytes * count for step, count in steps], axis=0)
        busy_s = np.zeros(len(carried))
        np.divide(carried, cluster.links.capacity, out=busy_s, where=carried > 0)
        worst = int(np.argmax(busy_s))
        price = Price(
            scheme=scheme.name,
            title=scheme.title,
            ranks=self.traffic.world_size,
            size_bytes=size_bytes,
            time_s=time_s,
            alpha_s=sum(step.alpha_s * count for step, count in steps),
            steps=sum(count for _, count in steps),
            distinct_steps=len(steps),
            bottleneck=cluster.links.names[worst],
            busy=float(busy_s[worst]) / time_s,
            memory_bytes=admission.memory_bytes,
            ports=admission.ports,
            notes=tuple(admission.notes),
            bus_factor=scheme.bus_factor,
        )
        if scheme.aggregator is None:
            check_bus_bandwidth(price.busbw, cluster.fastest(), f"{price.title}, {price.ranks} ranks")
        return price
