"""Jobs, background and stragglers together: hand values, and agreement with the price of a lone job."""

from dataclasses import replace

import numpy as np
import pytest

from netreduce.collectives.schedule import Send, Span
from netreduce.errors import AdmissionError, ConfigurationError
from netreduce.flowsim import aggregators, scenario
from netreduce.flowsim.checks import StalledError
from netreduce.flowsim.cluster import Cluster, Inside
from netreduce.flowsim.fabrics import leaf_spine, single_switch
from netreduce.flowsim.packets import UNTAXED
from netreduce.flowsim.pricing import Pricer
from netreduce.flowsim.scenario import Background, Job, simulate
from netreduce.flowsim.schemes import SCHEMES, Scheme
from netreduce.flowsim.traffic import Settings

RATE = 12.5e9
PLAIN = Settings(UNTAXED)
NETREDUCE = SCHEMES["netreduce"]


def cluster_of(ranks: int) -> Cluster:
    return Cluster(single_switch(ranks, capacity=RATE))


def test_spliced_connections_of_100_mb_with_50_mb_into_one_worker_take_12_002_ms():
    cluster = cluster_of(8)
    job = Job("train", NETREDUCE, np.arange(8), 100_000_000)
    outcome = simulate(cluster, [job], [Background(3, 0, 50e6)], PLAIN)
    assert outcome.jobs[0].times_s == [pytest.approx(12.002e-3, rel=1e-9)]
    assert outcome.background_ends_s == (pytest.approx(8.002e-3, rel=1e-9),)
    assert outcome.busiest[0][1] == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("name", ["ring", "halving", "leaders", "hierarchical", "parallel", "netreduce", "switchml"])
def test_a_lone_job_on_alike_links_takes_its_price_though_each_rank_goes_at_its_own_pace(name):
    cluster = Cluster(single_switch(4, capacity=RATE), Inside(4, 50e9))
    price = Pricer(SCHEMES[name], cluster).price(1_600_000)
    outcome = simulate(cluster, [Job("lone", SCHEMES[name], np.arange(16), 1_600_000)])
    assert outcome.jobs[0].times_s[0] == pytest.approx(price.time_s, rel=0.02)


def test_lockstep_of_a_large_job_is_its_price(monkeypatch):
    monkeypatch.setattr(scenario, "LOCKSTEP_ABOVE", 4)
    cluster = Cluster(leaf_spine(8, 4, 4, capacity=RATE), Inside(2, 50e9))
    for name in ("ring", "tree", "parallel"):
        price = Pricer(SCHEMES[name], cluster).price(1_600_000)
        outcome = simulate(cluster, [Job("lone", SCHEMES[name], np.arange(16), 1_600_000)])
        assert outcome.jobs[0].times_s[0] == pytest.approx(price.time_s, rel=1e-9)


@pytest.mark.parametrize("name", ["ring", "netreduce"])
def test_a_straggler_delays_everybody_by_what_it_is_late(name):
    cluster = cluster_of(4)
    prompt = simulate(cluster, [Job("a", SCHEMES[name], np.arange(4), 4_000_000)]).jobs[0].times_s[0]
    late = Job("a", SCHEMES[name], np.arange(4), 4_000_000, delays_s={2: 5e-3})
    assert simulate(cluster, [late]).jobs[0].times_s[0] == pytest.approx(prompt + 5e-3, rel=0.2)


def test_two_jobs_that_share_uplinks_take_twice_as_long_as_alone_and_apart_none_is_slowed():
    cluster = Cluster(leaf_spine(8, 4, 1, capacity=RATE))
    size = 10_000_000

    def times(first: list[int], second: list[int]) -> list[float]:
        jobs = [Job(n, NETREDUCE, np.array(w), size) for n, w in (("a", first), ("b", second))]
        return [job.times_s[0] for job in simulate(cluster, jobs, (), PLAIN).jobs]

    alone = simulate(cluster, [Job("a", NETREDUCE, np.array([0, 1, 4, 5]), size)], (), PLAIN).jobs[0].times_s[0]
    assert times([0, 1, 4, 5], [2, 3, 6, 7]) == pytest.approx([2 * alone] * 2, rel=0.01)
    assert times([0, 1, 2], [4, 5, 6]) == pytest.approx([alone] * 2, rel=0.01)


def test_progress_is_told_of_every_all_reduce():
    ends = []
    jobs = [
        Job("a", NETREDUCE, np.arange(4), 1000, repeats=3),
        Job("b", SCHEMES["ring"], np.arange(4), 1000, repeats=2),
    ]
    simulate(cluster_of(4), jobs, (), PLAIN, lambda: ends.append(1))
    assert len(ends) == 5


def test_schedules_that_do_not_match_are_an_error_that_names_the_job():
    def make(world_size, machine_size, count):
        return lambda rank: iter([(Send(1 - rank, Span("input", 0, count)),)])

    silent = Scheme("silent", "nobody receives", make, lambda ranks, _: ranks)
    with pytest.raises(StalledError, match="job 'a' waits for ranks that never come"):
        simulate(cluster_of(2), [Job("a", silent, np.arange(2), 1000)])


def test_a_job_repeats_after_its_pause():
    cluster = cluster_of(4)
    [job] = simulate(cluster, [Job("a", NETREDUCE, np.arange(4), 1_000_000, 1e-3, repeats=3, pause_s=2e-3)]).jobs
    assert job.starts_s[0] == 1e-3
    assert job.starts_s[1] - job.ends_s[0] == pytest.approx(2e-3)
    assert job.times_s == pytest.approx([job.times_s[0]] * 3)


def test_repeated_background_flows_go_on_while_jobs_run_and_then_stop():
    outcome = simulate(
        cluster_of(4), [Job("a", NETREDUCE, np.arange(4), 12_500_000)], [Background(1, 0, 1e6, repeat=True)], PLAIN
    )
    # The background always takes half of worker 0's link, but for its latencies.
    assert 1.9e-3 < outcome.jobs[0].times_s[0] < 2.0e-3


def test_atp_jobs_meet_in_the_aggregators():
    cluster = cluster_of(8)
    jobs = [Job(n, SCHEMES["atp"], np.array(w), 1_000_000) for n, w in (("a", [0, 1, 2, 3]), ("b", [4, 5, 6, 7]))]
    both = simulate(cluster, jobs).jobs
    alone = simulate(cluster, jobs[:1]).jobs
    assert both[0].times_s[0] > 1.05 * alone[0].times_s[0]
    assert "13% of the packets collide" in both[0].notes[0]


def test_a_second_streaming_tree_on_a_switch_falls_back_to_a_ring():
    jobs = [Job(n, SCHEMES["sharp"], np.array(w), 1_000_000) for n, w in (("a", [0, 1, 2, 3]), ("b", [4, 5, 6, 7]))]
    outcome = simulate(cluster_of(8), jobs)
    assert outcome.jobs[0].scheme == "SHARP-like tree"
    assert outcome.jobs[1].scheme == "flat ring"
    assert "falls back to a ring" in outcome.jobs[1].notes[0]


def test_jobs_share_the_switches_memory_and_one_too_many_is_refused():
    small = replace(SCHEMES["netreduce"], aggregator=aggregators.netreduce(memory_bytes=3e6))
    jobs = [Job(n, small, np.array(w), 1_000_000) for n, w in (("a", [0, 1, 2, 3]), ("b", [4, 5, 6, 7]))]
    first, second = simulate(cluster_of(8), jobs).jobs
    assert first.notes == ()
    assert "messages of 13 packets only" in second.notes[0]
    full = replace(SCHEMES["netreduce"], aggregator=aggregators.netreduce(memory_bytes=2.79e6))
    with pytest.raises(AdmissionError, match="fewer jobs"):
        simulate(cluster_of(8), [replace(job, scheme=full) for job in jobs])


def test_jobs_of_one_name_are_refused():
    job = Job("a", NETREDUCE, np.arange(4), 1000)
    with pytest.raises(ConfigurationError, match="different names"):
        simulate(cluster_of(4), [job, job])
