"""Recordings: what lines delivered, in order, for tests to compare and for Wireshark to open."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from netreduce.fabric.link import Line
from netreduce.wire.build import burst_frames
from netreduce.wire.pcap import Direction, PcapWriter


class RecordedFrame(NamedTuple):
    """One frame: when it arrived, on which line, and its bytes."""

    time_ps: int
    line: str
    data: bytes


class Recording:
    """A tap that keeps every burst: ``recording = Recording(); simulator.tap(recording)``."""

    def __init__(self) -> None:
        self._bursts: list[tuple[str, bytes]] = []

    def __call__(self, line: Line, burst: np.ndarray) -> None:
        self._bursts.append((line.name, burst.tobytes()))

    def frames(self) -> list[RecordedFrame]:
        """All frames in the order in which they were delivered."""
        found = []
        for line, burst in self._bursts:
            records = np.frombuffer(burst, np.uint8).copy()  # compiled code wants a writable array
            found += [RecordedFrame(time_ps, line, frame.tobytes()) for time_ps, frame in burst_frames(records)]
        return found

    def digest(self) -> str:
        """SHA-256 of all times, lines and bytes: equal for equal runs."""
        digest = hashlib.sha256()
        for time_ps, line, data in self.frames():
            digest.update(f"{time_ps} {line} {len(data)} ".encode() + data)
        return digest.hexdigest()

    def write(self, path: str | Path) -> None:
        """Write a pcapng file with one interface per line, named like it; virtual time counts from 1970.

        Raises OSError if the file cannot be written.
        """
        names = sorted({line for line, _ in self._bursts})
        with PcapWriter(path, names) as writer:
            for line, burst in self._bursts:
                writer.write_burst(names.index(line), Direction.INBOUND, np.frombuffer(burst, np.uint8).copy())
