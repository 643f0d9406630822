"""Events over the fluid: flows that start after their latency, what happens when they end, and timed callbacks."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from netreduce.flowsim.checks import StalledError
from netreduce.flowsim.flows import Floats, Flows, Ints
from netreduce.flowsim.fluid import SIMULTANEOUS, Fluid

Ended = Callable[[Ints], None]
"""Called with the positions, in the batch that was started, of flows that ended now."""


class Simulation:
    """Runs batches of flows over links of `capacity`, float64[links] in bytes a second."""

    def __init__(self, capacity: Floats) -> None:
        self.fluid = Fluid(capacity)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._batches: dict[int, tuple[Ended, int]] = {}

    @property
    def now_s(self) -> float:
        return self.fluid.now_s

    def call_at(self, time_s: float, action: Callable[[], None]) -> None:
        """Run `action` at `time_s`; actions of one instant run in the order in which they were asked for."""
        assert time_s >= self.now_s
        heapq.heappush(self._timers, (time_s, next(self._order), action))

    def start(self, flows: Flows, ended: Ended) -> None:
        """Start `flows` now; each begins to send after its latency, and `ended` is told of it when it is done."""
        latencies, group = np.unique(flows.latency_s, return_inverse=True)
        for index, latency_s in enumerate(latencies):
            positions = np.flatnonzero(group == index)
            part = flows if len(positions) == len(flows) else flows.take(positions)
            self.call_at(self.now_s + float(latency_s), partial(self._begin, part, positions, ended))

    def _begin(self, flows: Flows, positions: Ints, ended: Ended) -> None:
        ids = self.fluid.add(flows)
        for flow_id, position in zip(ids.tolist(), positions.tolist(), strict=True):
            self._batches[flow_id] = (ended, position)

    def run(self, until_s: float = np.inf) -> float:
        """Run until nothing is left to happen, or to `until_s`; returns the time. Raises StalledError."""
        while True:
            timer_s = self._timers[0][0] if self._timers else np.inf
            end_s = self.fluid.next_end_s()
            time_s = min(timer_s, end_s)
            if time_s > until_s:
                self.fluid.advance(until_s)
                return self.now_s
            if time_s == np.inf:
                break
            self.fluid.advance(max(time_s, self.now_s))
            self._report(self.fluid.finish())
            while self._timers and self._timers[0][0] <= time_s * (1 + SIMULTANEOUS):
                heapq.heappop(self._timers)[2]()
        if len(self.fluid):
            raise StalledError(f"{len(self.fluid)} flows have no capacity left on their way: is a link down?")
        self.fluid.check()
        return self.now_s

    def _report(self, ids: Ints) -> None:
        told: dict[int, tuple[Ended, list[int]]] = {}
        for flow_id in ids.tolist():
            ended, position = self._batches.pop(flow_id)
            told.setdefault(id(ended), (ended, []))[1].append(position)
        for ended, positions in told.values():
            ended(np.array(positions))
