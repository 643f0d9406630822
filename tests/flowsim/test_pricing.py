"""Prices are the closed forms where these hold, and what they say of limits is arithmetic."""

from dataclasses import replace

import numpy as np
import pytest

from netreduce.errors import AdmissionError, ConfigurationError
from netreduce.flowsim import aggregators
from netreduce.flowsim.closed_forms import closed_form_s
from netreduce.flowsim.cluster import Cluster, Inside
from netreduce.flowsim.fabrics import FatTree, leaf_spine, rail_optimised, single_switch
from netreduce.flowsim.links import Change
from netreduce.flowsim.packets import ATP, SWITCHML, UNTAXED, roce
from netreduce.flowsim.pricing import Pricer
from netreduce.flowsim.schemes import SCHEMES, scheme_named
from netreduce.flowsim.traffic import Settings

RATE = 12.5e9
PLAIN = Settings(UNTAXED)


def test_1024_ranks_on_a_ring_over_a_two_level_fat_tree_take_24_16833408_ms():
    cluster = Cluster(leaf_spine(1024, 32, 32, capacity=RATE))
    price = Pricer(SCHEMES["ring"], cluster, PLAIN).price(1024 * 97656)
    assert price.time_s == pytest.approx(24.16833408e-3, rel=1e-9)
    assert price.alpha_s == pytest.approx(2046 * 4e-6, rel=1e-9)
    assert price.distinct_steps == 1


def test_100_mb_spliced_through_one_switch_take_8_002_ms():
    for ranks in (2, 8, 64):
        price = Pricer(SCHEMES["netreduce"], Cluster(single_switch(ranks, capacity=RATE)), PLAIN).price(100_000_000)
        assert price.time_s == pytest.approx(8.002e-3, rel=1e-9)


@pytest.mark.parametrize("name", ["ring", "leaders", "hierarchical", "netreduce", "parallel"])
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(single_switch(8, capacity=RATE)),
        Cluster(leaf_spine(16, 4, 4, capacity=RATE)),
        Cluster(leaf_spine(16, 4, 4, capacity=RATE), Inside(8, 100e9)),
        Cluster(leaf_spine(16, 4, 4, capacity=RATE), Inside(8, 15.75e9)),
        Cluster(leaf_spine(8, 4, 4, capacity=RATE), Inside(4, 6e9)),
        Cluster(FatTree(16, 4, capacity=RATE), Inside(4, 100e9)),
        Cluster(rail_optimised(8, 4, 8, 4, capacity=RATE), Inside(4, 100e9), ports_per_machine=4),
    ],
    ids=lambda cluster: cluster.title,
)
@pytest.mark.parametrize("settings", [PLAIN, Settings(roce(4096), step_s=5e-6)], ids=["plain", "taxed"])
def test_the_price_is_the_closed_form(name, cluster, settings):
    size = 64 * cluster.worker_count * 1000
    expected = closed_form_s(SCHEMES[name], cluster, size, settings)
    if expected is None:  # a flat ring over several ports a machine has no closed form
        assert cluster.ports_per_machine > 1
        return
    assert Pricer(SCHEMES[name], cluster, settings).price(size).time_s == pytest.approx(expected, rel=1e-9)


def test_halving_and_doubling_on_one_switch_moves_what_a_ring_moves_in_fewer_steps():
    cluster = Cluster(single_switch(16, capacity=RATE))
    price = Pricer(SCHEMES["halving"], cluster, PLAIN).price(16_000_000)
    assert price.time_s == pytest.approx(8 * 2e-6 + 2 * 15 / 16 * 16e6 / RATE, rel=1e-9)


def test_a_tree_is_ahead_of_a_ring_for_little_data_only():
    cluster = Cluster(single_switch(32, capacity=RATE))
    little = {name: Pricer(SCHEMES[name], cluster, PLAIN).price(4096).time_s for name in ("ring", "tree")}
    much = {name: Pricer(SCHEMES[name], cluster, PLAIN).price(100_000_000).time_s for name in ("ring", "tree")}
    assert little["tree"] < little["ring"]
    assert much["ring"] < much["tree"]


def test_lockstep_of_a_few_ranks_and_their_shifts_is_lockstep_of_all_ranks():
    cluster = Cluster(leaf_spine(8, 4, 4, capacity=RATE), Inside(4, 100e9))
    for name in ("ring", "leaders", "hierarchical", "netreduce", "parallel"):
        scheme = SCHEMES[name]
        every_rank = replace(scheme, period=lambda world_size, _: world_size)
        assert Pricer(every_rank, cluster).price(3_200_000).time_s == pytest.approx(
            Pricer(scheme, cluster).price(3_200_000).time_s, rel=1e-12
        )


def test_the_header_tax_is_that_of_the_wire_formats():
    assert 1 / roce(1024).tax() == pytest.approx(0.9259, abs=1e-4)
    assert 1 / SWITCHML.tax() == pytest.approx(0.9309, abs=1e-4)
    assert 1 / ATP.tax() == pytest.approx(0.7470, abs=1e-4)


def test_parallel_netreduce_loses_to_the_flat_ring_over_pcie_and_wins_over_nvlink():
    def times(capacity: float) -> tuple[float, float]:
        cluster = Cluster(leaf_spine(4, 4, 1, capacity=RATE), Inside(8, capacity))
        return tuple(Pricer(SCHEMES[name], cluster, PLAIN).price(100_000_000).time_s for name in ("ring", "parallel"))

    ring, parallel = times(15.75e9)
    assert ring < parallel
    ring, parallel = times(100e9)
    assert parallel < ring


def test_a_window_of_one_message_is_stop_and_wait():
    # A message takes 15.04 us on the wire, its acknowledgement is back 4 us later.
    cluster = Cluster(single_switch(6, capacity=RATE))
    one, two = (replace(SCHEMES["netreduce"], aggregator=aggregators.netreduce(window=n)) for n in (1, 2))
    size = 174_080 * 600
    line_s = size * roce().tax() / RATE
    assert Pricer(two, cluster).price(size).time_s == pytest.approx(line_s + 2e-6, rel=1e-9)
    assert Pricer(one, cluster).price(size).time_s == pytest.approx(line_s + 599 * 4e-6 + 2e-6, rel=1e-9)


def test_what_fits_into_the_window_is_not_slowed_by_it():
    cluster = Cluster(single_switch(6, capacity=RATE, latency_s=1e-3))
    size = 348_144
    assert Pricer(SCHEMES["netreduce"], cluster).price(size).time_s == pytest.approx(size * roce().tax() / RATE + 2e-3)


def test_acknowledgements_behind_a_window_of_data_cost_one_way_per_window():
    cluster = Cluster(single_switch(6, capacity=RATE))
    size = 174_080 * 600
    queued = replace(aggregators.netreduce(window=2), answer_queue_bytes=512 * 1024)
    scheme = replace(SCHEMES["netreduce"], aggregator=queued)
    # Both messages have left when the acknowledgements do: after each window, 2 us of silence.
    expected = size * roce().tax() / RATE + 299 * 2e-6 + 2e-6
    assert Pricer(scheme, cluster).price(size).time_s == pytest.approx(expected, rel=1e-9)


def test_store_and_forward_costs_a_frame_on_every_further_link():
    cluster = Cluster(leaf_spine(8, 4, 4, capacity=RATE))
    frame_s = 1106 / RATE
    for name, steps in (("ring", 14), ("netreduce", 1)):
        through, stored = (
            Pricer(SCHEMES[name], cluster, Settings(store_and_forward=kept)).price(32_000).time_s
            for kept in (False, True)
        )
        assert stored - through == pytest.approx(steps * 3 * frame_s)


def test_a_detour_through_a_middlebox_lengthens_the_round_trip_of_every_pass():
    cluster = Cluster(leaf_spine(8, 4, 4, capacity=RATE))
    beside = replace(SCHEMES["netreduce"], aggregator=aggregators.netreduce(detour_s=1e-6))
    added = Pricer(beside, cluster).price(4000).time_s - Pricer(SCHEMES["netreduce"], cluster).price(4000).time_s
    assert added == pytest.approx(3e-6)  # leaf, spine, leaf


def test_the_memory_of_the_paper_is_that_of_four_messages_of_six_ranks():
    price = Pricer(SCHEMES["netreduce"], Cluster(single_switch(6, capacity=RATE))).price(1_000_000)
    assert price.memory_bytes == 4 * 174_080 * 6
    assert price.ports == 6
    assert "4.18 MB and 6 ports" in price.explain()


def test_too_little_memory_shrinks_the_messages_and_says_so_and_none_is_refused():
    cluster = Cluster(single_switch(64, capacity=RATE))
    small = replace(SCHEMES["netreduce"], aggregator=aggregators.netreduce(memory_bytes=2e6))
    price = Pricer(small, cluster).price(100_000_000)
    assert "messages of 7 packets only" in price.explain()
    assert price.memory_bytes <= 2e6
    with pytest.raises(AdmissionError, match=r"leaf0 must hold .* packets for 1 rings"):
        Pricer(replace(small, aggregator=aggregators.netreduce(memory_bytes=1e5)), cluster)


def test_atp_with_other_jobs_sends_collided_packets_of_every_rank_to_the_server():
    cluster = Cluster(single_switch(8, capacity=RATE))
    alone = Pricer(SCHEMES["atp"], cluster).price(10_000_000).time_s
    # Alone, each rank's port takes its own results and an eighth of the sums.
    assert alone == pytest.approx(10e6 * ATP.tax() * 9 / 8 / RATE + 2e-6, rel=1e-3)
    shared_scheme = replace(SCHEMES["atp"], aggregator=aggregators.atp(other_jobs=2, servers=1))
    shared = Pricer(shared_scheme, cluster).price(10_000_000)
    collision = 1 - np.exp(-2 * 2800 / 20000)
    # The server shares the port of rank 0, which also takes the results.
    busy = 1 + 1 - collision + 8 * collision
    assert shared.time_s == pytest.approx(10e6 * ATP.tax() * busy / RATE + 2e-6, rel=1e-3)
    assert shared.bottleneck == "leaf0->host0"


def test_switchmls_slots_bound_its_rate_on_a_long_way():
    near = Cluster(single_switch(8, capacity=RATE))
    far = Cluster(single_switch(8, capacity=RATE, latency_s=20e-6))
    assert Pricer(SCHEMES["switchml"], near).price(10_000_000).algbw > 0.9 * RATE
    bound = 256 * 1024 / (40e-6 + 1024 * SWITCHML.tax() / RATE)
    assert Pricer(SCHEMES["switchml"], far).price(100_000_000).algbw == pytest.approx(bound, rel=0.02)


def test_a_host_stack_bounds_the_rate_and_adds_its_latency():
    cluster = Cluster(single_switch(8, capacity=RATE))
    slow = replace(SCHEMES["atp"], aggregator=aggregators.atp(host_capacity=50.3e9 / 8, host_s=751e-6))
    price = Pricer(slow, cluster).price(100_000_000)
    assert price.time_s == pytest.approx(100e6 / (50.3e9 / 8) + 751e-6 + 2e-6, rel=1e-6)


def test_one_slow_port_holds_up_a_ring_and_a_spliced_ring_alike():
    for name in ("ring", "netreduce"):
        fabric = single_switch(8, capacity=RATE)
        fast = Pricer(SCHEMES[name], Cluster(fabric)).price(80_000_000).time_s
        fabric.change([Change("host3--leaf0", factor=0.5)])
        price = Pricer(SCHEMES[name], Cluster(fabric)).price(80_000_000)
        assert price.time_s == pytest.approx(2 * fast, rel=0.01)
        assert "host3" in price.bottleneck


def test_busbw_of_point_to_point_schemes_stays_below_the_link_and_in_network_ones_exceed_it():
    cluster = Cluster(single_switch(8, capacity=RATE))
    assert Pricer(SCHEMES["ring"], cluster, PLAIN).price(100_000_000).busbw < RATE
    assert Pricer(SCHEMES["netreduce"], cluster, PLAIN).price(100_000_000).busbw > 1.7 * RATE


def test_every_scheme_prices_every_shape():
    shapes = [Cluster(single_switch(2, capacity=RATE)), Cluster(leaf_spine(6, 3, 2, capacity=RATE), Inside(4, 50e9))]
    for cluster in shapes:
        for scheme in SCHEMES.values():
            for size in (4, 1_000_000):
                price = Pricer(scheme, cluster).price(size)
                assert 0 < price.alpha_s <= price.time_s
                assert 0 < price.busy <= 1 + 1e-9, price.explain()


def test_an_unknown_scheme_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigurationError, match="there are ring, tree, halving"):
        scheme_named("quantum")
