"""Virtual time: nodes, links, and the loop that moves frames between them, replayable from a seed.

The simulator knows nothing of nodes beyond `node.Node`. Within one instant it works in a fixed order: frames arrive
(lines in the order in which they were connected), due nodes advance (in the order in which they were added), lines take
frames from egress queues, and nodes whose queues have room again advance once more.

Exact mode (`quantum_ps` 0) handles every frame at its own instant. With a quantum, time moves on a grid: whatever
happens within one quantum is handled at its end, a burst per port. Frames keep their own time stamps and lines their
exact rate; what changes is that a node sees arrivals and timers up to one quantum late, ports one after another, and
that an egress queue may look emptier, or a burst into it larger, by what a line carries in a quantum. It is faster by
the number of frames in a burst. A quantum well below the round-trip time and the egress queues' depth is honest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from netreduce.compiled import entry
from netreduce.errors import ConfigurationError, NetReduceError
from netreduce.fabric.ecn import EcnMarking
from netreduce.fabric.line import draw_lines, earliest_arrival_ps, earliest_start_ps, take_arrivals
from netreduce.fabric.link import LINES_MAX, Line, Link, Tap, make_lines
from netreduce.fabric.node import Node
from netreduce.fabric.rules import Installer, Rule
from netreduce.units import NEVER_PS

NODES_MAX = 4096
BURSTS_PER_CALL_MAX = 1024
STEPS_AT_ONE_INSTANT_MAX = 10_000
"""A node whose timer stays in the past would spin for ever; this many steps without progress are a bug in it."""

Progress = Callable[[int], bool]
"""What runs on a node: called with `now_ps` after the node ran; True if it gave the node new work."""


class StuckError(NetReduceError):
    """What was waited for cannot happen any more, or did not happen in time; the message says what is pending."""


class Simulator(Installer):
    """A network in virtual time. `seed` fixes all chance on the links; `quantum_ps` trades exactness for speed."""

    def __init__(self, seed: int = 0, *, quantum_ps: int = 0) -> None:
        if quantum_ps < 0:
            raise ConfigurationError(f"quantum_ps={quantum_ps}: 0 (exact) or more is needed")
        self.seed = seed
        self.quantum_ps = quantum_ps
        self.now_ps = 0
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.lines: list[Line] = []
        self._rows = make_lines()
        self._programs: list[list[Progress]] = []
        self._timers: list[int] = []
        self._ran = np.zeros(NODES_MAX, np.int64)
        self._drew = np.zeros(NODES_MAX, np.int64)
        self._due = np.zeros((BURSTS_PER_CALL_MAX, 3), np.int64)
        self._draw_lines = entry(draw_lines, self._rows, 0, self._ran, 0, 0, self._drew)
        self._take_arrivals = entry(take_arrivals, self._rows, 0, 0, self._due)
        self._earliest_arrival_ps = entry(earliest_arrival_ps, self._rows, 0)
        self._earliest_start_ps = entry(earliest_start_ps, self._rows, 0)
        self._holding: set[int] = set()  # lines whose faults hold frames
        self._steps_at_now = 0

    # -- building -----------------------------------------------------------------------------------------------------

    def add(self, node: Node) -> Node:
        """Add a node, if it is not there yet; nodes run in the order in which they were added."""
        if any(other is node for other in self.nodes):
            return node
        if any(other.name == node.name for other in self.nodes):
            raise ConfigurationError(f"node name {node.name!r} is taken: names must be unique")
        if len(self.nodes) == NODES_MAX:
            raise ConfigurationError(f"node {node.name!r}: at most {NODES_MAX} nodes are allowed")
        self.nodes.append(node)
        self._programs.append([])
        self._timers.append(0)
        return node

    def connect(
        self,
        node_a: Node,
        port_a: int,
        node_b: Node,
        port_b: int,
        *,
        rate_bps: int,
        delay_ps: int,
        ecn: EcnMarking | None = None,
    ) -> Link:
        """Join two ports by a cable of `rate_bps` each way and `delay_ps`; `up` is from a to b.

        `ecn` marks frames as they leave either egress queue. Raises `ConfigurationError` for a port that does not
        exist or is taken, or a rate or delay that cannot be.
        """
        name = f"link {node_a.name}:{port_a}-{node_b.name}:{port_b}"
        if rate_bps <= 0 or delay_ps < 0:
            raise ConfigurationError(f"{name}: rate_bps={rate_bps}, delay_ps={delay_ps}: > 0 and >= 0 are needed")
        if len(self.lines) + 2 > LINES_MAX:
            raise ConfigurationError(f"{name}: at most {LINES_MAX // 2} links are allowed")
        for node, port in ((node_a, port_a), (node_b, port_b)):
            self.add(node)
            if not 0 <= port < node.port_count:
                raise ConfigurationError(f"{name}: {node.name} has ports 0 to {node.port_count - 1}")
            if any(line.sender is node and line.sender_port == port for line in self.lines):
                raise ConfigurationError(f"{name}: port {port} of {node.name} is connected already")
        ends = [(node_a, port_a), (node_b, port_b)]
        up, down = (self._make_line(a, b, rate_bps, delay_ps, ecn) for a, b in (ends, ends[::-1]))
        self.links.append(Link(up, down))
        return self.links[-1]

    def _make_line(
        self, sender: tuple[Node, int], receiver: tuple[Node, int], rate_bps: int, delay_ps: int, ecn: EcnMarking | None
    ) -> Line:
        index = len(self.lines)
        line = Line(
            self._rows,
            index,
            sender,
            receiver,
            rate_bps=rate_bps,
            delay_ps=delay_ps,
            ahead_ps=2 * self.quantum_ps,
            seed=self.seed,
            ecn=ecn,
        )
        line.row.sender = self._index(sender[0])
        line.receiver_index = self._index(receiver[0])
        self.lines.append(line)
        return line

    def run_on(self, node: Node, progress: Progress) -> None:
        """Let a program run on `node`: `progress(now_ps)` is called whenever the node has run."""
        self._programs[self._index(node)].append(progress)

    def link(self, **end: int) -> Link:
        """The one link of a node, by kind and number: ``link(worker=1)`` is that of the node named ``worker1``."""
        (kind, number), *more = end.items()
        found = [link for link in self.links if f"{kind}{number}" in (link.up.sender.name, link.down.sender.name)]
        if more or len(found) != 1:
            raise KeyError(f"{kind}{number} has {len(found)} links; nodes are {[node.name for node in self.nodes]}")
        return found[0]

    def tap(self, tap: Tap, lines: Iterable[Line] | None = None) -> None:
        """Call `tap(line, burst)` with all that `lines` (default: all there are) deliver."""
        for line in self.lines if lines is None else lines:
            line.taps.append(tap)

    def install(self, rule: Rule) -> Rule:
        """Put `rule` on every line that there is, and return it."""
        for line in self.lines:
            line.install(rule)
        return rule

    def _index(self, node: Node) -> int:
        return next(i for i, other in enumerate(self.nodes) if other is node)

    # -- running ------------------------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool], *, limit_ps: int) -> None:
        """Run until `done()`, which is asked after every step.

        Raises `StuckError`, saying what is pending, when nothing more can happen or `limit_ps` of virtual time pass.
        """
        deadline_ps = self.now_ps + limit_ps
        self._wake()
        while not done():
            event_ps = self.next_event_ps()
            if event_ps == NEVER_PS:
                raise StuckError(f"quiet at {self.now_ps} ps: nothing can happen any more. {self.pending()}")
            if event_ps > deadline_ps:
                raise StuckError(f"not done after {limit_ps} ps. {self.pending()}")
            self._step(event_ps)

    def run_for(self, duration_ps: int) -> None:
        """Run for `duration_ps` of virtual time."""
        end_ps = self.now_ps + duration_ps
        self._wake()
        while (event_ps := self.next_event_ps()) <= end_ps:
            self._step(event_ps)
        self.now_ps = end_ps

    def run_until_quiet(self, *, limit_ps: int) -> None:
        """Run until no frame is under way and no timer is armed; `StuckError` if `limit_ps` pass before."""
        self.run_until(lambda: self.next_event_ps() == NEVER_PS, limit_ps=limit_ps)

    def next_event_ps(self) -> int:
        """When the next step is due; `NEVER_PS` if nothing can happen any more."""
        count = len(self.lines)
        late_ps = min(int(self._earliest_arrival_ps(self._rows, count)), min(self._timers, default=NEVER_PS))
        start_ps = int(self._earliest_start_ps(self._rows, count))
        if self.quantum_ps and late_ps != NEVER_PS:
            late_ps = -(-late_ps // self.quantum_ps) * self.quantum_ps
        if self.quantum_ps and start_ps != NEVER_PS:  # lines look a quantum ahead
            start_ps = start_ps // self.quantum_ps * self.quantum_ps
        return max(min(late_ps, start_ps), self.now_ps)

    def pending(self) -> str:
        """What is still under way, in one line: armed timers, frames in flight, frames that wait to leave."""
        timers = [f"{node.name} at {t} ps" for node, t in zip(self.nodes, self._timers, strict=True) if t != NEVER_PS]
        flights = [f"{line.name}: {n}" for line in self.lines if (n := line.counters()["in_flight_frames"])]
        queues = [f"{line.name}: {n}" for line in self.lines if (n := int(line.egress.state[0].frames))]
        parts = (("timers", timers), ("frames in flight", flights), ("frames queued", queues))
        return "; ".join(f"{title}: {', '.join(items) or 'none'}" for title, items in parts)

    def _wake(self) -> None:
        """Run every node once: its owner may have posted work since the last run."""
        self._ran[: len(self.nodes)] = 1
        self._settle()

    def _step(self, event_ps: int) -> None:
        self._steps_at_now = self._steps_at_now + 1 if event_ps == self.now_ps else 0
        if self._steps_at_now > STEPS_AT_ONE_INSTANT_MAX:
            raise StuckError(f"{STEPS_AT_ONE_INSTANT_MAX} steps without progress. {self.pending()}")
        self.now_ps = event_ps
        self._deliver()
        for index, timer_ps in enumerate(self._timers):
            if timer_ps <= event_ps:
                self._ran[index] = 1
        self._settle()

    def _deliver(self) -> None:
        while rows := int(self._take_arrivals(self._rows, len(self.lines), self.now_ps, self._due)):
            for index, start, end in self._due[:rows].tolist():
                line = self.lines[index]
                burst = line.flight.data[start:end]
                if line.faults.active:
                    line.faults.push(burst)
                    self._holding.add(index)
                else:
                    self._hand_over(line, burst)
        for index in sorted(self._holding):
            self._deliver_held(self.lines[index])

    def _deliver_held(self, line: Line) -> None:
        burst = line.faults.pop(self.now_ps)
        line.row.late_ps = line.faults.next_ps()
        if line.faults.held_frames == 0:
            self._holding.discard(line.index)
        if burst.size:
            self._hand_over(line, burst)

    def _hand_over(self, line: Line, burst: np.ndarray) -> None:
        for tap in line.taps:
            tap(line, burst)
        line.receiver.receive(line.receiver_port, burst, self.now_ps)
        self._ran[line.receiver_index] = 1

    def _settle(self) -> None:
        """Advance the nodes that ran, let lines take frames, and again, until no line takes any."""
        horizon_ps = self.now_ps + self.quantum_ps
        ran, drew = self._ran[: len(self.nodes)], self._drew[: len(self.nodes)]
        while True:
            for index in np.flatnonzero(ran).tolist():
                self._advance(index)
            if not self._draw_lines(self._rows, len(self.lines), ran, self.now_ps, horizon_ps, drew):
                break
            ran[:] = drew
            drew[:] = 0
        ran[:] = 0

    def _advance(self, index: int) -> None:
        node = self.nodes[index]
        node.advance(self.now_ps)
        for progress in self._programs[index]:
            if progress(self.now_ps):
                node.advance(self.now_ps)
        self._timers[index] = node.next_timer_ps()
