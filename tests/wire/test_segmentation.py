"""Super-frames joined and cut. Oracles: the frames themselves, scapy, and struct; the kernel's own, in a live test."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from netreduce.compiled import memory_at
from netreduce.wire.build import build_burst, build_frame, burst_frames
from netreduce.wire.cutting import NO_TAG, SEGMENTS_TAKEN_MAX, complete, kept_bytes, look_at, place
from netreduce.wire.frames import BURST_BYTES_MAX, FRAME_BYTES_MAX
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import Parse, make_packet_table, parse_packet
from netreduce.wire.segmentation import (
    GSO_NONE,
    GSO_UDP_L4,
    HEAD_BYTES,
    SEGMENTS_MAX,
    SUPER_FRAME_BYTES_MAX,
    VNET_BYTES,
    lay_out,
)

ADDRESSES = {4: ("10.0.0.1", "10.0.0.2"), 6: ("fd00::1", "fd00::2")}


def packets(count: int, payload_bytes: int, last_bytes: int | None = None, version: int = 4, first_psn: int = 0):
    """What a NIC sends of one message: IPv4 identifications are the low half of the PSN."""
    sizes = [payload_bytes] * (count - 1) + [payload_bytes if last_bytes is None else last_bytes]
    source, destination = ADDRESSES[version]
    return [
        build_frame(
            Opcode.SEND_MIDDLE,
            bytes((i + n) & 0xFF for n in range(size)),
            source_ip=source,
            destination_ip=destination,
            psn=(first_psn + i) & 0xFFFFFF,
            ip_id=(first_psn + i) & 0xFFFF,
        )
        for i, size in enumerate(sizes)
    ]


def as_frame(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def sent(frames: list[np.ndarray], *, join: bool = True, at_a_time: int = 64) -> list[bytes]:
    """The messages that sendmmsg would send of a burst of `frames`, each put together from its parts."""
    burst = build_burst(frames)
    messages, parts = np.zeros((at_a_time, 8), np.int64), np.zeros((1024 + 1 + SEGMENTS_MAX, 2), np.int64)
    heads, marks = np.zeros((at_a_time + 1, HEAD_BYTES), np.uint8), np.zeros((at_a_time, 2), np.int64)
    found, at, held = [], 0, 0
    while at < burst.size:
        count = int(lay_out(burst, at, GSO_UDP_L4 if join else GSO_NONE, messages, parts, heads, marks))
        for address, part_count in messages[:count, 2:4].tolist():
            first = (address - parts.ctypes.data) // 16
            pieces = [memory_at(*part).tobytes() for part in parts[first : first + part_count].tolist()]
            found.append(b"".join(pieces))
        held += int(marks[:count, 1].sum())
        at = int(marks[count - 1, 0])
    assert held == len(frames)
    return found


def received(message: bytes, tag: int = NO_TAG) -> list[bytes] | int:
    """The frames cut from what a socket gets, of which only headers are known before; or why there are none."""
    head, size, burst = as_frame(message[:HEAD_BYTES]), len(message), np.zeros(BURST_BYTES_MAX, np.uint8)
    expected = int(look_at(head, size, tag))
    if expected <= 0:
        return expected
    parts = np.zeros((SEGMENTS_TAKEN_MAX, 2), np.int64)
    at = int(kept_bytes(head, size))
    for address, length in parts[: int(place(head, size, tag, burst, 0, parts, 0))].tolist():
        assert 0 <= address - burst.ctypes.data <= expected - length
        memory_at(address, length)[:] = as_frame(message[at : at + length])  # as recvmsg does
        at += length
    assert at == size
    assert int(complete(head, size, tag, burst, 0, 7)) == expected
    return [frame.tobytes() for _, frame in burst_frames(burst[:expected])]


def is_super(message: bytes) -> bool:
    return message[1] == GSO_UDP_L4


def other_datagram(**changes) -> bytes:
    """A datagram of another protocol over UDP, whose checksum scapy has filled in."""
    layers = {"ether": {}, "ip": {"id": 7}, "udp": {"sport": 1, "dport": 443}} | changes
    return bytes(Ether(**layers["ether"]) / IP(**layers["ip"]) / UDP(**layers["udp"]) / Raw(b"quic" * 10))


@given(
    st.integers(2, 70), st.integers(1, 300).map(lambda words: 4 * words), st.integers(1, 300), st.sampled_from((4, 6)),
    st.integers(0, 0xFFFFFF), st.integers(1, 64),
)  # fmt: skip
def test_a_run_of_packets_leaves_as_super_frames_and_arrives_as_it_was(count, size, last, version, psn, at_a_time):
    frames = packets(count, size, min(size, 4 * last), version, psn)
    messages = sent(frames, at_a_time=at_a_time)
    limit = min(SEGMENTS_MAX, (SUPER_FRAME_BYTES_MAX - 62) // (size + 16))
    assert len(messages) == -(-count // limit)
    assert max(map(len, messages)) - VNET_BYTES <= SUPER_FRAME_BYTES_MAX
    assert [frame for message in messages for frame in received(message)] == [frame.tobytes() for frame in frames]


@pytest.mark.parametrize("version", [4, 6])
def test_the_headers_of_a_super_frame_are_those_that_linux_wants(version):
    (message,) = sent(packets(3, 1024, 512, version))
    headers = 42 if version == 4 else 62
    assert struct.unpack("<BBHHHH", message[:VNET_BYTES]) == (1, 5, headers, 1040, headers - 8, 6)
    payload_bytes = 2 * 1040 + 528
    assert len(message) == VNET_BYTES + headers + payload_bytes
    whole = Ether(message[VNET_BYTES:])
    layer = whole[IP if version == 4 else IPv6]
    assert (layer.len if version == 4 else layer.plen + 20) == 28 + payload_bytes
    assert layer[UDP].len == 8 + payload_bytes
    if version == 4:
        again = whole.copy()
        del again[IP].chksum
        assert Ether(bytes(again))[IP].chksum == layer.chksum
    # the checksum field holds the folded sum of the pseudo header (linux/virtio_net.h, NEEDS_CSUM)
    addresses = message[VNET_BYTES + headers - 8 - (8 if version == 4 else 32) :][: 8 if version == 4 else 32]
    total = sum(struct.unpack(f">{len(addresses) // 2}H", addresses)) + 17 + 8 + payload_bytes
    assert layer[UDP].chksum == (total & 0xFFFF) + (total >> 16)


def test_what_segmentation_would_not_make_again_leaves_as_it_is():
    """Each second frame differs from the first one's successor in one thing."""
    first, second = packets(2, 256)
    longer = packets(2, 260)[1]
    tagged = build_frame(Opcode.SEND_MIDDLE, bytes(256), vlan=5, ip_id=1)
    other = packets(2, 256)[1]
    other[14 + 4 : 14 + 6] = 0, 9  # another identification, its checksum wrong
    summed = second.copy()
    summed[40:42] = 1, 2
    elsewhere = build_frame(Opcode.SEND_MIDDLE, bytes(256), ip_id=1, udp_source_port=0xC001)
    marked = build_frame(Opcode.SEND_MIDDLE, bytes(256), ip_id=1, traffic_class=3)
    padded = as_frame(second.tobytes() + b"\0")
    other_ids = build_frame(Opcode.SEND_MIDDLE, bytes(256), ip_id=2)
    for follower in (longer, tagged, other, summed, elsewhere, marked, padded, other_ids, as_frame(other_datagram())):
        messages = sent([first, follower])
        assert [is_super(message) for message in messages] == [False, False]
        assert [message[VNET_BYTES:] for message in messages] == [first.tobytes(), follower.tobytes()]
    assert [is_super(message) for message in sent([first, second])] == [True]
    assert [is_super(message) for message in sent([first, second], join=False)] == [False, False]


@given(st.lists(st.binary(min_size=14, max_size=400), max_size=8), st.integers(1, 4))
def test_frames_of_any_bytes_leave_as_they_are(payloads, at_a_time):
    messages = sent([as_frame(payload) for payload in payloads], at_a_time=at_a_time)
    assert messages == [bytes(VNET_BYTES) + payload for payload in payloads]


def super_frame(payload: bytes, segment_bytes: int, version: int = 4, dport: int = 443) -> bytes:
    """What a kernel hands over that has not segmented, of a protocol that is not ours, made by scapy."""
    source, destination = ADDRESSES[version]
    ip = IP(src=source, dst=destination, id=0xFFFE) if version == 4 else IPv6(src=source, dst=destination)
    frame = bytes(Ether(dst="02:00:00:00:00:02") / ip / UDP(sport=5, dport=dport) / Raw(payload))
    headers = len(frame) - len(payload)
    return struct.pack("<BBHHHH", 1, GSO_UDP_L4, headers, segment_bytes, headers - 8, 6) + frame


@given(st.binary(min_size=2, max_size=5000), st.integers(1, 2000), st.sampled_from((4, 6)), st.booleans())
def test_super_frames_of_other_protocols_are_cut_with_right_checksums(payload, size, version, is_tagged):
    size = max(size, -(-len(payload) // 128))
    frames = received(super_frame(payload, size, version), 0x81000007 if is_tagged else NO_TAG)
    assert len(frames) == -(-len(payload) // size)
    for number, frame in enumerate(frames):
        data = payload[number * size :][:size]
        headers = Ether(dst="02:00:00:00:00:02", src=Ether(frame).src)
        source, destination = ADDRESSES[version]
        ids = {"id": (0xFFFE + number) & 0xFFFF} if version == 4 else {}
        ip = (IP if version == 4 else IPv6)(src=source, dst=destination, **ids)
        tag = Dot1Q(vlan=7) if is_tagged else None
        below = headers / tag if tag else headers
        assert frame == bytes(below / ip / UDP(sport=5, dport=443) / Raw(data))


def test_packets_cut_from_what_another_stack_sent_have_good_icrcs():
    (message,) = sent(packets(40, 1024))
    for frame in received(message):
        row = make_packet_table()[0]
        assert parse_packet(as_frame(frame), row) == Parse.OK
        assert icrc_is_good(as_frame(frame), row)


def test_super_frames_that_lie_are_refused():
    good = super_frame(bytes(1000), 100)
    assert len(received(good)) == 10
    lies = {
        "no segment size": good[:4] + b"\0\0" + good[6:],
        "too many segments": good[:4] + b"\7\0" + good[6:],
        "an IP length of less": good[: 10 + 16] + b"\0\x50" + good[10 + 18 :],
        "a UDP length of more": good[: 10 + 38] + b"\xff\xff" + good[10 + 40 :],
        "cut off": good[:-1],
        "another protocol": good[: 10 + 23] + b"\6" + good[10 + 24 :],
        "a fragment": good[: 10 + 20] + b"\x20\0" + good[10 + 22 :],
        "no payload": super_frame(b"", 100),
        "headers alone": good[: 10 + 20],
        "nothing": good[:VNET_BYTES],
    }
    assert {name: received(lie) for name, lie in lies.items()} == dict.fromkeys(lies, -1)
    tcp = bytes([1, 1]) + good[2:]
    assert received(tcp) == 0
    assert received(bytes(VNET_BYTES) + bytes(FRAME_BYTES_MAX + 1)) == 0
    assert received(super_frame(bytes(9500), 9300)) == -1


@given(st.binary(max_size=2000), st.integers(0, 255), st.sampled_from((NO_TAG, 0x81000001)))
def test_any_bytes_are_refused_or_cut_within_bounds(data, gso_type, tag):
    for kind in (0, GSO_UDP_L4, gso_type):
        received(data[:1] + bytes([kind]) + data[2:].ljust(8, b"\0"), tag)


def test_a_checksum_that_the_sender_left_to_its_interface_is_filled_in():
    frame = other_datagram()
    pseudo = sum(struct.unpack(">4H", frame[26:34])) + 17 + len(frame) - 34
    partial = frame[:40] + struct.pack(">H", (pseudo & 0xFFFF) + (pseudo >> 16)) + frame[42:]
    assert received(struct.pack("<BBHHHH", 1, 0, 0, 0, 34, 6) + partial) == [frame]
    for start in (len(frame) - 7, 11):  # behind the frame's end, and in what is no packet
        assert received(struct.pack("<BBHHHH", 1, 0, 0, 0, start, 6) + partial) == -1
