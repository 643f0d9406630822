"""A process group on two pretended machines of two workers: Parallel NetReduce for host tensors and device tensors.

There is no device here: the reducer for device tensors is given gloo as the process group inside a machine, and tensors
in host memory, which take the same way.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import World, await_all

from netreduce.collectives.reductions import Reduction
from netreduce.errors import MismatchError, PeerLostError, UnsupportedError
from netreduce.runtime.member import Member
from netreduce.torch.devices import DeviceReducer
from netreduce.torch.rendezvous import device_reducer
from netreduce.torch.tensors import ScaledReduction, reduction

pytestmark = pytest.mark.live
MACHINES = ("left", "left", "right", "right")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two machines of two ranks."""
    world = World(4, tmp_path_factory.mktemp("machines"), MACHINES)
    yield world
    world.close()


def membership(group: Any = None) -> Member:
    group = group or dist.distributed_c10d._get_default_group()
    member = group._membership
    assert isinstance(member, Member)
    return member


def check_parallel() -> int:
    member = membership()
    assert member.machines is not None
    assert member.machines.members == ((0, 1), (2, 3))
    tensor = torch.full((20_001,), 10.0 ** dist.get_rank())
    before = member.engine.statistics().shared_bytes_sent  # type: ignore[union-attr]
    dist.all_reduce(tensor)
    assert (tensor == 1111).all()
    return member.engine.statistics().shared_bytes_sent - before  # type: ignore[union-attr]


def test_host_tensors_are_reduced_in_parallel_without_being_asked(machines: World):
    assert sum(machines.run(check_parallel)) == 4 * 80_004


@cache
def reducer_with_gloo() -> DeviceReducer:
    reducer = device_reducer(membership(), dist.distributed_c10d._get_default_store(), dist.ProcessGroupGloo)
    assert reducer is not None
    return reducer


def check_device_way() -> None:
    reducer = reducer_with_gloo()
    rank = dist.get_rank()
    cases = [
        (dist.ReduceOp.SUM, torch.float32, 1111),
        (dist.ReduceOp.AVG, torch.float64, 1111 / 4),
        (dist.ReduceOp.MAX, torch.int64, 1000),
        (dist.ReduceOp.MIN, torch.int32, 1),
    ]
    futures, results = [], []
    for op, dtype, expected in cases:
        for shape in ((1,), (7, 3), (2, 500)):
            tensor = torch.full(shape, 10**rank, dtype=dtype)
            futures.append(reducer.all_reduce(tensor, reduction(dtype, op, 4)))
            results.append((tensor, expected))
        host = torch.ones(1000)
        dist.all_reduce(host)  # of host tensors, in between
        assert (host == 4).all()
    for future in futures:
        future.result(20)
    for tensor, expected in results:
        assert (tensor == expected).all(), (tensor, expected)
    strided = torch.full((10, 2), float(rank))[:, 0]
    reducer.all_reduce(strided, ScaledReduction(Reduction.SUM, factor=0.5)).result(20)
    assert (strided == 3).all()
    with pytest.raises(UnsupportedError, match="BITWISE_XOR is not supported on cpu; there are SUM"):
        reducer.all_reduce(strided, ScaledReduction(Reduction.BITWISE_XOR))


def test_device_tensors_take_the_inner_group_and_the_ring_across_machines(machines: World):
    machines.run(check_device_way)


def check_mismatch() -> str:
    group = dist.new_group([0, 1, 2, 3])
    tensor = torch.ones(1000 - 8 * (dist.get_rank() == 1))
    with pytest.raises(MismatchError) as raised:
        dist.all_reduce(tensor, group=group)
    return str(raised.value)


def test_a_mismatch_inside_a_machine_is_named_on_all_ranks(machines: World):
    for text in machines.run(check_mismatch):
        assert "rank 0 called all_reduce of" in text
        assert "rank 1 called all_reduce of" in text


def check_death() -> list[str]:
    reducer = reducer_with_gloo()
    reducer.all_reduce(torch.ones(100), ScaledReduction(Reduction.SUM)).result(20)
    await_all("before the death", range(4))
    if dist.get_rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    on_device = reducer.all_reduce(torch.ones(100_000), ScaledReduction(Reduction.SUM))
    with pytest.raises(PeerLostError) as host:
        dist.all_reduce(torch.ones(100_000))
    with pytest.raises(PeerLostError) as device:
        on_device.result(20)
    reducer.close()
    return [str(host.value), str(device.value)]


def test_the_death_of_a_rank_is_news_to_all_whatever_they_wait_for(machines: World):
    for texts in machines.run(check_death, dying=3):
        for text in texts:
            assert "rank 3 was lost" in text
