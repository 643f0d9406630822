"""The INA header: 16 big-endian bytes at the start of an aggregated message's data.

The NetReduce paper (ASPLOS 2023, doi 10.1145/3582016.3582037) puts RingID, Rank, MsgID and MsgLen in front of each
fixed-length message; only the message's first packet carries them, since the NIC packetises behind it. Field sizes,
`dtype`, `op`, `version` and `flags` are this project's: with them the switch can refuse to add apples to pears.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

import ml_dtypes
import numpy as np

INA_BYTES = 16
INA_VERSION = 1
MESSAGE_ID_BITS = 32
MESSAGE_ID_MASK = (1 << MESSAGE_ID_BITS) - 1

INA_HEADER = np.dtype(
    [
        ("ring_id", ">u2"),
        ("rank", ">u2"),
        ("message_id", ">u4"),
        ("length_bytes", ">u4"),  # data bytes that follow this header in the message
        ("dtype", "u1"),
        ("op", "u1"),
        ("version", "u1"),
        ("flags", "u1"),
    ]
)
_PACKED = struct.Struct(">HHIIBBBB")
assert INA_HEADER.itemsize == _PACKED.size == INA_BYTES


class DataType(IntEnum):
    """Element types that the switch reduces. Half precisions are accumulated in float32 and rounded once."""

    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT8 = 5
    UINT8 = 6
    INT32 = 7
    INT64 = 8


class ReduceOp(IntEnum):
    """Reductions that the switch performs. An average is a sum that the host scales."""

    SUM = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4


class InaFlag(IntFlag):
    """Where a message stands in its collective, and what becomes of the sum: what all ranks must agree on, too."""

    START = 1  # first message of the collective
    END = 2  # last message of the collective
    AVERAGE = 4  # the hosts divide the sum by the number of ranks


NUMPY_DTYPES: dict[DataType, np.dtype] = {
    DataType.FLOAT32: np.dtype(np.float32),
    DataType.FLOAT64: np.dtype(np.float64),
    DataType.FLOAT16: np.dtype(np.float16),
    DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DataType.INT8: np.dtype(np.int8),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT64: np.dtype(np.int64),
}

ELEMENT_BYTES: np.ndarray = np.zeros(256, np.int64)
"""Bytes of one element by `DataType`; 0 for an unknown code. int64[256]."""
for _code, _dtype in NUMPY_DTYPES.items():
    ELEMENT_BYTES[_code] = _dtype.itemsize


def pack_ina(
    ring_id: int, rank: int, message_id: int, length_bytes: int, dtype: DataType, op: ReduceOp, flags: InaFlag
) -> bytes:
    """The 16 bytes of an INA header."""
    return _PACKED.pack(ring_id, rank, message_id, length_bytes, dtype, op, INA_VERSION, flags)
