"""Trees, halving and doubling, the naive way, and the schedules for machines, proven with digits."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from tests.collectives.symbolic import World, ones

from netreduce.collectives import central, halving, hierarchical, tree
from netreduce.collectives.algorithms import Algorithm, HostPlan, Tuning
from netreduce.collectives.machines import Machines
from netreduce.collectives.schedule import INPUT, OUTPUT, STAGING, Span

worlds = pytest.mark.parametrize("world_size", range(1, 18))
machines = pytest.mark.parametrize(("machine_count", "machine_size"), [(1, 4), (2, 1), (2, 2), (3, 4), (5, 3), (4, 8)])


def prove(world_size: int, count: int, make, staging: int, in_place: bool, rings=1) -> World:
    """Run `make(rank, source, target, staging)` on all ranks and check every rank's result and that inputs stay."""
    source = Span(INPUT, 0, count)
    target = source if in_place else Span(OUTPUT, 0, count)
    world = World(
        world_size,
        lambda rank: {INPUT: [10**rank] * count, OUTPUT: [0] * count, STAGING: [0] * staging},
        lambda rank: make(rank, source, target, Span(STAGING, 0, staging)),
        rings,
    ).run()
    for number, rank in enumerate(world.ranks):
        assert rank.buffers[target.buffer] == [ones(world_size)] * count
        assert in_place or rank.buffers[INPUT] == [10**number] * count
    return world


@worlds
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("in_place", [True, False])
def test_the_double_tree_adds_every_rank_once(world_size, slices, in_place):
    for count in (0, 1, 19, 24):
        staging = tree.staging_count(count, slices)
        prove(
            world_size,
            count,
            lambda rank, s, t, scratch: tree.all_reduce(rank, world_size, s, t, scratch, slices=slices),
            staging,
            in_place,
        )


@worlds
def test_a_tree_has_one_root_two_children_at_most_and_logarithmic_height(world_size):
    for shift in (0, 1):
        nodes = tree.nodes(world_size, shift)
        assert [node.parent for node in nodes].count(None) == 1
        assert max(len(node.children) for node in nodes) <= 2
        assert nodes[0].height <= world_size.bit_length()
        for rank, node in enumerate(nodes):
            assert all(nodes[child].parent == rank for child in node.children)


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_inner_nodes_of_one_tree_are_leaves_of_the_other(world_size):
    inner = [{rank for rank, node in enumerate(tree.nodes(world_size, shift)) if node.children} for shift in (0, 1)]
    assert not inner[0] & inner[1]


@worlds
@pytest.mark.parametrize("in_place", [True, False])
def test_halving_and_doubling_adds_every_rank_once(world_size, in_place):
    for count in (0, 1, 19, 48):
        prove(
            world_size,
            count,
            lambda rank, s, t, scratch: halving.all_reduce(rank, world_size, s, t, scratch),
            count,
            in_place,
        )


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_halving_and_doubling_sends_as_little_as_a_ring(world_size):
    world = prove(
        world_size,
        world_size,
        lambda rank, s, t, scratch: halving.all_reduce(rank, world_size, s, t, scratch),
        world_size,
        True,
    )
    assert {rank.sent for rank in world.ranks} == {2 * (world_size - 1)}


@worlds
@pytest.mark.parametrize("in_place", [True, False])
def test_the_naive_way_adds_every_rank_once_and_its_host_sends_everything(world_size, in_place):
    for count in (0, 1, 19):
        world = prove(
            world_size,
            count,
            lambda rank, s, t, scratch: central.all_reduce(rank, world_size, s, t, scratch),
            (world_size - 1) * count,
            in_place,
        )
        if world_size > 1:
            assert [rank.sent for rank in world.ranks] == [(world_size - 1) * count] + [count] * (world_size - 1)


@machines
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("slices", [1, 2])
def test_the_leaders_ring_adds_every_worker_of_every_machine_once(machine_count, machine_size, in_place, slices):
    world_size = machine_count * machine_size
    for count in (0, 1, 19, 2 * world_size):
        prove(
            world_size,
            count,
            lambda rank, s, t, scratch: hierarchical.leaders(
                rank, world_size, machine_size, s, t, scratch, slices=slices
            ),
            count,
            in_place,
        )


@machines
@pytest.mark.parametrize("in_network", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_parallel_rings_add_every_worker_of_every_machine_once(machine_count, machine_size, in_network, in_place):
    world_size = machine_count * machine_size
    for count in (0, 1, 19, 2 * world_size):
        world = prove(
            world_size,
            count,
            lambda rank, s, t, scratch: hierarchical.parallel(
                rank, world_size, machine_size, s, t, scratch, in_network=in_network
            ),
            count,
            in_place,
            machine_size,
        )
        if in_network and machine_count > 1 and count % machine_size == 0:
            assert {rank.aggregated for rank in world.ranks} == {count // machine_size}


@pytest.mark.parametrize("way", [Algorithm.PARALLEL, Algorithm.HIERARCHICAL, Algorithm.LEADERS])
@pytest.mark.parametrize(("machine_count", "machine_size"), [(2, 2), (3, 4), (5, 3), (4, 8)])
def test_whatever_machine_a_rank_is_on_it_is_added_once_as_the_communicator_plans_it(
    way, machine_count, machine_size, rng
):
    """With ranks strewn over the machines, and buffers so long that they run in two lanes where lanes are possible."""
    world_size = machine_count * machine_size
    strewn = rng.permutation([name for name in range(machine_count) for _ in range(machine_size)])
    machines = Machines.named([str(name) for name in strewn])
    rings = [[ranks[worker] for ranks in machines.members] for worker in range(machine_size)]
    for count in (0, 1, 19, 300):
        plans = [HostPlan(rank, world_size, np.dtype("V4096"), Tuning(), machines) for rank in range(world_size)]
        schedules = [plan.all_reduce(Span(INPUT, 0, count), Span(INPUT, 0, count), way) for plan in plans]
        world = World(
            world_size,
            lambda rank, count=count, plans=plans: {
                INPUT: [10**rank] * count,
                STAGING: [0] * plans[rank].scratch[STAGING],
            },
            lambda rank, schedules=schedules: chain.from_iterable(schedules[rank]),
            rings,
        ).run()
        for rank in world.ranks:
            assert rank.buffers[INPUT] == [ones(world_size)] * count
