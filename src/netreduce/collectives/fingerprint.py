"""What a rank says about its side of a transfer, in 32 bits, so that two sides that disagree can name both.

The clear-to-send slot carries the receiver's fingerprint; the sender compares it with its own before it writes a byte.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache

import numpy as np

from netreduce.collectives.reductions import DTYPE_CODES, DTYPES, Reduction


class Kind(IntEnum):
    """Collective operations, as fingerprints and error messages name them."""

    POINT_TO_POINT = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9

    @property
    def label(self) -> str:
        """The operation's name as a user writes it."""
        return self.name.lower()


WAYS = ("", "ring", "tree", "halving", "central", "leaders", "hierarchical", "parallel")
"""Algorithms by which hosts exchange data, where there is a choice; "" where there is none."""


@cache
def fingerprint(
    kind: Kind, dtype: np.dtype, op: Reduction | None = None, root: int | None = None, way: str = ""
) -> int:
    """Way (4 bits), kind (4), dtype, operation and root (a byte each) in one unsigned number; 0 means "none"."""
    return (
        WAYS.index(way) << 28
        | kind << 24
        | DTYPE_CODES[dtype] + 1 << 16
        | (0 if op is None else op.value) << 8
        | (0 if root is None else root + 1)
    )


def describe(value: int, length_bytes: int | None = None) -> str:
    """A fingerprint in words; codes that no version knows are shown as numbers."""
    way, kind = value >> 28, value >> 24 & 0xF
    dtype, op, root = (value >> 16 & 0xFF) - 1, value >> 8 & 0xFF, (value & 0xFF) - 1
    words = [_name(Kind, kind)] if length_bytes is None else [_name(Kind, kind), f"of {length_bytes} bytes"]
    words.append(DTYPES[dtype].name if 0 <= dtype < len(DTYPES) else f"dtype {dtype}")
    if op:
        words.append(_name(Reduction, op))
    if root >= 0:
        words.append(f"root {root}")
    if way:
        words.append(f"by {WAYS[way] if way < len(WAYS) else f'way {way}'}")
    return " ".join(words)


def _name(enum: type[IntEnum], value: int) -> str:
    return enum(value).name.lower() if value in enum._value2member_map_ else f"{enum.__name__} {value}"
