"""Spans are cut without gaps, and every schedule is proven with digits: a finished chunk reads 1111..."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collectives.symbolic import World, ones

from netreduce.collectives import innetwork, ring
from netreduce.collectives.schedule import INPUT, OUTPUT, STAGING, Receive, Send, Span, exchange

WORLD_SIZES = range(1, 18)
worlds = pytest.mark.parametrize("world_size", WORLD_SIZES)


def lengths(world_size: int) -> tuple[int, ...]:
    """Nothing, one element, a prime that no world size divides, and a multiple of the world size."""
    return (0, 1, 19, 3 * world_size)


@given(st.integers(0, 10_000), st.integers(0, 1000), st.integers(1, 70))
def test_parts_follow_each_other_without_gap_and_differ_by_one_at_most(count: int, start: int, parts: int) -> None:
    cut = Span(INPUT, start, count).parts(parts)
    end = start
    for part in cut:
        assert part.start == end
        end += part.count
    assert end == start + count
    assert max(part.count for part in cut) - min(part.count for part in cut) <= 1


def test_an_exchange_of_nothing_has_no_steps() -> None:
    something, nothing = Span(INPUT, 0, 3), Span(INPUT, 0, 0)
    assert exchange(1, nothing, 2, nothing) == ()
    assert exchange(1, something, 2, nothing) == (Send(1, something),)
    assert exchange(1, nothing, 2, something) == (Receive(2, something),)


def own_digit(rank: int, count: int) -> list[int]:
    return [10**rank] * count


@worlds
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("in_place", [True, False])
def test_ring_all_reduce_leaves_every_rank_in_every_sum_once(world_size: int, slices: int, in_place: bool) -> None:
    for count in lengths(world_size):
        source = Span(INPUT, 0, count)
        target = source if in_place else Span(OUTPUT, 0, count)
        world = World(
            world_size,
            lambda rank, n=count: {INPUT: own_digit(rank, n), OUTPUT: [0] * n, STAGING: [0] * n},
            lambda rank, s=source, t=target: ring.all_reduce(
                rank, world_size, s, t, Span(STAGING, 0, s.count), slices=slices
            ),
        ).run()
        for number, rank in enumerate(world.ranks):
            assert rank.buffers[target.buffer] == [ones(world_size)] * count
            assert in_place or rank.buffers[INPUT] == own_digit(number, count)
            if count % world_size == 0:
                assert rank.sent * world_size == 2 * (world_size - 1) * count


@worlds
def test_after_the_reduce_scatter_of_an_all_reduce_rank_0_owns_chunk_1(world_size: int) -> None:
    source = Span(INPUT, 0, 2 * world_size)
    chunks = source.parts(world_size)
    world = World(
        world_size,
        lambda rank: {INPUT: own_digit(rank, source.count), STAGING: [0] * 2},
        lambda rank: ring.reduce_scatter(rank, world_size, chunks, chunks, Span(STAGING, 0, 2)),
    ).run()
    for number, rank in enumerate(world.ranks):
        owned = (number + 1) % world_size
        assert rank.get(chunks[owned]) == [ones(world_size)] * 2
        finished = [chunk for chunk in range(world_size) if rank.get(chunks[chunk])[0] == ones(world_size)]
        assert finished == [owned]


@worlds
@pytest.mark.parametrize("slices", [1, 2])
def test_ring_reduce_scatter_gives_each_rank_its_own_chunk_and_reads_only(world_size: int, slices: int) -> None:
    for count in (1, 5):
        inputs = Span(INPUT, 0, count * world_size).parts(world_size)

        def schedule(rank: int, inputs=inputs, count=count):
            partials = [Span("work", 0, count)] * world_size
            partials[rank] = Span(OUTPUT, 0, count)
            if world_size == 1:
                return ring.copy(inputs[0], partials[0])
            return ring.reduce_scatter(
                rank, world_size, inputs, partials, Span(STAGING, 0, count), slices=slices, owner_shift=1
            )

        world = World(
            world_size,
            lambda rank, n=count: {
                INPUT: [10**rank * (chunk + 1) for chunk in range(world_size) for _ in range(n)],
                OUTPUT: [0] * n,
                STAGING: [0] * n,
                "work": [0] * n,
            },
            schedule,
        ).run()
        for number, rank in enumerate(world.ranks):
            assert rank.buffers[OUTPUT] == [ones(world_size) * (number + 1)] * count
            assert rank.buffers[INPUT] == [
                10**number * (chunk + 1) for chunk in range(world_size) for _ in range(count)
            ]
            assert rank.sent == (world_size - 1) * count


@worlds
@pytest.mark.parametrize("slices", [1, 3])
def test_all_gather_brings_everybodys_chunk_to_everybody(world_size: int, slices: int) -> None:
    for count in (0, 1, 5):
        chunks = Span(OUTPUT, 0, count * world_size).parts(world_size)

        def buffers(rank: int, count=count, chunks=chunks):
            output = [0] * (count * world_size)
            output[chunks[rank].start : chunks[rank].start + count] = own_digit(rank, count)
            return {OUTPUT: output}

        world = World(
            world_size,
            buffers,
            lambda rank, c=chunks: ring.all_gather(rank, world_size, c, slices=slices),
        ).run()
        for rank in world.ranks:
            assert rank.buffers[OUTPUT] == [10**source for source in range(world_size) for _ in range(count)]
            assert rank.sent == (world_size - 1) * count


@worlds
@pytest.mark.parametrize("slices", [1, 4])
def test_broadcast_brings_the_roots_data_to_everybody(world_size: int, slices: int) -> None:
    for root in {0, world_size // 2, world_size - 1}:
        for count in (0, 1, 6):
            data = Span(INPUT, 0, count)
            world = World(
                world_size,
                lambda rank, n=count: {INPUT: own_digit(rank, n)},
                lambda rank, d=data, r=root: ring.broadcast(rank, world_size, d, r, slices=slices),
            ).run()
            for rank in world.ranks:
                assert rank.buffers[INPUT] == own_digit(root, count)
                assert rank.sent <= count


@worlds
@pytest.mark.parametrize("slices", [1, 4])
def test_ring_reduce_finishes_at_the_root_and_spares_the_others(world_size: int, slices: int) -> None:
    for root in {0, world_size // 2, world_size - 1}:
        for count in (0, 1, 6):
            source, target = Span(INPUT, 0, count), Span(OUTPUT, 0, count)
            world = World(
                world_size,
                lambda rank, n=count: {INPUT: own_digit(rank, n), OUTPUT: [0] * n, STAGING: [0] * (2 * n)},
                lambda rank, s=source, t=target, r=root: ring.reduce(
                    rank, world_size, s, t, r, Span(STAGING, 0, 2 * s.count), slices=slices
                ),
            ).run()
            for number, rank in enumerate(world.ranks):
                assert rank.buffers[INPUT] == own_digit(number, count)
                assert rank.buffers[OUTPUT] == ([ones(world_size)] if number == root else [0]) * count
                assert rank.sent == (0 if number == root else count)


@worlds
def test_gather_and_scatter_are_each_others_inverse(world_size: int) -> None:
    blocks = Span("blocks", 0, 2 * world_size).parts(world_size)
    whole = [10**rank for rank in range(world_size) for _ in range(2)]
    for root in {0, world_size - 1}:
        gathered = World(
            world_size,
            lambda rank: {INPUT: own_digit(rank, 2), "blocks": [0] * (2 * world_size)},
            lambda rank, r=root: ring.gather(rank, Span(INPUT, 0, 2), blocks, r),
        ).run()
        assert gathered.ranks[root].buffers["blocks"] == whole
        scattered = World(
            world_size,
            lambda rank: {OUTPUT: [0] * 2, "blocks": list(whole)},
            lambda rank, r=root: ring.scatter(rank, blocks, Span(OUTPUT, 0, 2), r),
        ).run()
        for number, rank in enumerate(scattered.ranks):
            assert rank.buffers[OUTPUT] == own_digit(number, 2)


@worlds
def test_all_to_all_transposes_uneven_blocks(world_size: int) -> None:
    def size(source: int, target: int) -> int:
        return (source + 2 * target) % 3

    def spans(buffer: str, sizes: list[int]) -> list[Span]:
        return [Span(buffer, sum(sizes[:index]), count) for index, count in enumerate(sizes)]

    peers = range(world_size)
    world = World(
        world_size,
        lambda rank: {
            INPUT: [100 * rank + peer for peer in peers for _ in range(size(rank, peer))],
            OUTPUT: [-1] * sum(size(peer, rank) for peer in peers),
        },
        lambda rank: ring.all_to_all(
            rank,
            world_size,
            spans(INPUT, [size(rank, peer) for peer in peers]),
            spans(OUTPUT, [size(peer, rank) for peer in peers]),
        ),
    ).run()
    for number, rank in enumerate(world.ranks):
        assert rank.buffers[OUTPUT] == [100 * peer + number for peer in peers for _ in range(size(peer, number))]


@worlds
@pytest.mark.parametrize("in_place", [True, False])
def test_in_network_all_reduce_gives_each_byte_once(world_size: int, in_place: bool) -> None:
    for count in lengths(world_size):
        source = Span(INPUT, 0, count)
        target = source if in_place else Span(OUTPUT, 0, count)
        world = World(
            world_size,
            lambda rank, n=count: {INPUT: own_digit(rank, n), OUTPUT: [0] * n},
            lambda rank, s=source, t=target: innetwork.all_reduce(world_size, s, t),
        ).run()
        for rank in world.ranks:
            assert rank.buffers[target.buffer] == [ones(world_size)] * count
            assert rank.sent == 0
            assert rank.aggregated == (count if world_size > 1 else 0)


@worlds
def test_in_network_reduce_and_reduce_scatter_discard_what_is_not_theirs(world_size: int) -> None:
    chunks = Span(INPUT, 0, 2 * world_size).parts(world_size)
    scattered = World(
        world_size,
        lambda rank: {INPUT: own_digit(rank, 2 * world_size), OUTPUT: [0] * 2},
        lambda rank: innetwork.reduce_scatter(rank, world_size, chunks, Span(OUTPUT, 0, 2)),
    ).run()
    root = world_size // 2
    reduced = World(
        world_size,
        lambda rank: {INPUT: own_digit(rank, 3), OUTPUT: [0] * 3},
        lambda rank: innetwork.reduce(rank, world_size, Span(INPUT, 0, 3), Span(OUTPUT, 0, 3), root),
    ).run()
    for number, (a, b) in enumerate(zip(scattered.ranks, reduced.ranks, strict=True)):
        assert a.buffers[OUTPUT] == [ones(world_size)] * 2
        assert a.buffers[INPUT] == own_digit(number, 2 * world_size)
        assert b.buffers[OUTPUT] == [ones(world_size) if number == root else 0] * 3
        assert b.buffers[INPUT] == own_digit(number, 3)


@worlds
def test_a_barrier_waits_for_every_rank(world_size: int) -> None:
    world = World(
        world_size,
        lambda rank: {STAGING: own_digit(rank, 1)},
        lambda rank: innetwork.all_reduce(world_size, Span(STAGING, 0, 1), Span(STAGING, 0, 1)),
    ).run()
    for rank in world.ranks:
        assert rank.buffers[STAGING] == [ones(world_size)]


def test_the_interpreter_notices_a_rank_that_is_added_twice() -> None:
    def wrong(rank: int):
        yield from ring.all_reduce(rank, 3, Span(INPUT, 0, 3), Span(INPUT, 0, 3), Span(STAGING, 0, 3))
        yield from ring.all_reduce(rank, 3, Span(INPUT, 0, 3), Span(INPUT, 0, 3), Span(STAGING, 0, 3))

    world = World(3, lambda rank: {INPUT: own_digit(rank, 3), STAGING: [0] * 3}, wrong).run()
    assert world.ranks[0].buffers[INPUT] != [111] * 3


def test_the_interpreter_notices_a_round_that_races_with_itself() -> None:
    span = Span(INPUT, 0, 2)

    def racing(rank: int):
        yield exchange(1 - rank, span, 1 - rank, span)

    with pytest.raises(AssertionError, match="races"):
        World(2, lambda rank: {INPUT: [0, 0]}, racing).run()
