"""Schedules of all ranks against each other: which transfers are on the way at the same time.

Schedules are those that the communicator runs (`netreduce.collectives`). A `Matcher` takes them from the ranks, joins
each Send with its Receive and the Aggregates of a ring with each other, and says what starts.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from netreduce.collectives.schedule import Aggregate, Receive, Schedule, Send

Transfer = tuple[int, int, int]
"""(sending rank, how many ranks further the receiver is, elements)."""
Aggregation = tuple[int, int]
"""(ring, elements)."""


@dataclass
class Started:
    """What starts at one moment. Under a period, each transfer stands for those of all ranks that are a shift of it."""

    transfers: list[Transfer] = field(default_factory=list)
    aggregations: list[Aggregation] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.transfers or self.aggregations)

    def key(self) -> tuple[tuple[Transfer, ...], tuple[Aggregation, ...]]:
        """Equal keys are the same traffic."""
        return tuple(self.transfers), tuple(self.aggregations)


class Matcher:
    """Runs the schedules of ranks 0..period-1 of `world_size`; `rings[k]` are the ranks of in-network ring k.

    A `period` below the world size says that rank r + period does what rank r does, shifted by `period`; that makes
    thousands of ranks cheap. A rank's next round starts when all steps of the round before are complete. Reductions and
    copies take no time: they run at memory speed, far above the network's.
    """

    def __init__(
        self,
        make: Callable[[int], Schedule],
        world_size: int,
        rings: Sequence[Sequence[int]] = (),
        period: int | None = None,
    ) -> None:
        self.world_size, self.period = world_size, period or world_size
        assert world_size % self.period == 0, (world_size, period)
        self._schedules = [make(rank) for rank in range(self.period)]
        self._running = self.period
        self._open = [0] * self.period
        self._sends: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._receives: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        members = [sorted({rank % self.period for rank in ring}) for ring in rings]
        self._offers: list[dict[int, deque[int]]] = [{rank: deque() for rank in ring} for ring in members]

    @property
    def finished(self) -> bool:
        """Whether every rank has run its schedule to the end."""
        return not self._running

    def advance(self, ranks: Sequence[int]) -> Started:
        """Let `ranks`, whose round is complete, begin their next one."""
        started = Started()
        for rank in ranks:
            self._next_round(rank, started)
        return started

    def complete(self, started: Started) -> list[int]:
        """Tell that all of `started` is complete; returns the ranks that can go on."""
        ends: list[int] = []
        for sender, distance, _ in started.transfers:
            ends += sender, (sender + distance) % self.period
        for ring, _ in started.aggregations:
            ends += self._offers[ring]
        ready = []
        for rank in ends:
            self._open[rank] -= 1
            if not self._open[rank]:
                ready.append(rank)
        return ready

    def _next_round(self, rank: int, started: Started) -> None:
        while not self._open[rank]:
            steps = next(self._schedules[rank], None)
            if steps is None:
                self._running -= 1
                return
            for step in steps:
                if isinstance(step, Send):
                    self._open[rank] += 1
                    self._send(rank, (step.peer - rank) % self.world_size, step.span.count, started)
                elif isinstance(step, Receive):
                    self._open[rank] += 1
                    distance = (rank - step.peer) % self.world_size
                    self._receive(step.peer % self.period, distance, step.span.count, started)
                elif isinstance(step, Aggregate):
                    self._open[rank] += 1
                    self._offer(rank, step, started)

    def _send(self, sender: int, distance: int, count: int, started: Started) -> None:
        waiting = self._receives[sender, distance]
        if waiting:
            self._join(sender, distance, count, waiting.popleft(), started)
        else:
            self._sends[sender, distance].append(count)

    def _receive(self, sender: int, distance: int, count: int, started: Started) -> None:
        waiting = self._sends[sender, distance]
        if waiting:
            self._join(sender, distance, waiting.popleft(), count, started)
        else:
            self._receives[sender, distance].append(count)

    def _join(self, sender: int, distance: int, sent: int, expected: int, started: Started) -> None:
        assert sent == expected, f"rank {sender} sends {sent} elements, the one {distance} further expects {expected}"
        started.transfers.append((sender, distance, sent))

    def _offer(self, rank: int, step: Aggregate, started: Started) -> None:
        offers = self._offers[step.ring]
        offers[rank].append(step.source.count)
        if all(offers.values()):
            counts = {offer.popleft() for offer in offers.values()}
            assert len(counts) == 1, f"ranks of ring {step.ring} disagree about an aggregate: {counts} elements"
            started.aggregations.append((step.ring, counts.pop()))


def supersteps(matcher: Matcher) -> Iterator[Started]:
    """Lockstep: yields what runs together; the next superstep begins when all of it is complete."""
    ready: Sequence[int] = range(matcher.period)
    while not matcher.finished:
        started = matcher.advance(ready)
        if started:
            yield started
        ready = matcher.complete(started)
        assert ready or matcher.finished, "dead-lock: some step waits for one that never comes"
