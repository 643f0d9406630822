"""Logs of nccl-tests (and rccl-tests): the text table, or the file that `-J` writes.

The table's header names its columns: size, count, type, redop, root, then time, algbw, busbw and #wrong, out of place
and in place. Launchers put tags before each line; whatever stands before the first number is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from netreduce.errors import ConfigurationError
from netreduce.flowsim.formats.lines import Lines
from netreduce.flowsim.plan.calibration import Sample

DEVICE = re.compile(r"#\s*Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device")
STARTING = re.compile(r"#\s*Collective test starting:\s*(\S+)")
TAG = re.compile(r"^\s*(?:\[[^\]]*\](?:<\w+>)?:?|\d+:|\S+:\s)?\s*")
NAMED = ("all_reduce", "allreduce")


@dataclass(frozen=True)
class Measured:
    """An all-reduce benchmark: samples in the order of the file; 0 ranks when the file does not say."""

    samples: tuple[Sample, ...]
    ranks: int
    machines: int


def read(path: Path) -> Measured:
    """Either form. Raises ConfigurationError that names the line or the field."""
    if path.suffix == ".json" or _starts_with_brace(path):
        return _read_json(path)
    return _read_text(path)


def _starts_with_brace(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip().startswith(b"{")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def _read_text(path: Path) -> Measured:
    lines = Lines(path, comments=False)
    columns: list[str] = []
    devices: set[tuple[str, str]] = set()
    samples: list[Sample] = []
    for words in lines:
        text = TAG.sub("", " ".join(words))
        if device := DEVICE.search(text):
            devices.add((device[1], device[2]))
        elif (starting := STARTING.search(text)) and not _is_all_reduce(starting[1]):
            lines.fail(f"is a log of {starting[1]}: give one of all_reduce_perf")
        elif text.startswith("#") and " size " in text and " time " in text:
            columns = text.lstrip("# ").split()
        elif columns and text[:1].isdigit():
            samples.append(_row(lines, columns, text.split()))
    if not samples:
        raise ConfigurationError(
            f"{path} has no table of nccl-tests (a line '# size count type ...' and rows of numbers)"
        )
    return Measured(tuple(samples), len(devices), len({host for _, host in devices}))


def _row(lines: Lines, columns: list[str], words: list[str]) -> Sample:
    time_column = columns.index("time")
    if len(words) < time_column + 3:
        lines.fail(f"has {len(words)} columns, the header names {len(columns)}")
    size = lines.integer(words[0], "size")
    wrong = columns.index("#wrong") if "#wrong" in columns else None
    if wrong is not None and wrong < len(words) and words[wrong] not in ("0", "N/A") and _above(words[wrong], 0.5):
        lines.fail(f"{words[wrong]} wrong elements: do not build on this run")
    return Sample(max(size, 1), lines.number_of(words[time_column], "time") * 1e-6)


def _above(word: str, limit: float) -> bool:
    """Older versions print the largest error there, such as 5e-07, instead of a count."""
    try:
        return float(word) > limit
    except ValueError:
        return False


def _is_all_reduce(name: str) -> bool:
    return any(known in name for known in NAMED)


class _Timing(msgspec.Struct):
    time: float
    nwrong: float | str | None = None


class _Result(msgspec.Struct):
    size: int
    out_of_place: _Timing | None = None
    in_place: _Timing | None = None


class _Device(msgspec.Struct):
    hostname: str


class _Config(msgspec.Struct):
    devices: list[_Device] = []


class _File(msgspec.Struct):
    results: list[_Result]
    args: list[str] = []
    config: _Config = msgspec.field(default_factory=_Config)


def _read_json(path: Path) -> Measured:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is no JSON of nccl-tests: {error}") from error
    if file.args and not _is_all_reduce(file.args[0]):
        raise ConfigurationError(f"{path} is a log of {file.args[0]}: give one of all_reduce_perf")
    samples = []
    for number, result in enumerate(file.results):
        timing = result.out_of_place or result.in_place
        if timing is None or not timing.time > 0:
            raise ConfigurationError(f"{path}: $.results[{number}] has no time above zero")
        if isinstance(timing.nwrong, float) and timing.nwrong > 0:
            raise ConfigurationError(f"{path}: $.results[{number}] counts {timing.nwrong:g} wrong elements")
        samples.append(Sample(max(result.size, 1), timing.time * 1e-6))
    hosts = {device.hostname for device in file.config.devices}
    return Measured(tuple(samples), len(file.config.devices), len(hosts))
