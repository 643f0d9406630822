"""PyTorch profiler traces (Kineto's Chrome JSON, plain or gzipped): what an iteration communicates, and what it hides.

Collectives are the events whose args name a "Collective name"; they carry "In msg nelems", "Out msg nelems", "dtype"
and "Group size" (NCCL). Backends on the host, such as gloo, have events named "gloo:all_reduce" instead, with the
tensors' "Input Dims" if the profiler recorded shapes. GPU kernels are preferred where there are any.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from netreduce.errors import ConfigurationError

ITEM_BYTES = {
    "Bool": 1, "Byte": 1, "Char": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
    "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
    "float": 4, "double": 8, "int": 4, "long int": 8, "c10::Half": 2, "c10::BFloat16": 2, "unsigned char": 1, "bool": 1,
}  # fmt: skip
KINDS = {
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
    "allreduce_coalesced": "all-reduce",
    "_allgather_base": "all-gather",
    "allgather": "all-gather",
    "all_gather": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather",
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
}
"""c10d's names of the collectives that a plan prices; others count as communication that stays as it is."""
CATEGORIES = ("kernel", "cpu_op", "user_annotation")
HOST_BACKEND = re.compile(r"(?:gloo|mpi|ucc|xccl|netreduce):(\w+)")


class _Event(msgspec.Struct):
    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] | None = None


class _Distributed(msgspec.Struct):
    world_size: int = 0


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    distributed: _Distributed = msgspec.field(name="distributedInfo", default_factory=_Distributed)


@dataclass(frozen=True)
class Collective:
    """kind: "all-reduce", "all-gather", "reduce-scatter" or c10d's name. size_bytes: of the full buffer."""

    kind: str
    size_bytes: int
    per_step: float
    mean_s: float


@dataclass(frozen=True)
class Profile:
    """Per step: its time, the time with communication on the way, and the part of that with nothing else running."""

    steps: int
    step_s: float
    communication_s: float
    exposed_s: float
    ranks: int
    collectives: tuple[Collective, ...]
    notes: tuple[str, ...]

    @property
    def hidden_s(self) -> float:
        """Communication behind computing."""
        return self.communication_s - self.exposed_s


def read(path: Path) -> Profile:
    """Raises ConfigurationError that names the event."""
    trace = _trace(path)
    events = trace.events
    category = next((c for c in CATEGORIES if any(_is_collective(e) and e.cat == c for e in events)), None)
    if category is None:
        raise ConfigurationError(
            f"{path} has no collectives: none of its {len(events)} events names one in its args"
            " (profile a distributed step with a PyTorch of 2023 or later)"
        )
    found = [(number, e) for number, e in enumerate(events) if e.cat == category and _is_collective(e) and e.dur > 0]
    if not found:
        raise ConfigurationError(f"{path}: the collectives have no duration")
    notes = []
    if category != "kernel":
        notes.append("the trace has no GPU kernels: times are those of the host's calls")
    steps, step_s = _steps(events)
    if not steps:
        notes.append("the trace marks no steps (profiler.step()): all of it counts as one")
        steps, step_s = 1, _span_s(events)
    busy = _union([(e.ts, e.ts + e.dur) for _, e in found])
    others = _union([(e.ts, e.ts + e.dur) for e in events if _computes(e, category)])
    communication_us = _length(busy)
    exposed_us = communication_us - _common(busy, others)
    sizes: dict[tuple[str, int], list[float]] = defaultdict(list)
    for number, event in found:
        sizes[_described(path, number, event)].append(event.dur * 1e-6)
    collectives = [
        Collective(kind, size, len(times) / steps, float(np.mean(times))) for (kind, size), times in sizes.items()
    ]
    ranks = max(int((e.args or {}).get("Group size", 0)) for _, e in found) or trace.distributed.world_size
    return Profile(
        steps,
        step_s,
        communication_us * 1e-6 / steps,
        exposed_us * 1e-6 / steps,
        ranks,
        tuple(sorted(collectives, key=lambda c: -c.per_step * c.mean_s)),
        tuple(notes),
    )


def _trace(path: Path) -> _Trace:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return msgspec.json.decode(data, type=_Trace)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} is a broken gzip file: {error}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is no Kineto trace: {error}") from error


def _is_collective(event: _Event) -> bool:
    if event.ph != "X" or event.args is None:
        return False
    return "Collective name" in event.args or (
        event.cat == "user_annotation" and HOST_BACKEND.fullmatch(event.name) is not None
    )


def _computes(event: _Event, category: str) -> bool:
    """Whether the event is work of the device (or host) that communication can hide behind."""
    working = "kernel" if category == "kernel" else "cpu_op"
    outside = "nccl" in event.name or "c10d" in event.name or _is_collective(event)
    return event.ph == "X" and event.cat == working and not outside


def _described(path: Path, number: int, event: _Event) -> tuple[str, int]:
    """Kind and size in bytes."""
    args = event.args or {}
    where = f"{path}: event {number} ({event.name})"
    if "Collective name" in args:
        name, dtype = str(args["Collective name"]), str(args.get("dtype", ""))
        counts = [args.get("In msg nelems", 0), args.get("Out msg nelems", 0)]
    else:
        name = event.name.split(":", 1)[1]
        if not args.get("Input Dims"):
            raise ConfigurationError(f"{where} has no sizes: profile with record_shapes=True")
        dtype = str(next(iter(args.get("Input type", [""])), ""))
        counts = [sum(math.prod(dims) for dims in args["Input Dims"])]
    if dtype not in ITEM_BYTES:
        raise ConfigurationError(f"{where} has the unknown dtype {dtype!r}")
    try:
        elements = max(int(count) for count in counts)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{where} has no number of elements") from None
    return KINDS.get(name, name), elements * ITEM_BYTES[dtype]


def _steps(events: Sequence[_Event]) -> tuple[int, float]:
    """How many profiler steps, and how long one takes."""
    marks = {e.name: e for e in events if e.ph == "X" and e.name.startswith("ProfilerStep#") and e.dur > 0}
    if not marks:
        return 0, 0.0
    begin, end = min(e.ts for e in marks.values()), max(e.ts + e.dur for e in marks.values())
    return len(marks), (end - begin) * 1e-6 / len(marks)


def _span_s(events: Sequence[_Event]) -> float:
    timed = [e for e in events if e.ph == "X" and e.dur > 0]
    return (max(e.ts + e.dur for e in timed) - min(e.ts for e in timed)) * 1e-6


Intervals = list[tuple[float, float]]


def _union(intervals: Intervals) -> Intervals:
    """Disjoint intervals in order."""
    merged: Intervals = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _length(intervals: Intervals) -> float:
    return sum(end - begin for begin, end in intervals)


def _common(left: Intervals, right: Intervals) -> float:
    """Length that two lists of disjoint ordered intervals share."""
    shared, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        shared += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return shared
