"""Entering a group, in the way that its machines ask for: one ring through the switch, or Parallel NetReduce as well.

Every rank says on which machine it is when it joins, so all of them know the layout, and prepare the same. Whether it
has worked is agreed on by an all-reduce: if one rank could not, all do without.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import numpy as np

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.machines import Machines
from netreduce.collectives.reductions import Reduction
from netreduce.errors import AdmissionError, ConfigurationError, NetReduceError
from netreduce.runtime.mates import Door, Mates, machine_name, meet
from netreduce.runtime.member import Home, Member
from netreduce.runtime.worker import Worker
from netreduce.wire.control import Geometry

logger = logging.getLogger("netreduce")

RING_NAME_MAX = 100


def enter(
    worker: Worker,
    group: str,
    rank: int,
    world_size: int,
    geometry: Geometry,
    timeout_s: float,
    tuning: Tuning = Tuning(),  # noqa: B008 (immutable)
    machine: str = "",
) -> Member:
    """Join `group` as `Worker.join` does; where several machines have several workers each, for Parallel NetReduce.

    `machine` names this process's machine; if it is empty, NETREDUCE_MACHINE does, or the kernel.
    """
    if tuning.machine_size != 1:
        raise ConfigurationError(
            f"machine_size is {tuning.machine_size}: leave it at 1, machines are found by themselves"
        )
    door = Door()
    try:
        home = Home(machine or machine_name(), door.address)
        member = worker.join(group, rank, world_size, geometry, timeout_s, tuning, home)
        machines = Machines.named([endpoint.machine for endpoint in member.endpoints])
        if machines.are_several_with_several:
            with _ending_later(member):
                _prepare(worker, member, machines, door)
        else:
            member.machines = machines
        member.short = worker.short_collectives(member)
        return member
    finally:
        door.close()


def prove(member: Member) -> None:
    """Run a barrier, which shows whether the network adds; see `describe`."""
    with _ending_later(member):
        member.run(lambda engine: engine.barrier())


@contextlib.contextmanager
def _ending_later(member: Member) -> Iterator[None]:
    """What ends the group is raised by the next call on it: other ranks may be ahead, and have failed in theirs."""
    try:
        yield
    except NetReduceError:
        if member.error is None:
            raise


def describe(member: Member) -> str:
    """Which scheme the group's reductions take, and whether the network was seen to add."""
    machines, engine = member.machines, member.engine
    assert engine is not None
    active = engine.statistics().in_network_active and (member.across is None or _is_active(member.across))
    layout = "" if machines is None else f" on {machines.describe()}"
    if member.across is None:
        scheme = "NetReduce, one ring through the switch"
    else:
        size = 0 if machines is None else machines.size
        scheme = f"Parallel NetReduce, {size} rings through the switch beside the one of all ranks"
    state = "ACTIVE" if active else "NOT PROVEN"
    return f"{member.world_size} ranks{layout}: {scheme}; in-network reduction is {state}"


def _is_active(member: Member) -> bool:
    return member.engine is not None and member.engine.statistics().in_network_active


def _prepare(worker: Worker, member: Member, machines: Machines, door: Door) -> None:
    """Meet the mates, join the ring across machines, and tell the engine. Raises what ends the group."""
    problem, across = "", None
    mates = Mates(member.rank)
    try:
        try:
            mates = _meet(member, machines, door)
        except NetReduceError as error:
            problem = str(error)
        if _all_agree(member, problem):
            try:
                across = join_across(worker, member, machines)
            except AdmissionError as error:
                problem = str(error)
            if _all_agree(member, problem) and across is not None:
                member.use_machines(machines, across, mates, worker.inbox)
                across.run(lambda engine: engine.barrier())
                return
    finally:
        if member.mates is not mates:
            mates.close()
    if across is not None:
        worker.leave(across)
    logger.warning("group %r: no Parallel NetReduce: %s", member.name, problem or "another rank could not prepare it")


def _meet(member: Member, machines: Machines, door: Door) -> Mates:
    def check() -> None:
        if member.error is not None:
            raise member.error

    assert member.ring_id is not None
    doors = {mate: member.endpoints[mate].door for mate in machines.mates(member.rank) if mate != member.rank}
    return meet(door, member.ring_id, member.rank, doors, check)


def join_across(worker: Worker, member: Member, machines: Machines, purpose: str = "host") -> Member:
    """A membership in the ring across machines. One for each `purpose`, so that their calls need no common order."""
    ranks = machines.across(member.rank)
    name = f"{member.name[-RING_NAME_MAX:]}/{member.ring_id}/{purpose} {ranks[0]}"
    return worker.join(name, ranks.index(member.rank), len(ranks), member.geometry, member.timeout_s)


def _all_agree(member: Member, problem: str) -> bool:
    """Whether no rank has a problem; raises the group's error if it has failed."""
    token = np.array([not problem], np.int32)
    member.run(lambda engine: engine.all_reduce(token, Reduction.MIN))
    return bool(token[0])
