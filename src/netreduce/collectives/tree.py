"""All-reduce over two binary trees, each for one half of the data, in slices that follow each other up and down.

A rank that is an inner node in one tree is a leaf in the other, so that all links are equally busy (Sanders, Speck and
Träff, 2009; NCCL's "Tree"). Latency grows with log2(N) instead of N, hence trees for small buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from netreduce.collectives.ring import copy
from netreduce.collectives.schedule import Receive, Reduce, Schedule, Send, Span, Step


@dataclass(frozen=True, slots=True)
class Node:
    """A rank's place in a tree of height `height` (the depth of the deepest node; the root's own depth is 0)."""

    parent: int | None
    children: tuple[int, ...]
    depth: int
    height: int


def _parents(count: int) -> list[int]:
    """The parent of each number of 1..count in the in-order binary tree, 0 for the root; odd numbers are leaves.

    A number whose lowest set bit is b hangs below the one with that bit cleared and the next one set; where that one
    does not exist, below the one with the bit cleared.
    """
    parents = [0] * (count + 1)
    for number in range(1, count + 1):
        bit = number & -number
        above = (number ^ bit) | (bit << 1)
        parents[number] = above if above <= count else number ^ bit
    return parents


@cache
def nodes(world_size: int, shift: int) -> tuple[Node, ...]:
    """Each rank's node in the tree in which rank r has number (r + shift) mod N + 1."""
    parents = _parents(world_size)
    rank_of = [(number - 1 - shift) % world_size for number in range(world_size + 1)]
    children: list[list[int]] = [[] for _ in range(world_size + 1)]
    depth = [0] * (world_size + 1)
    for number in range(1, world_size + 1):
        children[parents[number]].append(rank_of[number])
        above = number
        while parents[above]:
            above = parents[above]
            depth[number] += 1
    height = max(depth)
    found = {}
    for number in range(1, world_size + 1):
        parent = rank_of[parents[number]] if parents[number] else None
        found[rank_of[number]] = Node(parent, tuple(children[number]), depth[number], height)
    return tuple(found[rank] for rank in range(world_size))


def all_reduce(rank: int, world_size: int, source: Span, target: Span, staging: Span, *, slices: int = 1) -> Schedule:
    """Combine `source` of all ranks into `target` (which may be `source`). `staging` holds four slices of a half."""
    if world_size == 1:
        yield from copy(source, target)
        return
    trees = [nodes(world_size, 0)[rank], nodes(world_size, 1)[rank]]
    own, result, places = source.parts(2), target.parts(2), staging.parts(2)
    yield from _together([_reduce(trees[i], own[i], result[i], places[i].parts(2), slices) for i in range(2)])
    yield from _together([_broadcast(trees[i], result[i], slices) for i in range(2)])


def staging_count(count: int, slices: int) -> int:
    """Elements of staging that an all-reduce of `count` elements needs."""
    half = (count + 1) // 2
    return 4 * ((half + slices - 1) // slices)


Tick = tuple[list[Step], list[Step]]
"""Transfers of one tick, and the reductions to be done after them, in order."""


def _together(halves: list[Iterator[Tick]]) -> Schedule:
    """Run the trees tick by tick side by side. Both ends of a transfer have it in the same tick."""
    for ticks in zip(*halves, strict=True):
        transfers = [step for tick in ticks for step in tick[0]]
        if transfers:
            yield tuple(transfers)
        for tick in ticks:
            for reduction in tick[1]:
                yield (reduction,)


def _reduce(node: Node, own: Span, result: Span, places: tuple[Span, ...], slices: int) -> Iterator[Tick]:
    """Slice s leaves depth d in tick s + height - d."""
    shares, targets = own.parts(slices), result.parts(slices)
    ready = targets if node.children else shares
    lag = node.height - node.depth
    for tick in range(slices + node.height):
        transfers: list[Step] = []
        reductions: list[Step] = []
        taken, given = tick - lag + 1, tick - lag
        if node.children and 0 <= taken < slices and shares[taken].count:
            share, target = shares[taken], targets[taken]
            for child, place in zip(node.children, places, strict=False):
                arrived = place.head(share.count)
                transfers.append(Receive(child, arrived))
                reductions.append(Reduce(arrived, share, target))
                share = target
        if node.parent is not None and 0 <= given < slices and ready[given].count:
            transfers.append(Send(node.parent, ready[given]))
        yield transfers, reductions


def _broadcast(node: Node, result: Span, slices: int) -> Iterator[Tick]:
    """Slice s leaves depth d in tick s + d."""
    targets = result.parts(slices)
    for tick in range(slices + node.height):
        transfers: list[Step] = []
        taken, given = tick - node.depth + 1, tick - node.depth
        if node.parent is not None and 0 <= taken < slices and targets[taken].count:
            transfers.append(Receive(node.parent, targets[taken]))
        if 0 <= given < slices and targets[given].count:
            transfers += [Send(child, targets[given]) for child in node.children]
        yield transfers, []
