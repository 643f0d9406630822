"""Faults on live cables: the rules of `fabric.rules` between a port of the switch and what is plugged in there.

Rules are installed before anything starts, from texts (`netreduce run --fault`), or at any time on a `LiveLink`. A port
whose link nobody asked for has no rules to ask, and costs nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.fabric.faults import Faults
from netreduce.fabric.rules import Installer, Rule
from netreduce.fabric.spelling import Spelled
from netreduce.runtime.carrier import Carrier
from netreduce.units import NEVER_PS
from netreduce.wire.frames import BURST_BYTES_MAX


class LiveLink(Installer):
    """Both directions of the link called `name`: `up` towards the switch, `down` back. A rule on the link is on both.

    Rules may come and go while frames flow, from any thread; the switch notices within a tenth of a second.
    """

    def __init__(self, name: str, seed: int) -> None:
        number = zlib.crc32(name.encode())
        self.up, self.down = (Faults(np.random.default_rng([seed, number, direction])) for direction in range(2))

    def __iter__(self) -> Iterator[Faults]:
        return iter((self.up, self.down))

    def install(self, rule: Rule) -> Rule:
        """Put `rule` on both directions, and return it."""
        for faults in self:
            faults.install(rule)
        return rule


class LiveFaults:
    """The faults of one switch's links. All chance follows from `seed`; `spelled` are there from the start."""

    def __init__(self, seed: int, spelled: Iterable[Spelled] = ()) -> None:
        self._seed = seed
        self._rules = [(fault, fault.install(_Nowhere())) for fault in spelled]
        self._links: dict[str, LiveLink] = {}

    def link(self, *, worker: int | None = None, port: str | None = None) -> LiveLink:
        """The link of worker `worker`, or of the interface or stream `port`. Ask for it before that is plugged in."""
        name = _name_of(worker, port)
        if name not in self._links:
            self._links[name] = self._make_link(name)
        return self._links[name]

    def _make_link(self, name: str) -> LiveLink:
        link = LiveLink(name, self._seed)
        for fault, rule in self._rules:
            if fault.worker is None is fault.port or name == _name_of(fault.worker, fault.port):
                direction = {"up": link.up, "down": link.down}.get(fault.direction or "", link)
                direction.install(rule)
        return link

    def between(self, name: str, carrier: Carrier, now_ps: Callable[[], int]) -> FaultyCarrier | None:
        """`carrier` of the link called `name` with its faults; None if it has none."""
        link = self._links.get(name)
        if link is None:
            link = self._make_link(name)
            if not any(faults.rules for faults in link):
                return None
            self._links[name] = link
        return FaultyCarrier(carrier, link, now_ps)

    def struck(self) -> dict[str, int]:
        """How often each of the spelled faults has struck."""
        return {fault.text: rule.struck for fault, rule in self._rules}


class _Nowhere(Installer):
    """Makes rules that are installed later."""

    def install(self, rule: Rule) -> Rule:
        """`rule` itself."""
        return rule


def _name_of(worker: int | None, port: str | None) -> str:
    if (worker is None) is (port is None):
        raise ConfigurationError(f"link of worker={worker}, port={port}: want one of the two")
    return f"rank {worker}" if port is None else port


class FaultyCarrier:
    """`carrier` with the faults of `link`: a `Carrier` that reads the time by `now_ps`.

    Frames that are held back by a delay come out when it is over, so whoever moves frames asks `next_ps`.
    """

    def __init__(self, carrier: Carrier, link: LiveLink, now_ps: Callable[[], int]) -> None:
        self._carrier = carrier
        self._up, self._down = link.up, link.down
        self._now_ps = now_ps
        self._due: np.ndarray | None = None  # a burst on its way down that the carrier had no room for

    def takes(self) -> tuple[bool, bool]:
        """Whether frames may go up and down, neither of which they do during a stall."""
        now_ps = self._now_ps()
        return self._up.stalled_until_ps() <= now_ps, self._down.stalled_until_ps() <= now_ps

    def next_ps(self) -> int:
        """When a frame that was held back is due, or a stall ends; `NEVER_PS` for neither."""
        now_ps = self._now_ps()
        ends = [end for faults in (self._up, self._down) if (end := faults.stalled_until_ps()) > now_ps]
        # What waits for room is not waited for here: the poller says when there is some.
        down_ps = self._down.next_ps() if self._due is None else NEVER_PS
        return min(self._up.next_ps(), down_ps, *ends)

    def fileno(self) -> int:
        """The carrier's descriptor."""
        return self._carrier.fileno()

    def receive(self, buffer: np.ndarray) -> np.ndarray | None:
        """The next burst that the faults let through; None when there is none, though the carrier may have more."""
        if not self._up.active:
            return self._carrier.receive(buffer)
        now_ps = self._now_ps()
        if self._up.stalled_until_ps() <= now_ps and (burst := self._carrier.receive(buffer)) is not None:
            self._up.push(burst, now_ps)
        burst = self._up.pop(now_ps, BURST_BYTES_MAX)
        return burst if burst.size else None

    def send_burst(self, burst: np.ndarray) -> bool:
        """Put `burst` before the faults; False during a stall, or while earlier frames wait for room."""
        if not (self._down.active or self._due is not None):
            return self._carrier.send_burst(burst)
        now_ps = self._now_ps()
        if self._down.stalled_until_ps() > now_ps or not self.flush():
            return False
        self._down.push(burst, now_ps)
        self.flush()
        return True

    def flush(self) -> bool:
        """Send what is due; True when nothing of it is left."""
        while True:
            if self._due is None:
                self._due = self._down.pop(self._now_ps(), BURST_BYTES_MAX)
            if self._due.size and not self._carrier.send_burst(self._due):
                return False
            is_done, self._due = not self._due.size, None
            if is_done:
                return self._carrier.flush()

    def rest(self) -> bool:
        """As the carrier; during a stall there is nothing to be woken for."""
        return self._up.stalled_until_ps() > self._now_ps() or self._carrier.rest()

    def gather_s(self) -> float:
        """As the carrier inside."""
        return self._carrier.gather_s()

    def wake(self) -> None:
        """As the carrier."""
        self._carrier.wake()

    def counters(self) -> dict[str, int]:
        """The carrier's, and what the faults did, by direction."""
        counts = {
            f"fault_{effect}_{direction}": count
            for direction, faults in (("up", self._up), ("down", self._down))
            for effect, count in sorted(faults.counters.items())
        }
        return self._carrier.counters() | counts

    def close(self) -> None:
        """Close the carrier; what the faults hold back is lost with it."""
        for faults in (self._up, self._down):
            faults.pop(NEVER_PS)
        self._carrier.close()
