"""Fuzz input as a script: bytes that are read as choices, and frames that are sealed anew after they were changed.

Random bytes hardly ever carry a good ICRC; a target that seals its frames again lets the fuzzer reach what lies behind.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

from netreduce.wire.opcodes import OPCODE_HEADER_BYTES, OPCODE_ROLES, Role
from netreduce.wire.packet import ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, finish_frame

ETHERTYPES = {ETHERTYPE_IPV4: 4, ETHERTYPE_IPV6: 6}
SHORTEST_SEALED_BYTES = 8 + 12 + 4
"""UDP, BTH and ICRC: what a frame must have behind its IP header to be sealed."""


class Script:
    """Reads `data` from its start; behind its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece.ljust(count, b"\0")

    def byte(self) -> int:
        """0 to 255."""
        return self.take(1)[0]

    def signed(self) -> int:
        """-128 to 127."""
        return int.from_bytes(self.take(1), "big", signed=True)

    def word(self) -> int:
        """0 to 65535."""
        return int.from_bytes(self.take(2), "big")

    def rest(self) -> bytes:
        """All that is left."""
        piece = self._data[self._at :]
        self._at = len(self._data)
        return piece


def as_frame(data: bytes) -> np.ndarray:
    """A writable uint8 array of `data`."""
    return np.frombuffer(bytearray(data), np.uint8) if data else np.empty(0, np.uint8)


def changed(frame: np.ndarray, script: Script, most: int = 4) -> np.ndarray:
    """A copy of `frame` with up to `most` bytes of its first 128 replaced, and perhaps cut, as `script` says."""
    copy = frame.copy()
    for _ in range(min(script.byte() % 8, most)):
        at, value = script.byte(), script.byte()
        copy[at % min(copy.size, 128)] = value
    cut = script.byte()
    return copy[: copy.size - (cut - 128)].copy() if cut > 128 else copy


def sealed(frame: np.ndarray) -> np.ndarray:
    """`frame` with IP and UDP lengths, header checksum and ICRC made right, if it has room for them."""
    if frame.size < 18:
        return frame
    ip_at = 18 if int.from_bytes(frame[12:14].tobytes(), "big") == ETHERTYPE_VLAN else 14
    version = ETHERTYPES.get(int.from_bytes(frame[ip_at - 2 : ip_at].tobytes(), "big"))
    if frame.size <= ip_at or version is None or frame[ip_at] >> 4 != version:
        return frame
    udp_at = ip_at + (40 if version == 6 else 4 * (int(frame[ip_at]) & 15))
    if udp_at >= ip_at + 20 and frame.size >= udp_at + SHORTEST_SEALED_BYTES:
        finish_frame(frame, ip_at, udp_at, frame.size)
    return frame


class Seen(NamedTuple):
    """A RoCE packet as the specification reads it: the oracle for the product's own parser."""

    source_ip: bytes
    destination_ip: bytes
    opcode: int
    roles: int
    destination_qpn: int
    psn: int
    syndrome: int  # -1 without an AETH
    payload: bytes
    icrc_good: bool


def seen(frame: bytes) -> Seen | None:
    """The packet in a frame, or None if it is none or is malformed (RoCEv2 annex A17; RFC 791, 8200, 768)."""
    ip_at = 18 if frame[12:14] == b"\x81\0" else 14
    ip = frame[ip_at:]
    version = ETHERTYPES.get(int.from_bytes(frame[ip_at - 2 : ip_at], "big"))
    if version == 4 and len(ip) >= 20 and ip[0] >> 4 == 4:
        udp_at, end = 4 * (ip[0] & 15), int.from_bytes(ip[2:4], "big")
        header = ip[:udp_at]
        is_whole = udp_at >= 20 and len(header) == udp_at and _sum16(header) == 0xFFFF
        if ip[9] != 17 or int.from_bytes(ip[6:8], "big") & 0x3FFF or not is_whole:
            return None
        addresses = ip[12:16], ip[16:20]
    elif version == 6 and len(ip) >= 40 and ip[0] >> 4 == 6 and ip[6] == 17:
        udp_at, end, addresses = 40, 40 + int.from_bytes(ip[4:6], "big"), (ip[8:24], ip[24:40])
    else:
        return None
    bth = ip[udp_at + 8 :]
    if len(ip) < max(end, udp_at + 8) or int.from_bytes(ip[udp_at + 2 : udp_at + 4], "big") != 4791:
        return None
    if end - udp_at != int.from_bytes(ip[udp_at + 4 : udp_at + 6], "big") or end < udp_at + 8 + 12 + 4 or bth[1] & 15:
        return None
    roles, start = int(OPCODE_ROLES[bth[0]]), udp_at + 8 + int(OPCODE_HEADER_BYTES[bth[0]])
    stop = end - 4 - (bth[1] >> 4 & 3)
    if not roles or start > stop or (not roles & Role.PAYLOAD and start != end - 4):
        return None
    reth_bytes = 16 if roles & Role.RETH else 0
    icrc = reference_icrc(ip[: end - 4], version, udp_at).to_bytes(4, "little")
    return Seen(
        *addresses,
        bth[0],
        roles,
        int.from_bytes(bth[5:8], "big"),
        int.from_bytes(bth[9:12], "big"),
        bth[12 + reth_bytes] if roles & Role.AETH else -1,
        ip[start:stop],
        icrc == ip[end - 4 : end],
    )


def _sum16(data: bytes) -> int:
    """Ones' complement sum (RFC 1071)."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def reference_icrc(packet: bytes, version: int, udp_at: int) -> int:
    """The ICRC of `packet`, from its IP header up to the ICRC itself, by zlib over a masked copy (annex A17.3.3)."""
    masked = bytearray(packet)
    ones = (1, 8, 10, 11) if version == 4 else (1, 2, 3, 7)
    if version == 6:
        masked[0] |= 0x0F
    for at in (*ones, udp_at + 6, udp_at + 7, udp_at + 12):
        masked[at] = 0xFF
    return zlib.crc32(bytes(masked), zlib.crc32(b"\xff" * 8))
