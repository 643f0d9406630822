"""Tensors as the network sees them: flat NumPy arrays over the same memory, or over a copy where that cannot be.

`reduction` says which dtype and operation the switch gets for a tensor's dtype and a c10d operation, and what the host
scales before and after. `Staged` lends the memory of tensors to the network and gives results back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp as TorchOp

from netreduce.errors import UnsupportedError
from netreduce.wire.ina import ReduceOp

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)

WIDENED: dict[torch.dtype, torch.dtype] = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}
"""Dtypes that the switch does not add: they travel widened and are rounded (integers: wrapped) once at the end."""

COMPONENTS: dict[torch.dtype, torch.dtype] = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Complex dtypes travel as pairs of reals."""

SWITCH_OPS: dict[Any, ReduceOp] = {
    TorchOp.SUM: ReduceOp.SUM,
    TorchOp.AVG: ReduceOp.SUM,
    TorchOp.PREMUL_SUM: ReduceOp.SUM,
    TorchOp.MIN: ReduceOp.MIN,
    TorchOp.MAX: ReduceOp.MAX,
    TorchOp.PRODUCT: ReduceOp.PRODUCT,
}
BOOL_OPS: dict[Any, ReduceOp] = {
    TorchOp.SUM: ReduceOp.MAX,
    TorchOp.BOR: ReduceOp.MAX,
    TorchOp.MAX: ReduceOp.MAX,
    TorchOp.PRODUCT: ReduceOp.MIN,
    TorchOp.BAND: ReduceOp.MIN,
    TorchOp.MIN: ReduceOp.MIN,
}
"""On the bytes 0 and 1, "or" is the maximum and "and" the minimum."""

SCALED = (TorchOp.AVG, TorchOp.PREMUL_SUM)
"""Operations that multiply by a fraction: for floating-point and complex dtypes only."""


@dataclass(frozen=True)
class Reduction:
    """How a c10d operation on one dtype is carried out."""

    op: ReduceOp  # what the switch does
    carrier: torch.dtype  # the dtype on the wire
    factor: float | Tensor | None = None  # the host multiplies by it before sending
    divisor: int = 1  # the host divides by it at the end


BYTES = Reduction(ReduceOp.MAX, torch.uint8)
"""For collectives that only move data: whatever the dtype, its bytes."""


def op_name(op: Any) -> str:
    """The name of a c10d operation, whether given as `ReduceOp.SUM` or wrapped in the options."""
    return next((name for name, member in TorchOp.RedOpType.__members__.items() if op == member), str(op))


def reduction(dtype: torch.dtype, op: Any, world_size: int) -> Reduction:
    """How to do `op` on `dtype`; raises `UnsupportedError` that names what is supported."""
    name = op_name(op)
    kind = getattr(TorchOp, name, None)
    if dtype is torch.bool:
        if kind in BOOL_OPS:
            return Reduction(BOOL_OPS[kind], torch.uint8)
        raise UnsupportedError(f"{name} on torch.bool is not supported: use {_names(BOOL_OPS)}")
    carrier = COMPONENTS.get(dtype) or WIDENED.get(dtype) or dtype
    if carrier not in FLOATS + INTEGERS:
        known = (*FLOATS, *INTEGERS, *WIDENED, *COMPONENTS, torch.bool)
        raise UnsupportedError(f"{dtype} cannot be reduced: use one of {', '.join(str(d)[6:] for d in known)}")
    if kind not in SWITCH_OPS:
        raise UnsupportedError(f"{name} on {dtype} is not supported: use {_names(SWITCH_OPS)}")
    if kind in SCALED and carrier not in FLOATS:
        raise UnsupportedError(f"{name} on {dtype} would lose the fraction: use SUM, or a floating-point dtype")
    if dtype in COMPONENTS and SWITCH_OPS[kind] is not ReduceOp.SUM:
        raise UnsupportedError(f"{name} on {dtype} is not defined: use {_names((TorchOp.SUM, *SCALED))}")
    return _scaled(kind, op, carrier, world_size)


def _scaled(kind: Any, op: Any, carrier: torch.dtype, world_size: int) -> Reduction:
    if kind == TorchOp.PREMUL_SUM:
        return Reduction(ReduceOp.SUM, carrier, factor=op.__getstate__()[1])
    if kind == TorchOp.AVG and carrier is torch.float16:
        # A float16 sum overflows at 65504 although the average would fit, so each rank divides its share first.
        return Reduction(ReduceOp.SUM, carrier, factor=1 / world_size)
    if kind == TorchOp.AVG:
        return Reduction(ReduceOp.SUM, carrier, divisor=world_size)
    return Reduction(SWITCH_OPS[kind], carrier)


def _names(ops: Any) -> str:
    return ", ".join(op_name(op) for op in ops)


def check(tensor: Tensor, *, written: bool) -> None:
    """Raise `UnsupportedError` for a tensor whose memory the network cannot read (or, if `written`, write)."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedError(
            f"only dense tensors are supported, not {tensor.layout}, {tensor.dtype}: use .to_dense()"
        )
    if tensor.device.type != "cpu":
        raise UnsupportedError(
            f"only tensors in host memory are supported, this one is on {tensor.device}: move it with .cpu()"
        )
    if written and any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise UnsupportedError(
            "elements of this tensor share memory (expand?), so no result fits in: use .contiguous()"
        )


class Staged:
    """The memory of one or more tensors, lent to the network as one flat `array` of the carrier's dtype.

    Contiguous tensors that lie one after the other are lent as they are. Any others (strided, conjugated, scattered, or
    travelling in another dtype) are copied, and `store` copies the result back. Without `read` a copy starts undefined;
    without `written` the user's memory stays as it is.
    """

    def __init__(
        self, tensors: Sequence[Tensor], reduction: Reduction = BYTES, *, read: bool = True, written: bool = True
    ) -> None:
        for tensor in tensors:
            check(tensor, written=written)
        self.tensors = [tensor.detach() for tensor in tensors]
        self.reduction = reduction
        flat = _adjacent(self.tensors, reduction)
        self.is_copy = flat is None
        if flat is None and read:
            flat = torch.cat([_as_carrier(tensor, reduction) for tensor in self.tensors])
        elif flat is None:
            flat = torch.empty(sum(self._counts()), dtype=reduction.carrier)
        if reduction.factor is not None and read:
            # The tensor of an operation in place is overwritten by the result in any case.
            flat = flat.mul_(reduction.factor) if written else flat * reduction.factor
        self.flat = flat
        self.array = _as_array(flat)

    def store(self) -> None:
        """Divide, and put the result where the user's tensors are."""
        if self.reduction.divisor != 1:
            self.flat.div_(self.reduction.divisor)
        if not self.is_copy:
            return
        for tensor, piece in zip(self.tensors, torch.split(self.flat, self._counts()), strict=True):
            result = piece if tensor.dtype in WIDENED and self.reduction is not BYTES else piece.view(tensor.dtype)
            tensor.copy_(result.view(tensor.shape))

    def _counts(self) -> list[int]:
        """Elements on the wire of each tensor."""
        if self.reduction is BYTES:
            return [tensor.numel() * tensor.element_size() for tensor in self.tensors]
        return [tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in self.tensors]


def _as_carrier(tensor: Tensor, reduction: Reduction) -> Tensor:
    """The elements in row-major order, as the carrier's dtype: a view where possible."""
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    if tensor.dtype in WIDENED and reduction is not BYTES:
        return flat.to(reduction.carrier)
    return flat.view(reduction.carrier)


def _adjacent(tensors: Sequence[Tensor], reduction: Reduction) -> Tensor | None:
    """One flat view of `tensors` if they lie contiguous, one after the other, in one storage and need no conversion."""
    first = tensors[0]
    if first.dtype in WIDENED and reduction is not BYTES:
        return None
    address, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for tensor in tensors:
        plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg() and tensor.dtype is first.dtype
        if not plain or tensor.data_ptr() != address or tensor.untyped_storage().data_ptr() != storage:
            return None
        address += tensor.numel() * tensor.element_size()
    flat = first.as_strided((sum(tensor.numel() for tensor in tensors),), (1,))
    return flat.view(reduction.carrier)


def _as_array(flat: Tensor) -> np.ndarray:
    """A contiguous 1-D tensor's memory as a NumPy array; NumPy's bfloat16 is that of ml_dtypes."""
    if flat.dtype is torch.bfloat16:
        return flat.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return flat.numpy()
