"""The sum of one slot: payloads, combined in the order of ranks, so that every run yields the same bits.

Semantics are NumPy's: integers wrap around; a NaN in any rank makes the result NaN, for minimum and maximum too; of two
zeros with different signs, minimum and maximum take the later rank's. Half precisions are accumulated in float32 and
rounded once, to nearest even. Which NaN comes out (its sign and payload bits) is not specified.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from netreduce.compiled import compiled, copy_bytes
from netreduce.switch.halves import narrow, widen
from netreduce.switch.tables import SwitchTables
from netreduce.wire.ina import DataType, ReduceOp

_UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}


def combine(op: int, total: np.ndarray, part: np.ndarray) -> None:
    """``total = total op part``, element by element; two arrays of one dtype and length."""
    _UFUNCS[ReduceOp(op)](total, part, out=total)


@overload(combine)
def _combine_compiled(op: Any, total: Any, part: Any) -> Any:
    # Spelt out, because Numba's own minimum and maximum take the other one of two zeros with different signs.
    is_float = isinstance(total.dtype, types.Float)

    def implementation(op: Any, total: Any, part: Any) -> None:
        if op == ReduceOp.SUM.value:
            for i in range(total.size):
                total[i] += part[i]
        elif op == ReduceOp.PRODUCT.value:
            for i in range(total.size):
                total[i] *= part[i]
        elif op == ReduceOp.MIN.value:
            for i in range(total.size):
                a, b = total[i], part[i]
                keep = (a < b) | (a != a) if is_float else a < b
                total[i] = a if keep else b
        else:
            for i in range(total.size):
                a, b = total[i], part[i]
                keep = (a > b) | (a != a) if is_float else a > b
                total[i] = a if keep else b

    return implementation


@compiled
def _reduce_words(op: int, total: np.ndarray, buffers: np.ndarray, first: int, stride: int, ranks: int) -> None:
    """Combine the copies at ``buffers[first + rank * stride]`` into `total`, whose dtype is the elements'."""
    size = total.size * total.itemsize
    copy_bytes(total.view(np.uint8), 0, buffers, first, size)
    for rank in range(1, ranks):
        at = first + rank * stride
        combine(op, total, buffers[at : at + size].view(total.dtype))


@compiled
def _reduce_halves(tables: SwitchTables, dtype: int, op: int, size: int, first: int, stride: int, ranks: int) -> None:
    count = size // 2
    total, part = tables.wide[0, :count], tables.wide[1, :count]
    widen(dtype, tables.buffers[first : first + size].view(np.uint16), total)
    for rank in range(1, ranks):
        at = first + rank * stride
        widen(dtype, tables.buffers[at : at + size].view(np.uint16), part)
        combine(op, total, part)
    narrow(dtype, total, tables.total[:size].view(np.uint16))


@compiled
def reduce_slot(tables: SwitchTables, dtype: int, op: int, size: int, first: int, stride: int, ranks: int) -> None:
    """Write the reduction of `ranks` payloads of `size` bytes to ``tables.total[:size]``.

    Payload of rank r starts at byte ``first + r * stride`` of `buffers`; `dtype` and `op` are known codes.
    """
    total = tables.total[:size]
    if dtype == DataType.FLOAT32.value:
        _reduce_words(op, total.view(np.float32), tables.buffers, first, stride, ranks)
    elif dtype == DataType.FLOAT16.value or dtype == DataType.BFLOAT16.value:
        _reduce_halves(tables, dtype, op, size, first, stride, ranks)
    elif dtype == DataType.FLOAT64.value:
        _reduce_words(op, total.view(np.float64), tables.buffers, first, stride, ranks)
    elif dtype == DataType.INT64.value:
        _reduce_words(op, total.view(np.int64), tables.buffers, first, stride, ranks)
    elif dtype == DataType.INT32.value:
        _reduce_words(op, total.view(np.int32), tables.buffers, first, stride, ranks)
    elif dtype == DataType.INT8.value:
        _reduce_words(op, total.view(np.int8), tables.buffers, first, stride, ranks)
    else:
        _reduce_words(op, total.view(np.uint8), tables.buffers, first, stride, ranks)
