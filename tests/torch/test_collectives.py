"""Every collective of torch.distributed through real processes and the switch, against exact references."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tests.torch.world import World
from torch.distributed import ReduceOp

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


STRIDED: dict[str, Callable[[], torch.Tensor]] = {
    "a column": lambda: torch.zeros(40, 3)[:, 1],
    "a transpose": lambda: torch.zeros(5, 7).t(),
    "every other": lambda: torch.zeros(99)[::2],
    "channels last": lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a column of a triangle": lambda: torch.ones(2, 2).tril().contiguous()[:, 0],
    "a part of a larger tensor": lambda: torch.zeros(100)[10:20],
    "a scalar": lambda: torch.zeros(()),
    "nothing": lambda: torch.zeros(0, 3),
}


def check_strides(kind: str) -> None:
    """A tensor of this kind in every place of every collective; what lies around it stays as it was."""
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def make(value: float) -> torch.Tensor:
        tensor = STRIDED[kind]()
        return tensor.fill_(value)

    def expect(tensor: torch.Tensor, value: float) -> None:
        assert torch.equal(tensor, torch.full(tensor.shape, value)), (kind, tensor, value)
        if tensor._base is not None and kind in ("a column", "every other", "a part of a larger tensor"):
            assert tensor._base.count_nonzero() == tensor.count_nonzero()

    mine = make(rank + 1.0)
    dist.all_reduce(mine)
    expect(mine, 10)
    mine = make(rank + 1.0)
    dist.reduce(mine, dst=2)
    expect(mine, 10 if rank == 2 else rank + 1)
    mine = make(rank + 1.0)
    dist.broadcast(mine, src=1)
    expect(mine, 2)
    outputs = [make(0) for _ in range(world_size)]
    dist.all_gather(outputs, make(rank + 1.0))
    for other, output in enumerate(outputs):
        expect(output, other + 1)
    mine = make(0)
    dist.reduce_scatter(mine, [make(rank + 10.0 * block) for block in range(world_size)])
    expect(mine, 6 + 40 * rank)
    mine = make(0)
    dist.scatter(mine, [make(5.0 + other) for other in range(world_size)] if rank == 3 else None, src=3)
    expect(mine, 5 + rank)
    gathered = [make(0) for _ in range(world_size)] if rank == 0 else None
    dist.gather(make(rank + 1.0), gathered, dst=0)
    for other, output in enumerate(gathered or []):
        expect(output, other + 1)
    outputs = [make(0) for _ in range(world_size)]
    dist.all_to_all(outputs, [make(10.0 * rank + other) for other in range(world_size)])
    for other, output in enumerate(outputs):
        expect(output, 10 * other + rank)


@pytest.mark.parametrize("kind", STRIDED)
def test_tensors_of_any_stride_are_right_in_every_collective(world: World, kind: str):
    world.run(check_strides, kind)


def check_single_tensor_spellings() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    output = torch.zeros(world_size, 3)
    dist.all_gather_into_tensor(output, torch.full((3,), float(rank)))
    assert output[:, 1].tolist() == [0, 1, 2, 3]
    in_place = torch.zeros(world_size * 3)
    mine = in_place[3 * rank : 3 * rank + 3].fill_(rank)
    dist.all_gather_into_tensor(in_place, mine)
    assert in_place[::3].tolist() == [0, 1, 2, 3]
    block = torch.zeros(2)
    dist.reduce_scatter_tensor(block, torch.arange(8.0) + rank, op=ReduceOp.AVG)
    assert block.tolist() == [2 * rank + 1.5, 2 * rank + 2.5]
    source = torch.arange(8.0) + rank
    dist.reduce_scatter_tensor(source[2 * rank : 2 * rank + 2], source)
    assert source[2 * rank].item() == 8 * rank + 6
    output = torch.zeros(world_size)
    dist.all_to_all_single(output, torch.arange(4.0) + 10 * rank)
    assert output.tolist() == [rank, 10 + rank, 20 + rank, 30 + rank]
    splits = [1 + rank] * world_size
    uneven = torch.zeros(sum(1 + other for other in range(world_size)), 2, dtype=torch.int16)
    dist.all_to_all_single(
        uneven,
        torch.full((sum(splits), 2), rank, dtype=torch.int16),
        [1 + other for other in range(world_size)],
        splits,
    )
    assert uneven[:, 1].tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]


def test_the_spellings_with_single_tensors_agree_with_those_with_lists(world: World):
    world.run(check_single_tensor_spellings)


def check_coalesced() -> None:
    rank = dist.get_rank()
    tensors = [torch.full((size,), float(rank + 1)) for size in (3, 70_000, 0, 1)] + [torch.ones(2, dtype=torch.int64)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors[:-1]:
            dist.all_reduce(tensor)
    manager.wait()
    assert [tensor.sum().item() for tensor in tensors[:-1]] == [30, 700_000, 0, 10]
    dist.all_reduce_coalesced(tensors[:2], op=ReduceOp.MAX)
    outputs = [torch.zeros(4 * size) for size in (2, 5)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // 4,), float(rank)))
    assert [output[-1].item() for output in outputs] == [3, 3]
    blocks = [torch.zeros(2), torch.zeros(5)]
    with dist._coalescing_manager():
        for block in blocks:
            dist.reduce_scatter_tensor(block, torch.arange(4.0).repeat_interleave(block.numel()))
    assert [block[-1].item() for block in blocks] == [4 * rank, 4 * rank]


def test_coalesced_collectives_are_the_same_as_single_ones(world: World):
    world.run(check_coalesced)


def check_functional() -> None:
    rank = dist.get_rank()
    group = dist.group.WORLD
    mine = torch.full((4,), float(rank))
    assert functional.all_reduce(mine, "sum", group).tolist() == [6] * 4
    assert functional.all_gather_tensor(mine[:1], 0, group).tolist() == [0, 1, 2, 3]
    assert functional.reduce_scatter_tensor(mine, "avg", 0, group).tolist() == [1.5]
    assert functional.broadcast(mine, 2, group).tolist() == [2] * 4
    assert functional.all_to_all_single(mine, [1] * 4, [1] * 4, group).tolist() == [0, 1, 2, 3]
    assert [t.tolist() for t in functional.all_reduce_coalesced([mine, mine[:2]], "max", group)] == [[3] * 4, [3] * 2]


def test_functional_collectives_come_through_torchs_dispatcher(world: World):
    world.run(check_functional)


def check_objects() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    everything: list = [None] * world_size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank * 1000})
    assert [len(each["text"]) for each in everything] == [0, 1000, 2000, 3000]
    told = ["news", 7] if rank == 1 else [None, None]
    dist.broadcast_object_list(told, src=1)
    assert told == ["news", 7]
    mine: list = [None]
    dist.scatter_object_list(mine, [f"for {other}" for other in range(world_size)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]
    gathered = [None] * world_size if rank == 2 else None
    dist.gather_object(rank, gathered, dst=2)
    assert gathered in (None, [0, 1, 2, 3])
    dist.barrier()


def test_objects_travel_pickled(world: World):
    world.run(check_objects)


def check_pairs() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for size in (0, 1, 100_000):
        received = torch.zeros(size)
        works = [dist.isend(torch.full((size,), float(rank)), right), dist.irecv(received, left)]
        for work in works:
            work.wait()
        assert (received == left).all()
    if rank == 0:
        dist.send(torch.tensor([1, 2]), 3, tag=1)
        dist.send(torch.tensor([3, 4]), 3, tag=2)
    if rank == 3:
        first, second = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        late = dist.irecv(second, 0, tag=2)
        assert dist.recv(first, 0, tag=1) == 0
        late.wait()
        assert first.tolist() + second.tolist() == [1, 2, 3, 4]
    received = torch.zeros(2, 2).t()[0]
    operations = [dist.P2POp(dist.isend, torch.full((2,), rank + 1.0), left), dist.P2POp(dist.irecv, received, right)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received.tolist() == [right + 1] * 2


def test_pairs_of_ranks_send_and_receive_by_tag(world: World):
    world.run(check_pairs)


def check_many_at_once(seed: int) -> None:
    """Sizes are the same on all ranks, the moments of waiting are not."""
    rank = dist.get_rank()
    sizes = np.random.default_rng(seed).integers(0, 20_000, 100)
    tensors = [torch.full((int(size),), float(rank + index)) for index, size in enumerate(sizes)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for index in np.random.default_rng([seed, rank]).permutation(100):
        works[index].wait()
        assert works[index].is_completed()
        assert works[index].is_success()
    for index, tensor in enumerate(tensors):
        assert (tensor == 6 + 4 * index).all(), index


def test_a_hundred_collectives_under_way_at_once_are_all_right(world: World, seed: int):
    world.run(check_many_at_once, seed)


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


def check_groups() -> None:
    """Two groups side by side, a third one across them, each with a ring of its own."""
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    odd = dist.new_group([3, 1])
    mine = torch.full((1000,), float(rank))
    works = [dist.all_reduce(mine, group=halves[rank // 2], async_op=True)]
    across = torch.full((1000,), float(rank))
    if rank % 2:
        works.append(dist.all_reduce(across, group=odd, async_op=True))
    for work in works:
        work.wait()
    assert (mine == (1 if rank < 2 else 5)).all()
    assert (across == (4 if rank % 2 else rank)).all()
    told = torch.tensor([float(rank)])
    if rank % 2:
        dist.broadcast(told, src=3, group=odd)
        assert told.item() == 3
        dist.destroy_process_group(odd)
    dist.destroy_process_group(halves[rank // 2])
    alone = [dist.new_group([other]) for other in range(4)][rank]
    dist.all_reduce(told, group=alone)
    dist.barrier()


def test_subgroups_have_rings_of_their_own(world: World):
    world.run(check_groups)


def check_futures() -> None:
    rank = dist.get_rank()
    work = dist.all_reduce(torch.full((10,), float(rank)), async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert doubled.wait().tolist() == [12] * 10

    def nested(future: torch.futures.Future) -> torch.Tensor:
        total = future.value()[0]
        again = dist.all_reduce(total, async_op=True).get_future()
        return again.wait()[0]

    for _ in range(3):
        work = dist.all_reduce(torch.full((10,), float(rank)), async_op=True)
        assert work.get_future().then(nested).wait().tolist() == [24] * 10
    work.wait()
    assert work.get_future().value()[0].tolist() == [24] * 10


def test_a_callback_of_a_future_may_start_and_await_another_collective(world: World):
    world.run(check_futures)


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
    group = dist.new_group(timeout=timedelta(seconds=2))
    if dist.get_rank() == 2:
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
        assert message.startswith(("CollectiveTimeoutError", "PeerLostError")), message
        assert "rank 2" in message
