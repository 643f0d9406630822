"""Frames between bursts, length-prefixed streams and packet slots. Oracles: struct, and the frames themselves."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netreduce.wire.build import build_burst, burst_frames
from netreduce.wire.frames import FRAME_BYTES_MAX
from netreduce.wire.framing import (
    STATUS_COPY,
    STATUS_VLAN_TPID_VALID,
    STATUS_VLAN_VALID,
    Long,
    burst_to_stream,
    ring_to_burst,
    stream_to_burst,
)

frames = st.lists(st.binary(min_size=14, max_size=400), max_size=8)


def as_stream(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in payloads)


def as_burst(payloads: list[bytes]) -> np.ndarray:
    return build_burst([np.frombuffer(frame, np.uint8) for frame in payloads])


def frames_in(burst: np.ndarray) -> list[bytes]:
    return [frame.tobytes() for _, frame in burst_frames(burst)]


def unframe(stream: bytes, room: int = 128 * 1024) -> tuple[bool, int, list[bytes]]:
    """Whether the stream makes sense, the bytes used, the frames."""
    burst, done = np.zeros(room, np.uint8), np.zeros(2, np.int64)
    data = np.frombuffer(stream, np.uint8).copy()
    fine = bool(stream_to_burst(data, data.size, burst, 7, done))
    return fine, int(done[0]), frames_in(burst[: done[1]])


@given(frames, st.integers(0, 400))
def test_whole_frames_are_taken_from_a_stream_and_the_beginning_of_the_next_one_waits(payloads, cut):
    stream = as_stream([*payloads, bytes(401)])[: -1 - cut]
    fine, used, found = unframe(stream)
    assert (fine, used, found) == (True, len(as_stream(payloads)), payloads)


@given(frames)
def test_a_burst_becomes_the_stream_that_qemu_expects(payloads):
    stream = np.zeros(8192, np.uint8)
    size = burst_to_stream(as_burst(payloads), stream)
    assert stream[:size].tobytes() == as_stream(payloads)


def test_frames_that_find_no_room_in_the_burst_wait_in_the_stream():
    payloads = [bytes([n]) * 100 for n in range(4)]
    fine, used, found = unframe(as_stream(payloads), room=2 * 112)
    assert (fine, used, found) == (True, 208, payloads[:2])


def test_a_frame_of_no_bytes_or_of_too_many_spoils_the_stream():
    assert not unframe(struct.pack(">I", 0))[0]
    assert not unframe(struct.pack(">I", FRAME_BYTES_MAX + 1))[0]
    assert not unframe(b"GET / HTTP/1.1\r\n")[0]
    assert unframe(as_stream([bytes(FRAME_BYTES_MAX)]))[0]


def received(
    packets: list[tuple[bytes, int, int, int]], vnet: bytes = bytes(10), room: int = 128 * 1024, slot_bytes: int = 512
) -> tuple[list[bytes], list[int], list[int]]:
    """The frames made of slots with packet, status, tag and tag type; what was counted, and what comes next."""
    slots, seen = np.zeros((len(packets) + 1, slot_bytes), np.uint8), np.zeros(3, np.int64)
    done = np.zeros(4, np.int64)
    for number, (packet, status, tci, tpid) in enumerate(packets):
        slot = slots[(number + 2) % len(slots)]  # so that they go on at the ring's start
        kept = packet[: slot_bytes - 76]
        # struct tpacket2_hdr of linux/if_packet.h: status, len, snaplen, mac, net, sec, nsec, vlan_tci, vlan_tpid
        head = struct.pack("IIIHHIIHH4x", status | 1, len(packet), len(kept), 76, 90, 1, 2, tci, tpid)
        head = head.ljust(66, b"\xee") + vnet
        slot[: len(head) + len(kept)] = np.frombuffer(head + kept, np.uint8)
    burst = np.zeros(room, np.uint8)
    size = ring_to_burst(slots, 2 % len(slots), burst, 0, 7, seen, done)
    statuses = [int(slots[(number + 2) % len(slots)][:4].view(np.uint32)[0]) for number in range(len(packets))]
    assert [status == 0 for status in statuses] == [number < done[0] for number in range(len(packets))]
    return frames_in(burst[:size]), seen.tolist(), done.tolist()


PACKET = bytes(range(100, 200))


def test_the_tag_that_the_kernel_took_out_is_put_back():
    tagged = PACKET[:12] + b"\x81\x00\x60\x2a" + PACKET[12:]
    service = PACKET[:12] + b"\x88\xa8\x00\x07" + PACKET[12:]
    both = STATUS_VLAN_VALID | STATUS_VLAN_TPID_VALID
    packets = [(PACKET, 0, 0, 0), (PACKET, STATUS_VLAN_VALID, 0x602A, 0), (PACKET, both, 7, 0x88A8)]
    assert received(packets)[:2] == ([PACKET, tagged, service], [0, 0, 0])


def test_packets_that_were_cut_off_and_runts_are_left_out_and_counted():
    packets = [(bytes(600), 0, 0, 0), (PACKET, 0, 0, 0), (b"runt", 0, 0, 0)]
    assert received(packets)[:2] == ([PACKET], [1, 1, 0])


def test_checksums_are_filled_in_and_impossible_ones_counted():
    filled = PACKET[:20] + struct.pack(">H", 0xFFFF ^ (sum(struct.unpack(">40H", PACKET[20:])) % 0xFFFF)) + PACKET[22:]
    assert received([(PACKET, 0, 0, 0)], struct.pack("<BBHHHH", 1, 0, 0, 0, 20, 0))[:2] == ([filled], [0, 0, 1])
    assert received([(PACKET, 0, 0, 0)], struct.pack("<BBHHHH", 1, 0, 0, 0, 98, 2))[:2] == ([], [0, 1, 0])


def test_slots_end_before_a_packet_that_must_be_cut_and_say_where_it_is():
    waiting = [(PACKET, 0, 0, 0), (bytes(600), STATUS_COPY | STATUS_VLAN_VALID, 7, 0), (PACKET, 0, 0, 0)]
    assert received(waiting) == ([PACKET], [0, 0, 0], [1, Long.QUEUED, 600, 0x8100_0007])
    super_frame = struct.pack("<BBHHHH", 1, 5, 42, 20, 34, 6)
    assert received([(PACKET, 0, 0, 0)], super_frame) == ([], [0, 0, 0], [0, Long.IN_SLOT, 100, -1])


def test_frames_that_find_no_room_in_the_burst_stay_in_their_slots():
    frames, _, done = received([(PACKET, 0, 0, 0)] * 3, room=2 * 112)
    assert (frames, done[:2]) == ([PACKET] * 2, [2, Long.NONE])
