"""The process group of a single rank, and the names under which any version of torch calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp, Work

from netreduce.torch.process_group import ProcessGroupNetReduce
from netreduce.torch.work import WorkNetReduce


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ProcessGroup]:
    """A world of one rank, which needs neither switch nor cable."""
    dist.init_process_group("netreduce", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_single_rank_reduces_with_itself(alone: ProcessGroup):
    for op, expected in ((ReduceOp.SUM, 3), (ReduceOp.AVG, 3), (dist._make_nccl_premul_sum(2.0), 6)):
        tensor = torch.full((7,), 3.0)
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [expected] * 7


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # torch renames, the older names must go on
def test_a_single_rank_moves_data_to_itself(alone: ProcessGroup):
    source, target = torch.arange(6.0).reshape(2, 3).t(), torch.zeros(3, 2)
    dist.all_gather([target], source)
    assert torch.equal(target, source)
    for move in (dist.all_gather_into_tensor, dist.reduce_scatter_tensor, dist.all_to_all_single):
        target = torch.zeros(3, 2)
        move(target, source)
        assert torch.equal(target, source)
    dist.broadcast(target, 0)
    dist.reduce(target, 0)
    dist.barrier()
    everything = [None]
    dist.all_gather_object(everything, "me")
    assert everything == ["me"]


def test_ddp_trains_on_a_single_rank(alone: ProcessGroup):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.ones(2, 3)).sum().backward()
    assert model.module.weight.grad.tolist() == [[2, 2, 2]]


def test_a_work_that_is_done_says_so(alone: ProcessGroup):
    tensor = torch.ones(2, 2).t()
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor
    assert work.get_future().wait() == [tensor]


def test_a_mistake_of_the_network_is_raised_by_the_work_and_by_its_future(alone: ProcessGroup):
    work = alone.send([torch.ones(1)], 0, 0)
    with pytest.raises(ValueError, match="peer"):
        work.wait()
    assert not work.is_success()
    assert "peer" in str(work.exception())
    with pytest.raises(RuntimeError, match="peer"):
        work.get_future().wait()


COLLECTIVES = {
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "gather", "scatter",
    "reduce_scatter", "alltoall", "send", "recv", "recv_anysource", "barrier",
}  # fmt: skip
RENAMED = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}
"""Names up to torch 2.12, and those of torch 2.13."""


def test_every_collective_is_there_under_its_older_and_its_newer_name():
    ours = vars(ProcessGroupNetReduce)
    assert ours.keys() >= COLLECTIVES
    for older, newer in RENAMED.items():
        assert ours[older] is ours[newer]


def test_torch_has_no_collective_that_the_group_does_not_know():
    management = {
        "abort", "bound_device_id", "boxed", "get_group_store", "group_desc", "group_name", "merge_remote_group",
        "monitored_barrier", "name", "rank", "set_timeout", "shutdown", "size", "split_group", "unbox",
        "use_pg_for_symm_mem_rendezvous", "BackendType",
    }  # fmt: skip
    public = {name for name in dir(ProcessGroup) if not name.startswith("_") and not name.isupper()}
    assert public - management - COLLECTIVES - RENAMED.keys() - set(RENAMED.values()) == set()


def test_work_answers_all_that_torch_asks_on_the_host():
    streams = {"block_current_stream"}
    questions = {name for name in dir(Work) if not name.startswith("_")} - streams - {"boxed", "unbox"}
    assert questions - vars(WorkNetReduce).keys() == {"source_rank", "get_future_result"}
