"""Tensors of any stride in every collective of torch.distributed, under every name that these have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tests.torch.world import World
from torch.distributed import ReduceOp

pytestmark = pytest.mark.live

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
