"""From a call's arguments to what must be run: checked arrays, schedules, scratch. Nothing here touches the network.

Whatever is chosen follows from the arguments alone, so that all ranks choose the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from netreduce.collectives import innetwork, ring
from netreduce.collectives.algorithms import IN_NETWORK, Algorithm, HostPlan, Tuning
from netreduce.collectives.arrays import blocks, flat
from netreduce.collectives.fingerprint import Kind
from netreduce.collectives.machines import Machines
from netreduce.collectives.memory import Memory
from netreduce.collectives.reductions import Reduction, ReductionPlan, check_dtype, divide, plan_reduction
from netreduce.collectives.schedule import INPUT, OUTPUT, Receive, Round, Schedule, Send, Span
from netreduce.errors import ConfigurationError, NetReduceError, UnsupportedError

Arrays: TypeAlias = np.ndarray | Sequence[np.ndarray]
"""One block per rank: a single array that is cut into them, or one array for each rank."""


@dataclass(slots=True)
class Call:
    """One collective call, ready to run."""

    kind: Kind
    dtype: np.dtype
    memory: dict[str, Memory]
    schedules: tuple[Schedule, ...] = ()
    op: Reduction | None = None
    root: int | None = None
    way: str = ""  # one of `fingerprint.WAYS`
    plan: ReductionPlan | None = None
    aggregates: bool = False  # whether the schedule gives its data to the switch
    across: bool = False  # whether it does so in the ring across machines, and gives data to peers, too
    at_end: Callable[[], None] | None = None  # what the host does with the result
    ring_bytes: float = 0.0  # what this rank would send if an in-network call went round a ring

    @property
    def memory_bytes(self) -> int:
        """Bytes of the longest of its arrays."""
        return max((memory.array.nbytes for memory in self.memory.values()), default=0)

    def add_scratch(self, hosts: HostPlan) -> None:
        """Allocate what schedules between hosts need."""
        self.memory.update({name: Memory(np.empty(count, hosts.dtype)) for name, count in hosts.scratch.items()})


class Caller:
    """Plans the calls of one rank. `algorithm` is the group's; a call may ask for another one."""

    def __init__(self, rank: int, world_size: int, algorithm: Algorithm, tuning: Tuning) -> None:
        self.rank = rank
        self.world_size = world_size
        self.algorithm = algorithm
        self.tuning = tuning
        self.machines = Machines.regular(world_size, tuning.machine_size)
        self._has_ring_of_all = tuning.machine_size == 1

    def all_reduce(self, array: np.ndarray, op: int, out: np.ndarray | None, algorithm: Algorithm | None) -> Call:
        op = Reduction(op)
        plan = plan_reduction(array.dtype, op, self.world_size)
        source, target, memory = self._in_and_out(array, out, plan, written=True)
        call = Call(Kind.ALL_REDUCE, array.dtype, memory, op=op, plan=plan)
        if self._in_network(call, algorithm):
            self._through_the_switch(call, source, target, algorithm)
            call.ring_bytes = 2 * (self.world_size - 1) / self.world_size * array.nbytes
            return call
        self._between_ranks(call, source, target, algorithm)
        call.at_end = partial(divide, plan, memory[target.buffer].array)
        return call

    def reduce(
        self, array: np.ndarray, root: int, op: int, out: np.ndarray | None, algorithm: Algorithm | None
    ) -> Call:
        self._check_rank(root, "root")
        at_root = self.rank == root
        plan = plan_reduction(array.dtype, Reduction(op), self.world_size)
        source, target, memory = self._in_and_out(array, out if at_root else None, plan, written=at_root)
        call = Call(Kind.REDUCE, array.dtype, memory, op=Reduction(op), root=root, plan=plan)
        if self._in_network(call, algorithm):
            call.schedules = (innetwork.reduce(self.rank, self.world_size, source, target, root),)
            call.ring_bytes = 0 if at_root else array.nbytes
            return call
        hosts = self._hosts(plan.element)
        call.schedules = hosts.reduce(source, target, root)
        call.add_scratch(hosts)
        call.at_end = partial(divide, plan, memory[target.buffer].array) if at_root else None
        return call

    def reduce_scatter(self, sources: Arrays, target: np.ndarray, op: int, algorithm: Algorithm | None) -> Call:
        plan = plan_reduction(target.dtype, Reduction(op), self.world_size)
        memory, spans = blocks(INPUT, sources, target.dtype, plan.element, self.world_size, written=False)
        memory[OUTPUT] = flat(target, target.dtype, plan.element, written=True)
        result = memory[OUTPUT].whole(OUTPUT)
        _check_equal(spans[self.rank], result, "target")
        call = Call(Kind.REDUCE_SCATTER, target.dtype, memory, op=Reduction(op), plan=plan)
        if self._in_network(call, algorithm):
            call.schedules = (innetwork.reduce_scatter(self.rank, self.world_size, spans, result),)
            others = sum(span.count for rank, span in enumerate(spans) if rank != self.rank)
            call.ring_bytes = others * plan.element.itemsize
            return call
        hosts = self._hosts(plan.element)
        call.schedules = hosts.reduce_scatter(spans, result)
        call.add_scratch(hosts)
        call.at_end = partial(divide, plan, memory[OUTPUT].array)
        return call

    def barrier(self, algorithm: Algorithm | None) -> Call:
        """Every rank gives a 1 and must get the world size."""
        plan = plan_reduction(np.dtype(np.int32), Reduction.SUM, self.world_size)
        token = np.ones(self.tuning.machine_size, np.int32)  # one for each ring
        memory = {INPUT: Memory(token)}
        span = memory[INPUT].whole(INPUT)
        call = Call(Kind.BARRIER, token.dtype, memory, op=Reduction.SUM, plan=plan)
        if self._in_network(call, algorithm):
            self._through_the_switch(call, span, span, Algorithm.NETREDUCE)
        else:
            self._between_ranks(call, span, span, algorithm)
        call.at_end = partial(self._check_token, token)
        return call

    def broadcast(self, array: np.ndarray, root: int) -> Call:
        self._check_rank(root, "root")
        dtype = check_dtype(array.dtype)
        memory = {INPUT: flat(array, dtype, dtype, written=self.rank != root)}
        call = Call(Kind.BROADCAST, dtype, memory, root=root)
        call.schedules = self._hosts(dtype).broadcast(memory[INPUT].whole(INPUT), root)
        return call

    def all_gather(self, source: np.ndarray, targets: Arrays) -> Call:
        dtype = check_dtype(source.dtype)
        memory, spans = blocks(OUTPUT, targets, dtype, dtype, self.world_size, written=True)
        memory[INPUT] = flat(source, dtype, dtype, written=False)
        given = memory[INPUT].whole(INPUT)
        _check_equal(spans[self.rank], given, "source")
        call = Call(Kind.ALL_GATHER, dtype, memory)
        call.schedules = self._hosts(dtype).all_gather(given, spans)
        return call

    def gather(self, source: np.ndarray, targets: Arrays | None, root: int) -> Call:
        dtype = check_dtype(source.dtype)
        memory, spans = self._at_root(OUTPUT, targets, dtype, root, written=True)
        memory[INPUT] = flat(source, dtype, dtype, written=False)
        given = memory[INPUT].whole(INPUT)
        if spans:
            _check_equal(spans[root], given, "source")
        return Call(Kind.GATHER, dtype, memory, (ring.gather(self.rank, given, spans, root),), root=root)

    def scatter(self, sources: Arrays | None, target: np.ndarray, root: int) -> Call:
        dtype = check_dtype(target.dtype)
        memory, spans = self._at_root(INPUT, sources, dtype, root, written=False)
        memory[OUTPUT] = flat(target, dtype, dtype, written=True)
        taken = memory[OUTPUT].whole(OUTPUT)
        if spans:
            _check_equal(spans[root], taken, "target")
        return Call(Kind.SCATTER, dtype, memory, (ring.scatter(self.rank, spans, taken, root),), root=root)

    def all_to_all(
        self,
        sources: Arrays,
        targets: Arrays,
        source_counts: Sequence[int] | None,
        target_counts: Sequence[int] | None,
    ) -> Call:
        dtype = check_dtype(sources.dtype if isinstance(sources, np.ndarray) else sources[0].dtype)
        memory, given = blocks(INPUT, sources, dtype, dtype, self.world_size, written=False, counts=source_counts)
        more, taken = blocks(OUTPUT, targets, dtype, dtype, self.world_size, written=True, counts=target_counts)
        _check_equal(given[self.rank], taken[self.rank], "targets")
        schedule = ring.all_to_all(self.rank, self.world_size, given, taken)
        return Call(Kind.ALL_TO_ALL, dtype, memory | more, (schedule,))

    def point_to_point(self, step: type[Send] | type[Receive], array: np.ndarray, peer: int) -> Call:
        self._check_rank(peer, "peer")
        if peer == self.rank:
            raise ConfigurationError(f"peer is {peer}, which is this rank itself: copy the array instead")
        dtype = check_dtype(array.dtype)
        memory = {INPUT: flat(array, dtype, dtype, written=step is Receive)}
        steps: Round = (step(peer, memory[INPUT].whole(INPUT)),)
        return Call(Kind.POINT_TO_POINT, dtype, memory, (iter((steps,)),))

    def _hosts(self, dtype: np.dtype) -> HostPlan:
        return HostPlan(self.rank, self.world_size, dtype, self.tuning, self.machines)

    def _through_the_switch(self, call: Call, source: Span, target: Span, algorithm: Algorithm | None) -> None:
        """Plan an all-reduce by the switch, with an exchange inside each machine if it has several workers."""
        if self._has_ring_of_all and (
            not self.machines.are_several_with_several or self._asked(algorithm) == Algorithm.NETREDUCE
        ):
            call.schedules = (innetwork.all_reduce(self.world_size, source, target),)
            return
        call.across = True
        self._between_ranks(call, source, target, Algorithm.PARALLEL)

    def _between_ranks(self, call: Call, source: Span, target: Span, algorithm: Algorithm | None) -> None:
        """Plan an all-reduce without the switch, or with transfers beside it."""
        assert call.plan is not None
        hosts = self._hosts(call.plan.element)
        way = hosts.way(source.count, self._asked(algorithm))
        call.schedules = hosts.all_reduce(source, target, way)
        call.way = way.value
        call.add_scratch(hosts)

    def _asked(self, algorithm: Algorithm | None) -> Algorithm:
        return self.algorithm if algorithm is None else algorithm

    def _in_and_out(
        self, array: np.ndarray, out: np.ndarray | None, plan: ReductionPlan, *, written: bool
    ) -> tuple[Span, Span, dict[str, Memory]]:
        memory = {INPUT: flat(array, array.dtype, plan.element, written=written and out is None)}
        source = target = memory[INPUT].whole(INPUT)
        if out is not None and out is not array:
            memory[OUTPUT] = flat(out, array.dtype, plan.element, written=True)
            target = memory[OUTPUT].whole(OUTPUT)
            _check_equal(source, target, "out")
        return source, target, memory

    def _at_root(
        self, name: str, arrays: Arrays | None, dtype: np.dtype, root: int, *, written: bool
    ) -> tuple[dict[str, Memory], list[Span]]:
        """The root's blocks; nothing at other ranks."""
        self._check_rank(root, "root")
        if self.rank != root:
            return {}, []
        if arrays is None:
            raise ConfigurationError("the root gave no arrays, one block for each rank is needed")
        return blocks(name, arrays, dtype, dtype, self.world_size, written=written)

    def _in_network(self, call: Call, algorithm: Algorithm | None) -> bool:
        """Decide about a reduction, and note it in the call."""
        asked = self._asked(algorithm)
        self._check_machines(asked)
        assert call.plan is not None
        assert call.op is not None
        if asked in (Algorithm.NETREDUCE, Algorithm.PARALLEL) and call.plan.switch is None:
            raise UnsupportedError(
                f"the switch cannot do {call.op.name} of {call.dtype.name}: use the algorithm auto or ring"
            )
        wanted = asked in IN_NETWORK and self.world_size > 1
        if not self._has_ring_of_all and call.kind not in (Kind.ALL_REDUCE, Kind.BARRIER):
            wanted = False  # the ring across machines lacks most ranks
        if not (self._has_ring_of_all or self.machines.are_several_with_several):
            wanted = False  # one machine: nothing is across
        call.aggregates = call.plan.switch is not None and wanted
        return call.aggregates

    def _check_machines(self, asked: Algorithm) -> None:
        if asked == Algorithm.PARALLEL and not self.machines.are_several_with_several:
            raise ConfigurationError(
                f"the algorithm {asked.value} needs several machines with several workers each, equally many; "
                f"found {self.machines.describe()}"
            )

    def _check_rank(self, rank: int, name: str) -> None:
        if not 0 <= rank < self.world_size:
            raise ConfigurationError(f"{name} is {rank}, 0 to {self.world_size - 1} are possible")

    def _check_token(self, token: np.ndarray) -> None:
        if token[0] != self.world_size:
            raise NetReduceError(
                f"barrier of {self.world_size} ranks counted {token[0]}: the network does not add, or not exactly once"
            )


def _check_equal(block: Span, other: Span, name: str) -> None:
    if block.count != other.count:
        raise ConfigurationError(f"{name} has {other.count} elements, {block.count} are needed")
