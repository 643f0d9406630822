"""Packet sequence numbers: 24-bit modular arithmetic (InfiniBand Architecture Specification, vol. 1, section 9.7.1)."""

from __future__ import annotations

from netreduce.compiled import compiled

PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1
PSN_HALF = 1 << (PSN_BITS - 1)


@compiled
def psn_add(psn: int, count: int) -> int:
    """The PSN `count` after `psn` (before it, for a negative count)."""
    return (psn + count) & PSN_MASK


@compiled
def psn_distance(later: int, earlier: int) -> int:
    """Signed distance from `earlier` to `later`, in -2^23 .. 2^23 - 1."""
    difference = (later - earlier) & PSN_MASK
    return difference - (1 << PSN_BITS) if difference >= PSN_HALF else difference
