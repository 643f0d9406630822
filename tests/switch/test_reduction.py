"""The reduction against NumPy in rank order, bit for bit; half precisions in float32, rounded once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.switch.switch_harness import Ring, make_ring

from netreduce.compiled import JIT_DISABLED
from netreduce.wire.control import Geometry
from netreduce.wire.ina import NUMPY_DTYPES, DataType, ReduceOp

UFUNCS = {ReduceOp.SUM: np.add, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum, ReduceOp.PRODUCT: np.multiply}
HALVES = (DataType.FLOAT16, DataType.BFLOAT16)


def reference(datas: list[np.ndarray], op: ReduceOp, dtype: DataType) -> np.ndarray:
    """NumPy's reduction in rank order."""
    wide = [data.astype(np.float32) if dtype in HALVES else data for data in datas]
    total = wide[0]
    with np.errstate(all="ignore"):
        for part in wide[1:]:
            total = UFUNCS[op](total, part)
        return total.astype(NUMPY_DTYPES[dtype])


def same_bits(result: bytes, expected: np.ndarray) -> bool:
    """Equality of bits, except that any NaN equals any other."""
    got = np.frombuffer(result, expected.dtype)
    if got.size != expected.size:
        return False
    raw = f"u{expected.itemsize}"
    both_nan = np.isnan(expected) & np.isnan(got)
    return bool(np.all((got.view(raw) == expected.view(raw)) | both_nan))


@pytest.fixture(scope="module")
def rings() -> dict[int, Ring]:
    geometry = Geometry(message_window=2, message_packets=3, path_mtu=256)
    return {size: make_ring(size, geometry=geometry) for size in (2, 3, 4, 5, 7)}


_NUMBERS = dict.fromkeys((2, 3, 4, 5, 7), 0)


def reduce(rings: dict[int, Ring], datas: list[np.ndarray], op: ReduceOp, dtype: DataType) -> list[bytes]:
    size = len(datas)
    _NUMBERS[size] += 1
    return rings[size].exchange(_NUMBERS[size] - 1, datas, op=op, dtype=dtype)


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("dtype", list(DataType))
@settings(max_examples=8 if JIT_DISABLED else 25)
@given(size=st.sampled_from([2, 3, 4, 5, 7]), count=st.integers(0, 94), content=st.randoms(use_true_random=False))
def test_results_have_the_bits_of_numpy_in_rank_order(
    rings: dict[int, Ring], dtype: DataType, op: ReduceOp, size: int, count: int, content: object
) -> None:
    """Random *bits*: denormals, infinities, NaN and both zeros come up by themselves."""
    element = NUMPY_DTYPES[dtype]
    raw = [content.randbytes(count * element.itemsize) for _ in range(size)]  # type: ignore[attr-defined]
    datas = [np.frombuffer(part, element) for part in raw]
    expected = reference(datas, op, dtype)
    for result in reduce(rings, datas, op, dtype):
        assert same_bits(result, expected)


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("dtype", list(DataType))
def test_ordinary_numbers_have_the_bits_of_numpy_too(
    rings: dict[int, Ring], dtype: DataType, op: ReduceOp, rng: np.random.Generator
) -> None:
    """Numbers near 1, where every rounding shows."""
    datas = [(rng.standard_normal(90) * 3).astype(NUMPY_DTYPES[dtype]) for _ in range(5)]
    expected = reference(datas, op, dtype)
    for result in reduce(rings, datas, op, dtype):
        assert result == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "values", "total"),
    [
        (DataType.FLOAT16, (60000, 60000), np.inf),
        (DataType.INT8, (100, 100), -56),
        (DataType.UINT8, (200, 100), 44),
        (DataType.INT32, (2**31 - 1, 1), -(2**31)),
        (DataType.INT64, (2**63 - 1, 1), -(2**63)),
        (DataType.BFLOAT16, (256, 1), 256),  # half-way between 256 and 258: to even
        (DataType.BFLOAT16, (256, 3), 260),  # half-way between 258 and 260
        (DataType.FLOAT16, (2048, 1), 2048),
        (DataType.FLOAT16, (2048, 3), 2052),
    ],
)
def test_overflow_wraps_or_is_infinite_and_halves_round_to_even(
    rings: dict[int, Ring], dtype: DataType, values: tuple[int, int], total: float
) -> None:
    datas = [np.array([value], NUMPY_DTYPES[dtype]) for value in values]
    for result in reduce(rings, datas, ReduceOp.SUM, dtype):
        assert np.frombuffer(result, NUMPY_DTYPES[dtype])[0] == total


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_rounded_once_not_after_every_rank(rings: dict[int, Ring], dtype: DataType) -> None:
    """1 + e + e, where e is half the distance to the next number: e alone would be lost to even, 2 e is not."""
    step = 2.0 ** (-11 if dtype == DataType.FLOAT16 else -8)
    datas = [np.array([value], NUMPY_DTYPES[dtype]) for value in (1.0, step, step)]
    for result in reduce(rings, datas, ReduceOp.SUM, dtype):
        assert np.frombuffer(result, NUMPY_DTYPES[dtype])[0] == 1 + 2 * step


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", [DataType.FLOAT32, DataType.FLOAT64, *HALVES])
def test_minimum_and_maximum_pass_nan_on_and_choose_zeros_as_numpy(
    rings: dict[int, Ring], dtype: DataType, op: ReduceOp
) -> None:
    datas = [
        np.array([np.nan, 1.0, 0.0, -0.0, np.nan], NUMPY_DTYPES[dtype]),
        np.array([1.0, np.nan, -0.0, 0.0, np.nan], NUMPY_DTYPES[dtype]),
    ]
    for result in reduce(rings, datas, op, dtype):
        assert same_bits(result, reference(datas, op, dtype))
