"""Runs on testbeds: times against closed forms, bytes on every link counted, round trips, and the quantum's honesty.

A run takes what the closed form of its scheme says, and besides waits for clears to send, which the closed forms do not
know: a step of a ring costs one more way between the workers, unless its other lane hides that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from netreduce.errors import NetReduceError
from netreduce.testbed.expected import payload_bytes
from netreduce.testbed.experiment import Experiment, Result
from netreduce.testbed.hardware import Case, Hardware, Middlebox
from netreduce.units import GBPS, KIB, PS_PER_S
from netreduce.wire.control import Geometry

SIX = Hardware(6, delay_ps=1_375_000, switch_latency_ps=100_000, middlebox=Middlebox(20_000, 160_000))
BIG = Geometry(message_window=2, message_packets=170, path_mtu=4096)
EIGHT = Hardware(
    2,
    4,
    delay_ps=1_175_000,
    switch_latency_ps=100_000,
    inside_bps=1_200 * GBPS,
    inside_delay_ps=400_000,
    geometry=BIG,
    quantum_ps=250_000,
)
HEADERS = 58
"""Ethernet, IPv4, UDP, BTH and ICRC of a MIDDLE packet."""


def ran(hardware: Hardware, way: str, size_bytes: int) -> Result:
    result = Experiment(Case(hardware, way, size_bytes)).run()
    assert result.dropped_frames == result.resent_packets == 0
    return result


@pytest.mark.parametrize(("way", "published_us", "ours_us"), [("plain", 5.7, 5.73), ("netreduce", 6.3, 6.36)])
def test_the_published_round_trips_and_what_frames_add(way: str, published_us: float, ours_us: float) -> None:
    """A message of 4 bytes is 78 bytes long, an ACK 62, with 24 bytes around each, at 80 ps a byte and hop."""
    time_us = ran(SIX, way, 4).time_s * 1e6
    hops = 2 if way == "plain" else 4
    assert time_us == pytest.approx(published_us + hops * (78 + 24 + 62 + 24) * 80e-6, abs=1e-3)
    assert time_us == pytest.approx(ours_us, abs=0.005)


def test_goodput_through_the_middlebox_is_limited_by_headers_only() -> None:
    """170 packets of 1,024 bytes are 1,106 on the wire each: 92.6 %, of which ACKs, one for 32 packets, take 0.3 %.

    The window hides the round trip of 6.3 us.
    """
    one, two = (ran(SIX, "netreduce", size).time_s for size in (348_128, 1_044_384))  # 2 and 6 messages
    goodput_bps = (1_044_384 - 348_128) * 8 / (two - one)
    assert goodput_bps == pytest.approx(100e9 * (170 * 1024 - 16) / (170 * 1106 + 6 * 86), rel=5e-4)


@pytest.mark.parametrize("way", ["ring", "leaders", "parallel"])
def test_every_link_carries_the_schemes_bytes(way: str) -> None:
    case = Case(EIGHT, way, 1_000_000)
    result = Experiment(case).run()
    expected = payload_bytes(case)
    kinds = {"worker to machine": "out", "machine to worker": "in", "machine to switch": "across"}
    kinds["switch to machine"] = "across"
    for kind, name in kinds.items():
        busiest = max(link.bytes for link in result.links if link.kind == kind)
        packets = expected[name] / BIG.path_mtu
        assert expected[name] <= busiest
        # Headers of data; and ACKs and clears to send, which are at most one short frame for four packets here.
        assert busiest <= expected[name] + packets * HEADERS + packets / 4 * 140 + 30 * KIB


def test_utilisation_is_the_share_of_the_time_that_frames_take() -> None:
    result = ran(SIX, "netreduce", 100_000)
    for link in result.links:
        assert link.utilisation == pytest.approx((link.bytes + 24 * link.frames) * 8 / 100e9 / result.time_s)
    assert result.frame_hops == sum(link.frames for link in result.links)
    assert {link.kind for link in result.links} == {
        "worker to bridge", "bridge to worker", "bridge to switch", "switch to bridge"
    }  # fmt: skip


@pytest.mark.parametrize(("way", "most"), [("ring", 1.6), ("leaders", 1.35), ("parallel", 1.2)])
def test_time_is_the_closed_form_and_some_waiting(way: str, most: float) -> None:
    result = ran(EIGHT, way, 4_000_000)
    assert result.closed_form_s is not None
    assert 0.97 <= result.time_s / result.closed_form_s <= most


def test_parallel_netreduce_loses_to_the_flat_ring_where_links_inside_are_slow() -> None:
    """For 8 workers on machines of 4, by the closed forms, below 2(n-1)/n P/(P-2) = 2 times the port's bandwidth."""
    times = {
        (way, gbytes): ran(replace(EIGHT, inside_bps=gbytes * 8 * GBPS), way, 4_000_000).time_s
        for way in ("ring", "parallel")
        for gbytes in (15, 100)
    }
    assert times["parallel", 15] > times["ring", 15]
    assert times["parallel", 100] < times["ring", 100]


def test_a_quantum_changes_times_by_a_few_of_it_and_no_byte_of_the_data() -> None:
    exact = ran(replace(SIX, quantum_ps=0), "netreduce", 200_000)
    coarse = ran(replace(SIX, quantum_ps=200_000), "netreduce", 200_000)
    assert exact.time_s < coarse.time_s < exact.time_s + 16 * 200_000 / PS_PER_S
    for one, other in zip(exact.links, coarse.links, strict=True):
        assert abs(one.bytes - other.bytes) <= 20 * 62  # ACKs may be fewer


def test_a_result_that_is_wrong_is_an_error() -> None:
    experiment = Experiment(Case(replace(SIX, middlebox=None), "netreduce", 4000))
    experiment._arrays[3][7] += np.float32(1)
    with pytest.raises(NetReduceError, match="netreduce: 1 of 1000 elements of rank 0 are wrong"):
        experiment.run()


def test_losses_are_counted() -> None:
    experiment = Experiment(Case(replace(SIX, middlebox=None), "netreduce", 400_000))
    experiment.network.simulator.link(worker=2).up.drop(nth=50)
    assert experiment.run().resent_packets > 0


def test_progress_is_told_and_grows() -> None:
    shares: list[float] = []
    Experiment(Case(SIX, "netreduce", 400_000)).run(shares.append)
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5 < shares[-1] <= 0.99
