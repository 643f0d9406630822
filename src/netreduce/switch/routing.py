"""Routing: frames to a port's own MAC address go on to their destination's next hop (RFC 1812, RFC 8200).

So a switch can stand beside the path: hosts' routes point at it. The frame gets new MAC addresses and one less of TTL,
or hop limit, and its IPv4 checksum is amended (RFC 1624); the ICRC does not cover these fields (RoCEv2 annex A17), and
stays. It is rewritten before it is judged, so a ring's copies are held as they will leave.

Next hops come from the control plane, which is told what is wanted: here is no ARP, and no ICMP.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, inlined
from netreduce.switch.forwarding import read_mac, write_mac
from netreduce.switch.tables import NOBODY, PROBES_MAX, SwitchTables
from netreduce.switch.verdicts import FORWARD, IGNORED
from netreduce.trace.events import DropReason
from netreduce.wire.bigendian import read_be16, read_be32, read_be64, write_be16
from netreduce.wire.packet import (
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_VLAN,
    IPV4_BYTES,
    IPV4_MAPPED,
    IPV6_BYTES,
    VLAN_TAG_BYTES,
    ipv4_checksum,
)

VLAN_ID_MASK = 0xFFF
_24_BITS = 0xFFFFFF


@compiled
def _hop_place(hops: np.recarray, low: int, probe: int) -> int:
    mixed = ((low & _24_BITS) * 0x9E3779B1) ^ (((low >> 24) & _24_BITS) * 0x85EBCA6B)  # 24 by 32 bits: within 63
    return ((mixed >> 16) + probe) & (hops.size - 1)


@compiled
def find_hop(hops: np.recarray, high: int, low: int) -> int:
    """Row of the destination (halves of its address, as in `PACKET`) in `hops`, or `NOBODY`."""
    for probe in range(PROBES_MAX):
        at = _hop_place(hops, low, probe)
        if hops[at].mac != 0 and hops[at].ip_low == low and hops[at].ip_high == high:
            return at
    return NOBODY


@compiled
def free_hop(hops: np.recarray, low: int) -> int:
    """Row where an unknown destination may be stored, or `NOBODY`."""
    for probe in range(PROBES_MAX):
        at = _hop_place(hops, low, probe)
        if hops[at].mac == 0:
            return at
    return NOBODY


@compiled
def _want(wanted: np.recarray, state: np.record, high: int, low: int) -> None:
    """Ask the control plane for a next hop, once; what is asked for beyond the table's size is asked for again."""
    for i in range(state.wanted):
        if wanted[i].ip_low == low and wanted[i].ip_high == high:
            return
    if state.wanted < wanted.size:
        wanted[state.wanted].ip_high = high
        wanted[state.wanted].ip_low = low
        state.wanted += 1


@compiled
def _check_ipv4(frame: np.ndarray, at: int) -> int:
    """Whether the IPv4 header at `at` is one: `FORWARD`, or why its frame is dropped."""
    header_bytes = (np.int64(frame[at]) & 15) * 4
    if frame[at] >> 4 != 4 or header_bytes < IPV4_BYTES:
        return DropReason.BAD_HEADER.value
    if frame.size < at + header_bytes:
        return DropReason.TRUNCATED.value
    return FORWARD if ipv4_checksum(frame, at, header_bytes) == 0 else DropReason.BAD_HEADER.value


@compiled
def _network_header(frame: np.ndarray) -> int:
    """Offset of the IP header; 0 in a frame of another protocol, or of a VLAN: that is another network's."""
    at = ETHERNET_BYTES
    ethertype = read_be16(frame, 12)
    if ethertype == ETHERTYPE_VLAN and frame.size >= at + VLAN_TAG_BYTES and read_be16(frame, at) & VLAN_ID_MASK == 0:
        ethertype = read_be16(frame, at + 2)  # a tag that holds no more than a priority
        at += VLAN_TAG_BYTES
    return at if ethertype in (ETHERTYPE_IPV4, ETHERTYPE_IPV6) else 0


@inlined
def route(tables: SwitchTables, own_mac: int, frame: np.ndarray) -> int:
    """Address `frame`, which came in at the port of `own_mac`, to its next hop, ``state.hop``.

    `FORWARD` if there is one. `IGNORED` is what goes to others, to the switch's own host, or is no IP packet; else the
    reason why it is dropped.
    """
    state = tables.state[0]
    at = _network_header(frame)
    if at == 0 or read_mac(frame, 0) != own_mac:
        state.filtered += 1
        return IGNORED
    is_ipv4 = read_be16(frame, at - 2) == ETHERTYPE_IPV4
    if frame.size < at + (IPV4_BYTES if is_ipv4 else IPV6_BYTES):
        return DropReason.TRUNCATED.value
    refusal = _check_ipv4(frame, at) if is_ipv4 else FORWARD
    if refusal != FORWARD:
        return refusal
    high = 0 if is_ipv4 else read_be64(frame, at + 24)
    low = IPV4_MAPPED | read_be32(frame, at + 16) if is_ipv4 else read_be64(frame, at + 32)
    hop = find_hop(tables.hops, high, low)
    if hop < 0:
        _want(tables.wanted, state, high, low)
        return DropReason.NO_NEXT_HOP.value
    if tables.hops[hop].port < 0:
        state.filtered += 1
        return IGNORED
    limit_at = at + 8 if is_ipv4 else at + 7
    if frame[limit_at] <= 1:
        return DropReason.HOP_LIMIT.value
    frame[limit_at] -= 1
    if is_ipv4:
        checksum = read_be16(frame, at + 10) + 0x100  # one less of the upper half of its word
        if checksum >= 0xFFFF:  # of the two zeros, 0 is written
            checksum -= 0xFFFF
        write_be16(frame, at + 10, checksum)
    state.hop = hop
    state.sender_mac = read_mac(frame, 6)
    write_mac(frame, 0, tables.hops[hop].mac)
    write_mac(frame, 6, tables.ports[tables.hops[hop].port].mac)
    return FORWARD
