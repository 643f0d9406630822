"""What one captured frame says, for people and for JSON: headers by name, the syndrome in words, ICRC good or bad.

Header layout: RoCEv2 annex A17 and IBA vol. 1, chapter 9. What follows from the frames before it (retransmissions, the
message of a packet in the middle) is added by conversations.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from netreduce.compiled import compiled
from netreduce.wire.aeth import describe_syndrome
from netreduce.wire.capture import CAPTURED_BYTES_MAX, CapturedFrame
from netreduce.wire.icrc import UDP_BYTES, icrc, icrc_is_good
from netreduce.wire.opcodes import BTH_BYTES, OPCODE_ROLES, Role, opcode_name
from netreduce.wire.others import describe_other, explain_problem, ip_text, mac_text
from netreduce.wire.packet import (
    ETHERNET_BYTES,
    IPV6_BYTES,
    P_KEY_DEFAULT,
    PACKET_FIELDS,
    VLAN_TAG_BYTES,
    Parse,
    make_packet_table,
    parse_packet,
)
from netreduce.wire.pcap import Direction

ROCE = "RoCEv2"
CONGESTION_EXPERIENCED = 3
_DIRECTIONS = {Direction.UNKNOWN: "", Direction.INBOUND: "in", Direction.OUTBOUND: "out"}
_HEADERS_BEFORE_BTH_BYTES = ETHERNET_BYTES + VLAN_TAG_BYTES + IPV6_BYTES + UDP_BYTES
_REACHED_BTH = (Parse.OK, Parse.BAD_ICRC, Parse.UNKNOWN_OPCODE, Parse.BAD_PADDING)


class FrameView(Struct, kw_only=True, omit_defaults=True):
    """One frame in fields. What does not apply keeps its default and is left out of JSON."""

    number: int
    time_ns: int
    wire_bytes: int
    captured_bytes: int = -1  # only when the capture cut the frame
    port: str = ""
    direction: str = ""
    source_mac: str = ""
    destination_mac: str = ""
    vlan: int = -1
    source_ip: str = ""
    destination_ip: str = ""
    protocol: str = ""
    note: str = ""  # on frames of other protocols
    problem: str = ""  # why the frame is malformed
    congestion_experienced: bool = False
    opcode: int = -1
    opcode_name: str = ""
    destination_qpn: int = -1
    psn: int = -1
    payload_bytes: int = -1
    pad_bytes: int = 0
    p_key: int = -1  # only when it is not the default one
    ack_request: bool = False
    solicited: bool = False
    fecn: bool = False
    becn: bool = False
    remote_address: int = -1
    rkey: int = -1
    dma_length: int = -1
    syndrome: int = -1
    acknowledgement: str = ""
    msn: int = -1
    immediate: int = -1
    q_key: int = -1
    source_qpn: int = -1
    icrc: str = ""  # good, bad, or unchecked when the capture cut the frame
    icrc_found: str = ""
    icrc_expected: str = ""
    ring_id: int = -1  # the INA message that the packet belongs to, or acknowledges
    rank: int = -1
    message_id: int = -1
    slot: int = -1
    message_packets: int = -1
    ina_header: str = ""  # on the packet that carries it
    acknowledges: bool = False
    retransmitted: bool = False
    gap: int = 0  # packets missing just before this one

    @property
    def roles(self) -> int:
        """`Role` bits of the opcode; 0 for a frame without one."""
        return int(OPCODE_ROLES[self.opcode]) if self.opcode >= 0 else 0

    @property
    def is_bad(self) -> bool:
        """Whether a receiver would drop the frame as damaged."""
        return bool(self.problem) or self.icrc == "bad"


@compiled
def _examine(frame: np.ndarray, packet: np.record, has_icrc: bool) -> int:
    code = parse_packet(frame, packet)
    if code == Parse.OK.value and has_icrc and not icrc_is_good(frame, packet):
        return Parse.BAD_ICRC.value
    return code


class Dissector:
    """Turns captured frames into views, one by one; keeps nothing from frame to frame."""

    def __init__(self) -> None:
        self._row = make_packet_table()[0]

    def view(self, captured: CapturedFrame) -> tuple[FrameView, bytes]:
        """The view of a frame, and the packet's payload (without padding, as far as captured)."""
        data = captured.data
        view = FrameView(
            number=captured.number,
            time_ns=captured.time_ns,
            wire_bytes=captured.wire_bytes,
            port=captured.interface_name,
            direction=_DIRECTIONS[captured.direction],
            source_mac=mac_text(data[6:12]),
            destination_mac=mac_text(data[:6]),
        )
        is_cut = captured.wire_bytes > len(data)
        if is_cut:
            view.captured_bytes = len(data)
        # Zeros stand in for what was cut off, so that the headers that are there can be read.
        whole = data.ljust(min(captured.wire_bytes, CAPTURED_BYTES_MAX), b"\0")
        frame = np.frombuffer(bytearray(whole), np.uint8) if whole else np.empty(0, np.uint8)
        code = Parse(int(_examine(frame, self._row, not is_cut)))
        packet = dict(zip(PACKET_FIELDS, self._row.tolist(), strict=True))
        if is_cut and code is not Parse.NOT_ROCE and len(data) < _header_bytes(code, packet):
            code = Parse.TRUNCATED
        if code not in _REACHED_BTH:
            _describe_foreign(view, code, frame, data)
            return view, b""
        _describe_bth(view, data, packet)
        if code in (Parse.UNKNOWN_OPCODE, Parse.BAD_PADDING):
            view.problem = explain_problem(code, frame)
            return view, b""
        _describe_extensions(view, data, packet)
        view.icrc = "unchecked" if is_cut else "bad" if code is Parse.BAD_ICRC else "good"
        if code is Parse.BAD_ICRC:
            expected = int(icrc(frame, packet["ip_at"], packet["udp_at"], packet["icrc_at"]))
            view.icrc_found = data[packet["icrc_at"] :][:4].hex()
            view.icrc_expected = expected.to_bytes(4, "little").hex()
        return view, data[packet["payload_at"] :][: packet["payload_bytes"]]


def _header_bytes(code: Parse, packet: dict[str, Any]) -> int:
    """Bytes that must have been captured for `code` to be the frame's fault and not the capture's."""
    if code is Parse.OK:
        return packet["payload_at"]
    return packet["bth_at"] + BTH_BYTES if code in _REACHED_BTH else _HEADERS_BEFORE_BTH_BYTES


def _describe_foreign(view: FrameView, code: Parse, frame: np.ndarray, data: bytes) -> None:
    """Fill in a view of a frame that is no RoCEv2 packet, or is malformed before its BTH."""
    other = describe_other(data)
    view.protocol, view.note = other.protocol, other.note
    view.source_ip, view.destination_ip = other.source_ip, other.destination_ip
    if view.captured_bytes >= 0 and code is Parse.TRUNCATED:
        view.note += f"{', ' * bool(view.note)}cut off by the capture inside its headers"
    elif code is not Parse.NOT_ROCE:
        view.problem = explain_problem(code, frame)


def _describe_bth(view: FrameView, data: bytes, packet: dict[str, Any]) -> None:
    ip_at, address_bytes = packet["ip_at"], 4 if packet["ip_version"] == 4 else 16
    source_at = ip_at + (12 if address_bytes == 4 else 8)
    view.protocol = ROCE
    view.source_ip = ip_text(data[source_at : source_at + address_bytes])
    view.destination_ip = ip_text(data[source_at + address_bytes : source_at + 2 * address_bytes])
    view.vlan = packet["vlan"] & 0xFFF if packet["vlan"] else -1
    view.congestion_experienced = packet["ecn"] == CONGESTION_EXPERIENCED
    view.opcode_name = opcode_name(packet["opcode"])
    view.p_key = packet["p_key"] if packet["p_key"] != P_KEY_DEFAULT else -1
    for name in ("opcode", "destination_qpn", "psn", "pad_bytes"):
        setattr(view, name, packet[name])
    for name in ("ack_request", "solicited", "fecn", "becn"):
        setattr(view, name, bool(packet[name]))


def _describe_extensions(view: FrameView, data: bytes, packet: dict[str, Any]) -> None:
    roles = view.roles
    view.payload_bytes = packet["payload_bytes"]
    if roles & Role.RETH:
        view.remote_address = packet["remote_address"] & (1 << 64) - 1  # the table holds it as signed bits
        view.rkey, view.dma_length = packet["rkey"], packet["dma_length"]
    if roles & Role.AETH:
        view.syndrome, view.msn = packet["syndrome"], packet["msn"]
        view.acknowledgement = describe_syndrome(view.syndrome)
    if roles & Role.IMMEDIATE:
        view.immediate = packet["immediate"]
    if roles & Role.DETH:
        at = packet["bth_at"] + BTH_BYTES
        view.q_key = int.from_bytes(data[at : at + 4], "big")
        view.source_qpn = int.from_bytes(data[at + 5 : at + 8], "big")
