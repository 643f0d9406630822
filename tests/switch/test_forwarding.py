"""Forwarding: a learning bridge that touches nothing."""

from __future__ import annotations

import numpy as np
import pytest
from tests.switch.switch_harness import SMALL, drain, make_ring

from netreduce.errors import ConfigurationError
from netreduce.switch import Switch
from netreduce.switch.forwarding import MAC_AGE_PS
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.opcodes import Opcode

BROADCAST = "ff:ff:ff:ff:ff:ff"
A, B, C = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:0c"


def ethernet(source: str, destination: str, rest: str = "0806" + "00" * 46) -> np.ndarray:
    return np.frombuffer(bytearray.fromhex((destination + source).replace(":", "") + rest), np.uint8)


def give(switch: Switch, port: int, *frames: np.ndarray, now_ps: int = 0) -> None:
    switch.receive(port, build_burst(frames), now_ps)


def leaving(switch: Switch) -> list[list[bytes]]:
    return [[frame.tobytes() for frame in drain(switch, port)] for port in range(switch.port_count)]


@pytest.fixture
def bridge() -> Switch:
    return Switch("s0", 4, limits=SMALL)


def test_an_unknown_destination_is_flooded_to_all_other_ports(bridge: Switch) -> None:
    frame = ethernet(A, B)
    give(bridge, 1, frame)
    assert leaving(bridge) == [[frame.tobytes()], [], [frame.tobytes()], [frame.tobytes()]]
    assert bridge.counters()["flooded"] == 1


@pytest.mark.parametrize("destination", [BROADCAST, "01:00:5e:00:00:01", "33:33:00:00:00:01"])
def test_broadcast_and_multicast_are_flooded_even_if_someone_claims_the_address(
    bridge: Switch, destination: str
) -> None:
    give(bridge, 2, ethernet(destination, A))
    leaving(bridge)
    give(bridge, 0, ethernet(A, destination))
    assert [len(frames) for frames in leaving(bridge)] == [0, 1, 1, 1]


def test_a_learned_address_gets_its_frames_alone_until_it_ages(bridge: Switch) -> None:
    give(bridge, 3, ethernet(B, BROADCAST), now_ps=5)
    leaving(bridge)
    give(bridge, 0, ethernet(A, B), now_ps=5 + MAC_AGE_PS)
    assert [len(frames) for frames in leaving(bridge)] == [0, 0, 0, 1]
    give(bridge, 0, ethernet(A, B), now_ps=6 + MAC_AGE_PS)
    assert [len(frames) for frames in leaving(bridge)] == [0, 1, 1, 1]


def test_a_station_that_moves_is_found_at_its_new_port(bridge: Switch) -> None:
    give(bridge, 3, ethernet(B, BROADCAST))
    give(bridge, 2, ethernet(B, BROADCAST))
    leaving(bridge)
    give(bridge, 0, ethernet(A, B))
    assert [len(frames) for frames in leaving(bridge)] == [0, 0, 1, 0]


def test_a_frame_never_goes_back_out_of_its_port(bridge: Switch) -> None:
    give(bridge, 0, ethernet(A, BROADCAST), ethernet(B, A))
    assert [len(frames) for frames in leaving(bridge)] == [0, 1, 1, 1]
    assert bridge.counters()["filtered"] == 1


@pytest.mark.parametrize(
    "frame",
    [
        ethernet(A, B),
        ethernet(A, B, "88b5" + "5a" * 60),
        ethernet(A, B, "8100" + "0064" + "8100" + "00c8" + "0800" + "ff" * 60),  # two tags, nonsense inside
        ethernet(A, B, "0800" + "45" * 20),
        ethernet(A, B, "86dd" + "60" + "00" * 70),
        ethernet(A, B, "0000"),
        build_frame(Opcode.CNP, source_mac=A, destination_mac=B),
        build_frame(Opcode.SEND_ONLY, b"abc", source_mac=A, destination_mac=B, vlan=100),
        build_frame(Opcode.SEND_ONLY, b"x", source_mac=A, destination_mac=B, source_ip="fd::1", destination_ip="fd::2"),
        build_frame(0xFF, b"x", source_mac=A, destination_mac=B),
    ],
)
def test_frames_of_any_kind_pass_bit_for_bit(frame: np.ndarray) -> None:
    switch = make_ring(4).switch  # with a ring, so that every frame is looked at
    give(switch, 0, frame)
    assert leaving(switch) == [[], [frame.tobytes()], [frame.tobytes()], [frame.tobytes()]]


def test_a_frame_shorter_than_its_ethernet_header_is_dropped_and_counted(bridge: Switch) -> None:
    give(bridge, 0, np.zeros(13, np.uint8))
    assert leaving(bridge) == [[]] * 4
    assert bridge.counters()["drop_truncated"] == 1


def test_a_burst_that_is_not_whole_records_is_dropped_and_counted(bridge: Switch) -> None:
    burst = build_burst([ethernet(A, B)])
    burst[8:10] = 0xFF
    bridge.receive(0, burst, 0)
    assert leaving(bridge) == [[]] * 4
    assert bridge.counters()["drop_truncated"] == 1


def test_a_read_only_burst_is_taken(bridge: Switch) -> None:
    bridge.receive(0, np.frombuffer(build_burst([ethernet(A, B)]).tobytes(), np.uint8), 0)
    assert [len(frames) for frames in leaving(bridge)] == [0, 1, 1, 1]


def test_an_attached_address_cannot_be_claimed_from_another_port(bridge: Switch) -> None:
    bridge.attach(1, A, "10.0.0.1")
    give(bridge, 2, ethernet(A, BROADCAST))
    assert leaving(bridge) == [[]] * 4
    assert bridge.counters()["drop_wrong_port"] == 1
    give(bridge, 2, ethernet(B, A), now_ps=2 * MAC_AGE_PS)
    assert [len(frames) for frames in leaving(bridge)] == [0, 1, 0, 0], "an attached address does not age"


@pytest.mark.parametrize("mac", ["zz", "", "02:00", "00:00:00:00:00:00", "01:00:00:00:00:01"])
def test_a_mac_address_that_no_host_can_have_is_not_attached(bridge: Switch, mac: str) -> None:
    with pytest.raises(ConfigurationError, match=f"MAC address '?{mac}"):
        bridge.attach(1, mac, "10.0.0.1")
    with pytest.raises(ConfigurationError, match=f"MAC address '?{mac}"):
        bridge.port_of(mac, 0)


@pytest.mark.parametrize("ip", ["", "10.0.0", "host"])
def test_an_ip_address_that_is_none_is_not_attached(bridge: Switch, ip: str) -> None:
    with pytest.raises(ConfigurationError, match=f"IP address '{ip}'"):
        bridge.attach(1, A, ip)


def test_attaching_an_address_twice_or_to_no_port_is_refused(bridge: Switch) -> None:
    bridge.attach(1, A, "10.0.0.1")
    bridge.attach(1, A, "10.0.0.1")
    with pytest.raises(ConfigurationError, match=r"10\.0\.0\.1 .* is attached to port 1 already"):
        bridge.attach(2, B, "10.0.0.1")
    with pytest.raises(ConfigurationError, match="is attached to port 1 already"):
        bridge.attach(2, A, "10.0.0.2")
    with pytest.raises(ConfigurationError, match="port 4 does not exist, s0 has ports 0 to 3"):
        bridge.attach(4, B, "10.0.0.2")


def test_a_detached_port_gets_no_more_frames_and_its_addresses_are_free(bridge: Switch) -> None:
    bridge.attach(1, A, "10.0.0.1")
    give(bridge, 0, ethernet(C, BROADCAST))
    bridge.detach(1)
    assert bridge.egress(1).state[0].frames == 0
    leaving(bridge)
    give(bridge, 0, ethernet(C, A))
    assert [len(frames) for frames in leaving(bridge)] == [0, 0, 1, 1]
    bridge.attach(2, A, "10.0.0.1")


def test_a_full_table_of_addresses_floods_and_counts(bridge: Switch) -> None:
    for i in range(200):
        give(bridge, 0, ethernet(f"02:00:00:00:01:{i:02x}", BROADCAST))
        leaving(bridge)
    assert bridge.counters()["not_learned"] > 0
    assert np.count_nonzero(bridge.tables.macs.mac) <= SMALL.macs


def test_a_full_egress_queue_drops_and_counts() -> None:
    switch = Switch("s0", 2, limits=SMALL._replace(egress_bytes=256))
    frame = ethernet(A, B)
    give(switch, 0, *[frame] * 5)
    assert len(drain(switch, 1)) == 3
    counters = switch.counters()
    assert counters["egress_drops"] == counters["drop_queue_full"] == 2
    assert switch.port_counters(1)["packets_out"] == 3
    assert switch.port_counters(1)["peak_queue_bytes"] == 3 * frame.size
    assert switch.port_counters(0)["packets_in"] == 5
    assert switch.port_counters(0)["bytes_in"] == 5 * frame.size


def test_the_switch_tells_where_it_has_heard_an_address_until_that_ages(bridge: Switch) -> None:
    assert bridge.port_of(A, 0) is None
    give(bridge, 2, ethernet(A, BROADCAST), now_ps=5)
    assert bridge.port_of(A, 5 + MAC_AGE_PS) == 2
    assert bridge.port_of(A, 6 + MAC_AGE_PS) is None


def test_an_address_that_was_let_go_may_move_and_be_attached_elsewhere(bridge: Switch) -> None:
    bridge.attach(0, A, "10.0.0.1")
    give(bridge, 1, ethernet(A, BROADCAST))
    assert bridge.port_of(A, 0) == 0
    assert bridge.owns("10.0.0.1")
    bridge.let_go("10.0.0.1", 0)
    assert not bridge.owns("10.0.0.1")
    give(bridge, 1, ethernet(A, BROADCAST))
    assert bridge.port_of(A, 0) == 1
    bridge.attach(2, A, "10.0.0.1")
    assert bridge.port_of(A, 0) == 2


def test_a_port_without_addresses_of_its_own_is_flooded_once_it_is_up(bridge: Switch) -> None:
    for port in range(4):
        bridge.detach(port)
    bridge.bring_up(3)
    give(bridge, 0, ethernet(A, B))
    assert [len(frames) for frames in leaving(bridge)] == [0, 0, 0, 1]
