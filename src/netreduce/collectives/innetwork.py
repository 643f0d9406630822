"""In-network schedules: every rank gives its data to the switch once, and takes the combination of all.

Each byte is sent once, instead of 2(N-1)/N times by a ring (NetReduce, ASPLOS 2023, doi 10.1145/3582016.3582037).
"""

from __future__ import annotations

from collections.abc import Sequence

from netreduce.collectives.ring import copy
from netreduce.collectives.schedule import DISCARD, Aggregate, Schedule, Span


def all_reduce(world_size: int, source: Span, target: Span) -> Schedule:
    """The combination of all ranks' `source` in every rank's `target`, which may be `source`."""
    if world_size == 1:
        yield from copy(source, target)
    elif source.count:
        yield (Aggregate(source, target),)


def reduce(rank: int, world_size: int, source: Span, target: Span, root: int) -> Schedule:
    """The combination in the root's `target`; the others' results arrive too, and are discarded."""
    yield from all_reduce(world_size, source, target if rank == root else _discarded(source))


def reduce_scatter(rank: int, world_size: int, sources: Sequence[Span], target: Span) -> Schedule:
    """The combination of all ranks' `sources[r]` in rank r's `target`; the other chunks' results are discarded."""
    if world_size == 1:
        yield from copy(sources[0], target)
        return
    yield tuple(
        Aggregate(source, target if chunk == rank else _discarded(source))
        for chunk, source in enumerate(sources)
        if source.count
    )


def _discarded(source: Span) -> Span:
    return Span(DISCARD, 0, source.count)
