"""Runs schedules over verbs: starts the steps of each round, and the next round when all are complete.

Transfers are posted first and additions done when the network has had a chance to work: the caller drives the NIC
between two calls of `progress`.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple, Protocol

from netreduce.collectives.aggregation import Aggregation, AggregationPath, Piece
from netreduce.collectives.calls import Call
from netreduce.collectives.memory import Memory
from netreduce.collectives.operation import Lane, Work
from netreduce.collectives.provider import PD
from netreduce.collectives.reductions import ReductionPlan, combine, divide
from netreduce.collectives.schedule import DISCARD, Aggregate, Copy, Receive, Reduce, Send, Span, Step
from netreduce.collectives.transport import Transfer
from netreduce.errors import VerbsError

COLLECTIVES_MAX = 32
"""Collectives that run at the same time; later calls wait. With this, their receives always find a slot."""
WAITING_MAX = 65536
"""Calls that may wait for their start."""


class Side(Protocol):
    """Sends to a peer, or receives from it."""

    def add(self, transfer: Transfer) -> None:
        """Begin `transfer`, now or as soon as may be."""


class Connection(Protocol):
    """A way to another rank."""

    @property
    def receives(self) -> Side:
        """What comes from it."""

    @property
    def sends(self) -> Side:
        """What goes there."""


class Ring(NamedTuple):
    """A way through the switch, and what the memory must be registered with that takes it."""

    pd: PD
    path: AggregationPath


class Executor:
    """The work of one engine. `peers` are its connections by rank, `ring` leads through the switch.

    `across` is the ring of Parallel NetReduce, that of the workers of equal number on all machines: the same one,
    unless it is set to another engine's.
    """

    def __init__(self, peers: dict[int, Connection], ring: Ring, staged_bytes: int) -> None:
        self.peers = peers
        self._staged_bytes = staged_bytes
        self.across = ring
        self._ring = ring
        self._waiting: deque[Work] = deque()
        self._running: dict[int, Work] = {}
        self._collectives_running = 0
        self._unstaged = 0  # of those that wait or run
        self._ready: deque[Lane] = deque()

    def start(self, work: Work) -> None:
        """Run `work` now, or when its turn comes. Collectives start in the order of the calls."""
        if len(self._waiting) >= WAITING_MAX:
            raise VerbsError(f"{WAITING_MAX} collectives are waiting to start: wait for some of them")
        work.is_staged = self.is_staged(work.call)
        self._unstaged += not work.is_staged
        if work.operation.sequence < 0:
            self._launch(work)
            return
        self._waiting.append(work)
        self._launch_waiting()

    def is_staged(self, call: Call) -> bool:
        """Whether the network has nothing to do with the memory of `call`."""
        return call.aggregates and not call.across and call.memory_bytes <= self._staged_bytes

    def progress(self) -> bool:
        """Go on with lanes whose round is complete, and with what the window admits; whether there was any."""
        worked = bool(self._ready)
        while self._ready:
            self._advance(self._ready.popleft())
        return self._ring.path.pump() or worked

    @property
    def has_more(self) -> bool:
        """Whether lanes have become ready since the last `progress`, such as by the ring of another engine."""
        return bool(self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, or waits for its start."""
        return not self._running and not self._waiting

    @property
    def awaits_acknowledgements(self) -> bool:
        """Whether something under way, here or at another rank, may end or go on by an acknowledgement alone."""
        return self._unstaged > 0 or self._ring.path.is_full

    def fail(self, error: BaseException) -> None:
        """End all work with `error`."""
        works = [*self._running.values(), *self._waiting]
        self._running.clear()
        self._waiting.clear()
        self._ready.clear()
        self._collectives_running = self._unstaged = 0
        for work in works:
            work.release()
            work.operation.finish(error)

    def _launch_waiting(self) -> None:
        while self._waiting and self._collectives_running < COLLECTIVES_MAX:
            self._collectives_running += 1
            self._launch(self._waiting.popleft())

    def _launch(self, work: Work) -> None:
        call = work.call
        ring = self.across if call.across else self._ring
        try:
            for memory in () if work.is_staged else call.memory.values():
                memory.register(ring.pd, for_peers=call.across or not call.aggregates)
        except VerbsError:
            work.release()
            self._unstaged -= 1
            raise
        self._running[id(work)] = work
        work.open_lanes = len(call.schedules)
        for number, schedule in enumerate(call.schedules):
            turn = ring.path.take_turn() if call.aggregates else None
            self._ready.append(Lane(work, schedule, work.tag + number, turn))

    def _advance(self, lane: Lane) -> None:
        """Start rounds until one has to wait."""
        work = lane.work
        while not lane.remaining:
            steps = lane.take_round()
            if steps is None:
                if lane.turn is not None:
                    lane.turn.closed = True
                self._finish_lane(work)
                return
            lane.remaining = sum(not isinstance(step, Reduce | Copy) for step in steps)
            for step in steps:
                self._start_step(lane, step)
            if lane.next_round is None and lane.turn is not None:
                lane.turn.closed = True

    def _start_step(self, lane: Lane, step: Step) -> None:
        memory, plan = lane.work.call.memory, lane.work.call.plan
        match step:
            case Receive(peer, span):
                self.peers[peer].receives.add(self._transfer(lane, span))
            case Send(peer, span):
                self.peers[peer].sends.add(self._transfer(lane, span))
            case Aggregate(source, target):
                self._aggregate(lane, source, target)
            case Reduce(left, right, target):
                assert plan is not None
                views = (memory[span.buffer].view(span) for span in (left, right, target))
                combine(plan, *views)
            case Copy(source, target):
                memory[target.buffer].view(target)[:] = memory[source.buffer].view(source)

    def _transfer(self, lane: Lane, span: Span) -> Transfer:
        memory = lane.work.call.memory[span.buffer]
        size_bytes = span.count * memory.item_bytes
        done = partial(self._step_done, lane)
        return Transfer(memory.address_of(span), size_bytes, memory.key, lane.tag, lane.work.fingerprint, done)

    def _aggregate(self, lane: Lane, source: Span, target: Span) -> None:
        turn, memory, plan = lane.turn, lane.work.call.memory, lane.work.call.plan
        assert turn is not None
        assert plan is not None
        assert plan.switch is not None
        given = memory[source.buffer]
        taken = None if target.buffer == DISCARD else memory[target.buffer]
        dtype, op = plan.switch
        aggregation = Aggregation(
            source=self._lend(lane, source),
            target=None if taken is None else self._lend(lane, target),
            length_bytes=source.count * given.item_bytes,
            element_bytes=given.item_bytes,
            dtype=dtype,
            op=op,
            averages=plan.divisor != 1,
            divide=None if taken is None or plan.divisor == 1 else partial(_divide_bytes, plan, taken, target),
            done=partial(self._step_done, lane),
        )
        turn.waiting.append(aggregation)

    def _lend(self, lane: Lane, span: Span) -> Piece:
        memory = lane.work.call.memory[span.buffer]
        return memory.bytes_of(span) if lane.work.is_staged else (memory.address_of(span), memory.key)

    def _step_done(self, lane: Lane) -> None:
        lane.remaining -= 1
        if not lane.remaining:
            self._ready.append(lane)

    def _finish_lane(self, work: Work) -> None:
        work.open_lanes -= 1
        if work.open_lanes:
            return
        if work.call.at_end is not None:
            work.call.at_end()
        work.release()
        del self._running[id(work)]
        self._unstaged -= not work.is_staged
        if work.operation.sequence >= 0:
            self._collectives_running -= 1
        work.operation.finish()
        self._launch_waiting()


def _divide_bytes(plan: ReductionPlan, memory: Memory, target: Span, offset: int, length: int) -> None:
    """Divide the part of `target` that starts at byte `offset` and has `length` bytes."""
    first = target.start + offset // memory.item_bytes
    divide(plan, memory.array[first : first + length // memory.item_bytes])
