"""Fingerprints say in 32 bits what a rank called, and can be read back in words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netreduce.collectives.fingerprint import WAYS, Kind, describe, fingerprint
from netreduce.collectives.reductions import DTYPES, Reduction


@given(
    st.sampled_from(Kind),
    st.sampled_from(DTYPES),
    st.none() | st.sampled_from(Reduction),
    st.none() | st.integers(0, 63),
    st.sampled_from(WAYS),
    st.integers(0, 1 << 40),
)
def test_the_words_name_all_that_went_in(
    kind: Kind, dtype: np.dtype, op: Reduction | None, root: int | None, way: str, length_bytes: int
) -> None:
    value = fingerprint(kind, dtype, op, root, way)
    assert 0 <= value < 1 << 32
    words = describe(value, length_bytes)
    assert words.startswith(f"{kind.label} of {length_bytes} bytes {dtype.name}")
    assert (op is None) or op.name.lower() in words
    assert (f"root {root}" in words) == (root is not None)
    assert (f"by {way}" in words) == bool(way)


def test_different_calls_have_different_fingerprints() -> None:
    values = {
        fingerprint(kind, dtype, op, root, way)
        for kind in Kind
        for dtype in DTYPES
        for op in (None, *Reduction)
        for root in (None, 0, 1, 63)
        for way in WAYS
    }
    assert len(values) == len(Kind) * len(DTYPES) * (len(Reduction) + 1) * 4 * len(WAYS)


@given(st.integers(0, (1 << 32) - 1))
def test_whatever_a_peer_writes_can_be_described(value: int) -> None:
    assert "of 12 bytes" in describe(value, 12)
