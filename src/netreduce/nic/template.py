"""The headers that all packets of a queue pair share: Ethernet, IPv4, UDP and most of the BTH."""

from __future__ import annotations

import ipaddress

import numpy as np

from netreduce.nic.requester import BTH_AT, UDP_AT
from netreduce.wire.bigendian import write_be16
from netreduce.wire.packet import ETHERNET_BYTES, ETHERTYPE_IPV4, PROTOCOL_UDP, ROCE_UDP_PORT, write_bth

ECN_CAPABLE = 2
"""ECT(0): switches may mark congestion instead of dropping."""
DO_NOT_FRAGMENT = 0x4000
UDP_PORT_FIRST = 0xC000
UDP_PORT_BITS = 14
"""Source ports 49152 to 65535 spread connections over equal paths (RoCEv2 annex A17.9.2)."""


def write_template(
    template: np.ndarray,
    *,
    source_mac: bytes,
    destination_mac: bytes,
    source_ip: str,
    destination_ip: str,
    source_qpn: int,
    destination_qpn: int,
    traffic_class: int,
    hop_limit: int,
) -> None:
    """Fill `template` (uint8[TEMPLATE_BYTES]); lengths, checksum, opcode, padding and PSN are each packet's own."""
    template[:] = 0
    template[0:6] = np.frombuffer(destination_mac, np.uint8)
    template[6:12] = np.frombuffer(source_mac, np.uint8)
    write_be16(template, 12, ETHERTYPE_IPV4)
    ip_at = ETHERNET_BYTES
    template[ip_at] = 0x45
    template[ip_at + 1] = (traffic_class & 0xFC) | ECN_CAPABLE
    write_be16(template, ip_at + 6, DO_NOT_FRAGMENT)
    template[ip_at + 8] = hop_limit
    template[ip_at + 9] = PROTOCOL_UDP
    template[ip_at + 12 : ip_at + 16] = np.frombuffer(ipaddress.IPv4Address(source_ip).packed, np.uint8)
    template[ip_at + 16 : ip_at + 20] = np.frombuffer(ipaddress.IPv4Address(destination_ip).packed, np.uint8)
    flow = source_qpn ^ destination_qpn ^ (source_qpn >> UDP_PORT_BITS)
    write_be16(template, UDP_AT, UDP_PORT_FIRST | (flow & ((1 << UDP_PORT_BITS) - 1)))
    write_be16(template, UDP_AT + 2, ROCE_UDP_PORT)
    write_bth(template, BTH_AT, 0, 0, destination_qpn, 0, False)
