"""DistributedDataParallel, FSDP2 and ZeRO over the backend train as one process with all the data would."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import World
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.live

STEPS = 4
ROWS = 8
"""Rows of data per rank and step."""


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 300), nn.ReLU(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 4))


def batches(rows: int = ROWS) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """For every step, each rank's inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield [
            (torch.randn(rows, 16, generator=generator), torch.randn(rows, 4, generator=generator))
            for _ in range(dist.get_world_size())
        ]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, whole: bool = False) -> None:
    """Train on this rank's rows, or on the `whole` batch."""
    for shares in batches():
        picked = shares if whole else [shares[dist.get_rank()]]
        inputs, targets = (torch.cat(parts) for parts in zip(*picked, strict=True))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def trained_alone() -> list[Tensor]:
    """The parameters that one process reaches with all the data."""
    model = network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), whole=True)
    return [parameter.detach() for parameter in model.parameters()]


def check_parameters(model: nn.Module, tolerance: float = 1e-5) -> None:
    """They are those of `trained_alone`, and the same bits on all ranks."""
    for mine, expected in zip(model.parameters(), trained_alone(), strict=True):
        torch.testing.assert_close(mine.detach(), expected, rtol=tolerance, atol=tolerance)
        everywhere = [torch.empty_like(mine.detach()) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, mine.detach())
        assert all(torch.equal(other, mine) for other in everywhere)


def check_ddp(options: dict[str, Any]) -> None:
    model = DistributedDataParallel(network(dist.get_rank()), **options)  # rank 0's parameters are broadcast
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    check_parameters(model)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small buckets": {"bucket_cap_mb": 0.05},
    "gradients as views of buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.05},
    "static graph": {"static_graph": True},
    "unused parameters are looked for": {"find_unused_parameters": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_ddp_reaches_the_parameters_that_one_process_reaches(world: World, options: dict[str, Any]):
    world.run(check_ddp, options)


def bfloat16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """torch's own hook, which torch refuses by its name to all but two backends."""
    return default_hooks.bf16_compress_hook(state, bucket)


HOOKS: dict[str, tuple[Callable[..., Any], float]] = {
    "float16": (default_hooks.fp16_compress_hook, 1e-3),
    "bfloat16": (bfloat16_hook, 1e-2),
    "all-reduce": (default_hooks.allreduce_hook, 1e-5),
}


def check_hook(name: str) -> None:
    hook, tolerance = HOOKS[name]
    model = DistributedDataParallel(network(), bucket_cap_mb=0.05)
    model.register_comm_hook(None, hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    check_parameters(model, tolerance)


@pytest.mark.parametrize("name", HOOKS)
def test_communication_hooks_work_on_buckets(world: World, name: str):
    world.run(check_hook, name)


def check_power_sgd() -> None:
    """A hook whose callbacks start collectives of their own, and wait for them; one bucket, so their order is one."""
    model = DistributedDataParallel(network())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=8, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    check_same_everywhere(model)


def check_same_everywhere(model: nn.Module) -> None:
    for parameter in model.parameters():
        everywhere = [torch.empty_like(parameter.detach()) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, parameter.detach())
        assert all(torch.equal(other, parameter) for other in everywhere)


def test_hooks_may_start_collectives_in_callbacks(world: World):
    world.run(check_power_sgd)


def check_bfloat16_model() -> None:
    model = DistributedDataParallel(network().to(torch.bfloat16))
    for shares in batches():
        inputs, targets = (tensor.to(torch.bfloat16) for tensor in shares[dist.get_rank()])
        nn.functional.mse_loss(model(inputs), targets).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    for gradient in gradients:
        total = gradient.clone()
        dist.all_reduce(total)
        assert torch.equal(total, 4 * gradient)


def test_a_model_in_bfloat16_has_the_same_gradients_everywhere(world: World):
    world.run(check_bfloat16_model)


def check_loader() -> None:
    """A data loader forks, and its children end without the group's taking notice."""
    model = DistributedDataParallel(nn.Linear(4, 1))
    rows = torch.arange(32.0).reshape(8, 4)
    for _ in range(2):
        for batch in torch.utils.data.DataLoader(rows, batch_size=2, num_workers=2, multiprocessing_context="fork"):
            model(batch).sum().backward()
    assert torch.equal(model.module.weight.grad, 2 * rows.sum(0, keepdim=True))


def test_forked_workers_of_a_data_loader_leave_the_group_alone(world: World):
    world.run(check_loader)


def check_no_sync() -> None:
    """Gradients gathered over two steps without communication are those of the two steps with it."""
    model = DistributedDataParallel(network())
    reference = DistributedDataParallel(network())
    first, second = list(batches())[:2]
    mine = [shares[dist.get_rank()] for shares in (first, second)]
    with model.no_sync():
        nn.functional.mse_loss(model(mine[0][0]), mine[0][1]).backward()
    nn.functional.mse_loss(model(mine[1][0]), mine[1][1]).backward()
    for inputs, targets in mine:
        nn.functional.mse_loss(reference(inputs), targets).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_no_sync_gathers_gradients_until_the_next_step_that_communicates(world: World):
    world.run(check_no_sync)


class Branches(nn.Module):
    """Every rank takes a branch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(16, 4, bias=False) for _ in range(4))
        for branch in self.branches:
            nn.init.ones_(branch.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.branches[dist.get_rank()](inputs)


def check_branches() -> None:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    model(torch.full((1, 16), float(dist.get_rank() + 1))).sum().backward()
    for rank, branch in enumerate(model.module.branches):
        assert (branch.weight.grad == (rank + 1) / 4).all()


def test_parameters_that_a_rank_does_not_use_get_the_others_gradients(world: World):
    world.run(check_branches)


def check_join() -> int:
    """Ranks with more batches go on while those that have finished shadow their collectives."""
    model = DistributedDataParallel(nn.Linear(4, 1))
    steps = 0
    with Join([model]):
        for _ in range(2 + dist.get_rank()):
            model(torch.ones(1, 4)).sum().backward()
            steps += 1
    return steps


def test_ranks_with_fewer_batches_may_join(world: World):
    assert world.run(check_join) == [2, 3, 4, 5]


def check_fsdp2() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = network()
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for shard, expected in zip(model.parameters(), trained_alone(), strict=True):
        torch.testing.assert_close(shard.full_tensor().detach(), expected, rtol=1e-5, atol=1e-5)


def test_fsdp2_reaches_the_parameters_that_one_process_reaches(world: World):
    world.run(check_fsdp2)


def check_fsdp1() -> None:
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    norm = torch.stack([parameter.norm() for parameter in trained_alone()]).norm()
    total = sum(parameter.detach().square().sum() for parameter in model.parameters())
    dist.all_reduce(total)
    torch.testing.assert_close(total.sqrt(), norm, rtol=1e-4, atol=1e-4)


def test_the_older_fsdp_reaches_parameters_of_the_same_norm(world: World):
    world.run(check_fsdp1)


def check_mesh() -> None:
    """Shards within pairs, copies across: two dimensions of groups."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    model = network()
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for shard, expected in zip(model.parameters(), trained_alone(), strict=True):
        torch.testing.assert_close(shard.full_tensor().detach(), expected, rtol=1e-5, atol=1e-5)


def test_hybrid_sharding_uses_the_groups_of_a_mesh(world: World):
    world.run(check_mesh)


def check_zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # its import warns of torch's own deprecations

    model = DistributedDataParallel(network())
    twin = copy.deepcopy(model.module)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    train(model, optimizer)
    train(twin, torch.optim.Adam(twin.parameters(), lr=0.01), whole=True)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    check_same_everywhere(model)


def test_zero_shards_the_optimizer(world: World):
    world.run(check_zero)
