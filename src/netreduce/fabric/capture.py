"""Captures: what lines delivered, in order, as a tap of the simulator or of a live cable collects it."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from netreduce.fabric.link import Line
from netreduce.wire.frames import RECORD_HEADER_BYTES, record_bytes, record_length, record_time


class CapturedFrame(NamedTuple):
    """One frame: when it arrived, on which line, and its bytes."""

    time_ps: int
    line: str
    data: bytes


class Capture:
    """A tap that keeps every burst: ``capture = Capture(); simulator.tap(capture)``."""

    def __init__(self) -> None:
        self._bursts: list[tuple[str, bytes]] = []

    def __call__(self, line: Line, burst: np.ndarray) -> None:
        self._bursts.append((line.name, burst.tobytes()))

    def frames(self) -> list[CapturedFrame]:
        """All frames in the order in which they were delivered."""
        found = []
        for line, burst in self._bursts:
            records = np.frombuffer(burst, np.uint8).copy()
            at = 0
            while at < records.size:
                length = int(record_length(records, at))
                start = at + RECORD_HEADER_BYTES
                found.append(CapturedFrame(int(record_time(records, at)), line, burst[start : start + length]))
                at += int(record_bytes(length))
        return found

    def digest(self) -> str:
        """SHA-256 of all times, lines and bytes: equal for equal runs."""
        digest = hashlib.sha256()
        for time_ps, line, data in self.frames():
            digest.update(f"{time_ps} {line} {len(data)} ".encode() + data)
        return digest.hexdigest()
