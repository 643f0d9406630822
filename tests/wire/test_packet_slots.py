"""Packet slots to bursts. Oracles: struct, and the frames themselves."""

from __future__ import annotations

import struct

import numpy as np
from tests.wire.test_segmentation import packets, sent

from netreduce.compiled import memory_at
from netreduce.wire.build import burst_frames
from netreduce.wire.packet_slots import (
    PARTS_PER_LONG,
    STATUS_COPY,
    STATUS_VLAN_TPID_VALID,
    STATUS_VLAN_VALID,
    Long,
    Seen,
    complete_longs,
    place_longs,
    ring_to_burst,
    slot_to_burst,
)
from netreduce.wire.segmentation import HEAD_BYTES


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


class Longs:
    """Slots that announce `packets`, of which each is one with struct virtio_net_hdr, and its tag or None."""

    def __init__(self, packets: list[tuple[bytes, int | None]], room: int = 8192) -> None:
        self.slots, self.seen = np.zeros((len(packets), 512), np.uint8), np.zeros(len(Seen), np.int64)
        self.messages, self.scrap = np.zeros((4, 8), np.int64), np.zeros(HEAD_BYTES, np.uint8)
        self.parts, self.burst = np.zeros((4 * PARTS_PER_LONG, 2), np.int64), np.zeros(room, np.uint8)
        for slot, (packet, tci) in zip(self.slots, packets, strict=True):
            status, length = 3 if tci is None else 3 | STATUS_VLAN_VALID, len(packet) - 10
            head = struct.pack("IIIHHIIHH4x", status, length, min(length, 436), 76, 90, 1, 2, tci or 0, 0)
            slot[: len(head)] = np.frombuffer(head, np.uint8)
            kept = packet[:446]
            slot[66 : 66 + len(kept)] = np.frombuffer(kept, np.uint8)

    def place(self) -> int:
        burst, slots = self.burst, self.slots
        return int(place_longs(slots, 0, len(slots), burst, 0, self.messages, self.parts, self.scrap))

    def receive(self, packets: list[bytes]) -> list[bytes]:
        """As recvmmsg puts `packets` where they belong; the frames then, and slots must be the kernel's."""
        count = self.place()
        for message, packet in zip(self.messages, packets, strict=False):
            first, at = (int(message[2]) - self.parts.ctypes.data) // 16, 0
            for address, length in self.parts[first : first + int(message[3])].tolist():
                piece = packet[at : at + length]
                memory_at(address, len(piece))[:] = np.frombuffer(piece, np.uint8)
                at += length
            message[7] = len(packet)
        end = complete_longs(self.slots, 0, count, len(packets), self.messages, self.burst, 0, 7, self.seen)
        assert (self.slots[:, :4].view(np.uint32)[:, 0] == 0).tolist() == [i < count for i in range(len(self.slots))]
        return frames_in(self.burst[:end])


def test_long_packets_are_received_as_records_and_what_makes_no_sense_is_counted():
    """A super-frame of two packets, tagged; TCP's; nonsense; and a single one, tagged, too."""
    frames = packets(2, 256)
    (super_frame,), single = sent(frames), bytes(10) + bytes(range(250)) * 2
    tcp, nonsense = b"\1\1" + super_frame[2:], super_frame[:4] + b"\0\0" + super_frame[6:]
    longs = Longs([(super_frame, 9), (tcp, None), (nonsense, None), (single, 9)])
    found = longs.receive([super_frame, tcp, nonsense, single])
    plain = [*(frame.tobytes() for frame in frames), single[10:]]
    assert found == [frame[:12] + b"\x81\x00\0\x09" + frame[12:] for frame in plain]
    assert longs.seen.tolist() == [0, 1, 1, 0, 1]


def test_what_is_lost_from_the_queue_takes_what_follows_with_it_and_is_counted():
    """One that is shorter than its slot says, and one that was not there."""
    frames = packets(2, 256)
    (super_frame,) = sent(frames)
    whole = [frame.tobytes() for frame in frames]
    for queued in ([super_frame, super_frame[:-1], super_frame], [super_frame]):
        longs = Longs([(super_frame, None)] * 3)
        assert longs.receive(queued) == whole
        assert longs.seen.tolist() == [2, 0, 0, 0, 1]


def test_long_packets_without_room_in_the_burst_stay_queued():
    (super_frame,) = sent(packets(2, 256))
    longs = Longs([(super_frame, None)] * 3, room=2 * 2 * 336)
    assert longs.place() == 2
    assert Longs([(super_frame, None)] * 5).place() == 4  # messages


def test_a_super_frame_in_its_slot_is_cut_there():
    frames = packets(3, 64)
    (super_frame,) = sent(frames)
    longs = Longs([(super_frame, 9)])
    assert slot_to_burst(longs.slots[0], longs.burst[:400], 0, 7, longs.parts, longs.seen) == -1
    end = slot_to_burst(longs.slots[0], longs.burst, 0, 7, longs.parts, longs.seen)
    assert frames_in(longs.burst[:end]) == [
        frame.tobytes()[:12] + b"\x81\x00\0\x09" + frame.tobytes()[12:] for frame in frames
    ]
    assert longs.seen.tolist() == [0, 0, 0, 0, 1]
    assert not longs.slots[:, :4].any()


def test_frames_that_find_no_room_in_the_burst_stay_in_their_slots():
    frames, _, done = received([(PACKET, 0, 0, 0)] * 3, room=2 * 112)
    assert (frames, done[:2]) == ([PACKET] * 2, [2, Long.NONE])
