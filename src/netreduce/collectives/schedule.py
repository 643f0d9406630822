"""What a collective does, as data: rounds of steps on spans of named buffers, and nothing of queue pairs or frames.

A schedule is a generator of rounds, and a round is a tuple of steps that may run at the same time; the next round
starts when all of them are complete. Within a round no step writes what another one reads or writes. So one
definition has several interpreters: the engine runs it over verbs, and a test proves it with numbers whose digits show
who was added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

INPUT = "input"
OUTPUT = "output"
STAGING = "staging"
"""Scratch of the rank itself: arriving partial results wait here for their addition."""
DISCARD = "discard"
"""Where results go that this rank must take part in and does not want. Reading it gives nothing defined."""


@dataclass(frozen=True, slots=True)
class Span:
    """`count` elements of `buffer` from element `start` on."""

    buffer: str
    start: int
    count: int

    def part(self, parts: int, index: int) -> Span:
        """The `index`-th of `parts` consecutive parts whose sizes differ by one element at most."""
        assert 0 <= index < parts, (index, parts)
        begin, end = self.count * index // parts, self.count * (index + 1) // parts
        return Span(self.buffer, self.start + begin, end - begin)

    def parts(self, parts: int) -> tuple[Span, ...]:
        """All `parts` parts, in order."""
        return tuple(self.part(parts, index) for index in range(parts))

    def head(self, count: int) -> Span:
        """The first `count` elements."""
        assert count <= self.count, (count, self)
        return Span(self.buffer, self.start, count)


@dataclass(frozen=True, slots=True)
class Send:
    """Send `span` to rank `peer`. Complete when the peer has it."""

    peer: int
    span: Span


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive `span` from rank `peer`: the peer's next `Send` to this rank, of equal count."""

    peer: int
    span: Span


@dataclass(frozen=True, slots=True)
class Reduce:
    """Set `target` to `left` combined with `right`, element by element; `target` may be one of them."""

    left: Span
    right: Span
    target: Span


@dataclass(frozen=True, slots=True)
class Copy:
    """Set `target` to `source`."""

    source: Span
    target: Span


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Give `source` to the switch and take the combination of all ranks' into `target`, which may be `source`.

    All ranks of a ring run the same aggregates in the same order. `ring` numbers the rings of which a communicator has
    several (one per worker of a machine, in Parallel NetReduce); a rank belongs to the one it names.
    """

    source: Span
    target: Span
    ring: int = 0


Step: TypeAlias = Send | Receive | Reduce | Copy | Aggregate
Round: TypeAlias = tuple[Step, ...]
Schedule: TypeAlias = Iterator[Round]


def exchange(send_to: int, sent: Span, receive_from: int, received: Span) -> Round:
    """A round that sends one span and receives another; empty ones need no transfer."""
    steps: list[Step] = []
    if received.count:
        steps.append(Receive(receive_from, received))
    if sent.count:
        steps.append(Send(send_to, sent))
    return tuple(steps)


def in_order(order: Sequence[int], schedule: Schedule) -> Schedule:
    """`schedule` was made for places in a ring; `order[place]` is the rank there. The same schedule for the ranks."""
    for steps in schedule:
        yield tuple(
            replace(step, peer=order[step.peer]) if isinstance(step, Send | Receive) else step for step in steps
        )
