"""Big-endian numbers against the struct module."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreduce.wire import bigendian

WIDTHS = {16: ">H", 32: ">I", 64: ">Q"}


@given(st.sampled_from(sorted(WIDTHS)), st.integers(0, 7), st.integers(0, (1 << 64) - 1))
def test_numbers_lie_as_struct_lays_them(bits: int, at: int, value: int) -> None:
    value &= (1 << bits) - 1
    data = np.zeros(16, np.uint8)
    signed = value - (1 << 64) if value >> 63 else value  # the tables hold 64-bit numbers as signed bits
    getattr(bigendian, f"write_be{bits}")(data, at, signed)
    expected = bytearray(16)
    struct.pack_into(WIDTHS[bits], expected, at, value)
    assert data.tobytes() == bytes(expected)
    assert int(getattr(bigendian, f"read_be{bits}")(data, at)) == signed


@given(st.integers(0, (1 << 24) - 1))
def test_24_bit_numbers_are_the_lower_three_bytes(value: int) -> None:
    data = np.zeros(5, np.uint8)
    bigendian.write_be24(data, 1, value)
    assert data.tobytes() == bytes(1) + value.to_bytes(3, "big") + bytes(1)
    assert bigendian.read_be24(data, 1) == value


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_bits_above_the_width_are_left_out(bits: int) -> None:
    data = np.zeros(8, np.uint8)
    getattr(bigendian, f"write_be{bits}")(data, 0, (1 << bits) + 5)
    assert getattr(bigendian, f"read_be{bits}")(data, 0) == 5
