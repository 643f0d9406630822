"""Reductions of torch.distributed through real processes and the switch: exact, or refused in time and by name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.torch.world import World
from torch.distributed import ReduceOp

from netreduce.runtime.short_collectives import ShortCollectives
from netreduce.torch.tensors import NUMPY_DTYPES, OPERATIONS, reduction

pytestmark = pytest.mark.live

SIZES = (1, 257, 70_001)  # one element, a prime, and more than one message of every dtype but bytes
OPS = {op.name: op for op in OPERATIONS if op != ReduceOp.PREMUL_SUM}


def values_of(rank: int, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A rank's input: 1 or 2 (or True, False), so that sums, products and averages of four ranks are exact."""
    numbers = np.random.default_rng([seed, rank, size]).integers(0 if dtype is torch.bool else 1, 3, size)
    return torch.from_numpy(numbers).to(dtype)


def reference(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """What `op` gives, computed exactly by NumPy."""
    dtype = inputs[0].dtype
    stacked = np.stack(
        [tensor.to(torch.complex128 if dtype.is_complex else torch.float64).numpy() for tensor in inputs]
    )
    if op.startswith("B"):
        stacked = stacked.astype(np.int64)
    ufunc = {
        "SUM": np.add, "AVG": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
        "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
    }[op]  # fmt: skip
    combined = ufunc.reduce(stacked)
    return torch.from_numpy(combined / len(inputs) if op == "AVG" else combined).to(dtype)


def is_supported(dtype: torch.dtype, op: ReduceOp) -> bool:
    try:
        reduction(dtype, op, 4)
    except TypeError:
        return False
    return True


def check_operations(dtype: torch.dtype, seed: int) -> int:
    """All operations on all sizes; returns how many were checked."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    checked = 0
    for (name, op), size in itertools.product(OPS.items(), SIZES):
        if not is_supported(dtype, op):
            continue
        inputs = [values_of(other, size, dtype, seed) for other in range(world_size)]
        expected = reference(inputs, name)
        mine = inputs[rank].clone()
        dist.group.WORLD.allreduce([mine], all_reduce_options(op)).wait()
        assert torch.equal(mine.to(expected.dtype), expected), (name, size, mine, expected)
        checked += 1
    return checked


def all_reduce_options(op: ReduceOp) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_all_reduce_is_exact_for_every_operation_and_size(world: World, dtype: torch.dtype, seed: int):
    assert min(world.run(check_operations, dtype, seed)) >= 3 * len(SIZES)


def check_same_bits_everywhere(seed: int) -> list[int]:
    """Random floats: the sum is taken in rank order, in float32, so all ranks and all runs get the same bits."""
    inputs = [
        torch.from_numpy(np.random.default_rng([seed, r]).normal(size=50_000).astype(np.float32)) for r in range(4)
    ]
    expected = inputs[0] + inputs[1] + inputs[2] + inputs[3]
    mine = inputs[dist.get_rank()].clone()
    dist.all_reduce(mine)
    assert torch.equal(mine, expected)
    return mine.view(torch.int32)[:5].tolist()


def test_a_sum_of_random_floats_has_the_same_bits_on_every_rank(world: World, seed: int):
    results = world.run(check_same_bits_everywhere, seed)
    assert all(result == results[0] for result in results)


def check_scaled() -> None:
    rank = dist.get_rank()
    group = dist.new_group([0, 1, 2])
    if rank < 3:
        for dtype, size in itertools.product((torch.float32, torch.bfloat16, torch.complex64), (1, 7, 1001)):
            mine = torch.full((size,), rank + 1.0).to(dtype)
            dist.all_reduce(mine, ReduceOp.AVG, group=group)
            assert torch.equal(mine, torch.full((size,), 2.0).to(dtype))
        large = torch.full((3,), 60000.0, dtype=torch.float16)
        dist.all_reduce(large, ReduceOp.AVG, group=group)
        assert (large.float() - 60000).abs().max() <= 60000 / 2**10
        dist.destroy_process_group(group)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        mine = torch.full((5,), 2.0 * rank, dtype=dtype)
        dist.all_reduce(mine, dist._make_nccl_premul_sum(0.5))
        assert mine.tolist() == [6] * 5
        source, block = torch.full((8,), 2.0 * rank, dtype=dtype), torch.zeros(2, dtype=dtype)
        dist.reduce_scatter_tensor(block, source, dist._make_nccl_premul_sum(0.25))
        assert (block.tolist(), source.tolist()) == ([3] * 2, [2 * rank] * 8)


def test_averages_and_premultiplied_sums_are_right_for_three_ranks_too(world: World):
    world.run(check_scaled)


def check_refusals() -> list[str]:
    """Each is raised at the call; afterwards the group works as before."""
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), ReduceOp.AVG),
        lambda: dist.all_reduce(torch.ones(2), ReduceOp.BAND),
        lambda: dist.group.WORLD.allreduce([torch.ones(2, dtype=torch.complex64)], all_reduce_options(ReduceOp.MAX)),
        lambda: dist.all_reduce(torch.eye(2).to_sparse()),
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        lambda: dist.all_reduce(torch.ones(1).expand(3)),
        lambda: dist.all_gather([torch.ones(2)] * 3, torch.ones(2)),
        lambda: dist.all_to_all_single(torch.ones(5), torch.ones(5)),
        lambda: dist.recv(torch.ones(1)),
    ]
    messages = []
    for call in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            messages.append(str(error))
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 4
    return messages


def test_what_is_not_supported_is_refused_at_the_call_and_the_group_goes_on(world: World):
    for messages in world.run(check_refusals):
        assert len(messages) == 9, messages
        assert "AVERAGE of int32 is not supported" in messages[0]
        assert "expected 4 blocks of 2" in messages[6]
        assert "cannot be split evenly among 4 ranks" in messages[7]


MISMATCHES: dict[str, Callable[[int], tuple[torch.Tensor, ReduceOp]]] = {
    "dtype": lambda rank: (torch.ones(8, dtype=torch.int32 if rank == 1 else torch.float32), ReduceOp.SUM),
    "operation": lambda rank: (torch.ones(8), ReduceOp.MAX if rank == 2 else ReduceOp.SUM),
    "size": lambda rank: (torch.ones(4 if rank == 3 else 8), ReduceOp.SUM),
    "number of messages": lambda rank: (torch.ones(300_000 if rank == 0 else 100_000), ReduceOp.SUM),
}


def check_mismatch(kind: str) -> str:
    group = dist.new_group(timeout=timedelta(seconds=10))
    tensor, op = MISMATCHES[kind](dist.get_rank())
    try:
        dist.all_reduce(tensor, op, group=group)
    except RuntimeError as error:
        dist.destroy_process_group(group)
        return f"{type(error).__name__}: {error}"
    return f"no error: {tensor}"


@pytest.mark.parametrize("kind", MISMATCHES)
def test_ranks_that_disagree_are_told_so_on_both_sides(world: World, kind: str):
    for message in world.run(check_mismatch, kind):
        assert message.startswith("MismatchError"), message
        assert message.count("rank ") >= 2, message


def check_timeout() -> str:
    group = dist.new_group(timeout=timedelta(seconds=4))
    if dist.get_rank() == 2:
        time.sleep(5)
        dist.destroy_process_group(group)
        return ""
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_waiting_is_bounded_by_the_groups_timeout_and_names_the_missing_rank(world: World):
    messages = world.run(check_timeout)
    for message in (messages[0], messages[1], messages[3]):
        assert message.startswith("CollectiveTimeoutError"), message
        assert "rank 2 had not sent" in message


def reduce_small() -> tuple[list[bool], list[bool]]:
    """Whether synchronous and asynchronous small all-reduces were short calls; all are right."""
    seen: list[bool] = []
    ask = ShortCollectives.all_reduce

    def spy(*arguments: Any) -> bool:
        seen.append(ask(*arguments))
        return seen[-1]

    ShortCollectives.all_reduce = spy  # type: ignore[method-assign]
    try:
        for _ in range(20):
            tensor, strided = torch.full((3, 50), dist.get_rank() + 1.0), torch.ones(9, 2)
            dist.all_reduce(tensor)
            assert (tensor == 10).all()
            dist.all_reduce(strided[:, 0])
            assert strided.sum() == 4 * 9 + 9
        synchronous = list(seen)
        seen.clear()
        for _ in range(5):
            tensor = torch.ones(50)
            dist.all_reduce(tensor, async_op=True).wait()
            assert (tensor == 4).all()
    finally:
        ShortCollectives.all_reduce = ask  # type: ignore[method-assign]
    return synchronous, seen


def test_small_all_reduces_that_are_waited_for_are_short_calls(world: World) -> None:
    for synchronous, asynchronous in world.run(reduce_small):
        assert len(synchronous) == 20
        assert synchronous.count(True) > 5
        assert not asynchronous
