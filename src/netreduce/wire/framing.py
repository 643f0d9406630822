"""Between bursts and what other programs carry frames in: length-prefixed streams, and arrays of packet buffers.

A stream is that of QEMU's ``-netdev stream`` (qemu-options: each frame behind its length as a 32-bit big-endian
number). Packet buffers are those of Linux's packet(7) sockets, whose kernel takes the 802.1Q tag out of a frame and
tells it aside (struct tpacket_auxdata, linux/if_packet.h); here it is put back, since the ICRC does not care but the
network does.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.wire.bigendian import read_be32
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
AUXDATA_BYTES = 40
"""Control buffer of one packet: struct cmsghdr (16), struct tpacket_auxdata (20), alignment."""
_AUX_STATUS, _AUX_TCI, _AUX_TPID = 16, 32, 34
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
def _auxdata16(auxdata: np.ndarray, at: int) -> int:
    """A little-endian 16-bit field."""
    return np.int64(auxdata[at]) | (np.int64(auxdata[at + 1]) << 8)


@compiled
def packets_to_burst(
    packets: np.ndarray, lengths: np.ndarray, auxdata: np.ndarray, count: int, burst: np.ndarray, time_ps: int,
    seen: np.ndarray,
) -> int:  # fmt: skip
    """Turn `count` received packets into records, tags put back; the bytes written to `burst`.

    `packets` uint8[n, size], `lengths` int64[n] (a packet that fills its buffer was cut off), `auxdata`
    uint8[n, AUXDATA_BYTES]. `seen` (int64[2]) counts frames too long, which are left out, and unfilled checksums.
    """
    at = 0
    for i in range(count):
        packet, aux = packets[i], auxdata[i]
        length = lengths[i]
        status = _auxdata16(aux, _AUX_STATUS)
        tag = TAG_BYTES if status & STATUS_VLAN_VALID else 0
        if length < MAC_BYTES or length >= packet.size or length + tag > FRAME_BYTES_MAX:
            seen[0] += 1
            continue
        if status & STATUS_CHECKSUM_NOT_READY:
            seen[1] += 1
        start = at + RECORD_HEADER_BYTES
        write_record_header(burst, at, length + tag, time_ps)
        copy_bytes(burst, start, packet, 0, MAC_BYTES)
        if tag:
            tpid = _auxdata16(aux, _AUX_TPID) if status & STATUS_VLAN_TPID_VALID else TPID_802_1Q
            tci = _auxdata16(aux, _AUX_TCI)
            burst[start + MAC_BYTES] = tpid >> 8
            burst[start + MAC_BYTES + 1] = tpid & 0xFF
            burst[start + MAC_BYTES + 2] = tci >> 8
            burst[start + MAC_BYTES + 3] = tci & 0xFF
        copy_bytes(burst, start + MAC_BYTES + tag, packet, MAC_BYTES, length - MAC_BYTES)
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
