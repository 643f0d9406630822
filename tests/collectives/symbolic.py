"""An interpreter that proves schedules: rank r holds 10^r, so the digits of a sum show which ranks are in it.

It runs the schedules of all ranks against each other, checks that every send meets a receive of its size, that no step
of a round touches what another one writes, and counts what each rank sends.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from netreduce.collectives.schedule import (
    DISCARD,
    Aggregate,
    Copy,
    Receive,
    Reduce,
    Round,
    Schedule,
    Send,
    Span,
    Step,
)

Buffers = dict[str, list[int]]


def reads(step: Step) -> tuple[Span, ...]:
    match step:
        case Send(span=span):
            return (span,)
        case Receive():
            return ()
        case Reduce(left=left, right=right):
            return (left, right)
        case Copy(source=source) | Aggregate(source=source):
            return (source,)


def writes(step: Step) -> tuple[Span, ...]:
    match step:
        case Send():
            return ()
        case Receive(span=span):
            return (span,)
        case Reduce(target=target) | Copy(target=target) | Aggregate(target=target):
            return () if target.buffer == DISCARD else (target,)


def overlap(a: Span, b: Span) -> bool:
    return a.buffer == b.buffer and a.start < b.start + b.count and b.start < a.start + a.count


def assert_no_hazard(steps: Round) -> None:
    for i, writer in enumerate(steps):
        for j, other in enumerate(steps):
            if i != j:
                for written in writes(writer):
                    for touched in reads(other) + writes(other):
                        assert not overlap(written, touched), f"{writer} races with {other}"


@dataclass
class Rank:
    buffers: Buffers
    schedule: Schedule
    waiting: list[Step] = field(default_factory=list)
    finished: bool = False
    sent: int = 0
    aggregated: int = 0

    def get(self, span: Span) -> list[int]:
        values = self.buffers[span.buffer][span.start : span.start + span.count]
        assert len(values) == span.count, f"{span} is outside of its buffer"
        return values

    def put(self, span: Span, values: list[int]) -> None:
        assert len(values) == span.count, f"{len(values)} values for {span}"
        if span.buffer != DISCARD:
            self.get(span)
            self.buffers[span.buffer][span.start : span.start + span.count] = values


class World:
    """Runs `make_schedule(rank)` on `make_buffers(rank)` for every rank until all have finished."""

    def __init__(
        self,
        world_size: int,
        make_buffers: Callable[[int], Buffers],
        make_schedule: Callable[[int], Schedule],
        rings: int | Sequence[Sequence[int]] = 1,
    ) -> None:
        """`rings[k]` are the ranks of in-network ring k; of k rings, rank r takes part in r mod k."""
        self.rings = [range(k, world_size, rings) for k in range(rings)] if isinstance(rings, int) else rings
        self.ranks = [Rank(make_buffers(rank), make_schedule(rank)) for rank in range(world_size)]
        self.wires: dict[tuple[int, int], deque[list[int]]] = defaultdict(deque)
        self.aggregates: list[deque[tuple[list[int], Aggregate]]] = [deque() for _ in self.ranks]

    def run(self) -> World:
        while not all(rank.finished for rank in self.ranks):
            moved = [self._move(number) for number in range(len(self.ranks))]
            assert any(moved) or self._aggregate(), f"dead-lock: {[rank.waiting for rank in self.ranks]}"
        assert not any(self.wires.values()), "something was sent that nobody received"
        assert not any(self.aggregates)
        return self

    def _move(self, number: int) -> bool:
        rank = self.ranks[number]
        if not rank.waiting and not rank.finished:
            steps = next(rank.schedule, None)
            if steps is None:
                rank.finished = True
                return True
            assert_no_hazard(steps)
            rank.waiting = [step for step in steps if not self._start(number, step)]
            return True
        before = len(rank.waiting)
        rank.waiting = [step for step in rank.waiting if not self._received(number, step)]
        return len(rank.waiting) < before

    def _start(self, number: int, step: Step) -> bool:
        rank = self.ranks[number]
        match step:
            case Send(peer, span):
                assert peer != number
                self.wires[number, peer].append(rank.get(span))
                rank.sent += span.count
            case Reduce(left, right, target):
                rank.put(target, [a + b for a, b in zip(rank.get(left), rank.get(right), strict=True)])
            case Copy(source, target):
                rank.put(target, rank.get(source))
            case Aggregate(source=source):
                self.aggregates[number].append((rank.get(source), step))
                rank.aggregated += source.count
                return False
            case Receive():
                return False
        return True

    def _received(self, number: int, step: Step) -> bool:
        if isinstance(step, Receive) and self.wires[step.peer, number]:
            self.ranks[number].put(step.span, self.wires[step.peer, number].popleft())
            return True
        return False

    def _aggregate(self) -> bool:
        moved = [self._aggregate_ring(number) for number in range(len(self.rings))]
        return any(moved)

    def _aggregate_ring(self, number: int) -> bool:
        ranks = [self.ranks[rank] for rank in self.rings[number]]
        queues = [self.aggregates[rank] for rank in self.rings[number]]
        if not queues or not all(queues):
            return False
        heads = [queue.popleft() for queue in queues]
        total = [sum(column) for column in zip(*(values for values, _ in heads), strict=True)]
        for rank, (_, step) in zip(ranks, heads, strict=True):
            assert step.ring == number
            rank.put(step.target, list(total))
            rank.waiting.remove(step)
        return True


def ones(world_size: int) -> int:
    """1111...: every rank has been added exactly once."""
    return int("1" * world_size)
