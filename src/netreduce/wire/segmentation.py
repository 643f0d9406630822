"""Super-frames: runs of packets that cross Linux as one, as UDP segmentation offload has it. They are joined here.

What goes to or comes from a packet(7) socket with PACKET_VNET_HDR starts with struct virtio_net_hdr (virtio 1.2,
5.1.6), which says that what follows is one set of Ethernet, IP and UDP headers, with lengths of the whole, before the
payloads of many datagrams of `gso_size` bytes each; the last one may be shorter. Whoever segments, the kernel or a
NIC, repeats the headers, sets the lengths, counts IPv4's identification on, and fills in the UDP checksum. RoCEv2's
ICRC masks that checksum, but not the identification: so only packets are joined whose identifications are consecutive.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.wire.bigendian import read_be16, write_be16
from netreduce.wire.frames import (
    RECORD_HEADER_BYTES,
    record_bytes,
    record_length,
)
from netreduce.wire.icrc import UDP_BYTES
from netreduce.wire.packet import (
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    IPV4_BYTES,
    IPV6_BYTES,
    PROTOCOL_UDP,
    ROCE_UDP_PORT,
    folded,
    internet_sum,
    ipv4_checksum,
)

VNET_BYTES = 10
"""struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset; the last four little-endian."""
FLAGS_AT, GSO_TYPE_AT, _HEADER_BYTES, GSO_SIZE_AT, SUM_START_AT, SUM_OFFSET_AT = 0, 1, 2, 4, 6, 8
NEEDS_CHECKSUM = 1
GSO_NONE, GSO_UDP_L4 = 0, 5
HEAD_BYTES = 80
"""Room for `VNET_BYTES` and the headers of a super-frame: 62 bytes over IPv6."""
SEGMENTS_MAX = 64
"""Segments that every kernel with GSO_UDP_L4 takes (UDP_MAX_SEGMENTS, now 128)."""
SUPER_FRAME_BYTES_MAX = 65_535
"""Interfaces take less than 65,536 bytes as one (gso_max_size); the kernel segments what is longer."""
MAC_BYTES = 12


@compiled
def read_le16(data: np.ndarray, at: int) -> int:
    """A little-endian 16-bit field."""
    return np.int64(data[at]) | (np.int64(data[at + 1]) << 8)


@compiled
def _write_le16(data: np.ndarray, at: int, value: int) -> None:
    data[at] = value & 0xFF
    data[at + 1] = value >> 8


@compiled
def header_bytes(data: np.ndarray, at: int, length: int) -> int:
    """Size of the headers of a frame of `length` that is a whole UDP datagram, no more; 0 if it is anything else.

    Tags, IPv4 options, IPv6 extension headers and lengths that do not agree are anything else.
    """
    ip_at = at + ETHERNET_BYTES
    if length < ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES:
        return 0
    ethertype = read_be16(data, at + MAC_BYTES)
    if ethertype == ETHERTYPE_IPV4:
        udp_at = ip_at + IPV4_BYTES
        if data[ip_at] != 0x45 or data[ip_at + 9] != PROTOCOL_UDP or read_be16(data, ip_at + 6) & 0x3FFF:
            return 0
        if read_be16(data, ip_at + 2) != length - ETHERNET_BYTES:
            return 0
    elif ethertype == ETHERTYPE_IPV6:
        udp_at = ip_at + IPV6_BYTES
        if length < ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES:
            return 0
        if data[ip_at] >> 4 != 6 or data[ip_at + 6] != PROTOCOL_UDP:
            return 0
        if read_be16(data, ip_at + 4) != length - ETHERNET_BYTES - IPV6_BYTES:
            return 0
    else:
        return 0
    return udp_at + UDP_BYTES - at if read_be16(data, udp_at + 4) == at + length - udp_at else 0


@compiled
def pseudo_sum(data: np.ndarray, ip_at: int, udp_at: int, udp_length: int) -> int:
    """Sum of the pseudo header (RFC 768, RFC 8200), not folded."""
    addresses = 8 if udp_at - ip_at == IPV4_BYTES else 32
    return PROTOCOL_UDP + udp_length + internet_sum(data, udp_at - addresses, addresses)


@compiled
def _joinable(data: np.ndarray, at: int, length: int) -> int:
    """Size of the headers of a frame that a super-frame may hold; 0 if it must leave as it is.

    That is RoCEv2 with payload as this program and hardware send it: without UDP checksum, the IPv4 checksum right.
    """
    headers = header_bytes(data, at, length)
    if headers == 0 or length == headers:
        return 0
    udp_at = at + headers - UDP_BYTES
    if read_be16(data, udp_at + 2) != ROCE_UDP_PORT or read_be16(data, udp_at + 6) != 0:
        return 0
    if udp_at - at == ETHERNET_BYTES + IPV4_BYTES and ipv4_checksum(data, at + ETHERNET_BYTES, IPV4_BYTES) != 0:
        return 0
    return headers


@compiled
def _same(data: np.ndarray, one: int, other: int, start: int, end: int) -> bool:
    i = start
    while i < end and data[one + i] == data[other + i]:
        i += 1
    return i >= end


@compiled
def _follows(data: np.ndarray, first: int, headers: int, number: int, at: int, length: int) -> bool:
    """Whether the frame at `at` is what segmentation would make as number `number` behind the one at `first`."""
    if _joinable(data, at, length) != headers:
        return False
    ip_at = ETHERNET_BYTES
    length_at = headers - UDP_BYTES + 4
    if headers == ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES:
        identification = (read_be16(data, first + ip_at + 4) + number) & 0xFFFF
        return (
            read_be16(data, at + ip_at + 4) == identification
            and _same(data, first, at, 0, ip_at + 2)
            and _same(data, first, at, ip_at + 6, ip_at + 10)
            and _same(data, first, at, ip_at + 12, length_at)
        )
    return _same(data, first, at, 0, ip_at + 4) and _same(data, first, at, ip_at + 6, length_at)


@compiled
def _run_of(burst: np.ndarray, at: int, headers: int) -> int:
    """How many records from offset `at` on one super-frame may hold; the first has `headers`."""
    first, length = at + RECORD_HEADER_BYTES, record_length(burst, at)
    total, count = length, 1
    while count < SEGMENTS_MAX:
        at += record_bytes(length)
        if at >= burst.size:
            break
        size = record_length(burst, at)
        total += size - headers
        if size > length or total > SUPER_FRAME_BYTES_MAX:
            break
        if not _follows(burst, first, headers, count, at + RECORD_HEADER_BYTES, size):
            break
        count += 1
        if size < length:
            break
    return count


@compiled
def _write_head(head: np.ndarray, headers: int, segment_bytes: int, total: int, offload: int) -> None:
    """Complete `head`, which holds the first segment's headers, for a super-frame of `total` bytes with headers."""
    ip_at, udp_at = VNET_BYTES + ETHERNET_BYTES, VNET_BYTES + headers - UDP_BYTES
    udp_length = total - headers + UDP_BYTES
    head[FLAGS_AT] = NEEDS_CHECKSUM
    head[GSO_TYPE_AT] = offload
    _write_le16(head, _HEADER_BYTES, headers)
    _write_le16(head, GSO_SIZE_AT, segment_bytes)
    _write_le16(head, SUM_START_AT, headers - UDP_BYTES)
    _write_le16(head, SUM_OFFSET_AT, 6)
    write_lengths(head, ip_at, udp_at, udp_length)
    write_be16(head, udp_at + 6, folded(pseudo_sum(head, ip_at, udp_at, udp_length)))


@compiled
def write_lengths(data: np.ndarray, ip_at: int, udp_at: int, udp_length: int) -> None:
    """Write the lengths of a datagram into its headers, and IPv4's checksum."""
    if udp_at - ip_at == IPV4_BYTES:
        write_be16(data, ip_at + 2, IPV4_BYTES + udp_length)
        write_be16(data, ip_at + 10, 0)
        write_be16(data, ip_at + 10, ipv4_checksum(data, ip_at, IPV4_BYTES))
    else:
        write_be16(data, ip_at + 4, udp_length)
    write_be16(data, udp_at + 4, udp_length)


@compiled
def put_part(parts: np.ndarray, part: int, address: int, length: int) -> int:
    parts[part, 0] = address
    parts[part, 1] = length
    return part + 1


@compiled
def lay_out(
    burst: np.ndarray,
    start: int,
    offload: int,
    messages: np.ndarray,
    parts: np.ndarray,
    heads: np.ndarray,
    marks: np.ndarray,
) -> int:
    """Tell sendmmsg where the frames from record `start` on lie, runs of them as one message; the number of messages.

    `messages` (int64[n, 8], struct mmsghdr) takes address and count of each message's `parts` (int64[m, 2], struct
    iovec). `heads` (uint8[n + 1, HEAD_BYTES]) holds the heads of super-frames, and in its last row the zeros of all
    other frames. `marks` (int64[n, 2]) tells the offset behind each message's last record, and how many it has.
    `offload` is the gso_type of super-frames, `GSO_UDP_L4`; with `GSO_NONE` each frame leaves alone.
    """
    at, part, count = start, 0, 0
    plain = heads[messages.shape[0]]
    while at < burst.size and count < messages.shape[0] and part + 1 + SEGMENTS_MAX <= parts.shape[0]:
        first, length = at + RECORD_HEADER_BYTES, record_length(burst, at)
        headers = _joinable(burst, first, length) if offload != GSO_NONE else 0
        run = _run_of(burst, at, headers) if headers > 0 else 1
        messages[count, 2] = parts.ctypes.data + part * 16
        messages[count, 3] = 1 + run
        if run == 1:
            part = put_part(parts, part, plain.ctypes.data, VNET_BYTES)
            part = put_part(parts, part, burst.ctypes.data + first, length)
            at += record_bytes(length)
        else:
            head, total = heads[count], headers
            part = put_part(parts, part, head.ctypes.data, VNET_BYTES + headers)
            for _ in range(run):
                size = record_length(burst, at) - headers
                payload_at = burst.ctypes.data + at + RECORD_HEADER_BYTES + headers
                part = put_part(parts, part, payload_at, size)
                total += size
                at += record_bytes(headers + size)
            copy_bytes(head, VNET_BYTES, burst, first, headers)
            _write_head(head, headers, length - headers, total, offload)
        marks[count, 0] = at
        marks[count, 1] = run
        count += 1
    return count
