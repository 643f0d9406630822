"""Quantities as people write them: "100Gbps", "12.5 GB/s", "1us", "100MB"."""

from __future__ import annotations

import re

from netreduce.errors import ConfigurationError

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12}
_NUMBER = r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*"
_RATE = re.compile(_NUMBER + r"(?:([kKMGT]?)(?:bps|bit/s|b/s)|([kKMGT]i?|)B(?:ps|/s))\s*")
_DURATION = re.compile(_NUMBER + r"([mun\u00b5p]?s)\s*")
_SIZE = re.compile(_NUMBER + r"([kKMGT]i?|)B?\s*")


def rate(text: str | float) -> float:
    """Bytes a second of "100Gbps", "12.5GB/s" or a number of bytes a second."""
    if isinstance(text, int | float):
        return _positive(float(text), text)
    match = _RATE.fullmatch(text)
    if not match:
        raise ConfigurationError(f"{text!r} is not a rate: write 100Gbps or 12.5GB/s")
    number, bits, octets = match.groups()
    per_unit = _PREFIX[bits] / 8 if bits is not None else _PREFIX[octets]
    return _positive(float(number) * per_unit, text)


def duration(text: str | float) -> float:
    """Seconds of "1us", "0.5 ms" or a number of seconds."""
    if isinstance(text, int | float):
        return float(text)
    match = _DURATION.fullmatch(text)
    if not match:
        raise ConfigurationError(f"{text!r} is not a duration: write 1us or 0.5ms")
    return float(match[1]) * _TIME[match[2]]


def size(text: str | float) -> int:
    """Bytes of "100MB" (1e6), "64KiB" (1024) or a number of bytes."""
    if isinstance(text, int | float):
        return int(_positive(float(text), text))
    match = _SIZE.fullmatch(text)
    if not match:
        raise ConfigurationError(f"{text!r} is not a size: write 100MB or 64KiB")
    return int(_positive(float(match[1]) * _PREFIX[match[2]], text))


def _positive(value: float, text: object) -> float:
    if not value > 0:
        raise ConfigurationError(f"{text!r} must be above zero")
    return value


def show_time(seconds: float) -> str:
    """Four significant digits in the unit that fits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def show_size(size_bytes: float) -> str:
    """Three significant digits in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes:.3g} B"
