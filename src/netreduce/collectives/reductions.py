"""Which reduction runs where: the dtypes and operations of a group, and what the switch or the host does for each.

The switch knows eight dtypes and four operations (wire/ina.py). More can be said in its words: a boolean sum is a
maximum of bytes, a complex sum is a sum of floats, unsigned sums are the same bits as signed ones. What is left, the
hosts reduce with NumPy along a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from netreduce.errors import UnsupportedError
from netreduce.wire.ina import NUMPY_DTYPES, DataType, ReduceOp


class Reduction(IntEnum):
    """Element-wise operations that a group offers. The first four are `ReduceOp`'s, by name and number."""

    SUM = ReduceOp.SUM.value
    MIN = ReduceOp.MIN.value
    MAX = ReduceOp.MAX.value
    PRODUCT = ReduceOp.PRODUCT.value
    AVERAGE = 5  # the sum, divided by the world size at the host
    BITWISE_AND = 6
    BITWISE_OR = 7
    BITWISE_XOR = 8


_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")

DTYPES: tuple[np.dtype, ...] = tuple(
    np.dtype(name)
    for name in (
        *("float32", "float64", "float16"),
        *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("bool", "complex64", "complex128"),
    )
) + tuple(np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", *_FLOAT8))
"""Dtypes of arrays in collectives. A dtype's place in this table is its code in fingerprints."""

DTYPE_CODES: dict[np.dtype, int] = {dtype: code for code, dtype in enumerate(DTYPES)}

_SWITCH_DTYPES: dict[np.dtype, DataType] = {dtype: code for code, dtype in NUMPY_DTYPES.items()}
_SWITCH_OPS = {
    Reduction.SUM: ReduceOp.SUM,
    Reduction.AVERAGE: ReduceOp.SUM,
    Reduction.PRODUCT: ReduceOp.PRODUCT,
    Reduction.MIN: ReduceOp.MIN,
    Reduction.MAX: ReduceOp.MAX,
}
_UFUNCS: dict[Reduction, np.ufunc] = {
    Reduction.SUM: np.add,
    Reduction.AVERAGE: np.add,
    Reduction.PRODUCT: np.multiply,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.BITWISE_AND: np.bitwise_and,
    Reduction.BITWISE_OR: np.bitwise_or,
    Reduction.BITWISE_XOR: np.bitwise_xor,
}
_BOOLEAN_TWINS = {
    Reduction.SUM: Reduction.MAX,
    Reduction.PRODUCT: Reduction.MIN,
    Reduction.BITWISE_OR: Reduction.MAX,
    Reduction.BITWISE_AND: Reduction.MIN,
}
"""Operations on bytes 0 and 1 that do what these do on booleans: a sum of booleans is a logical or."""

_ORDERED = (Reduction.SUM, Reduction.PRODUCT, Reduction.MIN, Reduction.MAX)
_BITWISE = (Reduction.BITWISE_AND, Reduction.BITWISE_OR, Reduction.BITWISE_XOR)
_ALLOWED: dict[str, tuple[Reduction, ...]] = {
    "float": (*_ORDERED, Reduction.AVERAGE),
    "integer": _ORDERED + _BITWISE,
    "boolean": _ORDERED + _BITWISE,
    "complex": (Reduction.SUM, Reduction.PRODUCT, Reduction.AVERAGE),
}


class ReductionPlan(NamedTuple):
    """How one reduction is carried out.

    `element` is the dtype that arrays are viewed as; `switch` is what the INA header says, None if the switch cannot
    do it; `combine` is the host's way, as ``combine(a, b, out=c)``; `divisor` is what the result is divided by.
    """

    element: np.dtype
    switch: tuple[DataType, ReduceOp] | None
    combine: Callable[..., np.ndarray]
    divisor: int


@cache
def plan_reduction(dtype: np.dtype, op: Reduction, world_size: int) -> ReductionPlan:
    """How to reduce arrays of `dtype` by `op` over `world_size` ranks.

    Raises `UnsupportedError`, naming what is supported, if the dtype or the operation on it is not.
    """
    check_dtype(dtype)
    kind = _kind(dtype)
    if op not in _ALLOWED[kind]:
        allowed = ", ".join(allowed_op.name for allowed_op in _ALLOWED[kind])
        raise UnsupportedError(f"{op.name} of {dtype.name} is not supported; on {kind} dtypes there are {allowed}")
    divisor = world_size if op == Reduction.AVERAGE else 1
    element = dtype
    if kind == "boolean":
        element, op = np.dtype(np.uint8), _BOOLEAN_TWINS.get(op, op)
    elif kind == "complex" and op != Reduction.PRODUCT:
        element = np.dtype(f"f{dtype.itemsize // 2}")
    return ReductionPlan(element, _switch_words(element, op), _UFUNCS[op], divisor)


def check_dtype(dtype: np.dtype) -> np.dtype:
    """`dtype`, if arrays of it can be moved; else raises `UnsupportedError`."""
    if dtype not in DTYPE_CODES:
        names = ", ".join(known.name for known in DTYPES)
        raise UnsupportedError(f"dtype {dtype} is not supported; supported are {names}")
    return dtype


def combine(plan: ReductionPlan, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """Combine two arrays of `plan.element` into `out`. Overflow gives infinity, as IEEE 754 says, without a warning."""
    with np.errstate(all="ignore"):
        plan.combine(left, right, out=out)


def divide(plan: ReductionPlan, values: np.ndarray) -> None:
    """Divide `values`, an array of `plan.element`, by the plan's divisor in place; narrow floats by way of float32."""
    if plan.divisor == 1 or values.size == 0:
        return
    with np.errstate(all="ignore"):
        if values.dtype in (np.float32, np.float64):
            np.divide(values, plan.divisor, out=values)
        else:
            values[...] = values.astype(np.float32) / np.float32(plan.divisor)


def _kind(dtype: np.dtype) -> str:
    if dtype == np.bool_:
        return "boolean"
    if dtype.kind in "iu":
        return "integer"
    return "complex" if dtype.kind == "c" else "float"  # ml_dtypes' floats have kind "V" or "f"


def _switch_words(element: np.dtype, op: Reduction) -> tuple[DataType, ReduceOp] | None:
    if op not in _SWITCH_OPS:
        return None
    if element.kind == "u" and element not in _SWITCH_DTYPES and op in (Reduction.SUM, Reduction.PRODUCT):
        element = np.dtype(f"i{element.itemsize}")  # two's complement: the low bits are the same
    data_type = _SWITCH_DTYPES.get(element)
    return None if data_type is None else (data_type, _SWITCH_OPS[op])
