"""The node protocol: a NIC and a switch are the same kind of thing, frames in, frames out, a next timer.

A node never reads a clock, a socket, an environment variable or unseeded chance. So one object runs in three worlds:
the simulator, the live engine, and a test's for-loop. The four calls follow sans-I/O practice.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from netreduce.wire.frames import FrameQueue


class Node(Protocol):
    """Frames in, frames out, a next timer. Not thread-safe: one thread drives a node."""

    name: str
    port_count: int

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        """Take the frames of `burst` (uint8, whole records; see wire/frames.py) that arrived at `port` until `now_ps`.

        Work is bounded by the burst. Bad frames are dropped and counted; nothing here raises for a peer's fault.
        """

    def advance(self, now_ps: int) -> None:
        """Fire due timers and put frames that can leave into the egress queues, as far as these have room."""

    def next_timer_ps(self) -> int:
        """When `advance` must be called next even if nothing arrives; `NEVER_PS` if nothing is pending."""

    def egress(self, port: int) -> FrameQueue:
        """The bounded queue of frames waiting to leave by `port`. The fabric takes bursts from its head."""
