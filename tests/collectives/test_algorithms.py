"""Which algorithm a call takes, and what each makes the hosts send, counted by the engines that run it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.collectives.harness import Cluster
from tests.collectives.symbolic import World, ones

from netreduce.collectives import ring
from netreduce.collectives.algorithms import CHANNELS_MAX, Algorithm, Tuning
from netreduce.collectives.crossover import TREE_SLICE_BYTES, CostModel, tree_slices
from netreduce.collectives.reductions import Reduction
from netreduce.collectives.schedule import INPUT, STAGING, Span, in_order
from netreduce.errors import ConfigurationError, MismatchError
from netreduce.units import KIB, MIB


def bytes_sent(world_size: int, algorithm: Algorithm, count: int, **options: object) -> list[int]:
    """What the engines send each for an all-reduce of `count` float32, which is also checked."""
    cluster = Cluster(world_size, **options)
    data = np.array([np.full(count, 1 << rank, np.float32) for rank in range(world_size)])
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank], algorithm=algorithm))
    assert np.all(data == (1 << world_size) - 1)
    sent = [engine.statistics().peer_bytes_sent for engine in cluster.engines]
    cluster.close()
    return sent


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_ring_sends_two_times_n_minus_one_nths_of_the_buffer_from_every_host(world_size: int) -> None:
    count = 60
    assert bytes_sent(world_size, Algorithm.RING, count) == [8 * (world_size - 1) * count // world_size] * world_size


@pytest.mark.parametrize("world_size", [2, 4])
def test_halving_and_doubling_sends_as_little(world_size: int) -> None:
    count = 60
    assert bytes_sent(world_size, Algorithm.HALVING, count) == [8 * (world_size - 1) * count // world_size] * world_size


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_a_tree_sends_as_little_in_total(world_size: int) -> None:
    assert sum(bytes_sent(world_size, Algorithm.TREE, 60)) == 8 * (world_size - 1) * 60


def test_the_naive_way_makes_one_host_send_as_much_as_all_others_together() -> None:
    assert bytes_sent(4, Algorithm.CENTRAL, 60) == [3 * 240, 240, 240, 240]


def test_auto_takes_the_switch_and_only_without_it_the_fastest_between_hosts() -> None:
    cluster = Cluster(3)
    cluster.call(lambda engine, _: engine.all_reduce(np.ones(8, np.int64)))
    assert [engine.statistics().host_collectives for engine in cluster.engines] == [0, 0, 0]
    bits = 1 << np.arange(3).repeat(8).reshape(3, 8)
    cluster.call(lambda engine, rank: engine.all_reduce(bits[rank], Reduction.BITWISE_OR))
    assert [engine.statistics().host_collectives for engine in cluster.engines] == [1, 1, 1]
    assert np.all(bits == 7)
    sent = [engine.statistics().peer_bytes_sent for engine in cluster.engines]
    assert sorted(sent) == bytes_sent_by_a_tree_of_three(8 * 8)
    cluster.close()


def bytes_sent_by_a_tree_of_three(length_bytes: int) -> list[int]:
    """Two ranks are the root of one half's tree and send it to two children; all send up where they are leaves."""
    half = length_bytes // 2
    return [half + half, half + 2 * half, half + 2 * half]


def test_two_hosts_are_a_ring() -> None:
    assert {CostModel().fastest(2, 1 << bits) for bits in range(10, 36)} == {"ring"}


@pytest.mark.parametrize("world_size", [4, 8, 16, 64])
def test_powers_of_two_take_halving_until_the_rings_hidden_additions_pay(world_size: int) -> None:
    costs = CostModel()
    assert costs.fastest(world_size, 1 * KIB) == "halving"
    choices = [costs.fastest(world_size, 1 << bits) for bits in range(10, 36)]
    assert choices == sorted(choices), "one crossover: halving, then ring"


@pytest.mark.parametrize("world_size", [3, 5, 6, 7, 12, 17])
def test_other_world_sizes_take_the_tree_for_short_buffers_and_the_ring_for_long_ones(world_size: int) -> None:
    costs = CostModel()
    assert costs.fastest(world_size, 1 * KIB) == "tree"
    assert costs.fastest(world_size, 1024 * MIB) == "ring"


def test_the_crossover_moves_with_the_costs() -> None:
    slow_steps, fast_steps = CostModel(step_ps=10**12), CostModel(step_ps=10**5)
    assert slow_steps.fastest(5, 512 * KIB) == "tree"
    assert fast_steps.fastest(5, 512 * KIB) == "ring"


def test_an_engines_costs_decide_for_auto() -> None:
    ring_only = Tuning(costs=CostModel(step_ps=0))
    cluster = Cluster(3, tuning=ring_only)
    data = np.ones((3, 60), np.int64)
    cluster.call(lambda engine, rank: engine.all_reduce(data[rank], Reduction.BITWISE_OR))
    assert [engine.statistics().peer_bytes_sent for engine in cluster.engines] == [4 * 20 * 8] * 3
    cluster.close()


@pytest.mark.parametrize(("length_bytes", "slices"), [(0, 1), (1, 1), (2 * TREE_SLICE_BYTES, 1), (MIB, 2)])
def test_trees_cut_each_half_into_slices(length_bytes: int, slices: int) -> None:
    assert tree_slices(length_bytes) == slices


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (0, 2, 4, 1, 3)])
def test_a_ring_in_any_order_adds_every_rank_once(order: tuple[int, ...]) -> None:
    span, staging = Span(INPUT, 0, 10), Span(STAGING, 0, 2)
    world = World(
        5,
        lambda rank: {INPUT: [10**rank] * 10, STAGING: [0] * 2},
        lambda rank: in_order(order, ring.all_reduce(order.index(rank), 5, span, span, staging)),
    ).run()
    for rank in world.ranks:
        assert rank.buffers[INPUT] == [ones(5)] * 10


@pytest.mark.parametrize("channels", [((0, 1, 2, 3),), ((0, 1, 2, 3),) * 3, ((0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3))])
def test_channels_share_a_buffer_and_send_no_more_than_one(channels: tuple[tuple[int, ...], ...]) -> None:
    count = 4 * len(channels) * 5
    sent = bytes_sent(4, Algorithm.RING, count, tuning=Tuning(channels=channels))
    assert sent == [2 * 3 * count] * 4


def test_ranks_that_ask_for_different_algorithms_name_both() -> None:
    cluster = Cluster(2)
    ways = [Algorithm.RING, Algorithm.CENTRAL]
    with pytest.raises(MismatchError, match=r"by ring.*by central|by central.*by ring"):
        cluster.call(lambda engine, rank: engine.all_reduce(np.ones(60, np.float32), algorithm=ways[rank]))
    cluster.close()


@pytest.mark.parametrize(
    ("channels", "text"),
    [(((0, 1, 1),), "not an order of ranks 0 to 2"), (((0, 1, 2),) * (CHANNELS_MAX + 1), "at most 16")],
)
def test_channels_that_cannot_be_are_refused(channels: tuple[tuple[int, ...], ...], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Cluster(3, tuning=Tuning(channels=channels))
