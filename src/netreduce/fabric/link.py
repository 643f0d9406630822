"""A link: a full-duplex cable between two node ports, made of two lines with faults, taps and counters of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.fabric.ecn import EcnMarking
from netreduce.fabric.faults import Faults
from netreduce.fabric.line import LINE, OVERHEAD_BYTES
from netreduce.fabric.node import Node
from netreduce.fabric.rules import Installer, Rule
from netreduce.units import NEVER_PS, PS_PER_S
from netreduce.wire.frames import FRAME_BYTES_MAX, RECORD_ALIGNMENT, make_queue, record_bytes

LINES_MAX = 8192
"""Most lines of one simulation: links of 1,024 hosts in a fat tree of three levels, with room."""
FLIGHT_BYTES_MAX = 1 << 30
"""Most memory for the frames in flight on one line: 100 Gb/s over 80 ms."""

Tap = Callable[["Line", np.ndarray], None]
"""Called with the line and each burst that it delivers (uint8, whole records, valid during the call)."""


def make_lines() -> np.ndarray:
    """An empty table of lines (recarray of `line.LINE`)."""
    return np.zeros(LINES_MAX, LINE).view(np.recarray)


def _flight_bytes(rate_bps: int, window_ps: int) -> int:
    """Memory for all frames that a line can carry at once: a record is at most 1 byte in 32 longer than on the wire."""
    on_the_wire = rate_bps * window_ps // (8 * PS_PER_S)
    size = on_the_wire * 33 // 32 + 4 * int(record_bytes(FRAME_BYTES_MAX))
    return -(-size // RECORD_ALIGNMENT) * RECORD_ALIGNMENT


class Line(Installer):
    """One direction of a link: a view on its row of the table, its queues, faults and taps."""

    def __init__(
        self,
        lines: np.ndarray,
        index: int,
        sender: tuple[Node, int],
        receiver: tuple[Node, int],
        *,
        rate_bps: int,
        delay_ps: int,
        ahead_ps: int,
        seed: int,
        ecn: EcnMarking | None,
    ) -> None:
        self.index = index
        self.sender, self.sender_port = sender
        self.receiver, self.receiver_port = receiver
        self.name = f"{self.sender.name}:{self.sender_port}>{self.receiver.name}:{self.receiver_port}"
        self.receiver_index = -1
        self.taps: list[Tap] = []
        self._lines = lines
        random = np.random.default_rng([seed, index])
        self.faults = Faults(random, self._faults_changed)
        self.egress = self.sender.egress(self.sender_port)
        size = _flight_bytes(rate_bps, delay_ps + ahead_ps)
        if size > FLIGHT_BYTES_MAX:
            raise ConfigurationError(
                f"link {self.name}: rate_bps={rate_bps} times delay_ps={delay_ps} puts {size} bytes in flight, "
                f"at most {FLIGHT_BYTES_MAX} are allowed"
            )
        self.flight = make_queue(size)
        row = lines[index]
        row.rate_bps = rate_bps
        row.delay_ps = delay_ps
        row.next_start_ps = row.next_arrival_ps = row.late_ps = NEVER_PS
        row.egress_address = self.egress.data.ctypes.data
        row.egress_bytes = self.egress.data.size
        row.egress_state_address = self.egress.state.ctypes.data
        row.flight_address = self.flight.data.ctypes.data
        row.flight_bytes = self.flight.data.size
        row.flight_state_address = self.flight.state.ctypes.data
        row.random = int(random.integers(1, 1 << 32))
        row.ecn_kmin_bytes = -1
        if ecn is not None:
            row.ecn_kmin_bytes, row.ecn_kmax_bytes = ecn.kmin_bytes, ecn.kmax_bytes
            row.ecn_p_max_32 = round(ecn.p_max * (1 << 32))

    @property
    def row(self) -> Any:
        """The line's row of `line.LINE` fields."""
        return self._lines[self.index]

    def install(self, rule: Rule) -> Rule:
        """Put `rule` behind those already there, and return it."""
        return self.faults.install(rule)

    def _faults_changed(self) -> None:
        row = self.row
        row.stalled_until_ps = self.faults.stalled_until_ps()
        row.next_start_ps = 0  # look at the queue again

    def counters(self) -> dict[str, int]:
        """What went into the line, and what became of it.

        Always frames + copied_frames = delivered_frames + lost_frames + in_flight_frames. Frames that the sender's
        full queue refused never entered the line: egress_dropped_frames.
        """
        row, faults = self.row, self.faults
        counts = {
            "frames": int(row.frames),
            "bytes": int(row.bytes),
            "marked_frames": int(row.marked_frames),
            "delivered_frames": int(row.arrived_frames) - faults.pushed_frames + faults.popped_frames,
            "in_flight_frames": int(self.flight.state[0].frames) + faults.held_frames,
            "copied_frames": faults.copied_frames,
            "lost_frames": faults.counters["drop"] + faults.counters["partition"],
            "egress_dropped_frames": int(self.egress.state[0].dropped_frames),
        }
        return counts | {f"fault_{name}": count for name, count in sorted(faults.counters.items())}

    def utilisation(self, now_ps: int) -> float:
        """Share of the time up to `now_ps` for which the line was occupied (padding of short frames not counted)."""
        row = self.row
        return (int(row.bytes) + OVERHEAD_BYTES * int(row.frames)) * 8 * PS_PER_S / (int(row.rate_bps) * max(now_ps, 1))


class Link(Installer):
    """Two lines: `up` from the first named port to the second, `down` back. A rule on the link is on both."""

    def __init__(self, up: Line, down: Line) -> None:
        self.up = up
        self.down = down

    @property
    def name(self) -> str:
        """The ports at both ends."""
        return f"{self.up.sender.name}:{self.up.sender_port}-{self.down.sender.name}:{self.down.sender_port}"

    def __iter__(self) -> Iterator[Line]:
        return iter((self.up, self.down))

    def install(self, rule: Rule) -> Rule:
        """Put `rule` on both lines, and return it."""
        for line in self:
            line.install(rule)
        return rule
