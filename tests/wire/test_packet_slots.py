"""Packet slots to bursts. Oracles: struct, and the frames themselves."""

from __future__ import annotations

import struct

import numpy as np
from tests.wire.test_segmentation import packets, sent

from netreduce.wire.build import burst_frames
from netreduce.wire.packet_slots import (
    STATUS_COPY,
    STATUS_VLAN_TPID_VALID,
    STATUS_VLAN_VALID,
    Long,
    Seen,
    longs_to_burst,
    ring_to_burst,
)


def frames_in(burst: np.ndarray) -> list[bytes]:
    return [frame.tobytes() for _, frame in burst_frames(burst)]


def received(
    queue: list[tuple[bytes, int, int, int]], vnet: bytes = bytes(10), room: int = 128 * 1024, slot_bytes: int = 512
) -> tuple[list[bytes], list[int], list[int]]:
    """The frames made of slots with packet, status, tag and tag type; what was counted, and what comes next."""
    slots, seen = np.zeros((len(queue) + 1, slot_bytes), np.uint8), np.zeros(len(Seen), np.int64)
    done = np.zeros(3, np.int64)
    for number, (packet, status, tci, tpid) in enumerate(queue):
        slot = slots[(number + 2) % len(slots)]  # so that they go on at the ring's start
        kept = packet[: slot_bytes - 76]
        # struct tpacket2_hdr of linux/if_packet.h: status, len, snaplen, mac, net, sec, nsec, vlan_tci, vlan_tpid
        head = struct.pack("IIIHHIIHH4x", status | 1, len(packet), len(kept), 76, 90, 1, 2, tci, tpid)
        head = head.ljust(66, b"\xee") + vnet
        slot[: len(head) + len(kept)] = np.frombuffer(head + kept, np.uint8)
    burst = np.zeros(room, np.uint8)
    size = ring_to_burst(slots, 2 % len(slots), burst, 0, 7, seen, done)
    statuses = [int(slots[(number + 2) % len(slots)][:4].view(np.uint32)[0]) for number in range(len(queue))]
    assert [status == 0 for status in statuses] == [number < done[0] for number in range(len(queue))]
    return frames_in(burst[:size]), seen.tolist(), done.tolist()


PACKET = bytes(range(100, 200))


def test_the_tag_that_the_kernel_took_out_is_put_back():
    tagged = PACKET[:12] + b"\x81\x00\x60\x2a" + PACKET[12:]
    service = PACKET[:12] + b"\x88\xa8\x00\x07" + PACKET[12:]
    both = STATUS_VLAN_VALID | STATUS_VLAN_TPID_VALID
    queue = [(PACKET, 0, 0, 0), (PACKET, STATUS_VLAN_VALID, 0x602A, 0), (PACKET, both, 7, 0x88A8)]
    assert received(queue)[:2] == ([PACKET, tagged, service], [0] * 5)


def test_packets_that_were_cut_off_and_runts_are_left_out_and_counted():
    queue = [(bytes(600), 0, 0, 0), (PACKET, 0, 0, 0), (b"runt", 0, 0, 0)]
    assert received(queue)[:2] == ([PACKET], [1, 1, 0, 0, 0])


def test_checksums_are_filled_in_and_impossible_ones_counted():
    filled = PACKET[:20] + struct.pack(">H", 0xFFFF ^ (sum(struct.unpack(">40H", PACKET[20:])) % 0xFFFF)) + PACKET[22:]
    assert received([(PACKET, 0, 0, 0)], struct.pack("<BBHHHH", 1, 0, 0, 0, 20, 0))[:2] == ([filled], [0, 0, 0, 1, 0])
    assert received([(PACKET, 0, 0, 0)], struct.pack("<BBHHHH", 1, 0, 0, 0, 98, 2))[:2] == ([], [0, 1, 0, 0, 0])


def test_slots_end_before_long_packets_and_say_how_many_there_are():
    long = (bytes(600), STATUS_COPY, 7, 0)
    assert received([(PACKET, 0, 0, 0), long, long, (PACKET, 0, 0, 0)]) == ([PACKET], [0] * 5, [1, Long.QUEUED, 2])
    super_frame = struct.pack("<BBHHHH", 1, 5, 42, 20, 34, 6)
    assert received([(PACKET, 0, 0, 0)], super_frame) == ([], [0] * 5, [0, Long.IN_SLOT, 1])


def test_long_packets_are_cut_where_they_are_and_what_does_not_agree_with_its_slot_is_counted():
    """Queued: a super-frame of two packets, tagged; one that is not there; TCP's; nonsense. And one in its slot."""
    frames = packets(2, 256)
    (super_frame,) = sent(frames)
    tcp, nonsense = b"\1\1" + super_frame[2:], super_frame[:4] + b"\0\0" + super_frame[6:]
    queued = [super_frame, b"", tcp, nonsense, b""]
    slots, seen = np.zeros((5, 2048), np.uint8), np.zeros(len(Seen), np.int64)
    longs, sizes = np.zeros((5, 2048), np.uint8), np.array([*map(len, queued[:4]), -1], np.int64)
    for slot, long, data in zip(slots, longs, queued, strict=True):
        length = len(super_frame) - 10
        status, tci = (3 | STATUS_VLAN_VALID, 9) if data is super_frame else (3, 0)
        slot[:32] = np.frombuffer(struct.pack("IIIHHIIHH4x", status, length, length, 76, 90, 1, 2, tci, 0), np.uint8)
        slot[66 : 66 + len(super_frame)] = np.frombuffer(super_frame, np.uint8)
        long[: len(data)] = np.frombuffer(data, np.uint8)
    burst = np.zeros(8192, np.uint8)
    end = longs_to_burst(slots, 0, longs, sizes, burst, 0, 7, seen)
    plain = [frame.tobytes() for frame in frames]
    tagged = [frame[:12] + b"\x81\x00\0\x09" + frame[12:] for frame in plain]
    assert frames_in(burst[:end]) == tagged + plain
    assert seen.tolist() == [1, 1, 1, 0, 2]
    assert not slots[:, :4].any()


def test_frames_that_find_no_room_in_the_burst_stay_in_their_slots():
    frames, _, done = received([(PACKET, 0, 0, 0)] * 3, room=2 * 112)
    assert (frames, done[:2]) == ([PACKET] * 2, [2, Long.NONE])
