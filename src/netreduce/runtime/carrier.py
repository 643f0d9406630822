"""What carries bursts between a port and the world: a cable, a stream of another program's frames, an interface.

All of them are non-blocking and are watched by their descriptor. Errors are those of cables: `CableClosedError` when
nothing more will come or go, `BadBurstError` when what came makes no sense.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Carrier(Protocol):
    """One port's connection to the world."""

    def fileno(self) -> int:
        """The descriptor, for poll and epoll."""

    def receive(self, buffer: np.ndarray) -> int:
        """Take a burst into `buffer` (of `make_burst_buffer`); its size in bytes, or 0 when none waits."""

    def send_burst(self, burst: np.ndarray) -> bool:
        """Send `burst` (uint8, whole records, at most `BURST_BYTES_MAX`); False when there is no room for it now."""

    def flush(self) -> bool:
        """Send what was taken by `send_burst` but has not left yet; True when nothing is left."""

    def counters(self) -> dict[str, int]:
        """What was lost outside the switch, by reason."""

    def close(self) -> None:
        """Let go of it; the other end sees it, where there is one."""
