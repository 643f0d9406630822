"""Any RoCEv2 frame from keyword arguments, and bursts of frames: for tools, examples and tests, not for the data path.

The layout is that of RoCEv2 annex A17: Ethernet, optionally one 802.1Q tag, IPv4 or IPv6, UDP 4791, BTH, the opcode's
extension headers, payload, padding, ICRC.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from netreduce.wire.frames import RECORD_HEADER_BYTES, record_bytes, record_length, record_time, write_record_header
from netreduce.wire.opcodes import CNP_RESERVED_BYTES, ICRC_BYTES, OPCODE_ROLES, Opcode, Role
from netreduce.wire.packet import (
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_VLAN,
    P_KEY_DEFAULT,
    PROTOCOL_UDP,
    ROCE_UDP_PORT,
    finish_frame,
)

UDP_SOURCE_PORT_DEFAULT = 0xC000
"""First port of the range that RoCEv2 senders draw their flow's entropy from."""
_FLAG_DONT_FRAGMENT = 0x4000


def mac_bytes(mac: str) -> bytes:
    """The six bytes of ``aa:bb:cc:dd:ee:ff``; ValueError if it is none."""
    octets = bytes.fromhex(mac.replace(":", ""))
    if len(octets) != 6:
        raise ValueError(f"MAC address {mac!r} has {len(octets)} bytes, 6 are needed")
    return octets


def _ethernet(source_mac: str, destination_mac: str, vlan: int | None, ethertype: int) -> bytes:
    tag = b"" if vlan is None else struct.pack(">HH", ETHERTYPE_VLAN, vlan)
    return mac_bytes(destination_mac) + mac_bytes(source_mac) + tag + struct.pack(">H", ethertype)


def _ip(source_ip: str, destination_ip: str, traffic_class: int, hop_limit: int, flow_label: int, ip_id: int) -> bytes:
    """An IPv4 or IPv6 header whose length and checksum are still 0."""
    source, destination = ipaddress.ip_address(source_ip), ipaddress.ip_address(destination_ip)
    if source.version != destination.version:
        raise ValueError(f"addresses {source} and {destination} are of different IP versions")
    addresses = source.packed + destination.packed
    if source.version == 6:
        return struct.pack(">IHBB", 6 << 28 | traffic_class << 20 | flow_label, 0, PROTOCOL_UDP, hop_limit) + addresses
    flags = _FLAG_DONT_FRAGMENT
    return struct.pack(">BBHHHBBH", 0x45, traffic_class, 0, ip_id, flags, hop_limit, PROTOCOL_UDP, 0) + addresses


def _extensions(roles: int, fields: dict[str, Any], payload_bytes: int) -> bytes:
    """The extension headers that `roles` asks for, from `fields`, in the order of the specification."""

    def field(name: str, default: int = 0) -> int:
        return fields.pop(name, default)

    parts = []
    if roles & Role.RETH:
        length = field("dma_length", payload_bytes)
        parts.append(struct.pack(">QII", field("remote_address"), field("rkey"), length))
    if roles & Role.ATOMIC_ETH:
        parts.append(struct.pack(">QIQQ", field("remote_address"), field("rkey"), field("swap"), field("compare")))
    if roles & Role.AETH:
        parts.append(struct.pack(">I", field("syndrome", 0x1F) << 24 | field("msn")))
    if roles & Role.AETH and roles & Role.ATOMIC:
        parts.append(struct.pack(">Q", field("original")))
    if roles & Role.DETH:
        parts.append(struct.pack(">II", field("q_key"), field("source_qpn")))
    if roles & Role.IMMEDIATE:
        parts.append(struct.pack(">I", field("immediate")))
    if roles & Role.INVALIDATE:
        parts.append(struct.pack(">I", field("invalidate_rkey")))
    if roles & Role.CNP:
        parts.append(bytes(CNP_RESERVED_BYTES))
    if fields:
        raise ValueError(f"the opcode carries no field {', '.join(sorted(fields))}")
    return b"".join(parts)


def build_frame(
    opcode: int,
    payload: bytes = b"",
    *,
    source_ip: str = "10.0.0.1",
    destination_ip: str = "10.0.0.2",
    source_mac: str = "02:00:00:00:00:01",
    destination_mac: str = "02:00:00:00:00:02",
    vlan: int | None = None,
    traffic_class: int = 0,
    hop_limit: int = 64,
    flow_label: int = 0,
    ip_id: int = 0,
    udp_source_port: int = UDP_SOURCE_PORT_DEFAULT,
    udp_checksum: int = 0,
    destination_qpn: int = 0,
    psn: int = 0,
    ack_request: bool = False,
    solicited: bool = False,
    migrated: bool = False,
    p_key: int = P_KEY_DEFAULT,
    fecn: bool = False,
    becn: bool | None = None,
    **extension_fields: int,
) -> np.ndarray:
    """One Ethernet frame (writable uint8, without FCS) of `opcode`, with lengths, padding and ICRC filled in.

    `traffic_class` is the IPv4 TOS or IPv6 traffic class byte: DSCP and ECN. `becn` defaults to what the opcode wants:
    set in a CNP. `extension_fields` are those of the opcode's extension headers: `remote_address`, `rkey`, `dma_length`
    (default: the payload's length), `swap`, `compare`, `syndrome` (default: ACK, credits unlimited), `msn`, `original`,
    `q_key`, `source_qpn`, `immediate`, `invalidate_rkey`. An opcode that is not in the table gets no extension headers.
    Raises ValueError for a field that the opcode does not carry, and for addresses that are none.
    """
    roles = int(OPCODE_ROLES[opcode])
    ip = _ip(source_ip, destination_ip, traffic_class, hop_limit, flow_label, ip_id)
    ethertype = ETHERTYPE_IPV6 if ip[0] >> 4 == 6 else ETHERTYPE_IPV4
    head = _ethernet(source_mac, destination_mac, vlan, ethertype)
    pad_bytes = -len(payload) & 3
    flags = solicited << 7 | migrated << 6 | pad_bytes << 4
    congestion = fecn << 7 | (opcode == Opcode.CNP if becn is None else becn) << 6
    bth = struct.pack(">BBHII", opcode, flags, p_key, congestion << 24 | destination_qpn, ack_request << 31 | psn)
    udp = struct.pack(">HHHH", udp_source_port, ROCE_UDP_PORT, 0, udp_checksum)
    body = bth + _extensions(roles, extension_fields, len(payload)) + payload + bytes(pad_bytes + ICRC_BYTES)
    frame = np.frombuffer(bytearray(head + ip + udp + body), np.uint8)
    finish_frame(frame, len(head), len(head) + len(ip), frame.size)
    return frame


def build_burst(frames: Iterable[np.ndarray], time_ps: int = 0) -> np.ndarray:
    """A burst (see wire/frames.py) of `frames`, all stamped with `time_ps`; uint8, writable."""
    frames = list(frames)
    burst = np.zeros(sum(record_bytes(frame.size) for frame in frames), np.uint8)
    at = 0
    for frame in frames:
        write_record_header(burst, at, frame.size, time_ps)
        burst[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + frame.size] = frame
        at += record_bytes(frame.size)
    return burst


def burst_frames(burst: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Time in picoseconds and frame (uint8, a view into `burst`) of each record of a whole burst."""
    at = 0
    while at < burst.size:
        length = int(record_length(burst, at))
        yield int(record_time(burst, at)), burst[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
        at += int(record_bytes(length))
