"""The schemes that are compared: which schedule of the communicator, between whom, aggregated by what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from netreduce.collectives import halving, hierarchical, innetwork, ring, tree
from netreduce.collectives.crossover import tree_slices
from netreduce.collectives.schedule import INPUT, STAGING, Schedule, Span
from netreduce.errors import ConfigurationError
from netreduce.flowsim import aggregators
from netreduce.flowsim.aggregators import Aggregator
from netreduce.flowsim.flows import Ints

Make = Callable[[int], Schedule]

TREE_SLICES_MAX = 16
"""A tree's halves are cut as the communicator cuts them, but into no more slices than this: each costs steps to
simulate.
"""
ITEM_BYTES = 4


@dataclass(frozen=True)
class Scheme:
    """`make(world_size, machine_size, count)` gives each rank's schedule; `period(world_size, machine_size)` its
    symmetry.

    `aggregator` is None where all steps are between two hosts. `rings(world_size, machine_size)` are the in-network
    rings.
    """

    name: str
    title: str
    make: Callable[[int, int, int], Make]
    period: Callable[[int, int], int]
    aggregator: Aggregator | None = None
    parallel_rings: bool = False
    bus_factor: int = 2
    """Of nccl-tests: bus bandwidth = bus_factor (n-1)/n x size/time; 2 for an all-reduce, 1 for either half of it."""

    def rings(self, world_size: int, machine_size: int) -> list[Ints]:
        if self.aggregator is None:
            return []
        count = machine_size if self.parallel_rings else 1
        return [np.arange(first, world_size, count) for first in range(count)]


def _data(count: int) -> tuple[Span, Span]:
    return Span(INPUT, 0, count), Span(STAGING, 0, count)


def _ring(world_size: int, _: int, count: int) -> Make:
    data, staging = _data(count)
    return lambda rank: ring.all_reduce(rank, world_size, data, data, staging)


def _tree(world_size: int, _: int, count: int) -> Make:
    data, slices = Span(INPUT, 0, count), min(tree_slices(count * ITEM_BYTES), TREE_SLICES_MAX)
    staging = Span(STAGING, 0, tree.staging_count(count, slices))
    return lambda rank: tree.all_reduce(rank, world_size, data, data, staging, slices=slices)


def _halving(world_size: int, _: int, count: int) -> Make:
    data, staging = _data(count)
    return lambda rank: halving.all_reduce(rank, world_size, data, data, staging)


def _leaders(world_size: int, machine_size: int, count: int) -> Make:
    data, staging = _data(count)
    return lambda rank: hierarchical.leaders(rank, world_size, machine_size, data, data, staging)


def _parallel(in_network: bool) -> Callable[[int, int, int], Make]:
    def make(world_size: int, machine_size: int, count: int) -> Make:
        data, staging = _data(count)
        return lambda rank: hierarchical.parallel(
            rank, world_size, machine_size, data, data, staging, in_network=in_network
        )

    return make


def _in_network(world_size: int, _: int, count: int) -> Make:
    data = Span(INPUT, 0, count)
    return lambda rank: innetwork.all_reduce(world_size, data, data)


def _alike(_: int, __: int) -> int:
    return 1


def _alike_by_machine(_: int, machine_size: int) -> int:
    return machine_size


def _unlike(world_size: int, _: int) -> int:
    return world_size


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("ring", "flat ring", _ring, _alike),
        Scheme("tree", "double binary tree", _tree, _unlike),
        Scheme("halving", "halving and doubling", _halving, _unlike),
        Scheme("leaders", "leaders' ring (Tencent)", _leaders, _alike_by_machine),
        Scheme("hierarchical", "hierarchical rings", _parallel(False), _alike_by_machine),
        Scheme("netreduce", "NetReduce", _in_network, _alike, aggregators.netreduce()),
        Scheme("parallel", "Parallel NetReduce", _parallel(True), _alike_by_machine, aggregators.netreduce(), True),
        Scheme("switchml", "SwitchML", _in_network, _alike, aggregators.switchml()),
        Scheme("atp", "ATP", _in_network, _alike, aggregators.atp()),
        Scheme("sharp", "SHARP-like tree", _in_network, _alike, aggregators.sharp()),
    )
}


def _gather(world_size: int, _: int, count: int) -> Make:
    chunks = Span(INPUT, 0, count).parts(world_size)
    return lambda rank: ring.all_gather(rank, world_size, chunks)


def _scatter(world_size: int, _: int, count: int) -> Make:
    data, staging = _data(count)
    chunks = data.parts(world_size)
    return lambda rank: ring.reduce_scatter(rank, world_size, chunks, chunks, staging, owner_shift=1)


ALL_GATHER = Scheme("all-gather", "ring all-gather", _gather, _alike, bus_factor=1)
REDUCE_SCATTER = Scheme("reduce-scatter", "ring reduce-scatter", _scatter, _alike, bus_factor=1)
"""The halves of a ring all-reduce, which sharded training uses."""


def scheme_named(name: str) -> Scheme:
    """The scheme, or a ConfigurationError that lists them."""
    if name not in SCHEMES:
        raise ConfigurationError(f"no scheme {name!r}; there are {', '.join(SCHEMES)}")
    return SCHEMES[name]
