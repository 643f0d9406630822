"""The naive all-reduce: everybody sends everything to one host, which adds and sends the result back.

It is here as the foil. The host's one link carries (N-1) buffers each way, one after the other, and on the way in all
the others send at once into one port of the switch: that is where queues grow.
"""

from __future__ import annotations

from netreduce.collectives.ring import copy
from netreduce.collectives.schedule import Receive, Reduce, Schedule, Send, Span


def all_reduce(rank: int, world_size: int, source: Span, target: Span, staging: Span, *, root: int = 0) -> Schedule:
    """Combine `source` of all ranks into `target` (which may be `source`) at `root`, and send it to everybody.

    `staging` of the root holds one buffer of each other rank.
    """
    if world_size == 1 or not source.count:
        yield from copy(source, target)
        return
    if rank != root:
        yield (Send(root, source),)
        yield (Receive(root, target),)
        return
    others = [peer for peer in range(world_size) if peer != root]
    arrivals = [place.head(source.count) for place in staging.parts(len(others))]
    yield tuple(Receive(peer, place) for peer, place in zip(others, arrivals, strict=True))
    share = source
    for arrived in arrivals:
        yield (Reduce(arrived, share, target),)
        share = target
    yield tuple(Send(peer, target) for peer in others)
