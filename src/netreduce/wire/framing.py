"""Between bursts and what other programs carry frames in: length-prefixed streams, and rings of packet slots.

A stream is that of QEMU's ``-netdev stream`` (qemu-options: each frame behind its length as a 32-bit big-endian
number). Slots are those that Linux's packet(7) sockets share with the kernel (PACKET_RX_RING, version 2 of
linux/if_packet.h). It takes the 802.1Q tag out of a frame and tells it aside; here it is put back, since the ICRC does
not care but the network does.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.wire.bigendian import read_be32, write_be16
from netreduce.wire.frames import (
    FRAME_BYTES_MAX,
    RECORD_HEADER_BYTES,
    record_bytes,
    record_length,
    write_record_header,
)

LENGTH_BYTES = 4
MAC_BYTES = 12
TAG_BYTES = 4
_SLOT_STATUS, _SLOT_LENGTH, _SLOT_SNAPLEN, _SLOT_MAC, _SLOT_TCI, _SLOT_TPID = 0, 4, 8, 12, 24, 26
"""Offsets in struct tpacket2_hdr, which a slot starts with."""
STATUS_CHECKSUM_NOT_READY = 1 << 3
STATUS_VLAN_VALID = 1 << 4
STATUS_VLAN_TPID_VALID = 1 << 6
TPID_802_1Q = 0x8100


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
def _read_le16(data: np.ndarray, at: int) -> int:
    """A little-endian 16-bit field."""
    return np.int64(data[at]) | (np.int64(data[at + 1]) << 8)


@compiled
def ring_to_burst(ring: np.ndarray, first: int, count: int, burst: np.ndarray, time_ps: int, seen: np.ndarray) -> int:
    """Turn `count` received slots of a packet ring into records, tags put back; the bytes written to `burst`.

    `ring` uint8[n, slot bytes] of struct tpacket2_hdr and packet, from slot `first` on, without wrapping. `seen`
    (int64[2]) counts frames that were cut off or are too long, which are left out, and unfilled checksums.
    """
    at = 0
    for i in range(count):
        slot = ring[first + i]
        status = _read_le16(slot, _SLOT_STATUS)
        length = _read_le16(slot, _SLOT_SNAPLEN) | (_read_le16(slot, _SLOT_SNAPLEN + 2) << 16)
        whole = _read_le16(slot, _SLOT_LENGTH) | (_read_le16(slot, _SLOT_LENGTH + 2) << 16)
        tag = TAG_BYTES if status & STATUS_VLAN_VALID else 0
        if length < MAC_BYTES or length != whole or length + tag > FRAME_BYTES_MAX:
            seen[0] += 1
            continue
        if status & STATUS_CHECKSUM_NOT_READY:
            seen[1] += 1
        packet_at, start = _read_le16(slot, _SLOT_MAC), at + RECORD_HEADER_BYTES
        write_record_header(burst, at, length + tag, time_ps)
        copy_bytes(burst, start, slot, packet_at, MAC_BYTES)
        if tag:
            tpid = _read_le16(slot, _SLOT_TPID) if status & STATUS_VLAN_TPID_VALID else TPID_802_1Q
            write_be16(burst, start + MAC_BYTES, tpid)
            write_be16(burst, start + MAC_BYTES + 2, _read_le16(slot, _SLOT_TCI))
        copy_bytes(burst, start + MAC_BYTES + tag, slot, packet_at + MAC_BYTES, length - MAC_BYTES)
        at += record_bytes(length + tag)
    return at


@compiled
def frame_parts(burst: np.ndarray, start: int, address: int, parts: np.ndarray, done: np.ndarray) -> int:
    """Tell where frames lie for sendmmsg: `parts` (int64[n, 2]) takes address and length of each.

    `address` is that of `burst`, `start` the first record's offset; the offset behind the last one is returned, and
    `done[0]` tells how many there are.
    """
    at = start
    count = 0
    while at < burst.size and count < parts.shape[0]:
        length = record_length(burst, at)
        parts[count, 0] = address + at + RECORD_HEADER_BYTES
        parts[count, 1] = length
        at += record_bytes(length)
        count += 1
    done[0] = count
    return at
