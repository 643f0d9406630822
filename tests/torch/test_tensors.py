"""Lending tensors to the network: which memory it sees, how dtypes and operations map, what is refused."""

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from netreduce.errors import UnsupportedError
from netreduce.torch.tensors import BYTES, SWITCH_OPS, WIDENED, Staged, reduction
from netreduce.wire import ina

WIRE_DTYPES = {
    torch.float32: np.float32, torch.float64: np.float64, torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16, torch.int8: np.int8, torch.uint8: np.uint8, torch.int32: np.int32,
    torch.int64: np.int64, torch.int16: np.int32, torch.uint16: np.int32, torch.uint32: np.int64,
    torch.float8_e4m3fn: np.float32, torch.float8_e5m2: np.float32, torch.complex64: np.float32,
    torch.complex128: np.float64, torch.bool: np.uint8,
}  # fmt: skip


def staged(tensor: torch.Tensor, op: object = ReduceOp.SUM, world_size: int = 4, **access: bool) -> Staged:
    return Staged([tensor], reduction(tensor.dtype, op, world_size), **access)


@pytest.mark.parametrize("dtype", WIRE_DTYPES, ids=str)
def test_every_supported_dtype_travels_in_one_that_the_switch_adds_and_comes_back(dtype):
    tensor = torch.tensor([1, 0, 1, 0]).to(dtype)
    lent = staged(tensor)
    assert lent.array.dtype == WIRE_DTYPES[dtype]
    assert lent.array.dtype in ina.NUMPY_DTYPES.values()
    components = 2 if dtype.is_complex else 1
    assert lent.array[::components].astype(np.float64).tolist() == [1, 0, 1, 0]
    lent.array[:] = np.roll(lent.array, components)
    lent.store()
    assert tensor.to(torch.complex128).real.tolist() == [0, 1, 0, 1]


def test_a_contiguous_tensor_is_lent_without_a_copy():
    tensor = torch.arange(6.0).reshape(2, 3)
    staged(tensor).array[4] = 40
    assert tensor[1, 1] == 40


def test_a_parameter_is_lent_without_a_copy_and_stays_a_leaf():
    parameter = torch.nn.Parameter(torch.zeros(3))
    staged(parameter).array[:] = 7
    assert parameter.tolist() == [7, 7, 7]
    assert parameter.is_leaf


STRIDED = {
    "a column": lambda: torch.arange(6.0).reshape(2, 3)[:, 1],
    "a transpose": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "every other": lambda: torch.arange(9.0)[::2],
    "channels last": lambda: torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
    "a triangle's column": lambda: torch.full((2, 2), 3.0).tril().contiguous()[:, 0],
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_a_strided_tensor_travels_in_row_major_order_and_gets_its_result_back(make):
    tensor = make()
    base = tensor._base if tensor._base is not None else tensor
    outside = base.sum().item() - tensor.sum().item()
    lent = staged(tensor)
    assert lent.array.tolist() == tensor.reshape(-1).tolist()
    expected = tensor * 10
    lent.array *= 10
    lent.store()
    assert torch.equal(tensor, expected)
    assert base.sum().item() - tensor.sum().item() == outside


def test_a_conjugated_view_gets_its_result_back_conjugated():
    memory = torch.tensor([1 + 2j, 3 - 1j])
    view = memory.conj()
    lent = staged(view)
    assert lent.array.tolist() == [1, -2, 3, 1]
    lent.array *= 2
    lent.store()
    assert memory.tolist() == [2 + 4j, 6 - 2j]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_tensors_are_flat_arrays_too(shape):
    assert staged(torch.ones(shape)).array.shape == (torch.ones(shape).numel(),)


def test_neighbours_in_one_storage_are_lent_together_without_a_copy():
    whole = torch.zeros(3, 4)
    Staged(list(whole), read=False).array.view(np.float32)[:] = np.arange(12)
    assert torch.equal(whole, torch.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2, torch.bool, torch.complex64, torch.uint64])
def test_scattered_tensors_of_any_dtype_are_gathered_as_bytes_and_put_back(dtype):
    tensors = [torch.ones(2, 3).to(dtype).t(), torch.zeros(()).to(dtype)]
    lent = Staged(tensors, BYTES)
    assert lent.array.size == 7 * dtype.itemsize
    lent.array[:] = np.concatenate([lent.array[-dtype.itemsize :], lent.array[: -dtype.itemsize]])
    lent.store()
    assert [tensor.to(torch.complex128).sum().real.item() for tensor in tensors] == [5, 1]


def test_an_input_that_is_only_read_is_scaled_in_a_copy():
    tensor = torch.full((2,), 3.0)
    lent = staged(tensor, dist._make_nccl_premul_sum(0.5), written=False)
    assert lent.array.tolist() == [1.5, 1.5]
    assert tensor.tolist() == [3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float8_e5m2])
def test_an_average_divides_the_sum_once_at_the_end(dtype):
    tensor = torch.full((), 2.0).to(dtype)
    lent = staged(tensor, ReduceOp.AVG, world_size=4)
    lent.array *= 2
    lent.store()
    assert tensor.to(torch.complex64).item() == 1


def test_a_float16_average_divides_first_because_the_sum_may_overflow():
    tensor = torch.full((1,), 60000.0, dtype=torch.float16)
    lent = staged(tensor, ReduceOp.AVG, world_size=2)
    lent.array += np.float16(30000)
    lent.store()
    assert tensor.item() == 60000


def test_a_premultiplied_sum_takes_its_factor_as_number_or_tensor():
    for factor in (0.5, torch.tensor([0.5])):
        assert staged(torch.ones(2), dist._make_nccl_premul_sum(factor)).array.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT])
@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.uint32])
def test_widened_integers_wrap_like_their_own_dtype(dtype, op):
    limits = torch.iinfo(dtype)
    left, right = torch.tensor([limits.max, limits.min, 3]).to(dtype), torch.tensor([2, 1, limits.max]).to(dtype)
    lent = staged(left, op)
    combine = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum, "PRODUCT": np.multiply}[SWITCH_OPS[op].name]
    expected = combine(left.numpy(), right.numpy())
    lent.array[:] = combine(lent.array, right.numpy().astype(lent.array.dtype))
    lent.store()
    assert left.tolist() == expected.tolist()


BOOLEAN = {ReduceOp.SUM: "MAX", ReduceOp.BOR: "MAX", ReduceOp.MAX: "MAX"} | dict.fromkeys(
    (ReduceOp.PRODUCT, ReduceOp.BAND, ReduceOp.MIN), "MIN"
)


@pytest.mark.parametrize(("op", "wire"), BOOLEAN.items(), ids=str)
def test_booleans_are_or_ed_by_the_maximum_and_and_ed_by_the_minimum(op, wire):
    assert reduction(torch.bool, op, 2).op.name == wire


REFUSED = [
    (torch.float32, ReduceOp.BAND, "BAND on torch.float32 is not supported: use SUM"),
    (torch.int32, ReduceOp.BXOR, "BXOR on torch.int32 is not supported: use SUM"),
    (torch.int64, ReduceOp.AVG, "AVG on torch.int64 would lose the fraction"),
    (torch.int16, ReduceOp.AVG, "AVG on torch.int16 would lose the fraction"),
    (torch.bool, ReduceOp.AVG, "AVG on torch.bool is not supported: use SUM, BOR"),
    (torch.complex64, ReduceOp.MAX, "MAX on torch.complex64 is not defined: use SUM, AVG, PREMUL_SUM"),
    (torch.uint64, ReduceOp.SUM, "torch.uint64 cannot be reduced: use one of float32"),
    (torch.qint8, ReduceOp.SUM, "torch.qint8 cannot be reduced"),
]


@pytest.mark.parametrize(("dtype", "op", "message"), REFUSED, ids=str)
def test_what_cannot_be_reduced_is_refused_with_what_can(dtype, op, message):
    with pytest.raises(UnsupportedError, match=message):
        reduction(dtype, op, 2)


def test_every_operation_of_torch_is_either_mapped_or_refused():
    for op in ReduceOp.RedOpType.__members__.values():
        if op in SWITCH_OPS and op != ReduceOp.PREMUL_SUM:
            assert isinstance(reduction(torch.float32, op, 2).op, ina.ReduceOp)
        elif op != ReduceOp.PREMUL_SUM:
            with pytest.raises(UnsupportedError):
                reduction(torch.float32, op, 2)


def test_sparse_tensors_are_refused():
    with pytest.raises(UnsupportedError, match=r"use \.to_dense"):
        Staged([torch.eye(2).to_sparse()])


def test_tensors_outside_host_memory_are_refused():
    with pytest.raises(UnsupportedError, match=r"this one is on meta: move it with \.cpu"):
        Staged([torch.ones(2, device="meta")])


def test_a_result_does_not_fit_into_elements_that_share_memory():
    with pytest.raises(UnsupportedError, match="share memory"):
        staged(torch.ones(1).expand(4))
    assert staged(torch.ones(1).expand(4), written=False).array.tolist() == [1, 1, 1, 1]


def test_widened_dtypes_are_those_that_the_switch_does_not_know():
    assert not set(WIDENED) & {torch.float32, torch.int8, torch.int32, torch.bfloat16}
