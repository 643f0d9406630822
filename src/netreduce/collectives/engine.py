"""The engine of one rank in one group: collectives on NumPy arrays, over verbs, without threads, clocks or sockets.

Whoever owns the NIC calls `progress` whenever the NIC has moved; operations end in it. Collectives are called in the
same order on all ranks; sends and receives may be called in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from netreduce.collectives.aggregation import Staging
from netreduce.collectives.algorithms import CHANNELS_MAX, Algorithm, Tuning
from netreduce.collectives.calls import Arrays, Call, Caller
from netreduce.collectives.executor import Executor, Ring
from netreduce.collectives.fingerprint import Kind, fingerprint
from netreduce.collectives.links import Links
from netreduce.collectives.machines import Machines
from netreduce.collectives.operation import Operation, Work
from netreduce.collectives.provider import Context
from netreduce.collectives.queue_pairs import ACK_TIMEOUT
from netreduce.collectives.reductions import Reduction
from netreduce.collectives.schedule import Receive, Send
from netreduce.collectives.shared import SharedConnection
from netreduce.collectives.transport import COLLECTIVE_TAG
from netreduce.errors import ConfigurationError, NetReduceError
from netreduce.wire.control import Endpoint, Geometry, Message
from netreduce.wire.ina import InaFlag

LANE_TAGS = CHANNELS_MAX
"""Tags of one collective: its lanes'."""
SEQUENCE_MASK = COLLECTIVE_TAG // LANE_TAGS - 1


@dataclass
class Statistics:
    """What an engine has done. Bytes are payload, without headers and retransmissions (these the NIC counts)."""

    in_network_active: bool = False  # a barrier has shown that the switch adds
    in_network_collectives: int = 0
    host_collectives: int = 0
    messages: int = 0
    in_network_bytes_sent: int = 0
    in_network_bytes_received: int = 0
    ring_bytes: float = 0.0  # what this rank would have sent for the in-network collectives, had they gone round a ring
    peer_bytes_sent: int = 0
    peer_bytes_received: int = 0
    shared_bytes_sent: int = 0  # to ranks of the same machine
    shared_bytes_received: int = 0


class ShortPlan(NamedTuple):
    """What all short calls alike have in common; see `Engine.plan_short`."""

    headers: np.ndarray  # uint8[2, INA_BYTES]: those of the first message of the ring, and of its result
    ring_bytes: float


class Engine:
    """Rank `rank` of a group of `world_size`, over the NIC of `context`.

    First `endpoint` tells the others and the switch how to reach it, then `connect`, and when all ranks have done that,
    collectives may be called. Arrays are C-contiguous and belong to the engine until their operation is done.
    `algorithm` and `tuning` are for calls that do not ask for another algorithm.
    `seed` decides about first PSNs, unless all are to be `first_psn`; `ack_timeout` is the verbs attribute `timeout`.
    """

    def __init__(
        self,
        context: Context,
        rank: int,
        world_size: int,
        geometry: Geometry,
        *,
        algorithm: Algorithm = Algorithm.AUTO,
        tuning: Tuning = Tuning(),  # noqa: B008 (immutable)
        seed: int = 0,
        ack_timeout: int = ACK_TIMEOUT,
        first_psn: int | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.error: BaseException | None = None
        tuning.check(world_size)
        self._links = Links(context, rank, world_size, geometry, tuning, seed, ack_timeout, first_psn)
        self._executor = Executor(dict(self._links.peers), self.ring, tuning.staged_bytes)
        self._shared: dict[int, SharedConnection] = {}
        self._caller = Caller(rank, world_size, algorithm, tuning)
        self._sequence = itertools.count()
        self._statistics = Statistics()
        self._connected = False
        self._now_ps = 0

    # Life

    def endpoint(self) -> Endpoint:
        """What the other ranks and the switch need to reach this one."""
        return self._links.endpoint()

    def connect(self, ring_id: int, endpoints: tuple[Endpoint, ...]) -> None:
        """Connect to all ranks, given in rank order. The NIC knows their MAC addresses.

        `ring_id` is the group's; with several workers a machine it is the first of `Tuning.machine_size` numbers.
        """
        self._links.connect(ring_id, endpoints)
        self._connected = True

    @property
    def ring(self) -> Ring:
        """This engine's way through the switch."""
        return Ring(self._links.pd, self._links.path)

    def use_machines(self, machines: Machines, across: Ring, shared: dict[int, SharedConnection]) -> None:
        """Take what the schedules for machines need: before the first collective, and on all ranks.

        `across` is the ring of an engine whose group is `machines.across(rank)`, over the same NIC; `shared` are the
        connections to the other ranks of this machine, which take all transfers to these from now on.
        """
        self._caller.machines = machines
        self._executor.across = across
        self._executor.peers.update(shared)
        self._shared = shared

    def hear(self, mate: int, word: Message) -> None:
        """Take what rank `mate` of this machine says about a transfer."""
        if self.error is not None:
            return
        try:
            self._shared[mate].hear(word)
        except NetReduceError as error:
            self.fail(error)

    def waits_for_mates(self) -> list[int]:
        """Ranks of this machine that owe an answer."""
        return [rank for rank, connection in self._shared.items() if connection.is_waiting]

    def progress(self, now_ps: int) -> bool:
        """Take what the NIC has completed and post what is due; whether anything happened.

        Call it after `Nic.advance`, so that acknowledgements are under way; and `advance` again after it. If something
        goes wrong, all operations end with the error, and later calls raise it.
        """
        self._now_ps = now_ps
        if self.error is not None or not self._connected:
            return False
        try:
            worked = self._links.poll()
            return self._executor.progress() or worked
        except NetReduceError as error:
            self.fail(error)
            return True

    @property
    def has_more(self) -> bool:
        """Whether another `progress` may find something without anything new from the network."""
        return self._links.has_more or self._executor.has_more

    @property
    def awaits_acknowledgements(self) -> bool:
        """Whether something under way may end or go on when nothing but an acknowledgement comes."""
        return self._executor.awaits_acknowledgements

    def fail(self, error: BaseException) -> None:
        """End all operations with `error`, stop all traffic, and raise `error` at later calls."""
        if self.error is not None:
            return
        self.error = error
        if self._connected:
            self._links.break_off()
        self._executor.fail(error)

    def leave(self, error: BaseException) -> None:
        """Have later calls raise `error`. If nothing is under way, the NIC goes on to send again and to acknowledge.

        That a short collective has ended here does not say that its results have reached the others.
        """
        if self._executor.is_idle:
            self.error = self.error or error
        else:
            self.fail(error)

    def close(self) -> None:
        """End what is under way and give everything back to the NIC."""
        self.leave(NetReduceError("the group is closed"))
        self._links.close()

    def statistics(self) -> Statistics:
        """Counts so far."""
        statistics, path, peers = self._statistics, self._links.path, self._links.peers.values()
        statistics.messages = path.messages
        statistics.in_network_bytes_sent = path.bytes_sent
        statistics.in_network_bytes_received = path.bytes_received
        statistics.peer_bytes_sent = sum(peer.sends.bytes_sent for peer in peers)
        statistics.peer_bytes_received = sum(peer.receives.bytes_received for peer in peers)
        statistics.shared_bytes_sent = sum(mate.sends.bytes_sent for mate in self._shared.values())
        statistics.shared_bytes_received = sum(mate.receives.bytes_received for mate in self._shared.values())
        return statistics

    # Reductions. `op` is a `Reduction` (or wire.ina.ReduceOp); `algorithm` overrides the engine's for one call.

    def all_reduce(
        self,
        array: np.ndarray,
        op: int = Reduction.SUM,
        *,
        out: np.ndarray | None = None,
        algorithm: Algorithm | None = None,
    ) -> Operation:
        """Combine `array` of all ranks element by element, in place or into `out`.

        Raises `UnsupportedError` for a dtype or operation that cannot be done, or not by the algorithm asked for.
        """
        return self._start(self._caller.all_reduce(array, op, out, algorithm))

    def reduce(
        self,
        array: np.ndarray,
        root: int,
        op: int = Reduction.SUM,
        *,
        out: np.ndarray | None = None,
        algorithm: Algorithm | None = None,
    ) -> Operation:
        """Combine `array` of all ranks at `root`, in place or into its `out`; the other ranks' arrays are only read."""
        return self._start(self._caller.reduce(array, root, op, out, algorithm))

    def reduce_scatter(
        self, sources: Arrays, target: np.ndarray, op: int = Reduction.SUM, *, algorithm: Algorithm | None = None
    ) -> Operation:
        """Combine `sources`, one block per rank, of all ranks, and leave block r in rank r's `target`."""
        return self._start(self._caller.reduce_scatter(sources, target, op, algorithm))

    def barrier(self, *, algorithm: Algorithm | None = None) -> Operation:
        """Done when all ranks have called it.

        Each rank gives a 1 and must get the world size, so it also proves that the network adds every rank once.
        """
        return self._start(self._caller.barrier(algorithm))

    # Short calls: all-reduces of one staged message that runtime/short_collectives.py runs by itself.

    @property
    def staging(self) -> Staging:
        """Where staged messages lie."""
        return self._links.path.staging

    @property
    def ring_parts(self) -> tuple[Any, Any, Any]:
        """The queue pairs to the ring's successor and from its predecessor, and their completion queue."""
        return self._links.path.successor_qp, self._links.path.predecessor_qp, self._links.ring_cq

    @property
    def oldest_unacknowledged(self) -> int:
        """See `AggregationPath`."""
        return self._links.path.oldest_unacknowledged

    def plan_short(self, array: np.ndarray, op: int, algorithm: Algorithm | None) -> ShortPlan | None:
        """The plan of an all-reduce of arrays like `array`; None if it takes more than one staged message.

        Raises what `all_reduce` does.
        """
        call = self._caller.all_reduce(array, op, None, algorithm)
        if not self._executor.is_staged(call) or not call.memory_bytes or call.memory_bytes > self._links.message_bytes:
            return None
        assert call.plan is not None
        assert call.plan.switch is not None
        if call.plan.divisor != 1:
            return None
        flags = InaFlag.START | InaFlag.END
        headers = self._links.path.headers(0, call.memory_bytes, *call.plan.switch, flags)
        return ShortPlan(np.frombuffer(b"".join(headers), np.uint8).reshape(2, -1).copy(), call.ring_bytes)

    def next_short(self) -> int:
        """The number of the message with which a short call may begin now; -1 if it has to go the usual way."""
        if self.error is not None or not self._executor.is_idle:
            return -1
        return self._links.path.next_short()

    def note_short(self, plan: ShortPlan, acknowledged: int, length: int) -> None:
        """A short call of `length` bytes is done; see `AggregationPath.note_short`."""
        next(self._sequence)
        self._statistics.in_network_collectives += 1
        self._statistics.ring_bytes += plan.ring_bytes
        self._links.path.note_short(acknowledged, length)

    def resume_short(
        self,
        acknowledged: int,
        array: np.ndarray,
        op: int,
        *,
        out: np.ndarray | None = None,
        algorithm: Algorithm | None = None,
    ) -> Operation:
        """Go on with a short call of this all-reduce whose message is with the NIC already."""
        self._links.path.note_acknowledged(acknowledged)
        self._links.path.note_ahead()
        operation = self.all_reduce(array, op, out=out, algorithm=algorithm)
        self._executor.progress()  # which takes note of the message, before its result is
        return operation

    # Data movement

    def broadcast(self, array: np.ndarray, root: int) -> Operation:
        """`root`'s `array` into the others'."""
        return self._start(self._caller.broadcast(array, root))

    def all_gather(self, source: np.ndarray, targets: Arrays) -> Operation:
        """Rank r's `source` into block r of every rank's `targets`."""
        return self._start(self._caller.all_gather(source, targets))

    def gather(self, source: np.ndarray, targets: Arrays | None, root: int) -> Operation:
        """Rank r's `source` into block r of `root`'s `targets`."""
        return self._start(self._caller.gather(source, targets, root))

    def scatter(self, sources: Arrays | None, target: np.ndarray, root: int) -> Operation:
        """Block r of `root`'s `sources` into rank r's `target`."""
        return self._start(self._caller.scatter(sources, target, root))

    def all_to_all(
        self,
        sources: Arrays,
        targets: Arrays,
        source_counts: Sequence[int] | None = None,
        target_counts: Sequence[int] | None = None,
    ) -> Operation:
        """Block p of rank r's `sources` into block r of rank p's `targets`. Counts cut single arrays unevenly."""
        return self._start(self._caller.all_to_all(sources, targets, source_counts, target_counts))

    def send(self, array: np.ndarray, peer: int, tag: int = 0) -> Operation:
        """Send `array` to `peer`, which receives it under the same `tag`; done when the peer has it."""
        return self._point_to_point(Send, array, peer, tag)

    def receive(self, array: np.ndarray, peer: int, tag: int = 0) -> Operation:
        """Receive into `array` what `peer` sends under `tag`, in the order of its sends."""
        return self._point_to_point(Receive, array, peer, tag)

    def _point_to_point(self, step: type[Send] | type[Receive], array: np.ndarray, peer: int, tag: int) -> Operation:
        if not 0 <= tag < COLLECTIVE_TAG:
            raise ConfigurationError(f"tag is {tag}, 0 to {COLLECTIVE_TAG - 1} are possible")
        name = f"send to rank {peer}" if step is Send else f"recv from rank {peer}"
        return self._start(self._caller.point_to_point(step, array, peer), tag, name)

    def _start(self, call: Call, tag: int | None = None, name: str = "") -> Operation:
        """Begin a `call`; a `tag` is of a send or receive, which has a `name` instead of a number."""
        if self.error is not None:
            raise self._too_late(self.error, name or f"{call.kind.label} #{next(self._sequence)}")
        if not self._connected:
            raise ConfigurationError("the group is not connected yet: Engine.connect comes first")
        sequence = -1 if tag is not None else next(self._sequence)
        if tag is None:
            tag = COLLECTIVE_TAG + (sequence & SEQUENCE_MASK) * LANE_TAGS
        code = fingerprint(call.kind, call.dtype, call.op, call.root, call.way)
        operation = Operation(call.kind, sequence, self._now_ps, code, name)
        self._executor.start(Work(operation, call, code, tag))
        self._note(call, operation)
        return operation

    def _too_late(self, error: BaseException, call: str) -> BaseException:
        """`error`, which has ended everything, for a `call` that came after it."""
        if not isinstance(error, NetReduceError):
            return error
        return error.saying(f"{error} ({call} was called after that)")

    def waits_for(self) -> list[int]:
        """Ranks that owe data or a clear to send to this one, or an answer, between hosts."""
        waiting = (peer for peer, connection in self._links.peers.items() if connection.is_waiting)
        return sorted({*waiting, *self.waits_for_mates()})

    def _note(self, call: Call, operation: Operation) -> None:
        """Keep the statistics."""
        statistics = self._statistics
        if call.aggregates:
            statistics.in_network_collectives += 1
            statistics.ring_bytes += call.ring_bytes
            if call.kind == Kind.BARRIER:
                operation.on_done(self._note_barrier)
        elif operation.sequence >= 0:
            statistics.host_collectives += 1

    def _note_barrier(self, operation: Operation) -> None:
        if operation.error is None:
            self._statistics.in_network_active = True
