"""A short honest word on frames that are not RoCEv2, or are malformed: for people who read captures.

Only what helps to see why a RoCE network behaves as it does: ARP, pause frames, RoCE v1, ports of TCP and UDP.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from netreduce.wire.packet import (
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_VLAN,
    IPV4_BYTES,
    IPV6_BYTES,
    VLAN_TAG_BYTES,
    Parse,
    ipv4_checksum,
)

ETHERTYPE_ARP = 0x0806
ETHERTYPE_MAC_CONTROL = 0x8808
_ETHERTYPES = {0x8915: "RoCE v1", 0x88CC: "LLDP", 0x88A8: "802.1ad", 0x8100: "VLAN", 0x8847: "MPLS", 0x888E: "802.1X"}
_IP_PROTOCOLS = {1: "ICMP", 2: "IGMP", 6: "TCP", 17: "UDP", 58: "ICMPv6", 89: "OSPF", 103: "PIM", 132: "SCTP"}
PROTOCOLS = (
    "Ethernet",
    "802.3",
    "ARP",
    "IPv4",
    "IPv6",
    "MAC control",
    "IP protocol",
    *_ETHERTYPES.values(),
    *_IP_PROTOCOLS.values(),
)
"""Names that `describe_other` gives."""
_MAC_CONTROL_PAUSE = 0x0001
_MAC_CONTROL_PFC = 0x0101


class Other(NamedTuple):
    """What is said of a frame that is not RoCEv2."""

    protocol: str
    note: str = ""
    source_ip: str = ""
    destination_ip: str = ""


@lru_cache(maxsize=4096)
def ip_text(packed: bytes) -> str:
    """Text of an IPv4 (4 bytes) or IPv6 (16 bytes) address."""
    return str(ipaddress.ip_address(packed))


def mac_text(packed: bytes) -> str:
    """``aa:bb:cc:dd:ee:ff`` for six bytes."""
    return packed.hex(":")


def _number(data: bytes, at: int, size: int = 2) -> int:
    return int.from_bytes(data[at : at + size], "big")


def describe_other(data: bytes) -> Other:
    """Protocol, addresses and the one most telling detail of a frame (from the destination MAC on)."""
    if len(data) < ETHERNET_BYTES:
        return Other("Ethernet", f"only {len(data)} bytes")
    at = ETHERNET_BYTES + VLAN_TAG_BYTES * (_number(data, 12) == ETHERTYPE_VLAN)
    ethertype = _number(data, at - 2)
    if ethertype == ETHERTYPE_ARP and len(data) >= at + 28:
        return _describe_arp(data, at)
    if ethertype == ETHERTYPE_MAC_CONTROL:
        return Other("MAC control", _describe_pause(data, at))
    if ethertype == ETHERTYPE_IPV4 and len(data) >= at + IPV4_BYTES:
        fragment = _number(data, at + 6) & 0x1FFF
        payload_at = at + (data[at] & 15) * 4
        return _describe_ip(data, data[at + 9], payload_at, slice(at + 12, at + 16), slice(at + 16, at + 20), fragment)
    if ethertype == ETHERTYPE_IPV6 and len(data) >= at + IPV6_BYTES:
        return _describe_ip(data, data[at + 6], at + IPV6_BYTES, slice(at + 8, at + 24), slice(at + 24, at + 40), 0)
    if ethertype in (ETHERTYPE_IPV4, ETHERTYPE_IPV6):
        return Other("IPv4" if ethertype == ETHERTYPE_IPV4 else "IPv6", f"only {len(data) - at} bytes of its header")
    if ethertype < 0x600:
        return Other("802.3", f"length {ethertype}")
    return Other(_ETHERTYPES.get(ethertype, "Ethernet"), f"ethertype 0x{ethertype:04x}, not decoded")


def _describe_arp(data: bytes, at: int) -> Other:
    sender, target = ip_text(data[at + 14 : at + 18]), ip_text(data[at + 24 : at + 28])
    if _number(data, at + 6) == 1:
        return Other("ARP", f"who has {target}? tell {sender}", sender, target)
    return Other("ARP", f"{sender} is at {mac_text(data[at + 8 : at + 14])}", sender, target)


def _describe_pause(data: bytes, at: int) -> str:
    kind = _number(data, at)
    if kind == _MAC_CONTROL_PAUSE:
        return f"pause for {_number(data, at + 2)} quanta"
    if kind == _MAC_CONTROL_PFC:
        enabled = _number(data, at + 2)
        times = [f"{i}: {_number(data, at + 4 + 2 * i)}" for i in range(8) if enabled >> i & 1]
        return f"PFC pause, quanta by priority {{{', '.join(times)}}}"
    return f"opcode 0x{kind:04x}"


def _describe_ip(data: bytes, protocol: int, at: int, source: slice, destination: slice, fragment: int) -> Other:
    name = _IP_PROTOCOLS.get(protocol, f"IP protocol {protocol}")
    note = ""
    if fragment:
        note = "fragment"
    elif name in ("TCP", "UDP", "SCTP") and len(data) >= at + 4:
        note = f"port {_number(data, at)} to {_number(data, at + 2)}"
    return Other(name, note, ip_text(data[source]), ip_text(data[destination]))


def explain_problem(code: Parse, frame: np.ndarray) -> str:
    """Why `parse_packet` refused `frame` (uint8), with the numbers that disagree."""
    data = frame.tobytes()
    at = ETHERNET_BYTES + VLAN_TAG_BYTES * (_number(data, 12) == ETHERTYPE_VLAN)
    is_ipv4 = _number(data, at - 2) == ETHERTYPE_IPV4
    header_bytes = (data[at] & 15) * 4 if is_ipv4 and len(data) > at else IPV6_BYTES
    ip_bytes = _number(data, at + 2) if is_ipv4 else IPV6_BYTES + _number(data, at + 4)
    udp_at = at + header_bytes
    if code is Parse.TRUNCATED:
        return f"truncated: IP says {ip_bytes} bytes, the frame has {max(len(data) - at, 0)} from the IP header on"
    if code is Parse.BAD_LENGTH:
        return f"lengths disagree: IP says {ip_bytes - header_bytes} bytes of UDP, UDP says {_number(data, udp_at + 4)}"
    if code is Parse.BAD_HEADER:
        if data[at] >> 4 != (4 if is_ipv4 else 6):
            return f"IP version {data[at] >> 4} under ethertype 0x{_number(data, at - 2):04x}"
        if is_ipv4 and not IPV4_BYTES <= header_bytes <= len(data) - at:
            return f"IPv4 header of {header_bytes} bytes"
        if is_ipv4 and ipv4_checksum(frame, at, header_bytes) != 0:
            return "wrong IPv4 header checksum"
        return f"BTH transport version {data[udp_at + 9] & 15}"
    if code is Parse.UNKNOWN_OPCODE:
        return f"unknown opcode 0x{data[udp_at + 8]:02x}"
    return f"pad count {data[udp_at + 9] >> 4 & 3} does not fit the payload"
