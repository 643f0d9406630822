"""What a scheme costs on a cluster: its schedules in lockstep, each distinct superstep solved once.

The price comes with what explains it: the latency part (alpha), the rest (beta), and the link that is busy the longest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.flowsim.aggregators import Admission, admit
from netreduce.flowsim.checks import check_bus_bandwidth
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.flows import Floats, Flows, concatenated, routed
from netreduce.flowsim.packets import Packets, roce
from netreduce.flowsim.programs import Matcher, Started, supersteps
from netreduce.flowsim.schemes import Scheme
from netreduce.flowsim.simulation import Simulation
from netreduce.flowsim.symmetry import collapse


@dataclass(frozen=True)
class Settings:
    """packets: of point-to-point transfers. step_s: software latency of each step, on top of the links' latencies (the
    paper's per-hop alpha). item_bytes: size of an element.
    """

    packets: Packets = field(default_factory=roce)
    step_s: float = 0.0
    item_bytes: int = 4


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
    memory_bytes: float = 0.0
    ports: int = 0
    notes: tuple[str, ...] = ()

    @property
    def algbw(self) -> float:
        """Bytes a second as nccl-tests defines it: size / time."""
        return self.size_bytes / self.time_s

    @property
    def busbw(self) -> float:
        """nccl-tests' bus bandwidth of an all-reduce; schemes that aggregate in the network may exceed the link."""
        return self.algbw * 2 * (self.ranks - 1) / self.ranks

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


@dataclass(frozen=True)
class _Solved:
    time_s: float
    alpha_s: float
    carried_bytes: Floats


class Pricer:
    """Prices one scheme on one cluster; sizes are independent of each other."""

    def __init__(self, scheme: Scheme, cluster: Cluster, settings: Settings | None = None) -> None:
        self.scheme, self.cluster, self.settings = scheme, cluster, settings or Settings()
        self.world_size, self.machine_size = cluster.worker_count, cluster.inside.workers
        if self.world_size < 2:
            raise ConfigurationError("an all-reduce needs at least two ranks")
        self._rings = scheme.rings(self.world_size, self.machine_size)
        self.admission = admit(cluster, scheme.aggregator, self._rings) if scheme.aggregator else Admission()

    def price(self, size_bytes: int) -> Price:
        """An all-reduce of `size_bytes` per rank. The element count is rounded up to a multiple of the ranks."""
        elements = -(-size_bytes // self.settings.item_bytes)
        count = -(-elements // self.world_size) * self.world_size
        period = self.scheme.period(self.world_size, self.machine_size)
        make = self.scheme.make(self.world_size, self.machine_size, count)
        matcher = Matcher(make, self.world_size, [ring.tolist() for ring in self._rings], period)
        solved: dict[object, _Solved] = {}
        time_s = alpha_s = 0.0
        steps = 0
        uses: dict[object, int] = {}
        for started in supersteps(matcher):
            key = started.key()
            if key not in solved:
                solved[key] = self._solve(started, period)
            uses[key] = uses.get(key, 0) + 1
            time_s += solved[key].time_s
            alpha_s += solved[key].alpha_s
            steps += 1
        carried = np.sum([solved[key].carried_bytes * times for key, times in uses.items()], axis=0)
        return self._summary(size_bytes, time_s, alpha_s, steps, len(solved), carried)

    def _solve(self, started: Started, period: int) -> _Solved:
        collapsed = collapse(self.flows(started, period), self.cluster.links.capacity)
        simulation = Simulation(collapsed.capacity)
        simulation.start(collapsed.flows, lambda _: None)
        time_s = simulation.run()
        carried = collapsed.per_link(simulation.fluid.carried_bytes)
        return _Solved(time_s, float(collapsed.flows.latency_s.max()), carried)

    def flows(self, started: Started, period: int) -> Flows:
        """The flows of what starts together, with header tax and latencies, transfers first."""
        batches = []
        if started.transfers:
            shifts = np.arange(0, self.world_size, period)
            columns = np.array(started.transfers, np.int64)
            source = (columns[:, :1] + shifts).ravel()
            sink = (source + np.repeat(columns[:, 1], len(shifts))) % self.world_size
            size = np.repeat(columns[:, 2], len(shifts)).astype(np.float64) * self.settings.item_bytes
            routes = self.cluster.routes(source, sink)
            latency_s = self.cluster.latency_s(routes) + self.settings.step_s
            batches.append(routed(routes, size, latency_s, use=self.settings.packets.tax()))
        for number, count in started.aggregations:
            ring = self.admission.rings[number]
            batches.append(ring.of(count * self.settings.item_bytes, self.settings.step_s))
        return concatenated(batches)

    def _summary(
        self, size_bytes: int, time_s: float, alpha_s: float, steps: int, distinct: int, carried: Floats
    ) -> Price:
        with np.errstate(divide="ignore", invalid="ignore"):
            busy_s = np.nan_to_num(carried / self.cluster.links.capacity)
        worst = int(np.argmax(busy_s))
        price = Price(
            self.scheme.name,
            self.scheme.title,
            self.world_size,
            size_bytes,
            time_s,
            alpha_s,
            steps,
            distinct,
            self.cluster.links.names[worst],
            float(busy_s[worst]) / time_s,
        )
        if self.scheme.aggregator is None:
            check_bus_bandwidth(price.busbw, self.cluster.fastest(), f"{price.title}, {self.world_size} ranks")
            return price
        admission = self.admission
        return replace(price, memory_bytes=admission.memory_bytes, ports=admission.ports, notes=tuple(admission.notes))
