"""What NumPy says: inputs by dtype, and their reduction in a given order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netreduce.control.placement import Order
from netreduce.wire.ina import NUMPY_DTYPES, DataType, ReduceOp

_UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}
_HALVES = (DataType.FLOAT16, DataType.BFLOAT16)


def make_input(random: np.random.Generator, data_type: DataType, length: int) -> np.ndarray:
    """Random elements whose sum is not exact: any order but the right one shows."""
    dtype = NUMPY_DTYPES[data_type]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, length, dtype=dtype, endpoint=True)
    return random.standard_normal(length).astype(dtype)


def reduce_in_order(order: Order, arrays: Sequence[np.ndarray], data_type: DataType, op: ReduceOp) -> np.ndarray:
    """Arrays by rank, combined as `order` is nested: ``(0, (1, 2))`` is ``a0 op (a1 op a2)``.

    Halves are accumulated in float32 and rounded once in each bracket, as each switch does.
    """
    parts = [arrays[item] if isinstance(item, int) else reduce_in_order(item, arrays, data_type, op) for item in order]
    wide = np.dtype(np.float32) if data_type in _HALVES else parts[0].dtype
    with np.errstate(over="ignore"):
        total = parts[0].astype(wide)
        for part in parts[1:]:
            total = _UFUNCS[op](total, part.astype(wide))
        return total.astype(parts[0].dtype)
