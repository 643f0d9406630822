"""A switch, NICs and engines in one process, joined by a for-loop; with a hook for what goes wrong on the wires."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.engine import Engine
from netreduce.collectives.links import rings_of
from netreduce.collectives.operation import Operation
from netreduce.errors import MismatchError
from netreduce.fabric.node import Node
from netreduce.nic import Nic, NicLimits
from netreduce.nic import verbs as v
from netreduce.switch import RingSpec, Switch, SwitchLimits
from netreduce.trace.events import EventLog
from netreduce.units import MIB, NEVER_PS, PS_PER_US
from netreduce.wire.control import Geometry
from netreduce.wire.frames import (
    RECORD_HEADER_BYTES,
    make_queue,
    queue_burst_end,
    queue_put,
    queue_release,
    record_bytes,
    record_length,
)

GEOMETRY = Geometry(message_window=2, message_packets=4, path_mtu=1024)
"""Small messages, so that short arrays take several of them."""
RING_ID = 7
NIC_LIMITS = NicLimits(
    queue_pairs=32, completion_queues=8, memory_regions=1024, send_depth=512, receive_depth=256, completion_depth=4096
)
TICK_PS = PS_PER_US
STEPS_MAX = 20_000

Keep = Callable[[int, np.ndarray], bool]
"""What the wire does to a frame that port n's NIC sends (n < 0: that leaves the switch for port -n - 1): whether it
arrives."""


def no_loss(port: int, frame: np.ndarray) -> bool:
    return True


class Cluster:
    """`world_size` ranks of one group, connected through one switch that aggregates for them."""

    def __init__(
        self,
        world_size: int,
        *,
        geometry: Geometry = GEOMETRY,
        keep: Keep | None = None,
        events: Sequence[EventLog] | None = None,
        **engine_options: object,
    ) -> None:
        self.keep = keep
        self.now_ps = 0
        limits = SwitchLimits(memory_bytes=16 * MIB, egress_bytes=4 * MIB)
        self.switch = Switch("switch", world_size, limits=limits, events=events[0] if events else None)
        self.nics = []
        for rank in range(world_size):
            mac, ip = f"02:4e:52:00:00:{rank:02x}", f"10.78.0.{rank + 1}"
            log = events[rank + 1] if events else None
            self.nics.append(Nic(f"nic{rank}", mac, ip, limits=NIC_LIMITS, events=log))
            self.switch.attach(rank, mac, ip)
        for nic in self.nics:
            nic.neighbours.update({other.ip: other.mac for other in self.nics})
        self.engines = [
            Engine(v.Context(nic), rank, world_size, geometry, **engine_options)  # type: ignore[arg-type]
            for rank, nic in enumerate(self.nics)
        ]
        endpoints = tuple(engine.endpoint() for engine in self.engines)
        for ring_id, members in rings_of(RING_ID, endpoints, engine_options.get("tuning", Tuning())):  # type: ignore[arg-type]
            self.switch.register_ring(RingSpec(ring_id, members, geometry))
        for engine in self.engines:
            engine.connect(RING_ID, endpoints)
        self.more_engines: list[list[Engine]] = [[] for _ in self.engines]

    def step(self) -> bool:
        """Carry what waits on all wires, and let every engine work; whether anything moved."""
        self.now_ps += TICK_PS
        moved = False
        for port, nic in enumerate(self.nics):
            nic.advance(self.now_ps)
            moved |= self._carry(nic, 0, port, lambda burst, port=port: self.switch.receive(port, burst, self.now_ps))
        self.switch.advance(self.now_ps)
        for port, nic in enumerate(self.nics):
            moved |= self._carry(self.switch, port, -port - 1, lambda b, nic=nic: nic.receive(0, b, self.now_ps))
            nic.advance(self.now_ps)
            for engine in (self.engines[port], *self.more_engines[port]):
                moved |= engine.progress(self.now_ps)
            nic.advance(self.now_ps)
        self._spread_notices()
        return moved

    def _carry(self, node: Node, port: int, wire: int, deliver: Callable[[np.ndarray], None]) -> bool:
        queue = node.egress(port)
        state = queue.state[0]
        if not state.frames:
            return False
        while state.frames:
            end = int(queue_burst_end(queue.data, state, queue.data.size))
            burst = queue.data[int(state.head) : end].copy()
            queue_release(queue.data, state, end)
            deliver(self._thinned(wire, burst) if self.keep else burst)
        return True

    def _thinned(self, wire: int, burst: np.ndarray) -> np.ndarray:
        """The burst without the frames that the wire loses."""
        assert self.keep is not None
        kept = make_queue(burst.size + 64)
        at = 0
        while at < burst.size:
            length = int(record_length(burst, at))
            frame = burst[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
            if self.keep(wire, frame):
                queue_put(kept.data, kept.state[0], frame, self.now_ps)
            at += int(record_bytes(length))
        return kept.data[: int(kept.state[0].tail)]

    def _spread_notices(self) -> None:
        """As the control channel does: every rank hears of a mismatch that the switch or a rank has found."""
        for notice in self.switch.notices():
            sides = (notice.rank_a, notice.description_a), (notice.rank_b, notice.description_b)
            for engine in self.engines:
                engine.fail(MismatchError.between(*sides))

    def run(self, operations: Sequence[Operation]) -> None:
        """Until all operations are done; raises the first error."""
        for _ in range(STEPS_MAX):
            if all(operation.done for operation in operations):
                break
            if not self.step():
                self.skip_to_next_timer()
        else:
            raise AssertionError(f"not done after {STEPS_MAX} steps:\n" + "\n".join(n.describe() for n in self.nics))
        for operation in operations:
            if operation.error is not None:
                raise operation.error

    def skip_to_next_timer(self) -> None:
        due = min(nic.next_timer_ps() for nic in self.nics)
        assert due < NEVER_PS, "nothing is due, and not everything is done"
        self.now_ps = max(self.now_ps, due)

    def call(self, function: Callable[[Engine, int], Operation]) -> None:
        """Call `function(engine, rank)` on every rank and run it to its end."""
        self.run([function(engine, rank) for rank, engine in enumerate(self.engines)])

    def close(self) -> None:
        for engine in (*self.engines, *(engine for engines in self.more_engines for engine in engines)):
            engine.close()
