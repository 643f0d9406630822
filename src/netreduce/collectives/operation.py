"""One collective under way: what its caller sees, and what the executor needs to run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from netreduce.collectives.aggregation import Turn
from netreduce.collectives.calls import Call
from netreduce.collectives.fingerprint import Kind, describe
from netreduce.collectives.schedule import Round, Schedule


class Operation:
    """What a collective call returns: `done` becomes true, with `error` None or the reason why it failed.

    `name` (such as ``all_reduce``) and `sequence` (its number among the group's collectives, -1 for a send or receive)
    say which call it was; `started_ps` is the engine's time at the call.
    """

    def __init__(self, kind: Kind, sequence: int, started_ps: int, fingerprint: int, name: str = "") -> None:
        self.kind = kind
        self.name = name or kind.label
        self.sequence = sequence
        self.started_ps = started_ps
        self.fingerprint = fingerprint
        self.done = False
        self.error: BaseException | None = None
        self._callbacks: list[Callable[[Operation], None]] = []

    @property
    def call(self) -> str:
        """What every rank must have called alike, such as ``all_reduce float32 sum by ring``."""
        return describe(self.fingerprint)

    def on_done(self, callback: Callable[[Operation], None]) -> None:
        """Have `callback(operation)` called when it is done; at once, if it is."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def finish(self, error: BaseException | None = None) -> None:
        """For the engine: the operation has ended."""
        assert not self.done
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


@dataclass(slots=True)
class Work:
    """A call under way."""

    operation: Operation
    call: Call
    fingerprint: int
    tag: int  # of lane 0; the others' follow
    is_staged: bool = False  # the NIC has nothing to do with its memory
    open_lanes: int = 0

    def release(self) -> None:
        """Take all memory back from the NIC."""
        for memory in self.call.memory.values():
            memory.release()


class Lane:
    """One schedule of a work: the round that is under way, and the next one, which is read ahead.

    If it aggregates, `turn` is its place in the order of aggregations.
    """

    __slots__ = ("next_round", "remaining", "schedule", "tag", "turn", "work")

    def __init__(self, work: Work, schedule: Schedule, tag: int, turn: Turn | None) -> None:
        self.work = work
        self.schedule = schedule
        self.tag = tag
        self.turn = turn
        self.remaining = 0
        self.next_round: Round | None = next(schedule, None)

    def take_round(self) -> Round | None:
        """The round to start now; reads one further, so that its end is known early."""
        due = self.next_round
        if due is not None:
            self.next_round = next(self.schedule, None)
        return due
