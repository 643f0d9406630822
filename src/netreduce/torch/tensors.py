"""Tensors as the network sees them: flat NumPy arrays over the same memory, or over a copy where that cannot be.

`reduction` translates a c10d operation. `Staged` lends the memory of tensors to the network and gives results back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from netreduce.collectives.reductions import DTYPES, Reduction, plan_reduction
from netreduce.errors import UnsupportedError

NUMPY_DTYPES: dict[torch.dtype, np.dtype] = {getattr(torch, dtype.name): dtype for dtype in DTYPES}
"""bfloat16 and the float8 kinds are those of ml_dtypes. Other dtypes can be moved as bytes, but not reduced."""

OPERATIONS: dict[Any, Reduction] = {
    ReduceOp.SUM: Reduction.SUM,
    ReduceOp.AVG: Reduction.AVERAGE,
    ReduceOp.PREMUL_SUM: Reduction.SUM,
    ReduceOp.PRODUCT: Reduction.PRODUCT,
    ReduceOp.MIN: Reduction.MIN,
    ReduceOp.MAX: Reduction.MAX,
    ReduceOp.BAND: Reduction.BITWISE_AND,
    ReduceOp.BOR: Reduction.BITWISE_OR,
    ReduceOp.BXOR: Reduction.BITWISE_XOR,
}


class ScaledReduction(NamedTuple):
    """A reduction of data that the host multiplies by `factor` first, unless it is None."""

    op: Reduction
    factor: float | Tensor | None = None


def reduction(dtype: torch.dtype, op: Any, world_size: int) -> ScaledReduction:
    """How to do the c10d operation `op`; raises `UnsupportedError`, naming what is supported, if it cannot be done."""
    if dtype not in NUMPY_DTYPES:
        known = ", ".join(dtype.name for dtype in DTYPES)
        raise UnsupportedError(f"{dtype} cannot be reduced; the dtypes that can be are {known}")
    kind = next((known for known in OPERATIONS if op == known), None)
    if kind is None:
        raise UnsupportedError(f"operation {op} is not supported; there are {', '.join(map(str, OPERATIONS))}")
    meaning = OPERATIONS[kind]
    scaled = kind == ReduceOp.PREMUL_SUM
    # A scale is a fraction, so a premultiplied sum needs a dtype that has averages.
    plan_reduction(NUMPY_DTYPES[dtype], Reduction.AVERAGE if scaled else meaning, world_size)
    if scaled:
        return ScaledReduction(meaning, factor=op.__getstate__()[1])
    if meaning is Reduction.AVERAGE and dtype is torch.float16:
        # A float16 sum overflows at 65504 although the average would fit, so each rank divides its share first.
        return ScaledReduction(Reduction.SUM, factor=1 / world_size)
    return ScaledReduction(meaning)


def check(tensor: Tensor, *, written: bool) -> None:
    """Raise `UnsupportedError` for a tensor whose memory the network cannot read (or, if `written`, write)."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedError(f"only dense tensors are supported, not {tensor.layout} {tensor.dtype}: use .to_dense()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"only tensors in host or CUDA memory are supported, this one is on {tensor.device}: move it with .cpu()"
        )
    if written and any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise UnsupportedError("elements of this tensor share memory (expand?), so no result fits: use .contiguous()")


class _Memory:
    """A contiguous tensor's bytes under NumPy's array interface; the array keeps the tensor alive.

    `Tensor.numpy` would do, but it makes the storage unresizable for ever, and FSDP resizes storages.
    """

    def __init__(self, flat: Tensor) -> None:
        self.tensor = flat
        self.__array_interface__ = {
            "data": (flat.data_ptr(), False),
            "shape": (flat.numel() * flat.element_size(),),
            "typestr": "|u1",
            "version": 3,
        }


class Staged:
    """A tensor's memory, lent to the network as the flat `array`.

    A contiguous tensor is lent as it is. Any other (strided, conjugated, in device memory) is copied, and `store`
    copies the result back. Without `read` a copy starts undefined; without `written` the user's memory stays as it is.
    `factor` multiplies what is read.
    """

    def __init__(
        self, tensor: Tensor, *, read: bool = True, written: bool = True, factor: float | Tensor | None = None
    ) -> None:
        check(tensor, written=written)
        self.tensor = tensor = tensor.detach()
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            flat = tensor.view(-1)
        elif read:
            flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1).cpu()
        else:
            flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        if factor is not None:
            factor = factor.cpu() if isinstance(factor, Tensor) else factor
            # The tensor of an operation in place is overwritten by the result in any case.
            flat = flat.mul_(factor) if written else (flat * factor).to(tensor.dtype)
        self._flat = flat
        self.is_copy = flat.data_ptr() != tensor.data_ptr()
        self.array = np.asarray(_Memory(flat)).view(NUMPY_DTYPES.get(tensor.dtype, np.uint8))

    def store(self) -> None:
        """Put the result where the user's tensor is."""
        self.tensor.copy_(self._flat.view(self.tensor.shape))


def stage_all(
    tensors: Sequence[Tensor], *, read: bool = True, written: bool = True, factor: Any = None
) -> list[Staged]:
    """Lend several tensors, which must have one dtype."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        raise UnsupportedError(f"tensors of one call differ in dtype: {', '.join(sorted(map(str, dtypes)))}")
    return [Staged(tensor, read=read, written=written, factor=factor) for tensor in tensors]
