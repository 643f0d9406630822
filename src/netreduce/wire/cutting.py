"""Super-frames of segmentation.py cut into frames again, without a copy of what they carry.

Where each payload belongs is known from the first bytes of a packet, which a packet ring tells before the packet is
received. So `place` tells recvmsg to put payloads where they are needed, in records of a burst, and `complete` writes
the headers between them.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.wire.bigendian import read_be16, write_be16
from netreduce.wire.frames import FRAME_BYTES_MAX, RECORD_HEADER_BYTES, record_bytes, write_record_header
from netreduce.wire.icrc import UDP_BYTES
from netreduce.wire.packet import (
    ETHERNET_BYTES,
    IPV4_BYTES,
    ROCE_UDP_PORT,
    VLAN_TAG_BYTES,
    folded,
    internet_sum,
)
from netreduce.wire.segmentation import (
    FLAGS_AT,
    GSO_NONE,
    GSO_SIZE_AT,
    GSO_TYPE_AT,
    GSO_UDP_L4,
    MAC_BYTES,
    NEEDS_CHECKSUM,
    SUM_OFFSET_AT,
    SUM_START_AT,
    VNET_BYTES,
    header_bytes,
    pseudo_sum,
    put_part,
    read_le16,
    write_lengths,
)

SEGMENTS_TAKEN_MAX = 128
"""A super-frame of so many segments fits into one burst, however short they are."""
NO_TAG = -1


@compiled
def tag_bytes_of(tag: int) -> int:
    """What putting back `tag`, an 802.1Q tag or `NO_TAG`, adds to a frame."""
    return 0 if tag == NO_TAG else VLAN_TAG_BYTES


@compiled
def checksum_is_possible(head: np.ndarray, vnet_at: int, length: int) -> bool:
    """Whether a frame of `length` has what the struct virtio_net_hdr at `vnet_at` says of a checksum to fill in."""
    if head[vnet_at + FLAGS_AT] & NEEDS_CHECKSUM == 0:
        return True
    covered_at = read_le16(head, vnet_at + SUM_START_AT)
    return covered_at >= MAC_BYTES and covered_at + read_le16(head, vnet_at + SUM_OFFSET_AT) + 2 <= length


@compiled
def _fill_checksum(head: np.ndarray, vnet_at: int, data: np.ndarray, start: int, length: int) -> None:
    """Fill in the checksum of the frame ``data[start : start + length]``, if the header at `vnet_at` says so."""
    if head[vnet_at + FLAGS_AT] & NEEDS_CHECKSUM == 0:
        return
    covered_at = read_le16(head, vnet_at + SUM_START_AT)
    value = folded(internet_sum(data, start + covered_at, length - covered_at)) ^ 0xFFFF
    sum_at = start + covered_at + read_le16(head, vnet_at + SUM_OFFSET_AT)
    write_be16(data, sum_at, value if value != 0 else 0xFFFF)  # zero would mean none, in UDP


@compiled
def _put_head(burst: np.ndarray, at: int, head: np.ndarray, start: int, length: int, tag: int) -> None:
    """Write the first `length` bytes of a frame, `tag` put back, to offset `at` of a burst."""
    tag_bytes = tag_bytes_of(tag)
    copy_bytes(burst, at, head, start, MAC_BYTES)
    if tag != NO_TAG:
        write_be16(burst, at + MAC_BYTES, tag >> 16)
        write_be16(burst, at + MAC_BYTES + 2, tag & 0xFFFF)
    copy_bytes(burst, at + MAC_BYTES + tag_bytes, head, start + MAC_BYTES, length - MAC_BYTES)


@compiled
def put_frame(burst: np.ndarray, at: int, slot: np.ndarray, vnet_at: int, length: int, tag: int, time_ps: int) -> int:
    """Write the record of the frame of `length` behind the struct virtio_net_hdr at `vnet_at`; the offset behind it.

    `tag` is put back, and a checksum that is possible filled in.
    """
    size = length + tag_bytes_of(tag)
    write_record_header(burst, at, size, time_ps)
    _put_head(burst, at + RECORD_HEADER_BYTES, slot, vnet_at + VNET_BYTES, length, tag)
    _fill_checksum(slot, vnet_at, burst, at + RECORD_HEADER_BYTES + size - length, length)
    return at + record_bytes(size)


@compiled
def look_at(head: np.ndarray, size: int, tag: int) -> int:
    """Bytes of the records that a packet of `size` becomes, which starts with `head`, of it struct virtio_net_hdr.

    0 when it is longer than any frame and no super-frame; -1 when what it says cannot be: the kernel may have it from
    a guest. `head` has all headers, as far as the packet is so long.
    """
    length, tag_bytes = size - VNET_BYTES, tag_bytes_of(tag)
    if length < ETHERNET_BYTES:
        return -1
    if head[GSO_TYPE_AT] == GSO_NONE and length + tag_bytes <= FRAME_BYTES_MAX:
        return record_bytes(length + tag_bytes) if checksum_is_possible(head, 0, length) else -1
    if head[GSO_TYPE_AT] != GSO_UDP_L4:
        return 0
    headers, segment_bytes = header_bytes(head, VNET_BYTES, length), read_le16(head, GSO_SIZE_AT)
    if headers == 0 or segment_bytes == 0 or length == headers:
        return -1
    payload_bytes = length - headers
    segments = (payload_bytes + segment_bytes - 1) // segment_bytes
    longest = headers + min(segment_bytes, payload_bytes) + tag_bytes
    if segments > SEGMENTS_TAKEN_MAX or longest > FRAME_BYTES_MAX:
        return -1
    last = headers + payload_bytes - (segments - 1) * segment_bytes + tag_bytes
    return (segments - 1) * record_bytes(longest) + record_bytes(last)


@compiled
def kept_bytes(head: np.ndarray, size: int) -> int:
    """How much at the start of a packet that `look_at` has found good is not placed, but written by `complete`."""
    if head[GSO_TYPE_AT] == GSO_NONE:
        return VNET_BYTES + MAC_BYTES
    return VNET_BYTES + header_bytes(head, VNET_BYTES, size - VNET_BYTES)


@compiled
def place(head: np.ndarray, size: int, tag: int, burst: np.ndarray, start: int, parts: np.ndarray, part: int) -> int:
    """Write to `parts` (int64[n, 2], struct iovec), from row `part` on, where what follows `kept_bytes` belongs.

    That is in records of `burst` from offset `start` on. Returns the row behind the last one.
    """
    kept, at = kept_bytes(head, size), start
    headers, rest = kept - VNET_BYTES + tag_bytes_of(tag), size - kept
    segment_bytes = rest if head[GSO_TYPE_AT] == GSO_NONE else read_le16(head, GSO_SIZE_AT)
    while rest > 0:
        count = min(segment_bytes, rest)
        part = put_part(parts, part, burst.ctypes.data + at + RECORD_HEADER_BYTES + headers, count)
        at += record_bytes(headers + count)
        rest -= count
    return part


@compiled
def complete(head: np.ndarray, size: int, tag: int, burst: np.ndarray, start: int, time_ps: int) -> int:
    """Make records of what `place` has told to be written to `burst`; the offset behind them.

    Of RoCEv2 the UDP checksum becomes 0, as it left its NIC; of other protocols it is filled in. `tag` is an 802.1Q
    tag that the kernel took out, with its ethertype, or `NO_TAG`. The headers in `head` are used up.
    """
    kept, tag_bytes = kept_bytes(head, size), tag_bytes_of(tag)
    headers, rest, at = kept - VNET_BYTES, size - kept, start
    if head[GSO_TYPE_AT] == GSO_NONE:
        write_record_header(burst, at, headers + tag_bytes + rest, time_ps)
        _put_head(burst, at + RECORD_HEADER_BYTES, head, VNET_BYTES, headers, tag)
        _fill_checksum(head, 0, burst, at + RECORD_HEADER_BYTES + tag_bytes, size - VNET_BYTES)
        return at + record_bytes(headers + tag_bytes + rest)
    ip_at, udp_at = VNET_BYTES + ETHERNET_BYTES, kept - UDP_BYTES
    segment_bytes, is_roce = read_le16(head, GSO_SIZE_AT), read_be16(head, udp_at + 2) == ROCE_UDP_PORT
    while rest > 0:
        count = min(segment_bytes, rest)
        payload_at = at + RECORD_HEADER_BYTES + headers + tag_bytes
        write_lengths(head, ip_at, udp_at, UDP_BYTES + count)
        write_be16(head, udp_at + 6, 0)
        if not is_roce:
            total = pseudo_sum(head, ip_at, udp_at, UDP_BYTES + count) + internet_sum(head, udp_at, UDP_BYTES)
            value = folded(total + internet_sum(burst, payload_at, count)) ^ 0xFFFF
            write_be16(head, udp_at + 6, value if value != 0 else 0xFFFF)
        write_record_header(burst, at, headers + tag_bytes + count, time_ps)
        _put_head(burst, at + RECORD_HEADER_BYTES, head, VNET_BYTES, headers, tag)
        if udp_at - ip_at == IPV4_BYTES:
            write_be16(head, ip_at + 4, (read_be16(head, ip_at + 4) + 1) & 0xFFFF)
        at += record_bytes(headers + tag_bytes + count)
        rest -= count
    return at
