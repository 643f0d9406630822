"""Collectives that overlap: many at once, in several groups, and in callbacks of futures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.torch.world import World

pytestmark = pytest.mark.live


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


def check_asynchronous() -> None:
    """The call returns at once, whoever has called already; so communication overlaps what the caller does next."""
    tensor, strided = torch.ones(100_000), torch.ones(100, 2)[:, 0]
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if dist.get_rank() == 3:
        store.wait([f"rank {rank} has called" for rank in range(3)])
    works = [dist.all_reduce(each, async_op=True) for each in (tensor, strided)]
    if dist.get_rank() != 3:
        assert not works[0].is_completed()
        assert (tensor[-1], strided[0]) == (1, 1)
        store.set(f"rank {dist.get_rank()} has called", "")
    for work in works:
        work.wait()
    assert (tensor == 4).all()
    assert (strided == 4).all()


def test_a_collective_returns_before_the_others_have_called_it(world: World):
    world.run(check_asynchronous)


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
