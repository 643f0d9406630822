"""What carries bursts between a port and the world: a cable, a stream of another program's frames, an interface.

All of them are non-blocking and are watched by their descriptor. Errors are those of cables: `CableClosedError` when
nothing more will come or go, `BadBurstError` when what came makes no sense.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np


class Carrier(Protocol):
    """One port's connection to the world."""

    def fileno(self) -> int:
        """The descriptor, for poll and epoll."""

    def receive(self, buffer: np.ndarray) -> np.ndarray | None:
        """A burst, good until the next call, in `buffer` (of `make_burst_buffer`) or elsewhere; None when none waits.

        It is writable memory, but nobody else's: the ICRC check masks header bytes for a moment.
        """

    def send_burst(self, burst: np.ndarray) -> bool:
        """Send `burst` (uint8, whole records, at most `BURST_BYTES_MAX`); False when there is no room for it now."""

    def flush(self) -> bool:
        """Send what was taken by `send_burst` but has not left yet; True when nothing is left."""

    def rest(self) -> bool:
        """Before sleeping on the descriptor: whether it will tell of what comes. False when a burst waits already."""

    def wake(self) -> None:
        """The descriptor is readable."""

    def gather_s(self) -> float:
        """How long to let frames gather once some have come: waking for each costs more than the frame itself."""

    def counters(self) -> dict[str, int]:
        """What was lost outside the switch, by reason."""

    def close(self) -> None:
        """Let go of it; the other end sees it, where there is one."""


@runtime_checkable
class Generous(Protocol):
    """A carrier of which one `receive` gives as much as a round should take; its descriptor tells of the rest."""

    gives_all: bool


@runtime_checkable
class Queued(Protocol):
    """A carrier that takes frames from where they lie, in the queue of a node's egress."""

    def send_queue(self, data: np.ndarray, row: np.record) -> bool:
        """Send what waits in a frame queue of these `data` and state; False when there is no room for all of it."""


class Watched:
    """A carrier whose descriptor is readable whenever something waits: nothing to do before and after sleeping."""

    def rest(self) -> bool:
        """True: the descriptor will tell."""
        return True

    def wake(self) -> None:
        """Nothing to do: what has come is there to be received."""

    def gather_s(self) -> float:
        """Nothing more to wait for."""
        return 0.0
