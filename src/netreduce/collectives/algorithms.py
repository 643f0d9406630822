"""Which schedules a collective runs: through the switch or round the ring, in how many lanes and slices.

Whatever is chosen here follows from the call's arguments alone, so that all ranks choose the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from netreduce.collectives import ring
from netreduce.collectives.schedule import STAGING, Schedule, Span
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
    """How reductions are carried out; `AUTO` takes the network's where the switch can do it, and else the ring."""

    AUTO = "auto"
    NETREDUCE = "netreduce"
    RING = "ring"


def _lane_count(length_bytes: int) -> int:
    return max(1, min(LANES_MAX, length_bytes // LANE_BYTES_MIN))


def _slice_count(length_bytes: int, slice_bytes: int = SLICE_BYTES) -> int:
    return max(1, -(-length_bytes // slice_bytes))


class RingPlan:
    """Schedules of one collective round the ring, and the scratch they need: elements of `dtype` by buffer name."""

    def __init__(self, rank: int, world_size: int, dtype: np.dtype) -> None:
        self.rank = rank
        self.world_size = world_size
        self.dtype = dtype
        self.scratch: dict[str, int] = {}

    def all_reduce(self, source: Span, target: Span) -> tuple[Schedule, ...]:
        """See `ring.all_reduce`."""
        chunk_bytes = -(-source.count // self.world_size) * self.dtype.itemsize
        lanes = _lane_count(chunk_bytes)
        slices = _slice_count(chunk_bytes // lanes)
        stagings = self._staging(lanes, 1, -(-source.count // self.world_size), slices)
        return tuple(
            ring.all_reduce(self.rank, self.world_size, given, taken, staging, slices=slices)
            for given, taken, staging in zip(source.parts(lanes), target.parts(lanes), stagings, strict=True)
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

    def _staging(self, lanes: int, slices_held: int, count: int, slices: int) -> tuple[Span, ...]:
        """Staging for `slices_held` slices in each lane, for `count` elements cut into `lanes` and `slices`."""
        longest = slices_held * (-(-count // (lanes * slices)) + 1)
        self.scratch[STAGING] = lanes * longest
        return Span(STAGING, 0, lanes * longest).parts(lanes)
