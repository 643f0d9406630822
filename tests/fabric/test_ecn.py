"""Congestion marking against scapy's view of the header, and RED's curve."""

from __future__ import annotations

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from tests.fabric.toys import Toy

from netreduce.errors import ConfigurationError
from netreduce.fabric import EcnMarking, Simulator
from netreduce.fabric.ecn import mark_congestion, next_random, red_marks
from netreduce.units import GBPS, PS_PER_US


def bytes_of(packet: Ether) -> np.ndarray:
    return np.frombuffer(bytes(packet), np.uint8).copy()


@pytest.mark.parametrize("ecn", [1, 2, 3])
@pytest.mark.parametrize("tag", [False, True])
def test_a_mark_changes_the_ecn_bits_and_keeps_the_checksum_right(ecn: int, tag: bool) -> None:
    head = Ether() / Dot1Q(vlan=5) if tag else Ether()
    frame = bytes_of(head / IP(src="10.0.0.1", dst="10.0.0.2", tos=0xB8 | ecn) / UDP() / (b"x" * 30))
    assert mark_congestion(frame)
    expected = bytes_of(head / IP(src="10.0.0.1", dst="10.0.0.2", tos=0xB8 | 3) / UDP() / (b"x" * 30))
    assert frame.tobytes() == expected.tobytes()


def test_ipv6_is_marked_in_its_traffic_class() -> None:
    frame = bytes_of(Ether() / IPv6(tc=0xB8 | 2) / UDP() / (b"x" * 30))
    assert mark_congestion(frame)
    assert frame.tobytes() == bytes_of(Ether() / IPv6(tc=0xB8 | 3) / UDP() / (b"x" * 30)).tobytes()


@pytest.mark.parametrize(
    "packet", [Ether() / IP(tos=0xB8) / UDP() / (b"x" * 30), Ether(type=0x88B5) / (b"\xff" * 60), Ether(type=0x0800)]
)
def test_what_does_not_understand_ecn_is_left_alone(packet: Ether) -> None:
    frame = bytes_of(packet)
    before = frame.copy()
    assert not mark_congestion(frame)
    assert np.array_equal(frame, before)


def test_red_marks_nothing_below_everything_above_and_a_share_between() -> None:
    shares, random = [], 12345
    for queued in (0, 999, 1000, 1500, 1999, 2000, 10**9):
        marked = 0
        for _ in range(4000):
            random = int(next_random(random))
            marked += red_marks(queued, 1000, 2000, round(0.5 * 2**32), random)
        shares.append(marked / 4000)
    assert shares[:3] == [0, 0, 0]
    assert shares[3] == pytest.approx(0.25, abs=0.04)
    assert shares[4] == pytest.approx(0.5, abs=0.04)
    assert shares[5:] == [1, 1]


def test_a_line_marks_while_the_senders_queue_is_above_the_step() -> None:
    a, b = Toy("a"), Toy("b")
    simulator = Simulator(seed=1)
    ecn = EcnMarking(kmin_bytes=3000, kmax_bytes=3000)
    link = simulator.connect(a, 0, b, 0, rate_bps=100 * GBPS, delay_ps=0, ecn=ecn)
    frame = bytes_of(Ether() / IP(tos=2) / UDP() / (b"x" * 958))
    assert frame.size == 1000
    for _ in range(6):
        a.put(frame)
    simulator.run_until_quiet(limit_ps=100 * PS_PER_US)
    assert [int(frame[15]) & 3 for _, _, frame in b.arrivals] == [3, 3, 3, 3, 2, 2]  # 6 to 3 frames queued, then 2, 1
    assert link.up.counters()["marked_frames"] == 4


def test_thresholds_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="kmin_bytes=5, kmax_bytes=4"):
        EcnMarking(5, 4)
    with pytest.raises(ConfigurationError, match="p_max=2"):
        EcnMarking(1, 2, 2.0)
