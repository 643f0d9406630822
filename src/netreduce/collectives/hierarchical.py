"""All-reduce for machines with several workers each, whose links inside are faster than those between them.

Ranks are numbered machine by machine: rank r is worker r mod n of machine r div n. In `leaders` one worker per machine
takes part in a ring between the machines (Jia et al., 2018, arXiv 1807.11205). In `parallel` every worker does, each
with its own share: n rings, or n in-network rings (Parallel NetReduce, ASPLOS 2023, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from netreduce.collectives import ring
from netreduce.collectives.schedule import Aggregate, Receive, Schedule, Send, Span


def within(members: Sequence[int], schedule: Schedule) -> Schedule:
    """The schedule of a group whose rank i is `members[i]`: only the peers' numbers change."""
    for steps in schedule:
        yield tuple(replace(s, peer=members[s.peer]) if isinstance(s, Send | Receive) else s for s in steps)


def _places(rank: int, world_size: int, machine_size: int) -> tuple[int, int, int, range, range]:
    """Worker, machine, machines, the ranks of this machine, and the ranks of this worker's number on all machines."""
    assert world_size % machine_size == 0, (world_size, machine_size)
    machine, worker = divmod(rank, machine_size)
    inside = range(machine * machine_size, (machine + 1) * machine_size)
    return worker, machine, world_size // machine_size, inside, range(worker, world_size, machine_size)


def leaders(
    rank: int, world_size: int, machine_size: int, source: Span, target: Span, staging: Span, *, slices: int = 1
) -> Schedule:
    """Reduce to the machine's worker 0, ring all-reduce between these, broadcast; `staging` as large as `source`.

    Reduce and broadcast run ring-style (reduce-scatter and gather, scatter and all-gather), so that they move
    4(n-1)/n of the data over each worker's link.
    """
    worker, machine, machines, inside, _ = _places(rank, world_size, machine_size)
    inputs, chunks = source.parts(machine_size), target.parts(machine_size)
    owned = (worker + 1) % machine_size
    if machine_size == 1:
        yield from ring.copy(source, target)
    else:
        scatter = ring.reduce_scatter(worker, machine_size, inputs, chunks, staging, slices=slices)
        yield from within(inside, scatter)
        yield from within(inside, _collect(worker, chunks, owned))
    if worker == 0:
        leading = range(0, world_size, machine_size)
        if machines > 1:
            yield from within(leading, ring.all_reduce(machine, machines, target, target, staging, slices=slices))
    if machine_size > 1:
        yield from within(inside, _distribute(worker, chunks, owned))
        yield from within(inside, ring.all_gather(worker, machine_size, chunks, slices=slices, owner_shift=0))


def _collect(worker: int, chunks: Sequence[Span], owned: int) -> Schedule:
    """The finished chunks to worker 0; worker w owns chunk w + 1 mod n."""
    if worker:
        if chunks[owned].count:
            yield (Send(0, chunks[owned]),)
        return
    wanted = [(peer, chunks[(peer + 1) % len(chunks)]) for peer in range(1, len(chunks))]
    yield tuple(Receive(peer, chunk) for peer, chunk in wanted if chunk.count)


def _distribute(worker: int, chunks: Sequence[Span], owned: int) -> Schedule:
    """The way back: worker w gets chunk w + 1 mod n."""
    if worker:
        if chunks[owned].count:
            yield (Receive(0, chunks[owned]),)
        return
    wanted = [(peer, chunks[(peer + 1) % len(chunks)]) for peer in range(1, len(chunks))]
    yield tuple(Send(peer, chunk) for peer, chunk in wanted if chunk.count)


def parallel(
    rank: int,
    world_size: int,
    machine_size: int,
    source: Span,
    target: Span,
    staging: Span,
    *,
    in_network: bool,
    slices: int = 1,
) -> Schedule:
    """Reduce-scatter inside, all-reduce of each worker's share between the machines, all-gather inside.

    The share of worker w goes round the ring of all workers w, or, `in_network`, is aggregated as ring number w.
    `in_network`, chunk c (of n) is added in this order, whatever arrives first: inside each machine worker c, c + 1 and
    so on round to c - 1, who owns the chunk; then machine by machine.
    """
    worker, machine, machines, inside, across = _places(rank, world_size, machine_size)
    inputs, chunks = source.parts(machine_size), target.parts(machine_size)
    share = chunks[(worker + 1) % machine_size]
    if machine_size == 1:
        yield from ring.copy(source, target)
    else:
        scatter = ring.reduce_scatter(worker, machine_size, inputs, chunks, staging, slices=slices)
        yield from within(inside, scatter)
    if machines > 1 and share.count:
        if in_network:
            yield (Aggregate(share, share, ring=worker),)
        else:
            yield from within(across, ring.all_reduce(machine, machines, share, share, staging, slices=slices))
    if machine_size > 1:
        yield from within(inside, ring.all_gather(worker, machine_size, chunks, slices=slices, owner_shift=0))
