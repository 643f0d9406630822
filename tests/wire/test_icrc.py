"""ICRC (RoCEv2 annex A17.3.3) against packets that other implementations put on a wire."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from netreduce.wire.build import build_frame
from netreduce.wire.icrc import ICRC_SEED, icrc, icrc_is_good
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import ETHERNET_BYTES, Parse, make_packet_table, parse_packet

# From the IP header to the byte before the ICRC, and the ICRC's four bytes as they lay on the wire.
CAPTURED = {
    "CNP from a ConnectX-4 Lx": (
        "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000"
        "0000000000000000",
        "82fd002a",
    ),
    "UC SEND_ONLY": (
        "45010040047840004011b4d5c0a80007c0a80007c00012b7002caca22460ffff000000d300cf17104630818be28935d9"
        "0e9a95505401be885e500000",
        "78f353f3",
    ),
    "RC ACKNOWLEDGE": (
        "450000300714400040119f940a0a00010a0a8000d30012b7001c00001100ffff000001000000000f1f000001",
        "839d155e",
    ),
    "RC SEND_MIDDLE of 256 bytes": (
        "4500012cfd7640004011a8350a0a00010a0a8000d10012b7011800000100ffff0000010000000007"
        + "".join(f"0010{0x01C0 + i:04x}" for i in range(64)),
        "6f486f52",
    ),
}


def ethernet(ip_packet: bytes, version: int = 4) -> np.ndarray:
    ethertype = b"\x08\x00" if version == 4 else b"\x86\xdd"
    return np.frombuffer(bytearray(bytes(12) + ethertype + ip_packet), np.uint8)


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_packets_have_a_good_icrc(name: str) -> None:
    body, stored = (bytes.fromhex(text) for text in CAPTURED[name])
    frame, packet = ethernet(body + stored), make_packet_table()[0]
    assert parse_packet(frame, packet) == Parse.OK
    assert struct.pack("<I", icrc(frame, packet.ip_at, packet.udp_at, packet.icrc_at)) == stored
    assert icrc_is_good(frame, packet)
    assert frame[ETHERNET_BYTES:].tobytes() == body + stored, "the masked fields must be put back"


def test_ipv6_class_flow_and_hop_limit_count_as_ones() -> None:
    """The IPv6 vector that scapy's regression tests carry: ICRC bytes 3e5b743b."""
    frame = build_frame(
        Opcode.UC_SEND_ONLY,
        bytes.fromhex("4630818be28935d90e9a95505401be885e50"),
        source_ip="2022::1023",
        destination_ip="2023::1024",
        hop_limit=255,
        flow_label=0x1FACE,
        traffic_class=226,
        udp_checksum=0xE7C5,
        migrated=True,
        destination_qpn=211,
        psn=13571856,
    )
    assert frame[-4:].tobytes().hex() == "3e5b743b"


def test_the_published_cnp_example_with_a_wrong_icrc_is_reported_bad() -> None:
    """A vendor's page explains the CNP with a packet whose ICRC does not belong to its bytes; a checker must say so."""
    frame, packet = (
        build_frame(
            Opcode.CNP,
            source_ip="22.22.22.8",
            destination_ip="22.22.22.7",
            ip_id=0x98C6,
            hop_limit=0x20,
            traffic_class=0x89,
            udp_source_port=56238,
            destination_qpn=0xD2,
        ),
        make_packet_table()[0],
    )
    assert parse_packet(frame, packet) == Parse.OK
    assert icrc_is_good(frame, packet)
    frame[-4:] = np.frombuffer(bytes.fromhex("e42dad81"), np.uint8)
    assert not icrc_is_good(frame, packet)


def test_the_seed_is_the_crc_of_the_header_that_stands_in_for_the_lrh() -> None:
    assert zlib.crc32(b"\xff" * 8) == ICRC_SEED


@pytest.mark.parametrize("at", [1, 8, 10, 11, 26, 27, 32])
def test_fields_that_routers_change_do_not_change_the_icrc(at: int) -> None:
    """Offsets in the IPv4 packet: TOS, TTL, IP checksum, UDP checksum, FECN/BECN."""
    body, stored = (bytes.fromhex(text) for text in CAPTURED["RC ACKNOWLEDGE"])
    frame, packet = ethernet(body + stored), make_packet_table()[0]
    assert parse_packet(frame, packet) == Parse.OK
    frame[ETHERNET_BYTES + at] ^= 0x5A
    assert icrc_is_good(frame, packet)


def test_any_single_flipped_bit_elsewhere_is_noticed() -> None:
    """The hardest corruption to detect; CRC-32 promises to find every one."""
    body, stored = (bytes.fromhex(text) for text in CAPTURED["RC ACKNOWLEDGE"])
    frame, packet = ethernet(body + stored), make_packet_table()[0]
    assert parse_packet(frame, packet) == Parse.OK
    for at in set(range(len(body) + 4)) - {1, 8, 10, 11, 26, 27, 32}:
        for bit in range(8):
            frame[ETHERNET_BYTES + at] ^= 1 << bit
            if at:  # byte 0 names the IP version, by which the mask is chosen
                assert not icrc_is_good(frame, packet), f"byte {at} bit {bit}"
            frame[ETHERNET_BYTES + at] ^= 1 << bit
