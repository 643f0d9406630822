"""Which dtypes and operations there are, what the switch does of them, and what the host's arithmetic gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from netreduce.collectives.reductions import DTYPES, Reduction, check_dtype, combine, divide, plan_reduction
from netreduce.errors import UnsupportedError
from netreduce.wire.ina import NUMPY_DTYPES, DataType, ReduceOp


def test_reductions_of_the_switch_keep_their_numbers() -> None:
    for op in ReduceOp:
        assert Reduction(op) == op
        assert Reduction(op).name == op.name


@pytest.mark.parametrize("dtype", NUMPY_DTYPES.values(), ids=str)
@pytest.mark.parametrize("op", ReduceOp)
def test_the_switch_does_all_it_can(dtype: np.dtype, op: ReduceOp) -> None:
    plan = plan_reduction(dtype, Reduction(op), 4)
    assert plan.switch is not None
    assert NUMPY_DTYPES[plan.switch[0]] == dtype
    assert plan.switch[1] == op
    assert plan.divisor == 1


def test_booleans_travel_as_bytes_whose_sum_is_the_maximum() -> None:
    assert plan_reduction(np.dtype(bool), Reduction.SUM, 4).switch == (DataType.UINT8, ReduceOp.MAX)
    assert plan_reduction(np.dtype(bool), Reduction.PRODUCT, 4).switch == (DataType.UINT8, ReduceOp.MIN)
    assert plan_reduction(np.dtype(bool), Reduction.BITWISE_OR, 4).switch == (DataType.UINT8, ReduceOp.MAX)
    assert plan_reduction(np.dtype(bool), Reduction.BITWISE_XOR, 4).switch is None


def test_complex_sums_travel_as_pairs_of_floats() -> None:
    plan = plan_reduction(np.dtype(np.complex64), Reduction.SUM, 4)
    assert plan.switch == (DataType.FLOAT32, ReduceOp.SUM)
    assert plan.element == np.float32
    assert plan_reduction(np.dtype(np.complex64), Reduction.PRODUCT, 4).switch is None


def test_unsigned_sums_have_the_bits_of_signed_ones_but_not_their_order() -> None:
    assert plan_reduction(np.dtype(np.uint32), Reduction.SUM, 4).switch == (DataType.INT32, ReduceOp.SUM)
    assert plan_reduction(np.dtype(np.uint32), Reduction.MAX, 4).switch is None


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (np.int32, Reduction.AVERAGE),
        (np.float32, Reduction.BITWISE_AND),
        (np.complex64, Reduction.MAX),
        (bool, Reduction.AVERAGE),
    ],
)
def test_what_has_no_meaning_is_refused_and_the_message_names_what_has(dtype: type, op: Reduction) -> None:
    with pytest.raises(UnsupportedError, match=rf"{op.name} of .* is not supported.*SUM"):
        plan_reduction(np.dtype(dtype), op, 4)


def test_unknown_dtypes_are_refused_and_the_message_names_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"float32.*bfloat16"):
        check_dtype(np.dtype("datetime64[s]"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_can_be_summed_by_the_host(dtype: np.dtype) -> None:
    plan = plan_reduction(dtype, Reduction.SUM, 3)
    values = np.array([0, 1, 0, 1], dtype).view(plan.element)
    out = np.empty_like(values)
    combine(plan, values, np.array([1, 0, 1, 0], dtype).view(plan.element), out)
    assert np.array_equal(out.view(dtype), np.ones(4, dtype))


def test_overflow_is_infinite_and_silent() -> None:
    values = np.full(3, 60000, np.float16)
    combine(plan_reduction(values.dtype, Reduction.SUM, 2), values, values, values)
    assert np.all(np.isinf(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16], ids=str)
def test_an_average_is_divided_and_rounded_once(dtype: type) -> None:
    values = np.array([1, 2, 10, 100], dtype)
    exact = values.astype(np.float64) / 3
    divide(plan_reduction(np.dtype(dtype), Reduction.AVERAGE, 3), values)
    assert np.array_equal(values, exact.astype(dtype))


def test_a_sum_is_not_divided() -> None:
    values = np.array([3], np.int32)
    divide(plan_reduction(values.dtype, Reduction.SUM, 3), values)
    assert values[0] == 3
