"""Which schedules a collective runs: through the switch or between hosts, in how many channels and slices.

Whatever is chosen here follows from the call's arguments alone, so that all ranks choose the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from netreduce.collectives import central, halving, hierarchical, ring, tree
from netreduce.collectives.aggregation import STAGED_BYTES_MAX
from netreduce.collectives.crossover import CostModel, tree_slices
from netreduce.collectives.machines import Machines
from netreduce.collectives.schedule import STAGING, Schedule, Span, in_order
from netreduce.errors import ConfigurationError
from netreduce.units import KIB, MIB

LANES_MAX = 2
"""Rings that a long transfer is shared out to: while one waits for a clear-to-send or adds, the other one sends."""
LANE_BYTES_MIN = 64 * KIB
"""A second lane is not worth its handshakes for less."""
SLICE_BYTES = 1 * MIB
CHAIN_SLICE_BYTES = 256 * KIB
"""Along a chain a rank waits for the first slice of the one before it, so they are shorter."""
PARTIAL = "partial"


class Algorithm(str, Enum):
    """How reductions are carried out.

    `NETREDUCE` goes through the switch, `PARALLEL` as well, in a ring for each worker of a machine. The others are
    between hosts. `AUTO` takes the network's way where the switch can do it, in parallel where machines have several
    workers; else what `CostModel` finds fastest, or `HIERARCHICAL`. `TREE`, `HALVING`, `CENTRAL` and the three for
    machines (`collectives.hierarchical`) are ways of an all-reduce; other reductions go round the one ring then.
    """

    AUTO = "auto"
    NETREDUCE = "netreduce"
    RING = "ring"
    TREE = "tree"
    HALVING = "halving"
    CENTRAL = "central"
    LEADERS = "leaders"
    HIERARCHICAL = "hierarchical"
    PARALLEL = "parallel"


IN_NETWORK = (Algorithm.AUTO, Algorithm.NETREDUCE, Algorithm.PARALLEL)
FOR_MACHINES = (Algorithm.LEADERS, Algorithm.HIERARCHICAL, Algorithm.PARALLEL)
"""For machines with several workers each; without machines every rank counts as one of its own."""

CHANNELS_MAX = 16
"""Rings of one collective: each has a tag of its own, of `engine.LANE_TAGS`."""


QPS_PER_CONNECTION_MAX = 8
PEER_QUEUE_PAIRS_MAX = 128
"""Queue pairs of one rank to all its peers: so that several groups find room in a NIC, and a ring's endpoints in a
control message."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a group's collectives between hosts are cut. All its ranks need the same.

    `channels` are the rings that share an all-reduce round the ring: each is the ranks in its own order. None: up to
    `LANES_MAX` in rank order, as the length is worth it. Rings of equal order keep one sender per port of the switch;
    others collide there. `qps_per_connection` queue pairs carry the data between two ranks: a transfer takes one, in
    turn, or with `split_data_on_qps` all of them.

    With several workers a machine (`machine_size`, ranks numbered machine by machine) the network's all-reduce is
    Parallel NetReduce: there are `machine_size` rings through the switch, each of one worker a machine, and none of all
    ranks. `Engine.use_machines` gives a group both.

    Calls through the switch on `staged_bytes` at most end with their result, longer ones when it is acknowledged, too.
    """

    channels: tuple[tuple[int, ...], ...] = ()
    costs: CostModel = field(default_factory=CostModel)
    qps_per_connection: int = 1
    split_data_on_qps: bool = False
    machine_size: int = 1
    staged_bytes: int = STAGED_BYTES_MAX

    def check(self, world_size: int) -> None:
        """`ConfigurationError` unless this fits a group of `world_size`."""
        if len(self.channels) > CHANNELS_MAX:
            raise ConfigurationError(f"{len(self.channels)} channels, at most {CHANNELS_MAX} are allowed")
        for order in self.channels:
            if sorted(order) != list(range(world_size)):
                raise ConfigurationError(f"channel {order} is not an order of ranks 0 to {world_size - 1}")
        qps = self.qps_per_connection
        if not 1 <= qps <= QPS_PER_CONNECTION_MAX:
            raise ConfigurationError(f"{qps} queue pairs per connection, 1 to {QPS_PER_CONNECTION_MAX} are possible")
        if (world_size - 1) * qps > PEER_QUEUE_PAIRS_MAX:
            raise ConfigurationError(
                f"{qps} queue pairs to each of {world_size - 1} peers, in all up to {PEER_QUEUE_PAIRS_MAX} are possible"
            )
        if not 0 <= self.staged_bytes <= STAGED_BYTES_MAX:
            raise ConfigurationError(f"{self.staged_bytes} staged bytes, 0 to {STAGED_BYTES_MAX} are possible")
        if self.machine_size < 1 or world_size % self.machine_size:
            raise ConfigurationError(f"{world_size} ranks are not machines of {self.machine_size} workers each")

    def ring_members(self, rank: int, world_size: int) -> tuple[int, ...]:
        """The ranks that share a ring through the switch with `rank`: the workers of its number on all machines."""
        return tuple(range(rank % self.machine_size, world_size, self.machine_size))


def _lane_count(length_bytes: int) -> int:
    return max(1, min(LANES_MAX, length_bytes // LANE_BYTES_MIN))


def _slice_count(length_bytes: int, slice_bytes: int = SLICE_BYTES) -> int:
    return max(1, -(-length_bytes // slice_bytes))


class HostPlan:
    """Schedules of one collective between hosts, and the scratch they need: elements of `dtype` by buffer name."""

    def __init__(self, rank: int, world_size: int, dtype: np.dtype, tuning: Tuning, machines: Machines) -> None:
        self.rank = rank
        self.world_size = world_size
        self.dtype = dtype
        self.tuning = tuning
        self.machines = machines
        self.scratch: dict[str, int] = {}

    def way(self, count: int, algorithm: Algorithm) -> Algorithm:
        """The algorithm for an all-reduce of `count` elements: the one asked for, or the fastest between hosts."""
        if algorithm not in (Algorithm.AUTO, Algorithm.NETREDUCE):
            return algorithm
        if self.machines.are_several_with_several:
            return Algorithm.HIERARCHICAL
        return Algorithm(self.tuning.costs.fastest(self.world_size, count * self.dtype.itemsize))

    def all_reduce(self, source: Span, target: Span, way: Algorithm) -> tuple[Schedule, ...]:
        """All of `source` into everybody's `target`, by the algorithm that `way` chose."""
        rank, world_size = self.rank, self.world_size
        if way == Algorithm.TREE:
            slices = tree_slices(source.count * self.dtype.itemsize)
            staging = self._scratch(tree.staging_count(source.count, slices))
            return (tree.all_reduce(rank, world_size, source, target, staging, slices=slices),)
        if way == Algorithm.HALVING:
            return (halving.all_reduce(rank, world_size, source, target, self._scratch(source.count)),)
        if way == Algorithm.CENTRAL:
            staging = self._scratch((world_size - 1) * source.count if rank == 0 else 0)
            return (central.all_reduce(rank, world_size, source, target, staging),)
        if way in FOR_MACHINES:
            return self._for_machines(source, target, way)
        return self._ring_all_reduce(source, target)

    def _for_machines(self, source: Span, target: Span, way: Algorithm) -> tuple[Schedule, ...]:
        """See `hierarchical`, whose ranks are places in the order of the machines.

        Through the switch in one lane, so that the order of aggregates is certain, and without slices: inside a machine
        handshakes cost more than they hide.
        """
        order, size = self.machines.order, self.machines.size
        place = order.index(self.rank), len(order), size
        lanes = slices = 1
        longest = -(-source.count // size)
        if way != Algorithm.PARALLEL:
            longest = max(longest, -(-source.count // self.machines.count))
            lanes = _lane_count(longest * self.dtype.itemsize)
            slices = _slice_count(longest * self.dtype.itemsize // lanes)
        stagings = self._staging(lanes, 1, longest, slices)
        spans = zip(source.parts(lanes), target.parts(lanes), stagings, strict=True)
        if way == Algorithm.LEADERS:
            schedules = [hierarchical.leaders(*place, *part, slices=slices) for part in spans]
        else:
            in_network = way == Algorithm.PARALLEL
            schedules = [hierarchical.parallel(*place, *part, in_network=in_network, slices=slices) for part in spans]
        return tuple(in_order(order, schedule) for schedule in schedules)

    def _ring_all_reduce(self, source: Span, target: Span) -> tuple[Schedule, ...]:
        chunk_bytes = -(-source.count // self.world_size) * self.dtype.itemsize
        orders = self.tuning.channels or _lane_count(chunk_bytes) * (tuple(range(self.world_size)),)
        lanes = len(orders)
        slices = _slice_count(chunk_bytes // lanes)
        stagings = self._staging(lanes, 1, -(-source.count // self.world_size), slices)
        return tuple(
            in_order(order, ring.all_reduce(order.index(self.rank), len(order), given, taken, staging, slices=slices))
            for order, given, taken, staging in zip(
                orders, source.parts(lanes), target.parts(lanes), stagings, strict=True
            )
        )

    def reduce(self, source: Span, target: Span, root: int) -> tuple[Schedule, ...]:
        """See `ring.reduce`."""
        length_bytes = source.count * self.dtype.itemsize
        lanes = _lane_count(length_bytes)
        slices = _slice_count(length_bytes // lanes, CHAIN_SLICE_BYTES)
        stagings = self._staging(lanes, 2, source.count, slices)
        return tuple(
            ring.reduce(self.rank, self.world_size, given, taken, root, staging, slices=slices)
            for given, taken, staging in zip(source.parts(lanes), target.parts(lanes), stagings, strict=True)
        )

    def reduce_scatter(self, sources: Sequence[Span], target: Span) -> tuple[Schedule, ...]:
        """See `ring.reduce_scatter`; `sources` are the ranks' chunks of the input, which is only read."""
        if self.world_size == 1:
            return (ring.copy(sources[0], target),)
        longest = max(source.count for source in sources)
        chunk_bytes = longest * self.dtype.itemsize
        lanes = _lane_count(chunk_bytes)
        slices = _slice_count(chunk_bytes // lanes)
        stagings = self._staging(lanes, 1, longest, slices)
        self.scratch[PARTIAL] = longest
        partials = [Span(PARTIAL, 0, source.count) for source in sources]
        partials[self.rank] = target
        return tuple(
            ring.reduce_scatter(
                self.rank,
                self.world_size,
                [source.part(lanes, i) for source in sources],
                [partial.part(lanes, i) for partial in partials],
                stagings[i],
                slices=slices,
                owner_shift=1,
            )
            for i in range(lanes)
        )

    def all_gather(self, source: Span, chunks: Sequence[Span]) -> tuple[Schedule, ...]:
        """`source` of every rank into all ranks' `chunks`; see `ring.all_gather`."""
        chunk_bytes = max(chunk.count for chunk in chunks) * self.dtype.itemsize
        lanes = _lane_count(chunk_bytes)
        slices = _slice_count(chunk_bytes // lanes)
        return tuple(self._gather_lane(source, chunks, lanes, i, slices) for i in range(lanes))

    def _gather_lane(self, source: Span, chunks: Sequence[Span], lanes: int, lane: int, slices: int) -> Schedule:
        parts = [chunk.part(lanes, lane) for chunk in chunks]
        yield from ring.copy(source.part(lanes, lane), parts[self.rank])
        yield from ring.all_gather(self.rank, self.world_size, parts, slices=slices)

    def broadcast(self, data: Span, root: int) -> tuple[Schedule, ...]:
        """See `ring.broadcast`."""
        length_bytes = data.count * self.dtype.itemsize
        lanes = _lane_count(length_bytes)
        slices = _slice_count(length_bytes // lanes, CHAIN_SLICE_BYTES)
        return tuple(
            ring.broadcast(self.rank, self.world_size, data.part(lanes, i), root, slices=slices) for i in range(lanes)
        )

    def _scratch(self, count: int) -> Span:
        self.scratch[STAGING] = count
        return Span(STAGING, 0, count)

    def _staging(self, lanes: int, slices_held: int, count: int, slices: int) -> tuple[Span, ...]:
        """Staging for `slices_held` slices in each lane, for `count` elements cut into `lanes` and `slices`."""
        longest = slices_held * (-(-count // (lanes * slices)) + 1)
        return self._scratch(lanes * longest).parts(lanes)
