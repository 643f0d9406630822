"""Frames at real interfaces, veth pairs: as super-frames, or segmented by the kernel, which is the oracle of both."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import subprocess
import sys

import numpy as np
import pytest
from pyroute2.ethtool import Ethtool
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from tests.interop.namespaces import require_root
from tests.patience import eventually
from tests.wire.test_segmentation import packets

from netreduce.runtime.cable import make_burst_buffer
from netreduce.runtime.interface import InterfaceCarrier, interface_mac
from netreduce.wire.build import build_burst, build_frame, burst_frames
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import Parse, make_packet_table, parse_packet

pytestmark = [pytest.mark.live, pytest.mark.timeout(100)]
SEND_SEGMENTED = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.setsockopt(socket.IPPROTO_UDP, 103, 500)  # UDP_SEGMENT
    s.sendto(bytes(i & 0xFF for i in range(20_200)), ("10.81.0.1", 4433))
"""
RECEIVE = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(("10.81.0.2", 4791))
    s.settimeout(30)
    print("listening", flush=True)
    for _ in range(int(sys.argv[1])):
        print(s.recv(9000).hex())
"""
numbers = itertools.count()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def pair():
    """The names of two interfaces with a link between them."""
    require_root()
    names = [f"nr{os.getpid() % 100_000}{end}{next(numbers)}" for end in "ab"]
    ip("link", "add", names[0], "mtu", "9000", "type", "veth", "peer", "name", names[1], "mtu", "9000")
    for name in names:
        ip("link", "set", name, "up")
    yield names
    subprocess.run(["ip", "link", "del", names[0]], capture_output=True)  # it may have gone with a namespace


@pytest.fixture
def far_host(pair):
    """A namespace that the second interface is in, as 10.81.0.2, with 10.81.0.1 at the first one's address."""
    name = f"{pair[1]}n"
    ip("netns", "add", name)
    ip("link", "set", pair[1], "netns", name)
    for words in (
        ["link", "set", pair[1], "up"],
        ["addr", "add", "10.81.0.2/24", "dev", pair[1]],
        ["neigh", "add", "10.81.0.1", "lladdr", interface_mac(pair[0]), "dev", pair[1]],
    ):
        ip("-n", name, *words)
    yield name
    ip("netns", "del", name)


@contextlib.contextmanager
def carriers(*names: str):
    with contextlib.ExitStack() as stack:
        opened = [InterfaceCarrier(name, lambda: 0) for name in names]
        for carrier in opened:
            stack.callback(carrier.close)
        yield opened


def take(carrier: InterfaceCarrier, count: int, is_wanted) -> list[bytes]:
    """`count` frames that are wanted; the kernel's own, such as IPv6's, are not."""
    buffer, found = make_burst_buffer(), []

    def all_came() -> bool:
        while (burst := carrier.receive(buffer)) is not None:
            found.extend(frame.tobytes() for _, frame in burst_frames(burst) if is_wanted(frame.tobytes()))
        return len(found) >= count

    assert eventually(all_came)
    return found


def is_roce(frame: bytes) -> bool:
    return parse_packet(np.frombuffer(bytearray(frame), np.uint8), make_packet_table()[0]) == Parse.OK


def without_checksum(frame: bytes) -> bytes:
    at = 40 if frame[12:14] == b"\x08\x00" else 60
    return frame[:at] + b"\0\0" + frame[at + 2 :]


def messages(version: int) -> list[np.ndarray]:
    """Three messages of 60 packets; the last packet of each is short."""
    return [frame for first in (0, 60, 0xFFFFF0) for frame in packets(60, 4096, 100, version, first)]


@pytest.mark.parametrize("version", [4, 6])
def test_super_frames_cross_a_link_whole(pair, version):
    frames = messages(version)
    with carriers(*pair) as (near, far):
        assert near.send_burst(build_burst(frames))
        assert take(far, len(frames), is_roce) == [frame.tobytes() for frame in frames]
        assert near.counters()["interface_super_frames_out"] == 12
        assert far.counters()["interface_super_frames_in"] == 12
        assert far.counters()["interface_drops_in"] == 0


@pytest.mark.parametrize("version", [4, 6])
def test_what_the_kernel_segments_is_what_was_joined_but_for_the_udp_checksum(pair, version):
    with Ethtool() as ethtool:
        features = ethtool.get_features(pair[0])
        features.features["tx-udp-segmentation"].enable = False
        ethtool.set_features(pair[0], features)
    frames = messages(version)
    with carriers(*pair) as (near, far):
        assert near.send_burst(build_burst(frames))
        found = take(far, len(frames), is_roce)
        assert near.counters()["interface_super_frames_out"] == 12
        assert far.counters()["interface_super_frames_in"] == 0
    assert list(map(without_checksum, found)) == [frame.tobytes() for frame in frames]
    row = make_packet_table()[0]
    for data in found:
        frame = np.frombuffer(bytearray(data), np.uint8)
        assert parse_packet(frame, row) == Parse.OK
        assert icrc_is_good(frame, row)


def test_more_than_a_burst_of_super_frames_waits_in_order(pair):
    frames = packets(600, 1024)
    with carriers(*pair) as (near, far):
        assert near.send_burst(build_burst(frames))
        assert take(far, len(frames), is_roce) == [frame.tobytes() for frame in frames]


def test_a_kernel_that_takes_no_super_frames_gets_single_ones(pair):
    """As before Linux 6.2: EINVAL for a kind of offload that it does not know."""
    frames = packets(40, 1024)
    with carriers(*pair) as (near, far):
        near._sender._state["offload"] = 77
        assert near.send_burst(build_burst(frames))
        assert take(far, len(frames), is_roce) == [frame.tobytes() for frame in frames]
        assert near.counters()["interface_super_frames_out"] == 0


def test_super_frames_of_hosts_are_cut_as_the_kernel_would(pair, far_host):
    """With the checksums of datagrams that are none of ours; and that of a single one is filled in, too."""
    with carriers(pair[0]) as (carrier,):
        subprocess.run(["ip", "netns", "exec", far_host, sys.executable, "-c", SEND_SEGMENTED], check=True, timeout=30)
        found = take(carrier, 41, lambda frame: frame[36:38] == struct.pack(">H", 4433))
        assert carrier.counters()["interface_super_frames_in"] == 1
    payload = bytes(i & 0xFF for i in range(20_200))
    assert [frame[42:] for frame in found] == [payload[at : at + 500] for at in range(0, 20_200, 500)]
    for frame in found:
        again = Ether(frame)
        del again[IP].chksum, again[UDP].chksum
        assert bytes(Ether(bytes(again))) == frame


def test_a_plain_socket_gets_the_packets_of_a_super_frame_one_by_one(pair, far_host):
    state = subprocess.run(
        ["ip", "-n", far_host, "-o", "link", "show", pair[1]], capture_output=True, text=True, check=True
    ).stdout
    mac = state.split("link/ether ")[1].split()[0]
    frames = [
        build_frame(
            Opcode.SEND_MIDDLE, bytes([i]) * 1024, source_ip="10.81.0.1", destination_ip="10.81.0.2",
            destination_mac=mac, psn=i, ip_id=i,
        )
        for i in range(50)
    ]  # fmt: skip
    receive = ["ip", "netns", "exec", far_host, sys.executable, "-c", RECEIVE, str(len(frames))]
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver, carriers(pair[0]) as (carrier,):
        assert receiver.stdout.readline() == "listening\n"
        carrier.send_burst(build_burst(frames))
        assert carrier.counters()["interface_super_frames_out"] == 1
        output, _ = receiver.communicate(timeout=60)
    assert output.split() == [frame.tobytes()[42:].hex() for frame in frames]


def test_tcp_super_frames_are_left_out_and_counted(pair):
    """A host whose TCP segmentation was left on."""
    head = struct.pack("<BBHHHH", 1, 1, 54, 1448, 34, 16)
    frame = bytes(Ether(dst="02:00:00:00:00:09") / IP(dst="10.0.0.9")) + b"\0" * 20
    frame = frame[:23] + b"\x06" + frame[24:46] + b"\x50" + frame[47:] + bytes(20_000)
    with carriers(pair[1]) as (far,), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.setsockopt(263, 15, 1)
        raw.bind((pair[0], 3))
        raw.send(head + frame)

        def is_counted() -> bool:
            far.receive(make_burst_buffer())
            return far.counters()["interface_frames_too_long"] == 1

        assert eventually(is_counted)
