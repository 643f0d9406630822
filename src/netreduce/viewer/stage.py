"""A small cluster in virtual time whose every step is recorded: real NICs, a real switch (or a foil), real engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from netreduce.collectives.engine import Engine
from netreduce.collectives.operation import Operation
from netreduce.fabric.link import Line
from netreduce.fabric.node import Node
from netreduce.fabric.rules import SeenFrame
from netreduce.fabric.simulator import Simulator, StuckError
from netreduce.nic import Nic, verbs
from netreduce.switch import RingSpec, Switch, SwitchLimits
from netreduce.trace.events import EventLog, drain, enable, make_event_log
from netreduce.trace.recording import FORMAT, Header, NodeInfo, Trace
from netreduce.units import GBPS, MIB, PS_PER_S, PS_PER_US
from netreduce.wire.build import burst_frames
from netreduce.wire.control import Geometry

RATE_BPS = 100 * GBPS
DELAY_PS = 1 * PS_PER_US
RING_ID = 1
LOG_CAPACITY = 4096


class Stage:
    """`world_size` hosts and one switch. `skew_ps` lengthens each host's cable a little more than the one before."""

    def __init__(
        self,
        title: str,
        world_size: int,
        geometry: Geometry,
        *,
        foil: Callable[[Sequence[Nic], EventLog], Node] | None = None,
        skew_ps: int = 0,
        ack_timeout: int = 8,
    ) -> None:
        self.simulator = Simulator()
        self._logs: dict[str, EventLog] = {}
        self.nics = [
            Nic(
                f"worker{rank}",
                f"02:4e:52:00:00:{rank + 1:02x}",
                f"10.78.0.{rank + 1}",
                events=self._log(f"worker {rank}"),
            )
            for rank in range(world_size)
        ]
        log = self._log("switch")
        limits = SwitchLimits(memory_bytes=8 * MIB, egress_bytes=1 * MIB)
        self.switch = foil(self.nics, log) if foil else Switch("switch", world_size, limits=limits, events=log)
        nodes = [NodeInfo(f"worker {rank}", "host", str(nic.ip)) for rank, nic in enumerate(self.nics)]
        self.trace = Trace(Header(FORMAT, title, [*nodes, NodeInfo("switch", "switch")]))
        for nic in self.nics:
            nic.neighbours.update({other.ip: other.mac for other in self.nics})
        self.links = [
            self.simulator.connect(nic, 0, self.switch, port, rate_bps=RATE_BPS, delay_ps=DELAY_PS + port * skew_ps)
            for port, nic in enumerate(self.nics)
        ]
        self.simulator.tap(self._see)
        self.engines = [
            Engine(verbs.Context(nic), rank, world_size, geometry, seed=7 + rank, ack_timeout=ack_timeout)
            for rank, nic in enumerate(self.nics)
        ]
        self._connect(geometry)
        self._buffers: list[np.ndarray] = []
        self._elements = np.zeros(0, np.int64)
        self._shown: dict[int, list[str]] = {}

    def _log(self, name: str) -> EventLog:
        log = self._logs[name] = make_event_log(LOG_CAPACITY)
        enable(log)
        return log

    def _connect(self, geometry: Geometry) -> None:
        endpoints = tuple(engine.endpoint() for engine in self.engines)
        if isinstance(self.switch, Switch):
            for port, nic in enumerate(self.nics):
                self.switch.attach(port, nic.mac, nic.ip)
            self.switch.register_ring(RingSpec(RING_ID, endpoints, geometry))
        for nic, engine in zip(self.nics, self.engines, strict=True):
            engine.connect(RING_ID, endpoints)
            self.simulator.run_on(nic, engine.progress)

    def show(self, buffers: Sequence[np.ndarray], elements: np.ndarray) -> None:
        """Show these `elements` (int64 indices) of each host's buffer from now on."""
        self._buffers, self._elements = list(buffers), elements
        self.note()

    def lose(self, rank: int, direction: str, where: Callable[[SeenFrame], bool], *, nth: int = 1) -> None:
        """Lose the `nth` frame that fits `where`, on the `up` or `down` line of a rank's link, and record it as"
        " lost."""
        line = getattr(self.links[rank], direction)
        seen = 0

        def strike(frame: SeenFrame) -> bool:
            nonlocal seen
            if not where(frame):
                return False
            seen += 1
            if seen == nth:
                self.note()
                source, target = self._ends(line)
                self.trace.add_frame(self.simulator.now_ps, source, target, bytes(frame.data), lost=True)
            return seen == nth

        line.drop(where=strike, times=1)

    def run(self, operations: Sequence[Operation], *, limit_ps: int = PS_PER_S) -> str:
        """Run until all operations are done, and all acknowledgements have come; the first error's text, or ""."""

        def done() -> bool:
            self.note()
            return all(operation.done for operation in operations)

        try:
            self.simulator.run_until(done, limit_ps=limit_ps)
            self.simulator.run_for(10 * PS_PER_US)
        except StuckError as error:
            return str(error)
        self.note()
        errors = [operation.error for operation in operations if operation.error is not None]
        return str(errors[0]) if errors else ""

    def note(self) -> None:
        """Take down what the nodes have logged and what the buffers hold now."""
        for name, log in self._logs.items():
            rows, _ = drain(log)
            self.trace.add_events(name, rows)
        for rank, buffer in enumerate(self._buffers):
            values = [f"{value:g}" for value in buffer[self._elements].tolist()]
            if self._shown.get(rank) != values:
                self._shown[rank] = values
                self.trace.add_buffer(self.simulator.now_ps, f"worker {rank}", values)

    def _ends(self, line: Line) -> tuple[str, str]:
        names = {nic.name: f"worker {rank}" for rank, nic in enumerate(self.nics)}
        return names.get(line.sender.name, "switch"), names.get(line.receiver.name, "switch")

    def _see(self, line: Line, burst: np.ndarray) -> None:
        self.note()
        source, target = self._ends(line)
        for time_ps, frame in burst_frames(burst):
            self.trace.add_frame(time_ps, source, target, frame.tobytes())
