"""One RoCEv2 packet: from a frame's bytes to named fields and back (RoCEv2 annex A17; IBA vol. 1, chapter 9.2).

`parse_packet` fills a one-row table that the NIC, the switch and the pretty printer share. It reads Ethernet, at most
one 802.1Q tag, IPv4 or IPv6, UDP 4791, BTH and the extension headers of the opcode, and it never reads past the frame.
IPv4 addresses are held as IPv4-mapped IPv6 addresses, in two 64-bit halves.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.compiled import compiled
from netreduce.wire.bigendian import read_be16, read_be24, read_be32, read_be64, write_be16, write_be24
from netreduce.wire.icrc import UDP_BYTES, write_icrc
from netreduce.wire.opcodes import BTH_BYTES, ICRC_BYTES, OPCODE_HEADER_BYTES, OPCODE_ROLES, Role

ETHERNET_BYTES = 14
VLAN_TAG_BYTES = 4
IPV4_BYTES = 20
IPV6_BYTES = 40
ROCE_UDP_PORT = 4791
P_KEY_DEFAULT = 0xFFFF

ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_VLAN = 0x8100
ETHERTYPE_IPV6 = 0x86DD
PROTOCOL_UDP = 17
IPV4_MAPPED = 0xFFFF << 32
"""Third quarter of an IPv4-mapped IPv6 address, ::ffff:a.b.c.d; the address itself is the low 32 bits."""

PACKET_FIELDS = (
    "source_ip_high",
    "source_ip_low",
    "destination_ip_high",
    "destination_ip_low",
    "ip_version",
    "ecn",  # the two ECN bits of the IP header; 3 is "congestion experienced"
    "vlan",  # the tag's 16 bits, 0 without a tag
    "udp_source_port",
    "opcode",
    "roles",  # `Role` bits of the opcode
    "pad_bytes",
    "p_key",
    "solicited",
    "migrated",
    "fecn",
    "becn",
    "ack_request",
    "destination_qpn",
    "psn",
    "remote_address",  # RETH
    "rkey",
    "dma_length",
    "syndrome",  # AETH
    "msn",
    "immediate",
    "ip_at",  # offsets within the frame
    "udp_at",
    "bth_at",
    "payload_at",
    "payload_bytes",  # without the padding
    "icrc_at",
)
PACKET = np.dtype([(name, np.int64) for name in PACKET_FIELDS])
"""Fields of one packet. All int64, as in every table: NumPy and Numba promote narrower integers differently."""


class Parse(IntEnum):
    """Outcome of `parse_packet`."""

    OK = 0
    NOT_ROCE = 1  # some other protocol: to be forwarded, and of no concern here
    TRUNCATED = 2  # shorter than its headers say
    BAD_LENGTH = 3  # IP, UDP and the frame disagree about the length
    BAD_HEADER = 4  # IP version or header length, fragment, IP checksum, BTH transport version
    UNKNOWN_OPCODE = 5
    BAD_PADDING = 6  # more padding than payload
    BAD_ICRC = 7  # given by callers after `icrc_is_good`


def make_packet_table() -> np.ndarray:
    """A one-row recarray of `PACKET` for `parse_packet` to fill."""
    return np.zeros(1, PACKET).view(np.recarray)


@compiled
def internet_sum(data: np.ndarray, at: int, length: int) -> int:
    """Sum of `length` bytes as big-endian 16-bit words, not folded; an odd last byte is a high one (RFC 1071)."""
    high, low = 0, 0
    part = data[at : at + length]
    for i in range(length >> 1):  # an index that may be negative, as `at + i`, would be asked about at each byte
        high += np.int64(part[2 * i])
        low += np.int64(part[2 * i + 1])
    if length & 1:
        high += np.int64(part[length - 1])
    return (high << 8) + low


@compiled
def folded(total: int) -> int:
    """Ones' complement sum of 16 bits that `total` amounts to."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@compiled
def ipv4_checksum(frame: np.ndarray, at: int, length: int) -> int:
    """Ones' complement checksum (RFC 1071) of `length` header bytes; 0 over a header whose checksum is right."""
    return folded(internet_sum(frame, at, length)) ^ 0xFFFF


@compiled
def _parse_ipv4(frame: np.ndarray, at: int, packet: np.record) -> int:
    """Check the IPv4 header at `at`; the packet's end within the frame, or minus a `Parse` code."""
    if frame.size < at + IPV4_BYTES:
        return -Parse.TRUNCATED.value
    header_bytes = (np.int64(frame[at]) & 15) * 4
    if frame[at + 9] != PROTOCOL_UDP:
        return -Parse.NOT_ROCE.value
    if frame[at] >> 4 != 4 or header_bytes < IPV4_BYTES or frame.size < at + header_bytes:
        return -Parse.BAD_HEADER.value
    if read_be16(frame, at + 6) & 0x3FFF:
        return -Parse.NOT_ROCE.value  # a fragment: RoCE never makes them, a router would reassemble elsewhere
    if ipv4_checksum(frame, at, header_bytes) != 0:
        return -Parse.BAD_HEADER.value
    packet.ip_version = 4
    packet.ecn = np.int64(frame[at + 1]) & 3
    packet.source_ip_high = 0
    packet.destination_ip_high = 0
    packet.source_ip_low = IPV4_MAPPED | read_be32(frame, at + 12)
    packet.destination_ip_low = IPV4_MAPPED | read_be32(frame, at + 16)
    packet.udp_at = at + header_bytes
    return at + read_be16(frame, at + 2)


@compiled
def _parse_ipv6(frame: np.ndarray, at: int, packet: np.record) -> int:
    """Check the IPv6 header at `at`; the packet's end within the frame, or minus a `Parse` code."""
    if frame.size < at + IPV6_BYTES:
        return -Parse.TRUNCATED.value
    if frame[at + 6] != PROTOCOL_UDP:
        return -Parse.NOT_ROCE.value
    if frame[at] >> 4 != 6:
        return -Parse.BAD_HEADER.value
    packet.ip_version = 6
    packet.ecn = (np.int64(frame[at + 1]) >> 4) & 3
    packet.source_ip_high = read_be64(frame, at + 8)
    packet.source_ip_low = read_be64(frame, at + 16)
    packet.destination_ip_high = read_be64(frame, at + 24)
    packet.destination_ip_low = read_be64(frame, at + 32)
    packet.udp_at = at + IPV6_BYTES
    return at + IPV6_BYTES + read_be16(frame, at + 4)


@compiled
def _parse_bth(frame: np.ndarray, at: int, end: int, packet: np.record) -> int:
    """Read BTH and the opcode's extension headers; `end` is where the ICRC stops. A `Parse` code."""
    if end < at + BTH_BYTES + ICRC_BYTES:
        return Parse.TRUNCATED.value
    packet.bth_at = at
    packet.opcode = frame[at]
    roles = OPCODE_ROLES[frame[at]]
    packet.roles = roles
    bits = np.int64(frame[at + 1])
    packet.solicited = bits >> 7
    packet.migrated = (bits >> 6) & 1
    packet.pad_bytes = (bits >> 4) & 3
    packet.p_key = read_be16(frame, at + 2)
    packet.fecn = frame[at + 4] >> 7
    packet.becn = (frame[at + 4] >> 6) & 1
    packet.destination_qpn = read_be24(frame, at + 5)
    packet.ack_request = frame[at + 8] >> 7
    packet.psn = read_be24(frame, at + 9)
    if bits & 15:
        return Parse.BAD_HEADER.value
    if roles == 0:
        return Parse.UNKNOWN_OPCODE.value
    payload_at = at + OPCODE_HEADER_BYTES[frame[at]]
    icrc_at = end - ICRC_BYTES
    if icrc_at < payload_at:
        return Parse.TRUNCATED.value
    if icrc_at - payload_at < packet.pad_bytes or (icrc_at > payload_at and roles & Role.PAYLOAD.value == 0):
        return Parse.BAD_PADDING.value
    packet.payload_at = payload_at
    packet.payload_bytes = icrc_at - payload_at - packet.pad_bytes
    packet.icrc_at = icrc_at
    extension = at + BTH_BYTES
    if roles & Role.RETH.value:
        packet.remote_address = read_be64(frame, extension)
        packet.rkey = read_be32(frame, extension + 8)
        packet.dma_length = read_be32(frame, extension + 12)
        extension += 16
    if roles & Role.AETH.value:
        packet.syndrome = frame[extension]
        packet.msn = read_be24(frame, extension + 1)
        extension += 4
    if roles & Role.DETH.value:
        extension += 8  # Q_Key and source QPN: datagrams are of no concern here
    if roles & Role.IMMEDIATE.value:
        packet.immediate = read_be32(frame, extension)
    return Parse.OK.value


@compiled
def parse_packet(frame: np.ndarray, packet: np.record) -> int:
    """Read the headers of `frame` (uint8, from the destination MAC on, without FCS) into `packet`.

    Returns a `Parse` code. Fields are meaningful for `Parse.OK`; for `UNKNOWN_OPCODE` and `BAD_PADDING` those up to the
    BTH are. The ICRC is not looked at: see `icrc_is_good`.
    """
    at = ETHERNET_BYTES
    if frame.size < at:
        return Parse.TRUNCATED.value
    ethertype = read_be16(frame, 12)
    packet.vlan = 0
    if ethertype == ETHERTYPE_VLAN:
        at += VLAN_TAG_BYTES
        if frame.size < at:
            return Parse.TRUNCATED.value
        packet.vlan = read_be16(frame, 14)
        ethertype = read_be16(frame, 16)
    packet.ip_at = at
    if ethertype == ETHERTYPE_IPV4:
        end = _parse_ipv4(frame, at, packet)
    elif ethertype == ETHERTYPE_IPV6:
        end = _parse_ipv6(frame, at, packet)
    else:
        return Parse.NOT_ROCE.value
    if end < 0:
        return -end
    udp_at = packet.udp_at
    if frame.size < udp_at + UDP_BYTES:
        return Parse.TRUNCATED.value
    if read_be16(frame, udp_at + 2) != ROCE_UDP_PORT:
        return Parse.NOT_ROCE.value
    if end > frame.size:
        return Parse.TRUNCATED.value
    if end != udp_at + read_be16(frame, udp_at + 4):  # a frame may be longer: Ethernet pads to 60 bytes
        return Parse.BAD_LENGTH.value
    packet.udp_source_port = read_be16(frame, udp_at)
    return _parse_bth(frame, udp_at + UDP_BYTES, end, packet)


@compiled
def write_bth(
    frame: np.ndarray, at: int, opcode: int, pad_bytes: int, destination_qpn: int, psn: int, ack_request: bool
) -> None:
    """Write the 12 bytes of a BTH at offset `at`, with the default P_Key and no solicited event."""
    frame[at] = opcode
    frame[at + 1] = pad_bytes << 4
    write_be16(frame, at + 2, P_KEY_DEFAULT)
    frame[at + 4] = 0
    write_be24(frame, at + 5, destination_qpn)
    frame[at + 8] = 0x80 if ack_request else 0
    write_be24(frame, at + 9, psn)


@compiled
def finish_frame(frame: np.ndarray, ip_at: int, udp_at: int, end: int) -> None:
    """Fill in IP and UDP lengths, the IPv4 checksum and the ICRC, which ends at offset `end`."""
    if frame[ip_at] >> 4 == 4:
        write_be16(frame, ip_at + 2, end - ip_at)
        write_be16(frame, ip_at + 10, 0)
        write_be16(frame, ip_at + 10, ipv4_checksum(frame, ip_at, udp_at - ip_at))
    else:
        write_be16(frame, ip_at + 4, end - udp_at)
    write_be16(frame, udp_at + 4, end - udp_at)
    write_icrc(frame, ip_at, udp_at, end - ICRC_BYTES)
