"""Traces of live runs: every process records its node into files of one directory, and the launcher merges them.

A recorder keeps what arrives at its node, frame by frame, and the node's events. All processes of a fabric share one
clock, so the merge is a sort by time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np

from netreduce.fabric.node import Node
from netreduce.trace.events import EVENT, drain, enable, make_event_log
from netreduce.trace.recording import FORMAT, MOMENTS_MAX, FrameMoment, Header, NodeInfo, Trace
from netreduce.units import MIB
from netreduce.wire.frames import (
    RECORD_ALIGNMENT,
    RECORD_HEADER_BYTES,
    record_bytes,
    record_length,
    record_time,
    stamp_record,
)

TRACE_VARIABLE = "NETREDUCE_TRACE"
"""Environment variable that names the directory for a worker's files."""
RECORDED_BYTES_MAX = 64 * MIB
"""What one process writes at most; then it stops, and the merged trace ends there."""
LOG_CAPACITY = 1 << 16
"""Events between two bursts."""
SWITCH = "switch"


class Recorder:
    """Records one node as `stem` in `directory`. Give `log` to the node, and bursts to `receive` instead of it.

    `now` reads the fabric's clock: a frame is stamped after it has come, so that nothing arrives before it was sent.
    """

    def __init__(self, directory: str | Path, stem: str, info: NodeInfo, now: Callable[[], int]) -> None:
        self.log = make_event_log(LOG_CAPACITY)
        enable(self.log)
        self._base = Path(directory) / stem
        self._now = now
        self._base.with_suffix(".node").write_bytes(msgspec.json.encode(info))
        self._events = self._base.with_suffix(".events").open("ab")
        self._frames: dict[int, BinaryIO] = {}
        self._written_bytes = 0
        self._last_ps = -1
        self._is_cut = False
        blank = np.zeros(RECORD_ALIGNMENT, np.uint8)  # what is compiled is loaded now, not when the first frame waits
        stamp_record(blank, 0, int(record_bytes(record_length(blank, 0))))

    def receive(self, node: Node, port: int, burst: np.ndarray) -> int:
        """Record `burst` and hand it to `node` frame by frame, each at an instant of its own; the last of these."""
        at = 0
        while at < burst.size:
            end = at + int(record_bytes(record_length(burst, at)))
            frame = burst[at:end]
            time_ps = max(self._now(), self._last_ps + 1)
            self.note()
            self._last_ps = time_ps
            stamp_record(frame, 0, time_ps)
            self._write_frame(port, frame)
            node.receive(port, frame, time_ps)
            at = end
        self.note()
        return self._last_ps

    def note(self) -> None:
        """Write down what the node has logged since the last time."""
        rows, missed = drain(self.log)
        if not rows.size or self._is_cut:
            return
        times = np.maximum.accumulate(np.maximum(rows["time_ps"], self._last_ps))
        rows["time_ps"] = times
        self._last_ps = int(times[-1])
        if missed:
            self._cut(int(times[0]))
        elif self._has_room(rows.nbytes, int(times[0])):
            rows.tofile(self._events)

    def close(self) -> None:
        """Write what is left. The node must not run any more."""
        self.note()
        for file in (self._events, *self._frames.values()):
            file.close()

    def _write_frame(self, port: int, record: np.ndarray) -> None:
        if port not in self._frames:
            self._frames[port] = self._base.with_suffix(f".port{port}").open("ab")
        if self._has_room(record.nbytes, self._last_ps):
            record.tofile(self._frames[port])

    def _has_room(self, size: int, time_ps: int) -> bool:
        self._written_bytes += size
        if self._written_bytes > RECORDED_BYTES_MAX:
            self._cut(time_ps)
        return not self._is_cut

    def _cut(self, time_ps: int) -> None:
        """Nothing is recorded from `time_ps` on."""
        if not self._is_cut:
            self._is_cut = True
            self._base.with_suffix(".cut").write_text(str(time_ps))


def worker_stem(port: int) -> str:
    """The name under which the worker at `port` of the switch records."""
    return f"worker{port}"


def worker_recorder(port: int, name: str, ip: str, now: Callable[[], int]) -> Recorder | None:
    """A recorder for the worker at `port`, if the launcher asked for one."""
    directory = os.environ.get(TRACE_VARIABLE)
    return Recorder(directory, worker_stem(port), NodeInfo(name, "host", ip), now) if directory else None


class Assembled(NamedTuple):
    """A trace that was written: its moments, and whether the run went on after the last one."""

    moments: int
    is_cut: bool


def assemble(directory: Path, path: Path, title: str, *, moments_max: int = MOMENTS_MAX - 1) -> Assembled:
    """Merge the files that recorders left in `directory` into the trace `path`. Raises OSError."""
    nodes = _nodes(directory)
    hosts = sorted((info for stem, info in nodes.items() if stem != SWITCH), key=lambda info: _natural(info.name))
    trace = Trace(Header(FORMAT, title, [*hosts, *(nodes[stem] for stem in nodes if stem == SWITCH)]))
    entries = sorted(_entries(directory, nodes), key=lambda entry: entry[:2])
    cuts = [int(file.read_text()) for file in directory.glob("*.cut")]
    whole = [entry for entry in entries if entry[0] < min(cuts)] if cuts else entries
    for _, _, source, target, content in whole[:moments_max]:
        if isinstance(content, bytes):
            trace.add_frame(int.from_bytes(content[:8], "little"), source, target, content[RECORD_HEADER_BYTES:])
        else:
            trace.add_events(target, content)
    trace.header.element = _element(trace)
    trace.write(path)
    return Assembled(len(trace.moments), bool(cuts) or len(entries) > moments_max)


def _nodes(directory: Path) -> dict[str, NodeInfo]:
    """Recorded nodes by stem. Names that several workers of a job share are told apart."""
    nodes = {f.stem: msgspec.json.decode(f.read_bytes(), type=NodeInfo) for f in sorted(directory.glob("*.node"))}
    names = [info.name for info in nodes.values()]
    for stem, info in nodes.items():
        if names.count(info.name) > 1:
            info.name = f"{info.name}, {stem}"
    return nodes


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in name.split()]


Entry = tuple[int, int, str, str, "bytes | np.ndarray"]
"""Time, rank among equal times (a frame comes before what it causes), source, target, record or one event row."""


def _entries(directory: Path, nodes: dict[str, NodeInfo]) -> Iterator[Entry]:
    for stem, info in nodes.items():
        with contextlib.suppress(FileNotFoundError):
            rows = np.fromfile(directory / f"{stem}.events", EVENT).view(np.recarray)
            for i, time_ps in enumerate(rows.time_ps.tolist()):
                yield time_ps, 1, "", info.name, rows[i : i + 1]
        for file in sorted(directory.glob(f"{stem}.port*")):
            port = int(file.suffix.removeprefix(".port"))
            peer = nodes.get(worker_stem(port)) if stem == SWITCH else nodes.get(SWITCH)
            source = peer.name if peer else f"port {port}"
            for time_ps, record in _records(file):
                yield time_ps, 0, source, info.name, record


def _records(file: Path) -> Iterator[tuple[int, bytes]]:
    """The whole records of a file: the last one may be torn, if its process was killed."""
    data = np.fromfile(file, np.uint8)
    at = 0
    while at + RECORD_HEADER_BYTES <= data.size:
        length = int(record_length(data, at))
        if at + RECORD_HEADER_BYTES + length > data.size:
            return
        yield int(record_time(data, at)), data[at : at + RECORD_HEADER_BYTES + length].tobytes()
        at += int(record_bytes(length))


def _element(trace: Trace) -> str:
    """The dtype of the longest message that was aggregated, for the samples to be shown in."""
    texts: Sequence[list[str]] = [
        moment.view.ina_header.split() for moment in trace if isinstance(moment, FrameMoment) and moment.view.ina_header
    ]
    return max(texts, key=lambda words: int(words[2]))[0] if texts else trace.header.element
