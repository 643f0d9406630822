"""What a capture must be like: RoCEv2 packets found and their ICRCs verified by means that no product code shares."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import time
import zlib
from pathlib import Path

from tests.wire.oracles import tshark_fields

from netreduce.errors import CaptureError
from netreduce.wire.capture import CapturedFrame, read_capture
from netreduce.wire.opcodes import Opcode
from netreduce.wire.pcap import Direction

ROCE_PORT = struct.pack(">H", 4791)
PAYLOAD_GUESS = "infiniband:"
"""tshark guesses at payloads by their first bytes, and calls many a number a malformed message of what follows this."""
MASKED_IPV4 = (1, 8, 10, 11)
"""What changes on the way: ToS, TTL, header checksum."""
MASKED_IPV6 = (1, 2, 3, 7)
"""Traffic class and flow label (with half of byte 0), hop limit."""
BTH_AT = 8
READ_TRIES = 10


def captured(path: Path) -> list[CapturedFrame]:
    """All frames of a capture, which may still be written: a block that is only half there yet is waited for."""
    for _ in range(READ_TRIES):
        with path.open("rb") as stream, contextlib.suppress(CaptureError):
            return list(read_capture(stream, path.name))
        time.sleep(0.1)
    with path.open("rb") as stream:
        return list(read_capture(stream, path.name))


def roce_packet(frame: bytes) -> bytes | None:
    """A RoCEv2 packet from its IP header to its ICRC; None for other frames."""
    at = 18 if frame[12:14] == b"\x81\x00" else 14
    packet, ether_type = frame[at:], frame[at - 2 : at]
    if ether_type == b"\x08\x00" and packet[9] == socket.IPPROTO_UDP:
        length = int.from_bytes(packet[2:4], "big")
    elif ether_type == b"\x86\xdd" and packet[6] == socket.IPPROTO_UDP:
        length = 40 + int.from_bytes(packet[4:6], "big")
    else:
        return None
    udp_at = _ip_bytes(packet)
    return packet[:length] if packet[udp_at + 2 : udp_at + 4] == ROCE_PORT else None


def _ip_bytes(packet: bytes) -> int:
    return 20 if packet[0] >> 4 == 4 else 40


def destination(frame: bytes) -> tuple[str, int] | None:
    """Address and queue pair that a RoCEv2 frame goes to; None for other frames."""
    packet = roce_packet(frame)
    if packet is None:
        return None
    at = _ip_bytes(packet)
    address = packet[16:20] if at == 20 else packet[24:40]
    qpn = packet[at + BTH_AT + 5 : at + BTH_AT + 8]
    return str(ipaddress.ip_address(address)), int.from_bytes(qpn, "big")


def reference_icrc(packet: bytes) -> bytes:
    """The ICRC of a packet from its IP header on, as RoCEv2 annex A17.3.3 has it, by zlib."""
    masked, at = bytearray(packet[:-4]), _ip_bytes(packet)
    for i in MASKED_IPV4 if at == 20 else MASKED_IPV6:
        masked[i] = 0xFF
    if at == 40:
        masked[0] |= 0x0F
    for i in (at + 6, at + 7, at + BTH_AT + 4):  # the checksum of UDP; FECN, BECN and reserved bits of BTH
        masked[i] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def sender_lost_its_place(path: Path) -> bool:
    """Whether a sender came back to a PSN with another message, as soft-RoCE of Linux 6.1 may do after losses."""
    message_ids: dict[bytes, bytes] = {}
    for frame in captured(path):
        packet = roce_packet(frame.data)
        if packet is None or frame.direction != Direction.INBOUND or _ip_bytes(packet) != 20:
            continue
        bth = packet[20 + BTH_AT :]
        if bth[0] == Opcode.SEND_FIRST:
            connection_and_psn, message_id = packet[12:20] + bth[5:12], bth[16:20]  # the INA header follows the BTH
            if message_ids.setdefault(connection_and_psn, message_id) != message_id:
                return True
    return False


def require_well_formed(path: Path) -> tuple[int, int]:
    """How many packets of a capture go over IPv4 and IPv6. AssertionError for a wrong ICRC, or one tshark rejects."""
    packets = [packet for frame in captured(path) if (packet := roce_packet(frame.data)) is not None]
    wrong = [packet for packet in packets if reference_icrc(packet) != packet[-4:]]
    assert not wrong
    rows = tshark_fields(path, "_ws.malformed", "infiniband.bth.opcode", "frame.protocols")
    rows = [row for row in rows if ":icmp" not in row[2]]  # a kernel's refusal quotes the packet that it refuses
    assert sum(bool(opcode) for _, opcode, _ in rows) == len(packets)
    assert not [row for row in rows if row[0] and PAYLOAD_GUESS not in row[2]]
    over_ipv4 = sum(_ip_bytes(packet) == 20 for packet in packets)
    return over_ipv4, len(packets) - over_ipv4
