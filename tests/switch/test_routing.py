"""Routing: a switch beside the path, that hosts' routes point at; rings are spliced on one arm as between ports."""

from __future__ import annotations

import numpy as np
import pytest
from scapy.all import Ether
from tests.switch.switch_harness import SMALL, Ring, dissect, drain, powers_of_ten, total_of

from netreduce.switch import RingSpec, Switch
from netreduce.switch.tables import NOBODY, WANTED_MAX
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.ina import INA_BYTES
from netreduce.wire.opcodes import Opcode

OWN = "02:00:00:00:00:fe"
FAR = "02:00:00:00:00:0b"


@pytest.fixture
def router() -> Switch:
    """One arm; 10.0.0.2 and fd00::2 are behind FAR, 10.0.0.254 is the switch's own host."""
    switch = Switch("s0", 2, limits=SMALL)
    switch.route_at(0, OWN)
    switch.set_hop("10.0.0.2", FAR, 0)
    switch.set_hop("fd00::2", FAR, 0)
    switch.set_hop("10.0.0.254", OWN, NOBODY)
    return switch


def packet(destination_ip: str = "10.0.0.2", **fields) -> np.ndarray:
    source_ip = "fd00::1" if ":" in destination_ip else "10.0.0.1"
    fields = {"destination_mac": OWN, "source_ip": source_ip, "destination_ip": destination_ip} | fields
    return build_frame(Opcode.SEND_ONLY, b"abcd", **fields)


def pass_through(switch: Switch, *frames: np.ndarray) -> list[np.ndarray]:
    switch.receive(0, build_burst(frames), 0)
    return drain(switch, 0)


@pytest.mark.parametrize("vlan", [None, 0x6000], ids=["untagged", "with a priority"])
@pytest.mark.parametrize(("destination_ip", "field"), [("10.0.0.2", "ttl"), ("fd00::2", "hlim")])
def test_a_packet_leaves_by_the_arm_it_came_in_with_new_macs_and_one_hop_less(router, destination_ip, field, vlan):
    frame = packet(destination_ip, vlan=vlan, traffic_class=2)
    (routed,) = pass_through(router, frame)
    expected = Ether(frame.tobytes())
    expected.src, expected.dst = OWN, FAR
    ip = expected["IP"] if field == "ttl" else expected["IPv6"]
    setattr(ip, field, 63)
    if field == "ttl":
        del ip.chksum  # scapy computes it anew
    assert routed.tobytes() == bytes(expected)
    assert dissect(routed).icrc_good
    assert router.counters()["routed"] == 1


def test_the_checksum_stays_right_for_every_header(router, rng):
    """One's complement arithmetic has two zeros; the amended sum must be right beside both."""
    ids = [*range(0xFFFF - 600, 0x10000), *rng.integers(0, 0x10000, 300)]
    cases = [(int(ip_id), int(rng.integers(2, 256))) for ip_id in ids]
    for ip_id, hop_limit in [(62906, 114), *cases]:  # the first one's sum is the other zero before it is amended
        (routed,) = pass_through(router, packet(ip_id=ip_id, hop_limit=hop_limit))
        ip = Ether(routed.tobytes())["IP"]
        told = ip.chksum
        del ip.chksum
        assert type(ip)(bytes(ip)).chksum == told


def test_what_is_not_to_be_routed_is_left_to_the_host(router):
    others = packet(destination_mac="02:00:00:00:00:0c"), packet(vlan=7), packet("10.0.0.254")
    arp = np.frombuffer(bytes.fromhex(OWN.replace(":", "") + "020000000001" + "0806") + bytes(46), np.uint8)
    assert pass_through(router, *others, arp, packet(destination_mac="ff:ff:ff:ff:ff:ff")) == []
    assert router.counters()["filtered"] == 5
    assert router.wanted_hops() == []


def test_a_packet_whose_hops_are_used_up_or_whose_header_is_damaged_is_dropped_with_a_reason(router):
    damaged = packet()
    damaged[24] ^= 1  # the checksum
    assert pass_through(router, packet(hop_limit=1), packet("fd00::2", hop_limit=0), damaged, packet()[:30]) == []
    counters = router.counters()
    assert (counters["drop_hop_limit"], counters["drop_bad_header"], counters["drop_truncated"]) == (2, 1, 1)


def test_unknown_destinations_are_asked_for_once_and_routed_when_known(router):
    assert pass_through(router, packet("10.0.0.9"), packet("10.0.0.9"), packet("fd00::9")) == []
    assert router.wanted_hops() == ["10.0.0.9", "fd00::9"]
    assert router.wanted_hops() == []
    assert router.counters()["drop_no_next_hop"] == 3
    router.set_hop("10.0.0.9", FAR, 0)
    assert len(pass_through(router, packet("10.0.0.9"))) == 1
    router.forget_hop("10.0.0.9")
    assert pass_through(router, packet("10.0.0.9")) == []
    assert router.wanted_hops() == ["10.0.0.9"]


def test_a_flood_of_unknown_destinations_is_bounded(router):
    pass_through(router, *[packet(f"10.1.{i // 250}.{i % 250}") for i in range(2000)])
    assert len(router.wanted_hops()) == WANTED_MAX


def test_a_packet_for_another_arm_leaves_there_with_that_arms_address(router):
    other_arm = "02:00:00:00:00:fd"
    router.route_at(1, other_arm)
    router.set_hop("10.2.0.1", FAR, 1)
    assert pass_through(router, packet("10.2.0.1")) == []
    (routed,) = drain(router, 1)
    assert (Ether(routed.tobytes()).src, Ether(routed.tobytes()).dst) == (other_arm, FAR)


class Arm(Ring):
    """A ring whose ranks all are behind port 0 of a router, their frames addressed to it."""

    def port(self, rank: int) -> int:
        return 0

    def register(self) -> Ring:
        self.switch.route_at(0, OWN)
        for endpoint in self.endpoints:
            self.switch.attach(0, endpoint.mac, endpoint.ip)
            self.switch.set_hop(endpoint.ip, endpoint.mac, 0)
        self.switch.register_ring(RingSpec(self.ring_id, self.endpoints, self.geometry))
        return self


@pytest.mark.parametrize("gap_policy", ["pass", "hold"])
@pytest.mark.parametrize("ip_version", [4, 6])
def test_a_ring_is_summed_on_one_arm(ip_version, gap_policy):
    switch = Switch("s0", 1, limits=SMALL, gap_policy=gap_policy)
    ring = Arm(switch, 4, ip_version=ip_version, header={"destination_mac": OWN}).register()
    datas = powers_of_ten(4)
    for rank, data in enumerate(datas):
        ring.give(rank, *ring.message(rank, 0, data))
    packets = [dissect(frame) for frame in drain(switch, 0)]
    assert all(packet.icrc_good for packet in packets)
    for rank, here in enumerate(ring.endpoints):
        there = ring.endpoints[(rank + 1) % 4]
        mine = [packet for packet in packets if Ether(packet.frame.tobytes()).dst == there.mac]
        assert b"".join(packet.payload for packet in mine)[INA_BYTES:] == total_of(datas)
        layers = [Ether(packet.frame.tobytes()) for packet in mine]
        ips = [layer["IP" if ip_version == 4 else "IPv6"] for layer in layers]
        assert {layer.src for layer in layers} == {OWN}
        assert {(ip.src, ip.dst) for ip in ips} == {(here.ip, there.ip)}
        assert {ip.ttl if ip_version == 4 else ip.hlim for ip in ips} == {63}


def test_the_switchs_own_answers_go_to_the_sender_and_come_from_the_router():
    switch = Switch("s0", 1, limits=SMALL, gap_policy="hold")
    ring = Arm(switch, 2, header={"destination_mac": OWN}).register()
    first, _, third = ring.message(0, 0, powers_of_ten(2)[0])
    ring.give(0, first.copy(), third.copy())  # the second is missing, which the switch tells its sender
    (nak,) = [Ether(frame.tobytes()) for frame in drain(switch, 0)]
    assert (nak.src, nak.dst) == (OWN, ring.endpoints[0].mac)
    assert (nak["IP"].src, nak["IP"].dst) == (ring.endpoints[1].ip, ring.endpoints[0].ip)


def test_addresses_that_share_a_router_stay_attached_until_the_last_has_gone(router):
    router.attach(0, FAR, "10.3.0.1")
    router.attach(0, FAR, "10.3.0.2")
    router.let_go("10.3.0.1", 0)
    long_after_ps = 1 << 60
    assert router.port_of(FAR, long_after_ps) == 0
    router.let_go("10.3.0.2", 0)
    assert router.port_of(FAR, long_after_ps) is None
