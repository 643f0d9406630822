"""What a user of torch reads when a collective fails: by `all_reduce`, by ``async_op=True`` and `wait`, and in DDP."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.world import World, await_all

from netreduce.errors import NetReduceError
from netreduce.torch import rendezvous

pytestmark = pytest.mark.live

Call = Callable[[torch.Tensor, Any], object]
Told = dict[str, tuple[str, str]]
"""By way of calling: the exception's class, and what it says."""
PATIENT, SHORT = timedelta(seconds=30), timedelta(seconds=4)
ODD, DYING = 1, 3
RING = r"group '[^']+' \(ring \d+\)"
HERE = rf"{RING}: all_reduce #2"


def too_late(reason: str) -> str:
    """What a rank hears that was slow to call."""
    return rf"{RING}: {reason} \(all_reduce #2 was called after that\)"


def blocking(tensor: torch.Tensor, group: Any) -> None:
    dist.all_reduce(tensor, group=group)


def awaited(tensor: torch.Tensor, group: Any) -> None:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    with pytest.raises(NetReduceError) as raised:
        work.wait()
    assert (work.is_completed(), work.is_success(), work.exception()) == (True, False, raised.value)
    raise raised.value


class Product(torch.nn.Module):
    """A model of one parameter, like the given tensor."""

    def __init__(self, like: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros_like(like))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.weight * rows).sum()


def in_backward(tensor: torch.Tensor, group: Any) -> None:
    model = torch.nn.parallel.DistributedDataParallel(Product(tensor), process_group=group, init_sync=False)
    model(tensor).backward()


WAYS: dict[str, Call] = {"all_reduce": blocking, "async_op": awaited, "DDP": in_backward}


def caught(call: Call, tensor: torch.Tensor, group: Any) -> tuple[str, str]:
    try:
        call(tensor, group)
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return "no error", str(tensor)


def groups_of(ranks: range, timeout: timedelta) -> dict[str, Any]:
    """A group of its own for each way, with one all-reduce behind it."""
    groups = {way: dist.new_group(list(ranks), timeout=timeout) for way in WAYS}
    for group in groups.values():
        if dist.get_rank() in ranks:
            dist.all_reduce(torch.ones(1), group=group)
    return groups


def told_in(groups: dict[str, Any], ranks: range, calls: dict[str, Call], tensor: torch.Tensor) -> Told:
    """What calls of all ways raise, at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        running = {way: pool.submit(caught, call, tensor, groups[way]) for way, call in calls.items()}
        told = {way: future.result() for way, future in running.items()}
    await_all(f"has heard {groups['DDP'].group_name}", ranks)  # else the others would hear of our departure
    return told


def fail(kind: str) -> Told:
    """In groups of all ranks, one of which is at odds with the others."""
    everybody, is_odd = range(dist.get_world_size()), dist.get_rank() == ODD
    groups = groups_of(everybody, SHORT if kind == "late" else PATIENT)
    calls, length, dtype = dict(WAYS), 8, torch.float32
    if is_odd and kind == "late":
        calls = {}
    elif is_odd and kind == "order":
        calls = dict.fromkeys(WAYS, lambda tensor, group: dist.broadcast(tensor, 0, group=group))
    elif is_odd and kind == "shape":
        length = 9
    elif is_odd and kind == "dtype":
        dtype = torch.float64
    if calls:
        told = told_in(groups, everybody, calls, torch.ones(length, dtype=dtype))
    else:
        await_all(f"has heard {groups['DDP'].group_name}", everybody)
        told = {}
    for group in groups.values():
        dist.destroy_process_group(group)
    return told


def require(told: Told, kind: str, *texts: str) -> None:
    """The exception is a `kind`, and all that it says is one of these; torch's C++ shows both in a RuntimeError."""
    pattern = "|".join(f"(?:{text})" for text in texts)
    for way, (name, text) in told.items():
        if way == "DDP" and name == "RuntimeError":
            found = re.match(rf"Got the following error when running the callback: {kind}: (.*)$", text, re.MULTILINE)
            assert found, (way, text)
            name, text = kind, found[1]
        assert name == kind, (way, name, text)
        assert re.fullmatch(pattern, text), (way, text)


SIDES = (
    r"rank (?:1 sent {odd}, only message, rank [023] sent {even}|[023] sent {even}, only message, rank 1 sent {odd})"
)


@pytest.mark.parametrize(
    ("kind", "odd"), [("shape", "float32 sum, 36 bytes"), ("dtype", "float64 sum, 64 bytes")], ids=["shape", "dtype"]
)
def test_tensors_that_differ_between_ranks_are_described_on_all_of_them(world: World, kind: str, odd: str):
    sides = SIDES.format(odd=odd, even="float32 sum, 32 bytes")
    reason = rf"ranks disagree about message 2: {sides}, only message"
    for told in world.run(fail, kind):
        require(told, "MismatchError", f"{HERE}: {reason}", too_late(reason))


def test_calls_in_different_order_are_named_on_all_ranks(world: World):
    reason = (
        r"ranks disagree: rank 0 called all_reduce float32 sum as #2, rank 1 called broadcast float32 root 0|"
        r"ranks disagree: rank 1 called broadcast float32 root 0 as #2, rank [23] called all_reduce float32 sum"
    )
    for rank, told in enumerate(world.run(fail, "order")):
        here = HERE.replace("all_reduce", "broadcast") if rank == ODD else HERE
        require(told, "MismatchError", f"{here}: (?:{reason})")


def test_a_rank_that_does_not_call_is_named_when_time_is_up(world: World):
    for rank, told in enumerate(world.run(fail, "late")):
        if rank != ODD:
            require(told, "CollectiveTimeoutError", rf"{HERE}: not done after 4 s; rank 1 had not sent message 2")


GROUPS: dict[str, dict[str, Any]] = {}


def make_groups() -> int:
    """Groups of all ranks, and of those that survive; this process's id."""
    GROUPS.update(all=groups_of(range(DYING + 1), PATIENT), survivors=groups_of(range(DYING), PATIENT))
    return os.getpid()


def die() -> Told:
    await_all("before the death", range(DYING + 1))
    if dist.get_rank() == DYING:
        os.kill(os.getpid(), signal.SIGKILL)
    return told_in(GROUPS["all"], range(DYING), WAYS, torch.ones(8))


def lose_the_switch() -> Told:
    await_all("before the end of the switch", range(DYING))
    if dist.get_rank() == 0:
        (switch,) = rendezvous._process.switches.values()
        switch._process.kill()
    calls: dict[str, Call] = {way: partial(until_it_fails, call) for way, call in WAYS.items()}
    return told_in(GROUPS["survivors"], range(DYING), calls, torch.ones(8))


def until_it_fails(call: Call, tensor: torch.Tensor, group: Any) -> None:
    while True:
        call(tensor.clone(), group)


def test_a_killed_rank_and_then_a_killed_switch_are_named_on_all_others(tmp_path: Path):
    world = World(DYING + 1, tmp_path)
    try:
        pid = world.run(make_groups)[DYING]
        reason = rf"rank 3 was lost: process {pid} is gone: .+"
        for told in world.run(die, dying=DYING):
            require(told, "PeerLostError", f"{HERE}: {reason}", too_late(reason))
        for told in world.run(lose_the_switch):
            reason = r"the switch at local:netreduce-\w+ is gone: .+"
            require(told, "SwitchLostError", rf"{RING}: (all_reduce #\d+: )?{reason}")
    finally:
        world.close()
