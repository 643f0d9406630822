"""Faults as rules: what a line does to the frames that it should merely carry.

A rule sees a frame, and if its conditions hold it gives a verdict: drop, duplicate, delay, reorder, corrupt, alter or
truncate it. The first rule in order of installation that strikes decides. Rules act on frames of bursts and know
neither simulator nor cable, so the same objects serve both; they are one line to install, and a context manager::

    net.link(worker=1).up.drop(psn=7)
    with net.link(worker=1).partition():
        ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.units import NEVER_PS, PS_PER_US
from netreduce.wire.packet import Parse, parse_packet

REORDER_PATIENCE_PS = 20 * PS_PER_US
"""A reordered frame that nothing follows goes on after this time, so that the last frame is not lost."""
COPIES_MAX = 16
"""Most copies that one duplication makes."""


class Effect(Enum):
    """What can happen to a frame. The values name the counters."""

    DROP = "drop"
    PARTITION = "partition"
    DUPLICATE = "duplicate"
    DELAY = "delay"
    STALL = "stall"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    ALTER = "alter"
    TRUNCATE = "truncate"


@dataclass(frozen=True)
class Verdict:
    """An effect and its measure: extra copies, picoseconds, frames to let pass, bit, or bytes to keep.

    A `measure` of None is drawn by chance where that makes sense (the bit, the bytes to keep). `after_ps` holds back
    the copies of a duplicated frame; `change` alters a frame in place.
    """

    effect: Effect
    measure: int | None = None
    after_ps: int = 0
    change: Callable[[SeenFrame], None] | None = None


class SeenFrame:
    """A frame as rules see it: `data` (uint8, writable), its time, and its packet fields, parsed when asked for."""

    def __init__(self, data: np.ndarray, packets: np.ndarray, time_ps: int = 0) -> None:
        self.data = data
        self.time_ps = time_ps
        self._packets = packets
        self._outcome: int | None = None

    @property
    def packet(self) -> Any | None:
        """The row of `wire.packet.PACKET` fields, or None if the frame is no whole RoCEv2 packet."""
        if self._outcome is None:
            self._outcome = int(parse_packet(self.data, self._packets[0]))
        return self._packets[0] if self._outcome == Parse.OK else None


class Home(Protocol):
    """Where a rule is installed."""

    def discard(self, rule: Rule) -> None:
        """Take `rule` out."""


def _as_set(value: int | Iterable[int] | None) -> frozenset[int] | None:
    if value is None:
        return None
    members = value if isinstance(value, Iterable) else (value,)
    return frozenset(int(member) for member in members)


class Rule:
    """A verdict and the conditions under which it strikes; all that are given must hold.

    `psn`, `opcode`, `qpn` (the destination's) take a number or several. `where` is asked with the `SeenFrame`. Among
    the frames that fit so far, `nth` picks one (from 1), `every` each k-th, `probability` by seeded chance. `times`
    bounds how often the rule strikes: once when `nth` or a single `psn` is named, so that the retransmission passes,
    else always. The rule is in force from `from_ps` after the first frame that it saw, for `for_ps`.
    """

    def __init__(
        self,
        verdict: Verdict,
        *,
        psn: int | Iterable[int] | None = None,
        opcode: int | Iterable[int] | None = None,
        qpn: int | Iterable[int] | None = None,
        where: Callable[[SeenFrame], bool] | None = None,
        nth: int | None = None,
        every: int | None = None,
        probability: float | None = None,
        times: int | None = None,
        from_ps: int = 0,
        for_ps: int | None = None,
    ) -> None:
        if probability is not None and not 0.0 <= probability <= 1.0:
            raise ConfigurationError(f"probability={probability}: a number from 0 to 1 is needed")
        for name, value in (("nth", nth), ("every", every), ("times", times), ("for_ps", for_ps)):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name}={value}: at least 1 is needed")
        fields = {"psn": _as_set(psn), "opcode": _as_set(opcode), "destination_qpn": _as_set(qpn)}
        self.verdict = verdict
        self.fields = {name: values for name, values in fields.items() if values is not None}
        self.where = where
        self.nth = nth
        self.every = every
        self.probability = probability
        self.times = 1 if times is None and (nth is not None or isinstance(psn, Integral)) else times
        self.from_ps = from_ps
        self.for_ps = for_ps
        self.fitted = 0
        self.struck = 0
        self._first_ps: int | None = None
        self._homes: list[Home] = []

    def judge(self, frame: SeenFrame, random: np.random.Generator) -> Verdict | None:
        """The verdict on `frame`, or None to let it pass."""
        if self.times is not None and self.struck >= self.times:
            return None
        if not (self._is_time(frame.time_ps) and self._fits(frame)):
            return None
        self.fitted += 1
        if self.nth is not None and self.fitted != self.nth:
            return None
        if self.every is not None and self.fitted % self.every:
            return None
        if self.probability is not None and random.random() >= self.probability:
            return None
        self.struck += 1
        return self.verdict

    def _is_time(self, time_ps: int) -> bool:
        if self._first_ps is None:
            self._first_ps = time_ps
        since_ps = time_ps - self._first_ps - self.from_ps
        return since_ps >= 0 and (self.for_ps is None or since_ps < self.for_ps)

    def _fits(self, frame: SeenFrame) -> bool:
        if self.fields:
            packet = frame.packet
            if packet is None or any(int(packet[name]) not in values for name, values in self.fields.items()):
                return False
        return self.where is None or bool(self.where(frame))

    def joined(self, home: Home) -> None:
        """Remember a line's faults that this rule is part of."""
        self._homes.append(home)

    def remove(self) -> None:
        """Take the rule off every line. Frames that it holds back still arrive."""
        for home in self._homes:
            home.discard(self)
        self._homes.clear()

    def __enter__(self) -> Rule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Stall(Rule):
    """A line that takes no frame from its sender until `until_ps`, or until the rule is removed: the queue fills."""

    def __init__(self, until_ps: int = NEVER_PS) -> None:
        super().__init__(Verdict(Effect.DELAY, 0), times=None)
        self.until_ps = until_ps

    def judge(self, frame: SeenFrame, random: np.random.Generator) -> Verdict | None:
        """None: frames that are already on their way are left alone."""
        return None


class Installer(ABC):
    """The one-line spellings of the rules; `conditions` are those of `Rule`."""

    @abstractmethod
    def install(self, rule: Rule) -> Rule:
        """Put `rule` behind those already there, and return it."""

    def drop(self, **conditions: Any) -> Rule:
        """Lose frames."""
        return self.install(Rule(Verdict(Effect.DROP), **conditions))

    def partition(self, **conditions: Any) -> Rule:
        """Lose every frame until the rule is removed, or for the time that `from_ps` and `for_ps` name."""
        return self.install(Rule(Verdict(Effect.PARTITION), **conditions))

    def duplicate(self, copies: int = 1, after_ps: int = 0, **conditions: Any) -> Rule:
        """Deliver `copies` more of a frame, right behind it or `after_ps` later."""
        if not 1 <= copies <= COPIES_MAX:
            raise ConfigurationError(f"copies={copies}: 1 to {COPIES_MAX} are allowed")
        return self.install(Rule(Verdict(Effect.DUPLICATE, copies, after_ps), **conditions))

    def delay(self, delay_ps: int, **conditions: Any) -> Rule:
        """Deliver frames `delay_ps` later; those behind overtake them."""
        return self.install(Rule(Verdict(Effect.DELAY, delay_ps), **conditions))

    def reorder(self, by: int = 1, **conditions: Any) -> Rule:
        """Deliver a frame after `by` later ones, or after `REORDER_PATIENCE_PS` if so many do not come."""
        return self.install(Rule(Verdict(Effect.REORDER, by), **conditions))

    def corrupt(self, bit: int | None = None, **conditions: Any) -> Rule:
        """Flip one bit, the change that is hardest to detect: number `bit` of the frame, or any by chance."""
        return self.install(Rule(Verdict(Effect.CORRUPT, bit), **conditions))

    def alter(self, change: Callable[[SeenFrame], None], **conditions: Any) -> Rule:
        """Let `change` rewrite frames in place: a sender that lies, a middlebox that meddles."""
        return self.install(Rule(Verdict(Effect.ALTER, change=change), **conditions))

    def truncate(self, length: int | None = None, **conditions: Any) -> Rule:
        """Cut frames down to `length` bytes, or to a length by chance."""
        return self.install(Rule(Verdict(Effect.TRUNCATE, length), **conditions))

    def stall(self, until_ps: int = NEVER_PS) -> Rule:
        """Start no frame before `until_ps`, nor before the rule is removed if that comes earlier."""
        return self.install(Stall(until_ps))

    def stall_for(self, duration_ps: int, **conditions: Any) -> Rule:
        """Start no frame for `duration_ps` after one that meets the conditions, or after the first one seen."""
        if not conditions.keys() & {"nth", "every", "psn", "probability", "times"}:
            conditions["times"] = 1
        return self.install(Rule(Verdict(Effect.STALL, duration_ps), **conditions))
