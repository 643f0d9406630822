"""How the processes of a group meet at one switch: over torch's store, which every rank of a group can reach.

The group's rank 0 names the switch: the one of `netreduce run` (NETREDUCE_SWITCH), or the one that this process uses
already, or a new one that it starts. Each process plugs into a switch once, whatever the number of its groups.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import sys
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from netreduce.errors import CollectiveTimeoutError, ConfigurationError, NetReduceError
from netreduce.runtime.address import is_remote
from netreduce.runtime.embedded import SwitchProcess
from netreduce.runtime.groups import describe, enter, join_across, prove
from netreduce.runtime.member import Member
from netreduce.runtime.provider import RDMA, provider_named
from netreduce.runtime.solo import Solo
from netreduce.runtime.warmup import ensure_compiled
from netreduce.runtime.worker import Worker
from netreduce.torch.devices import DeviceReducer, InnerGroup
from netreduce.wire.control import RANKS_MAX, Geometry

SWITCH_VARIABLE = "NETREDUCE_SWITCH"
GROUP_NAME_MAX = 100


class Invitation(msgspec.Struct):
    """What rank 0 tells the others: where the switch is and how the group is called there, or why there is none."""

    host: str
    address: str = ""
    group: str = ""
    error: str = ""


@dataclass
class _Process:
    """This process's plugs and switches, and the machine that it was told to be on."""

    machine: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    workers: dict[str, Worker] = field(default_factory=dict)
    members: dict[str, list[Member]] = field(default_factory=dict)
    switches: dict[str, SwitchProcess] = field(default_factory=dict)


_process = _Process()


def connect(
    store: Store,
    group: str,
    rank: int,
    world_size: int,
    timeout: timedelta,
    provider: str | None = None,
    machine: str = "",
    switch: str = "",
) -> Member | Solo:
    """Enter `group` as `rank`: blocks until every rank has, at most `timeout`. A single rank needs no switch.

    `provider` is `Worker`'s; a process has one NIC, so that of its first group counts. `machine` names this process's
    machine, for later groups as well; without it, NETREDUCE_MACHINE or the kernel does. `switch` of rank 0 counts:
    ``HOST:PORT`` of a switch, instead of what NETREDUCE_SWITCH says.

    Raises `SwitchLostError` when there is no switch, `AdmissionError` when it refuses, `CollectiveTimeoutError` when
    ranks do not come, `ConfigurationError` when they are on different machines.
    """
    if world_size == 1:
        return Solo(Geometry())
    if world_size > RANKS_MAX:
        raise ConfigurationError(f"the group has {world_size} ranks, at most {RANKS_MAX} fit into a ring")
    if provider_named(provider) != RDMA:
        ensure_compiled(_say if rank == 0 else None)
    invitation = _invitation(store, group, rank, switch, timeout)
    with _process.lock:
        worker = _process.workers.get(invitation.address)
        if worker is None:
            worker = _process.workers[invitation.address] = Worker(invitation.address, f"rank {rank}", provider)
            if worker.words:
                _say(f"rank {rank} {worker.words}")
        _process.machine = machine = machine or _process.machine
    geometry, timeout_s = Geometry(path_mtu=worker.path_mtu), timeout.total_seconds()
    member = enter(worker, invitation.group, rank, world_size, geometry, timeout_s, machine=machine)
    prove(member)
    with _process.lock:
        is_first = not _process.members.get(invitation.address)
        _process.members.setdefault(invitation.address, []).append(member)
    if rank == 0 and is_first:
        _say(describe(member))
    return member


def device_reducer(member: Member | Solo, store: Store, inner_group: InnerGroup | None = None) -> DeviceReducer | None:
    """What reduces tensors in device memory by Parallel NetReduce, if there are devices, and machines for it.

    `inner_group` is NCCL's unless it is given.
    """
    if inner_group is None and torch.cuda.is_available() and dist.is_nccl_available():
        inner_group = dist.ProcessGroupNCCL  # type: ignore[assignment]  # the stubs know one of its constructors
    if inner_group is None or isinstance(member, Solo) or member.across is None:
        return None
    with _process.lock:
        worker = next(_process.workers[address] for address, members in _process.members.items() if member in members)
    return DeviceReducer(member, partial(_join_for_devices, worker, member), store, inner_group)


def _join_for_devices(worker: Worker, member: Member) -> Member:
    assert member.machines is not None
    across = join_across(worker, member, member.machines, "device")
    member.adopt(across, member.machines.across(member.rank))
    return across


def leave(member: Member | Solo) -> None:
    """Leave the member's group; with the last one, unplug."""
    if isinstance(member, Solo):
        return
    with _process.lock:
        address = next((key for key, members in _process.members.items() if member in members), None)
        if address is None:
            return
        worker = _process.workers[address]
        _process.members[address].remove(member)
        is_last = not _process.members[address]
        if is_last:
            del _process.members[address], _process.workers[address]
    if is_last:
        worker.close()
        switch = _process.switches.pop(address, None)
        if switch is not None:
            switch.release()
    else:
        worker.leave(member)


@atexit.register
def leave_all() -> None:
    """At exit, leave what the user has not destroyed, so that other ranks hear of a departure and not of a death."""
    for members in list(_process.members.values()):
        for member in list(members):
            leave(member)


def _say(text: str) -> None:
    print(f"netreduce: {text}", file=sys.stderr, flush=True)


def _invitation(store: Store, group: str, rank: int, switch: str, timeout: timedelta) -> Invitation:
    """Where the group's ranks meet, as rank 0 says through `store`; raises when this rank cannot go there."""
    # A later group of the same name must not read this one's invitation, so each is numbered.
    number = store.add(f"netreduce/{rank}/count", 1)
    key = f"netreduce/{number}/invitation"
    if rank == 0:
        invitation = _invite(group, switch)
        store.set(key, msgspec.json.encode(invitation).decode())
    else:
        invitation = _await_invitation(store, key, timeout)
    if invitation.error:
        raise NetReduceError(f"rank 0 has no switch: {invitation.error}")
    if invitation.host != socket.gethostname() and not is_remote(invitation.address):
        raise ConfigurationError(
            f"rank 0 is on host {invitation.host}, rank {rank} on {socket.gethostname()}: "
            "the embedded switch connects processes of one machine; NETREDUCE_SWITCH=HOST:PORT names one between them"
        )
    return invitation


def _invite(group: str, switch: str) -> Invitation:
    host = socket.gethostname()
    try:
        address = switch or os.environ.get(SWITCH_VARIABLE) or next(iter(_process.workers), None) or _start_switch()
    except NetReduceError as error:
        return Invitation(host, error=str(error))
    return Invitation(host, address, f"{group[-GROUP_NAME_MAX:]}/{secrets.token_hex(4)}")


def _start_switch() -> str:
    switch = SwitchProcess()
    _process.switches[switch.address] = switch
    return switch.address


def _await_invitation(store: Store, key: str, timeout: timedelta) -> Invitation:
    try:
        store.wait([key], timeout)
    except RuntimeError as error:
        seconds = timeout.total_seconds()
        raise CollectiveTimeoutError(f"rank 0 did not enter the group within {seconds:g} s: {error}") from error
    return msgspec.json.decode(store.get(key), type=Invitation)
