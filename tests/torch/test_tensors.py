"""Lending tensors to the network: which memory it sees, how dtypes and operations map, what is refused."""

import gc

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from netreduce.collectives.reductions import Reduction
from netreduce.errors import UnsupportedError
from netreduce.torch.tensors import NUMPY_DTYPES, OPERATIONS, Staged, reduction, stage_all


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_every_dtype_of_the_network_is_lent_without_a_copy(dtype):
    tensor = torch.tensor([1, 0, 1, 1]).to(dtype)
    lent = Staged(tensor)
    assert lent.array.astype(np.complex128).tolist() == [1, 0, 1, 1]
    lent.array[:] = lent.array[::-1].copy()
    assert tensor.to(torch.complex128).real.tolist() == [1, 1, 0, 1]


def test_bfloat16_is_the_one_of_ml_dtypes():
    assert Staged(torch.ones(1, dtype=torch.bfloat16)).array.dtype == ml_dtypes.bfloat16


def test_a_dtype_that_the_network_does_not_know_is_moved_as_bytes():
    tensor = torch.tensor([127, 128], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    Staged(tensor).array[0] += 2  # an exponent
    assert tensor.float().tolist() == [4, 2]


def test_a_contiguous_tensor_is_lent_without_a_copy():
    tensor = torch.arange(6.0).reshape(2, 3)
    Staged(tensor).array[4] = 40
    assert tensor[1, 1] == 40


def test_a_parameter_is_lent_without_a_copy_and_stays_a_leaf():
    parameter = torch.nn.Parameter(torch.zeros(3))
    Staged(parameter).array[:] = 7
    assert parameter.tolist() == [7, 7, 7]
    assert parameter.is_leaf


def test_a_lent_tensor_may_be_resized_afterwards_as_fsdp_does():
    tensor = torch.ones(3)
    Staged(tensor)
    tensor.untyped_storage().resize_(0)


def test_the_array_keeps_the_memory_while_the_network_has_it():
    array = Staged(torch.full((1000,), 7.0)).array
    gc.collect()
    others = [torch.zeros(1000) for _ in range(10)]
    assert (array == 7).all()
    assert len(others) == 10


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
    lent = Staged(tensor)
    assert lent.array.tolist() == tensor.reshape(-1).tolist()
    expected = tensor * 10
    lent.array *= 10
    lent.store()
    assert torch.equal(tensor, expected)
    assert base.sum().item() - tensor.sum().item() == outside


def test_a_conjugated_view_gets_its_result_back_conjugated():
    memory = torch.tensor([1 + 2j, 3 - 1j])
    view = memory.conj()
    lent = Staged(view)
    assert lent.array.tolist() == [1 - 2j, 3 + 1j]
    lent.array *= 2
    lent.store()
    assert memory.tolist() == [2 + 4j, 6 - 2j]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_tensors_are_flat_arrays_too(shape):
    assert Staged(torch.ones(shape)).array.shape == (torch.ones(shape).numel(),)


def test_tensors_of_different_dtypes_cannot_go_into_one_call():
    with pytest.raises(UnsupportedError, match=r"differ in dtype: torch.float32, torch.int32"):
        stage_all([torch.ones(1), torch.ones(1, dtype=torch.int32)])
    assert [lent.array.size for lent in stage_all([torch.ones(1), torch.ones(2)])] == [1, 2]


@pytest.mark.parametrize("factor", [0.5, torch.tensor([0.5])], ids=["number", "tensor"])
def test_an_input_that_is_only_read_is_scaled_in_a_copy(factor):
    tensor = torch.full((2,), 3.0, dtype=torch.bfloat16)
    lent = Staged(tensor, factor=factor, written=False)
    assert lent.array.astype(float).tolist() == [1.5, 1.5]
    assert tensor.tolist() == [3, 3]


def test_a_tensor_that_is_written_is_scaled_in_place():
    tensor = torch.full((2,), 3.0)
    Staged(tensor, factor=0.5)
    assert tensor.tolist() == [1.5, 1.5]


def test_a_premultiplied_sum_is_a_sum_with_a_factor():
    assert reduction(torch.float32, dist._make_nccl_premul_sum(0.5), 2) == (Reduction.SUM, 0.5)
    op, factor = reduction(torch.bfloat16, dist._make_nccl_premul_sum(torch.tensor([0.25])), 2)
    assert (op, factor.item()) == (Reduction.SUM, 0.25)


def test_an_average_is_left_to_the_network_but_float16_is_divided_first_because_its_sum_overflows():
    assert reduction(torch.float32, ReduceOp.AVG, 4) == (Reduction.AVERAGE, None)
    assert reduction(torch.float16, ReduceOp.AVG, 4) == (Reduction.SUM, 0.25)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.BOR, ReduceOp.BXOR])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint16, torch.int64], ids=str)
def test_whole_numbers_and_booleans_have_all_operations_but_averages(dtype, op):
    assert reduction(dtype, op, 2) == (OPERATIONS[op], None)
    with pytest.raises(UnsupportedError, match="there are SUM, PRODUCT, MIN, MAX, BITWISE_AND"):
        reduction(dtype, ReduceOp.AVG, 2)


REFUSED = [
    (torch.float32, ReduceOp.BAND, "BITWISE_AND of float32 is not supported; .* there are SUM, PRODUCT, MIN, MAX"),
    (torch.complex64, ReduceOp.MAX, "MAX of complex64 is not supported"),
    (torch.int32, dist._make_nccl_premul_sum(2.0), "of int32 is not supported"),
    (torch.complex32, ReduceOp.SUM, "torch.complex32 cannot be reduced; the dtypes that can be are float32, float64"),
    (torch.qint8, ReduceOp.SUM, "torch.qint8 cannot be reduced"),
]


@pytest.mark.parametrize(("dtype", "op", "message"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_cannot_be_reduced_is_refused_with_what_can(dtype, op, message):
    with pytest.raises(UnsupportedError, match=message):
        reduction(dtype, op, 2)


def test_every_operation_of_torch_has_its_meaning():
    named = {name for name in ReduceOp.RedOpType.__members__ if name != "UNUSED"}
    assert named == {op.name for op in OPERATIONS}


def test_sparse_tensors_are_refused():
    with pytest.raises(UnsupportedError, match=r"use \.to_dense"):
        Staged(torch.eye(2).to_sparse())


def test_tensors_outside_host_memory_are_refused():
    with pytest.raises(UnsupportedError, match=r"this one is on meta: move it with \.cpu"):
        Staged(torch.ones(2, device="meta"))


def test_a_result_does_not_fit_into_elements_that_share_memory():
    with pytest.raises(UnsupportedError, match="share memory"):
        Staged(torch.ones(1).expand(4))
    assert Staged(torch.ones(1).expand(4), written=False).array.tolist() == [1, 1, 1, 1]
