"""The INA header's sixteen bytes."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import U16, U32

from netreduce.wire.ina import ELEMENT_BYTES, INA_BYTES, INA_HEADER, NUMPY_DTYPES, DataType, InaFlag, ReduceOp, pack_ina


@given(U16, U16, U32, U32, st.sampled_from(DataType), st.sampled_from(ReduceOp), st.sampled_from([*InaFlag]))
def test_the_header_is_big_endian_without_holes(
    ring_id: int, rank: int, message_id: int, length_bytes: int, dtype: DataType, op: ReduceOp, flags: InaFlag
) -> None:
    packed = pack_ina(ring_id, rank, message_id, length_bytes, dtype, op, flags)
    assert packed == struct.pack(">HHIIBBBB", ring_id, rank, message_id, length_bytes, dtype, op, 1, flags)
    assert len(packed) == INA_BYTES
    read = np.frombuffer(packed, INA_HEADER)[0]
    assert (read["ring_id"], read["message_id"], read["length_bytes"]) == (ring_id, message_id, length_bytes)


def test_every_dtype_has_its_size_and_unknown_codes_have_none() -> None:
    sizes = {"FLOAT32": 4, "FLOAT64": 8, "FLOAT16": 2, "BFLOAT16": 2, "INT8": 1, "UINT8": 1, "INT32": 4, "INT64": 8}
    assert {dtype.name: int(ELEMENT_BYTES[dtype]) for dtype in DataType} == sizes
    assert set(NUMPY_DTYPES) == set(DataType)
    assert all(ELEMENT_BYTES[code] == 0 for code in range(256) if code not in set(DataType))
