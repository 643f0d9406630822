"""The one clock of live runs: picoseconds since an epoch that all processes of a fabric share.

The epoch is the start of the switch, on the machine's monotonic clock. Counting from the machine's boot instead would
overflow 63 bits of picoseconds after 106 days of uptime.
"""

from __future__ import annotations

import time

from netreduce.units import PS_PER_NS


class Clock:
    """Reads the monotonic clock as `now_ps`, relative to `epoch_ns` (of `time.monotonic_ns`)."""

    def __init__(self, epoch_ns: int | None = None) -> None:
        self.epoch_ns = time.monotonic_ns() if epoch_ns is None else epoch_ns

    def now_ps(self) -> int:
        """Picoseconds since the epoch."""
        return (time.monotonic_ns() - self.epoch_ns) * PS_PER_NS

    def epoch_unix_ns(self) -> int:
        """The epoch as Unix time in nanoseconds, for captures."""
        return time.time_ns() - (time.monotonic_ns() - self.epoch_ns)
