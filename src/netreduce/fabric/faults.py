"""What one line does to frames on the verdict of its rules, in the simulator as on a live cable.

Bursts go in by `push`, and come out by `pop`: without the frames that were lost, with the copies, and in order of their
possibly later times. See `rules.py` for the conditions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

import numpy as np

from netreduce.fabric.rules import REORDER_PATIENCE_PS, Effect, Installer, Rule, SeenFrame, Stall, Verdict
from netreduce.units import NEVER_PS
from netreduce.wire.frames import (
    RECORD_HEADER_BYTES,
    record_bytes,
    record_length,
    record_time,
    write_record_header,
)
from netreduce.wire.packet import make_packet_table


class Faults(Installer):
    """The rules of one line, and the frames that they hold back.

    Frames go in by `push` as bursts and come out by `pop` in order of their (possibly later) times. `random` is the
    line's own seeded chance. `changed`, if given, is called after rules came or went.
    """

    def __init__(self, random: np.random.Generator, changed: Callable[[], None] | None = None) -> None:
        self.rules: list[Rule] = []
        self.counters: Counter[str] = Counter()
        self.pushed_frames = 0
        self.popped_frames = 0
        self.copied_frames = 0
        self._random = random
        self._changed = changed
        self._packets = make_packet_table()
        self._paused_until_ps = 0
        self._sequence = 0
        self._leaving: list[tuple[int, int, bytes]] = []  # heap of time, sequence, frame
        self._reordered: list[list[int]] = []  # [sequence, frames still to let pass]

    def install(self, rule: Rule) -> Rule:
        """Put `rule` behind those already there, and return it."""
        self.rules.append(rule)
        rule.joined(self)
        self._notify()
        return rule

    def discard(self, rule: Rule) -> None:
        """Take `rule` out."""
        self.rules.remove(rule)
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed()

    @property
    def active(self) -> bool:
        """Whether frames must take the way through `push` and `pop`."""
        return bool(self.rules or self._leaving)

    @property
    def held_frames(self) -> int:
        """Frames that went in and did not come out yet."""
        return len(self._leaving)

    def stalled_until_ps(self) -> int:
        """No frame may start before this time."""
        stalls = (rule.until_ps for rule in self.rules if isinstance(rule, Stall))
        return max(self._paused_until_ps, *stalls, 0)

    def next_ps(self) -> int:
        """When `pop` has a frame; `NEVER_PS` if none is held."""
        return self._leaving[0][0] if self._leaving else NEVER_PS

    def push(self, burst: np.ndarray, now_ps: int | None = None) -> None:
        """Judge the frames of `burst` (uint8, whole records), stamped with their arrival unless that is `now_ps`."""
        at = 0
        while at < burst.size:
            length = int(record_length(burst, at))
            time_ps = int(record_time(burst, at)) if now_ps is None else now_ps
            start = at + RECORD_HEADER_BYTES
            self.pushed_frames += 1
            self._judge(burst[start : start + length].copy(), time_ps)
            at += int(record_bytes(length))

    def pop(self, now_ps: int, size_max: int | None = None) -> np.ndarray:
        """The frames due until `now_ps` as a burst (uint8, may be empty), in order of time.

        Those that do not fit into `size_max` bytes stay for the next call.
        """
        parts = []
        while self._leaving and self._leaving[0][0] <= now_ps:
            needed = int(record_bytes(len(self._leaving[0][2])))
            if size_max is not None and (size_max := size_max - needed) < 0:
                break
            time_ps, _, frame = heapq.heappop(self._leaving)
            record = np.zeros(needed, np.uint8)
            write_record_header(record, 0, len(frame), time_ps)
            record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + len(frame)] = np.frombuffer(frame, np.uint8)
            parts.append(record)
            self.popped_frames += 1
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def _judge(self, frame: np.ndarray, time_ps: int) -> None:
        seen = SeenFrame(frame, self._packets, time_ps)
        for rule in self.rules:
            verdict = rule.judge(seen, self._random)
            if verdict is not None:
                self.counters[verdict.effect.value] += 1
                _EFFECTS[verdict.effect](self, frame, time_ps, verdict)
                return
        self._leave(frame, time_ps)

    def _leave(self, frame: np.ndarray, time_ps: int) -> None:
        """Send `frame` on, and behind it those reordered ones that have let enough pass."""
        self._put(frame, time_ps)
        for waiting in self._reordered:
            waiting[1] -= 1
        released = [sequence for sequence, to_pass in self._reordered if to_pass <= 0]
        if released:
            self._reordered = [waiting for waiting in self._reordered if waiting[1] > 0]
            self._hasten(set(released), time_ps)

    def _hasten(self, sequences: set[int], time_ps: int) -> None:
        """Let held frames go right behind the last one, unless patience ran out before."""
        frames = [entry[2] for entry in self._leaving if entry[1] in sequences]
        self._leaving = [entry for entry in self._leaving if entry[1] not in sequences]
        heapq.heapify(self._leaving)
        for frame in frames:
            self._put(np.frombuffer(frame, np.uint8), time_ps)

    def _put(self, frame: np.ndarray, time_ps: int) -> int:
        self._sequence += 1
        heapq.heappush(self._leaving, (time_ps, self._sequence, frame.tobytes()))
        return self._sequence

    def _lose(self, frame: np.ndarray, time_ps: int, verdict: Verdict) -> None:
        """Nothing is left to do."""

    def _duplicate(self, frame: np.ndarray, time_ps: int, verdict: Verdict) -> None:
        copies = verdict.measure or 1
        self.copied_frames += copies
        self._leave(frame, time_ps)
        for _ in range(copies):
            if verdict.after_ps:
                self._put(frame, time_ps + verdict.after_ps)
            else:
                self._leave(frame, time_ps)

    def _delay(self, frame: np.ndarray, time_ps: int, verdict: Verdict) -> None:
        self._put(frame, time_ps + (verdict.measure or 0))

    def _stall(self, frame: np.ndarray, time_ps: int, verdict: Verdict) -> None:
        """The frame itself goes on: it is on its way already."""
        self._paused_until_ps = max(self._paused_until_ps, time_ps + (verdict.measure or 0))
        self._leave(frame, time_ps)
        self._notify()

    def _reorder(self, frame: np.ndarray, time_ps: int, verdict: Verdict) -> None:
        self._reordered.append([self._put(frame, time_ps + REORDER_PATIENCE_PS), verdict.measure or 1])

    def _corrupt(self, frame: np.ndarray, time_ps: int, verdict: Verdict) -> None:
        bits = frame.size * 8
        number = int(self._random.integers(bits)) if verdict.measure is None else verdict.measure % bits
        frame[number // 8] ^= 1 << number % 8
        self._leave(frame, time_ps)

    def _alter(self, frame: np.ndarray, time_ps: int, verdict: Verdict) -> None:
        assert verdict.change is not None
        verdict.change(SeenFrame(frame, self._packets))
        self._leave(frame, time_ps)

    def _truncate(self, frame: np.ndarray, time_ps: int, verdict: Verdict) -> None:
        chosen = verdict.measure
        kept = int(self._random.integers(1, max(frame.size, 2))) if chosen is None else chosen
        self._leave(frame[: max(kept, 1)], time_ps)


_EFFECTS: dict[Effect, Callable[..., None]] = {
    Effect.DROP: Faults._lose,
    Effect.PARTITION: Faults._lose,
    Effect.DUPLICATE: Faults._duplicate,
    Effect.DELAY: Faults._delay,
    Effect.STALL: Faults._stall,
    Effect.REORDER: Faults._reorder,
    Effect.CORRUPT: Faults._corrupt,
    Effect.ALTER: Faults._alter,
    Effect.TRUNCATE: Faults._truncate,
}
