"""Recursive halving and doubling: all-reduce in 2 log2(N) exchanges that move as few bytes as a ring.

Partners exchange halves of what they still share, then a quarter, and so on; afterwards the same way back
(Rabenseifner, 2004). Ranks beyond a power of two hand their data to a neighbour first, and get the result from it at
last.
"""

from __future__ import annotations

from netreduce.collectives.ring import copy
from netreduce.collectives.schedule import Receive, Reduce, Schedule, Send, Span, exchange


def all_reduce(rank: int, world_size: int, source: Span, target: Span, staging: Span) -> Schedule:
    """Combine `source` of all ranks into `target` (which may be `source`). `staging` is as large as `source`."""
    if world_size == 1 or not source.count:
        yield from copy(source, target)
        return
    core = 1 << (world_size.bit_length() - 1)
    paired = 2 * (world_size - core)
    if rank < paired and rank % 2:
        yield (Send(rank - 1, source),)
        yield (Receive(rank - 1, target),)
        return
    yield from copy(source, target)
    if rank < paired:
        yield (Receive(rank + 1, staging.head(source.count)),)
        yield (Reduce(staging.head(source.count), target, target),)
    yield from _core(rank // 2 if rank < paired else rank - paired // 2, core, paired, target, staging)
    if rank < paired:
        yield (Send(rank + 1, target),)


def _core(number: int, core: int, paired: int, data: Span, staging: Span) -> Schedule:
    """The exchanges of the `core` = 2^k ranks that stay, of which this one is the `number`-th."""
    given_back: list[tuple[int, Span, Span]] = []
    distance = core // 2
    while distance:
        partner = number ^ distance
        peer = 2 * partner if 2 * partner < paired else partner + paired // 2
        side = 1 if number & distance else 0
        kept, given = data.part(2, side), data.part(2, 1 - side)
        arrived = staging.head(kept.count)
        yield exchange(peer, given, peer, arrived)
        if kept.count:
            yield (Reduce(arrived, kept, kept),)
        given_back.append((peer, kept, given))
        data = kept
        distance //= 2
    for peer, kept, given in reversed(given_back):
        yield exchange(peer, kept, peer, given)
