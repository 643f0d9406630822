"""Ring algorithms, as NCCL moves them: each rank sends to its right neighbour and receives from its left one.

Reduce-scatter passes every chunk once round the ring and adds each rank's share on the way; all-gather passes the
finished chunks round once more. Together they send 2(N-1)/N of the buffer per rank, which no algorithm between hosts
can beat (Patarasuk and Yuan, 2009). A chunk moves in slices, so that long chunks do not wait as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from netreduce.collectives.schedule import Copy, Receive, Reduce, Round, Schedule, Send, Span, exchange


def reduce_scatter(
    rank: int,
    world_size: int,
    inputs: Sequence[Span],
    partials: Sequence[Span],
    staging: Span,
    *,
    slices: int = 1,
    owner_shift: int = 0,
) -> Schedule:
    """Combine chunk by chunk; at the end `partials[owned]` is finished, owned = (rank + 1 - owner_shift) mod N.

    `inputs[c]` is this rank's share of chunk c and is only read (unless `partials[c]` is the same span); `partials[c]`
    takes the combination so far, and may be one scratch span for all chunks but the owned one. `staging` holds one
    slice. With `owner_shift` 0 rank 0 owns chunk 1, as in a ring all-reduce; with 1 each rank owns its own chunk.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        sent_chunk = (rank - step - owner_shift) % world_size
        taken_chunk = (sent_chunk - 1) % world_size
        sent_spans = inputs if step == 0 else partials
        for piece in range(slices):
            taken = staging.head(partials[taken_chunk].part(slices, piece).count)
            yield exchange(right, sent_spans[sent_chunk].part(slices, piece), left, taken)
            own, target = inputs[taken_chunk].part(slices, piece), partials[taken_chunk].part(slices, piece)
            if own.count:
                yield (Reduce(taken, own, target),)


def all_gather(
    rank: int, world_size: int, chunks: Sequence[Span], *, slices: int = 1, owner_shift: int = 1
) -> Schedule:
    """Pass the finished chunks round, until every rank has all.

    At first `chunks[owned]` is there, owned as in `reduce_scatter`.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        sent_chunk = (rank + 1 - owner_shift - step) % world_size
        taken_chunk = (sent_chunk - 1) % world_size
        for piece in range(slices):
            yield exchange(right, chunks[sent_chunk].part(slices, piece), left, chunks[taken_chunk].part(slices, piece))


def all_reduce(rank: int, world_size: int, source: Span, target: Span, staging: Span, *, slices: int = 1) -> Schedule:
    """Ring all-reduce of `source` into `target` (which may be `source`): reduce-scatter, then all-gather."""
    if world_size == 1:
        yield from copy(source, target)
        return
    inputs, partials = source.parts(world_size), target.parts(world_size)
    yield from reduce_scatter(rank, world_size, inputs, partials, staging, slices=slices)
    yield from all_gather(rank, world_size, partials, slices=slices, owner_shift=0)


def broadcast(rank: int, world_size: int, data: Span, root: int, *, slices: int = 1) -> Schedule:
    """A chain from `root` round the ring: each rank passes slice k on while it receives slice k+1."""
    distance = (rank - root) % world_size
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    pieces = data.parts(slices)
    receives, sends = distance > 0, distance < world_size - 1
    for tick in range(slices + 1):
        taken = pieces[tick] if receives and tick < slices else data.head(0)
        # The root has every slice from the start; the others have slice k after tick k.
        given = tick - 1 if receives else tick
        passed = pieces[given] if sends and 0 <= given < slices else data.head(0)
        yield exchange(right, passed, left, taken)


def reduce(
    rank: int, world_size: int, source: Span, target: Span, root: int, staging: Span, *, slices: int = 1
) -> Schedule:
    """A chain round the ring that ends at `root`, whose `target` gets the combination; all else is only read.

    `staging` holds two slices: one arrives while the other leaves.
    """
    if world_size == 1:
        yield from copy(source, target)
        return
    distance = (rank - root - 1) % world_size  # hops from the chain's first rank, the root's right neighbour
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    nothing = source.head(0)
    places = staging.parts(2)
    for tick in range(slices + 1):
        own = source.part(slices, tick) if tick < slices else nothing
        if distance == 0:
            yield exchange(right, own, left, nothing)
            continue
        taken = places[tick % 2].head(own.count)
        left_over = source.part(slices, tick - 1).count if tick > 0 and rank != root else 0
        yield exchange(right, places[(tick - 1) % 2].head(left_over), left, taken)
        if own.count:
            yield (Reduce(taken, own, target.part(slices, tick) if rank == root else taken),)


def copy(source: Span, target: Span) -> Schedule:
    """`source` to `target` within the rank, unless they are the same."""
    if source != target and source.count:
        yield (Copy(source, target),)


def gather(rank: int, source: Span, targets: Sequence[Span], root: int) -> Schedule:
    """Every rank's `source` into the root's `targets`, one span per rank."""
    if rank != root:
        yield (Send(root, source),)
        return
    yield from copy(source, targets[rank])
    yield tuple(Receive(peer, span) for peer, span in enumerate(targets) if peer != rank)


def scatter(rank: int, sources: Sequence[Span], target: Span, root: int) -> Schedule:
    """The root's `sources`, one span per rank, to each rank's `target`."""
    if rank != root:
        yield (Receive(root, target),)
        return
    yield from copy(sources[rank], target)
    yield tuple(Send(peer, span) for peer, span in enumerate(sources) if peer != rank)


def all_to_all(rank: int, world_size: int, sources: Sequence[Span], targets: Sequence[Span]) -> Schedule:
    """`sources[p]` of this rank to `targets[rank]` of rank p, for all pairs.

    In round d everybody sends d places to the right, so that each port of the switch has one sender at a time.
    """
    yield from copy(sources[rank], targets[rank])
    for distance in range(1, world_size):
        right, left = (rank + distance) % world_size, (rank - distance) % world_size
        steps: Round = (Receive(left, targets[left]), Send(right, sources[right]))
        yield steps
