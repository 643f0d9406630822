"""Half-precision numbers to float32 and back: IEEE binary16 and bfloat16, rounded to nearest, ties to even.

Numba has no half type for CPUs. Compiled, an intrinsic lets LLVM take the 16 bits for its own `half`, which becomes one
vector instruction for many elements; bfloat16 is the upper half of a float32. In plain Python, NumPy and ml_dtypes do
the same.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir
import ml_dtypes
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from netreduce.wire.ina import DataType

_QUIET_NAN = 0x7FC0
_HALF = {DataType.FLOAT16: np.dtype(np.float16), DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


@intrinsic
def _float_of_half(typing_context: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.bitcast(arguments[0], llvmlite.ir.HalfType())
        return builder.fpext(half, llvmlite.ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def _half_of_float(typing_context: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.fptrunc(arguments[0], llvmlite.ir.HalfType())
        return builder.bitcast(half, llvmlite.ir.IntType(16))

    return types.uint16(types.float32), codegen


def widen(dtype: int, halves: np.ndarray, floats: np.ndarray) -> None:
    """Write the numbers of `halves` (uint16[n], bits of `DataType` `dtype`) to `floats` (float32[n]), exactly."""
    floats[:] = halves.view(_HALF[DataType(dtype)])


def narrow(dtype: int, floats: np.ndarray, halves: np.ndarray) -> None:
    """Write `floats` (float32[n]), rounded to nearest even, to `halves` (uint16[n], bits of `DataType` `dtype`)."""
    halves[:] = floats.astype(_HALF[DataType(dtype)]).view(np.uint16)


@overload(widen)
def _widen_compiled(dtype: Any, halves: Any, floats: Any) -> Any:
    def implementation(dtype: Any, halves: Any, floats: Any) -> None:
        if dtype == DataType.FLOAT16.value:
            for i in range(halves.size):
                floats[i] = _float_of_half(halves[i])  # type: ignore[call-arg]
            return
        bits = floats.view(np.uint32)
        for i in range(halves.size):
            bits[i] = np.uint32(halves[i]) << np.uint32(16)

    return implementation


@overload(narrow)
def _narrow_compiled(dtype: Any, floats: Any, halves: Any) -> Any:
    def implementation(dtype: Any, floats: Any, halves: Any) -> None:
        if dtype == DataType.FLOAT16.value:
            for i in range(halves.size):
                halves[i] = _half_of_float(floats[i])  # type: ignore[call-arg]
            return
        bits = floats.view(np.uint32)
        for i in range(halves.size):
            word = bits[i]
            rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            quiet = (word >> np.uint32(16)) & np.uint32(0x8000) | np.uint32(_QUIET_NAN)
            halves[i] = np.uint16(quiet) if is_nan else np.uint16(rounded)

    return implementation
