"""Classic BPF programs (Linux, socket(7)) that let a socket see only some frames."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence

_SO_ATTACH_FILTER = 26


def attach_filter(connection: socket.socket, program: Sequence[tuple[int, int, int, int]]) -> None:
    """Let only frames through that the classic BPF `program` (code, jt, jf, k) accepts."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    fprog = struct.pack("HL", len(program), ctypes.addressof(code))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)


def roce_to(ip: str) -> list[tuple[int, int, int, int]]:
    """A classic BPF program that accepts RoCEv2 over IPv4 (UDP port 4791, no fragment) for `ip`."""
    address = struct.unpack("!I", socket.inet_aton(ip))[0]
    return [
        (0x28, 0, 0, 12),  # ldh the ethertype
        (0x15, 0, 9, 0x0800),
        (0x20, 0, 0, 30),  # ld the destination
        (0x15, 0, 7, address),
        (0x30, 0, 0, 23),  # ldb the protocol
        (0x15, 0, 5, socket.IPPROTO_UDP),
        (0x28, 0, 0, 20),  # ldh flags and fragment offset
        (0x45, 3, 0, 0x1FFF),
        (0xB1, 0, 0, 14),  # ldx 4 * (IP header length)
        (0x48, 0, 0, 16),  # ldh the UDP destination port
        (0x15, 1, 0, 4791),
        (0x06, 0, 0, 0),  # ret nothing
        (0x06, 0, 0, 0x40000),  # ret the whole frame
    ]


def ip_to(mac: str) -> list[tuple[int, int, int, int]]:
    """A classic BPF program that accepts IPv4 and IPv6 packets to `mac`. The kernel has taken the VLAN tag out."""
    number = int.from_bytes(bytes.fromhex(mac.replace(":", "")), "big")
    return [
        (0x28, 0, 0, 0),  # ldh the destination's first half word
        (0x15, 0, 6, number >> 32),
        (0x20, 0, 0, 2),  # ld the rest of it
        (0x15, 0, 4, number & 0xFFFFFFFF),
        (0x28, 0, 0, 12),  # ldh the ethertype
        (0x15, 1, 0, 0x0800),
        (0x15, 0, 1, 0x86DD),
        (0x06, 0, 0, 0x40000),  # ret the whole frame
        (0x06, 0, 0, 0),  # ret nothing
    ]
