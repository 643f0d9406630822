"""Between bursts and what other programs carry frames in: length-prefixed streams, and rings of packet slots.

A stream is that of QEMU's ``-netdev stream`` (qemu-options: each frame behind its length as a 32-bit big-endian
number). Slots are those that Linux's packet(7) sockets share with the kernel (PACKET_RX_RING, version 2 of
linux/if_packet.h). It takes the 802.1Q tag out of a frame and tells it aside; here it is put back, since the ICRC does
not care but the network does.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.compiled import compiled, copy_bytes, fence
from netreduce.wire.bigendian import read_be32
from netreduce.wire.frames import (
    FRAME_BYTES_MAX,
    RECORD_HEADER_BYTES,
    record_bytes,
    record_length,
    write_record_header,
)
from netreduce.wire.segmentation import (
    GSO_NONE,
    MAC_BYTES,
    NEEDS_CHECKSUM,
    NO_TAG,
    VNET_BYTES,
    fill_checksum,
    put_frame,
    read_le16,
)

LENGTH_BYTES = 4
TAG_BYTES = 4
_SLOT_STATUS, _SLOT_LENGTH, _SLOT_SNAPLEN, _SLOT_MAC, _SLOT_TCI, _SLOT_TPID = 0, 4, 8, 12, 24, 26
"""Offsets in struct tpacket2_hdr, which a slot starts with."""
STATUS_IS_MINE = 1 << 0
STATUS_COPY = 1 << 1
STATUS_VLAN_VALID = 1 << 4
STATUS_VLAN_TPID_VALID = 1 << 6
TPID_802_1Q = 0x8100


class Long(IntEnum):
    """Where the next packet is, if it is not a frame in a slot."""

    NONE = 0
    IN_SLOT = 1  # whole, and must be cut
    QUEUED = 2  # on the socket's receive queue


class Seen(IntEnum):
    """What `ring_to_burst` counts."""

    LOST = 0  # longer than a slot, and the receive queue was full
    MALFORMED = 1
    FILLED = 2  # checksums that the sender had left to its interface


@compiled
def stream_to_burst(stream: np.ndarray, size: int, burst: np.ndarray, time_ps: int, done: np.ndarray) -> bool:
    """Turn the whole frames at the start of `stream[:size]` into records, as long as `burst` has room.

    `done` (int64[2]) tells the bytes used of the stream and written to the burst. False: a length is impossible.
    """
    done[0] = 0
    done[1] = 0
    while done[0] + LENGTH_BYTES <= size:
        length = read_be32(stream, done[0])
        if length == 0 or length > FRAME_BYTES_MAX:
            return False
        if done[0] + LENGTH_BYTES + length > size or done[1] + record_bytes(length) > burst.size:
            return True
        write_record_header(burst, done[1], length, time_ps)
        copy_bytes(burst, done[1] + RECORD_HEADER_BYTES, stream, done[0] + LENGTH_BYTES, length)
        done[0] += LENGTH_BYTES + length
        done[1] += record_bytes(length)
    return True


@compiled
def burst_to_stream(burst: np.ndarray, stream: np.ndarray) -> int:
    """Write the frames of `burst` to `stream`, each behind its length; the bytes written, always fewer than read."""
    read_at = 0
    at = 0
    while read_at < burst.size:
        length = record_length(burst, read_at)
        stream[at] = 0
        stream[at + 1] = 0
        stream[at + 2] = length >> 8
        stream[at + 3] = length & 0xFF
        copy_bytes(stream, at + LENGTH_BYTES, burst, read_at + RECORD_HEADER_BYTES, length)
        at += LENGTH_BYTES + length
        read_at += record_bytes(length)
    return at


@compiled
def _slot_tag(slot: np.ndarray) -> int:
    """The 802.1Q tag that the kernel took out of a slot's packet, behind its ethertype, or `NO_TAG`."""
    status = read_le16(slot, _SLOT_STATUS)
    if status & STATUS_VLAN_VALID == 0:
        return NO_TAG
    tpid = read_le16(slot, _SLOT_TPID) if status & STATUS_VLAN_TPID_VALID else TPID_802_1Q
    return (tpid << 16) | read_le16(slot, _SLOT_TCI)


@compiled
def give_back(slot: np.ndarray) -> None:
    """Let the kernel have a slot again."""
    slot[:4].view(np.uint32)[0] = 0


@compiled
def _read_le32(data: np.ndarray, at: int) -> int:
    return read_le16(data, at) | (read_le16(data, at + 2) << 16)


@compiled
def ring_to_burst(
    ring: np.ndarray, first: int, burst: np.ndarray, start: int, time_ps: int, seen: np.ndarray, done: np.ndarray
) -> int:
    """Turn received slots of a packet ring into records, tags put back, checksums filled in; the end of the burst.

    `ring` uint8[n, slot bytes] of struct tpacket2_hdr and packet behind struct virtio_net_hdr, from slot `first` on;
    `start` is where in `burst` to go on. It ends before a frame that does not fit there, and before a packet that must
    be cut or is longer than a slot. `done` (int64[4]) tells the slots taken, which are the kernel's again, where such
    a packet is (`Long`), its length, and its tag. `seen` (int64[3], `Seen`) counts.
    """
    count, mine = ring.shape[0], 0
    while mine < count and ring[(first + mine) % count][_SLOT_STATUS] & STATUS_IS_MINE:
        mine += 1
    fence()
    at, taken = start, 0
    done[1] = Long.NONE.value
    while taken < mine:
        slot = ring[(first + taken) % count]
        length, whole = _read_le32(slot, _SLOT_SNAPLEN), _read_le32(slot, _SLOT_LENGTH)
        packet_at, tag = read_le16(slot, _SLOT_MAC), _slot_tag(slot)
        vnet_at, size = packet_at - VNET_BYTES, length + (0 if tag == NO_TAG else TAG_BYTES)
        is_queued = slot[_SLOT_STATUS] & STATUS_COPY
        if is_queued or (length == whole and slot[vnet_at + 1] != GSO_NONE):
            done[1] = Long.QUEUED.value if is_queued else Long.IN_SLOT.value
            done[2], done[3] = whole, tag
            break
        if length != whole:
            seen[Seen.LOST.value] += 1
        elif at + record_bytes(size) > burst.size:
            break
        elif length < MAC_BYTES or not fill_checksum(slot, vnet_at, packet_at, length):
            seen[Seen.MALFORMED.value] += 1
        else:
            seen[Seen.FILLED.value] += slot[vnet_at] & NEEDS_CHECKSUM
            at = put_frame(burst, at, slot, packet_at, length, tag, time_ps)
        taken += 1
    fence()
    for i in range(taken):
        give_back(ring[(first + i) % count])
    done[0] = taken
    return at
