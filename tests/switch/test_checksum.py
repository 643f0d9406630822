"""Joining CRCs, against zlib over the joined bytes."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreduce.switch.checksum import make_shift, shifted
from netreduce.wire.control import PATH_MTUS

SHIFTS = {length: make_shift(length) for length in (*PATH_MTUS, 0, 1, 1000)}


@pytest.mark.parametrize("length", SHIFTS)
@given(head=st.binary(max_size=100), seed=st.integers(0, 1000))
def test_joined_crcs_are_the_crc_of_the_joined_bytes(length: int, head: bytes, seed: int) -> None:
    tail = np.random.default_rng(seed).bytes(length)
    joined = int(shifted(SHIFTS[length], zlib.crc32(head))) ^ zlib.crc32(tail)
    assert joined == zlib.crc32(head + tail)
