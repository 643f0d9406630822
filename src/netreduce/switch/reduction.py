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

from netreduce.compiled import compiled, copy_bytes, inlined
from netreduce.switch.halves import narrow, widen
from netreduce.switch.tables import PATH_MTU_MAX
from netreduce.wire.ina import DataType, ReduceOp

_UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}


def combine(op: int, target: np.ndarray, total: np.ndarray, part: np.ndarray) -> None:
    """``target = total op part``, element by element; arrays of one dtype and length that do not overlap."""
    _UFUNCS[ReduceOp(op)](total, part, out=target)


@overload(combine)
def _combine_compiled(op: Any, target: Any, total: Any, part: Any) -> Any:
    # Spelt out, because Numba's own minimum and maximum take the other one of two zeros with different signs.
    is_float = isinstance(total.dtype, types.Float)

    def implementation(op: Any, target: Any, total: Any, part: Any) -> None:
        if op == ReduceOp.SUM.value:
            for i in range(target.size):
                target[i] = total[i] + part[i]
        elif op == ReduceOp.PRODUCT.value:
            for i in range(target.size):
                target[i] = total[i] * part[i]
        elif op == ReduceOp.MIN.value:
            for i in range(target.size):
                a, b = total[i], part[i]
                keep = (a < b) | (a != a) if is_float else a < b
                target[i] = a if keep else b
        else:
            for i in range(target.size):
                a, b = total[i], part[i]
                keep = (a > b) | (a != a) if is_float else a > b
                target[i] = a if keep else b

    return implementation


def add_three(target: np.ndarray, total: np.ndarray, first: np.ndarray, second: np.ndarray, third: np.ndarray) -> None:
    """``target = total + first + second + third`` from left to right; else as `combine`."""
    np.add(total, first, out=target)
    np.add(target, second, out=target)
    np.add(target, third, out=target)


@overload(add_three)
def _add_three_compiled(target: Any, total: Any, first: Any, second: Any, third: Any) -> Any:
    def implementation(target: Any, total: Any, first: Any, second: Any, third: Any) -> None:
        for i in range(target.size):
            target[i] = total[i] + first[i] + second[i] + third[i]

    return implementation


@inlined
def _payload(buffers: np.ndarray, copies: np.recarray, row: int, own: np.ndarray, is_own: bool) -> np.ndarray:
    """The waiting payload that a row of `copies` names, as elements like those of `own`; or `own` itself."""
    at = copies[row].payload_at
    return own if is_own else buffers[at : at + own.size * own.itemsize].view(own.dtype)


@compiled
def _reduce_words(
    op: int,
    totals: np.ndarray,
    buffers: np.ndarray,
    copies: np.recarray,
    stride: int,
    ranks: int,
    last: int,
    own: np.ndarray,
    result: np.ndarray,
) -> None:
    """See `reduce_slot`. The dtype of `own` and `result` is the elements'.

    Where three more ranks' payloads are left to add, one step adds them: they are in outer caches, and are waited for
    together. A step's target is never one of its operands: a loop in which it might be is not vectorised.
    """
    size = own.size * own.itemsize
    total = _payload(buffers, copies, 0, own, last == 0)
    if ranks == 1:
        copy_bytes(result.view(np.uint8), 0, own.view(np.uint8), 0, size)
    rank, at = 1, 0
    while rank < ranks:
        first = _payload(buffers, copies, rank * stride, own, rank == last)
        step = 3 if op == ReduceOp.SUM.value and rank + 3 <= ranks else 1
        target = result if rank + step == ranks else totals[at : at + size].view(own.dtype)
        if step == 3:
            second = _payload(buffers, copies, (rank + 1) * stride, own, rank + 1 == last)
            third = _payload(buffers, copies, (rank + 2) * stride, own, rank + 2 == last)
            add_three(target, total, first, second, third)
        else:
            combine(op, target, total, first)
        total = target
        rank += step
        at = PATH_MTU_MAX - at


@compiled
def _reduce_halves(
    dtype: int,
    op: int,
    wide: np.ndarray,
    buffers: np.ndarray,
    copies: np.recarray,
    stride: int,
    ranks: int,
    last: int,
    own: np.ndarray,
    result: np.ndarray,
) -> None:
    """See `reduce_slot`. `own` and `result` are the halves' bits, `wide` has room for two sums and one operand."""
    size, part = own.size * own.itemsize, wide[2, : own.size]
    total = wide[0, : own.size]
    for rank in range(ranks):
        at = copies[rank * stride].payload_at
        widen(dtype, own if rank == last else buffers[at : at + size].view(np.uint16), part if rank else total)
        if rank:
            target = wide[rank & 1, : own.size]
            combine(op, target, total, part)
            total = target
    narrow(dtype, total, result)


@compiled
def reduce_slot(
    dtype: int,
    op: int,
    wide: np.ndarray,
    totals: np.ndarray,
    buffers: np.ndarray,
    copies: np.recarray,
    stride: int,
    ranks: int,
    last: int,
    own: np.ndarray,
    result: np.ndarray,
) -> None:
    """Write to `result` (uint8) the reduction of the payloads of that many `ranks`; `dtype` and `op` are known codes.

    That of rank `last` is `own` (uint8, as long). That of another rank r is in `buffers`, where row ``r * stride`` of
    `copies` says. `wide` and `totals` are scratch.
    """
    if dtype == DataType.FLOAT32.value:
        _reduce_words(op, totals, buffers, copies, stride, ranks, last, own.view(np.float32), result.view(np.float32))
    elif dtype == DataType.FLOAT16.value or dtype == DataType.BFLOAT16.value:
        halves, results = own.view(np.uint16), result.view(np.uint16)
        _reduce_halves(dtype, op, wide, buffers, copies, stride, ranks, last, halves, results)
    elif dtype == DataType.FLOAT64.value:
        _reduce_words(op, totals, buffers, copies, stride, ranks, last, own.view(np.float64), result.view(np.float64))
    elif dtype == DataType.INT64.value:
        _reduce_words(op, totals, buffers, copies, stride, ranks, last, own.view(np.int64), result.view(np.int64))
    elif dtype == DataType.INT32.value:
        _reduce_words(op, totals, buffers, copies, stride, ranks, last, own.view(np.int32), result.view(np.int32))
    elif dtype == DataType.INT8.value:
        _reduce_words(op, totals, buffers, copies, stride, ranks, last, own.view(np.int8), result.view(np.int8))
    else:
        _reduce_words(op, totals, buffers, copies, stride, ranks, last, own, result)
