"""parse_packet: what it reads, what it refuses and why, and that no bytes can harm it."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import frame_arguments

from netreduce.wire.build import build_frame
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.opcodes import OPCODE_ROLES, Opcode, Role
from netreduce.wire.packet import ETHERNET_BYTES, PACKET_FIELDS, Parse, finish_frame, make_packet_table, parse_packet


def parse(frame: np.ndarray) -> tuple[Parse, dict[str, int]]:
    row = make_packet_table()[0]
    code = Parse(int(parse_packet(frame, row)))
    return code, dict(zip(PACKET_FIELDS, row.tolist(), strict=True))


def mapped(ip: str) -> tuple[int, int]:
    """The two signed 64-bit halves of an address, IPv4 mapped into IPv6."""
    address = ipaddress.ip_address(ip)
    number = int(address) if address.version == 6 else 0xFFFF << 32 | int(address)
    halves = number >> 64, number & (1 << 64) - 1
    high, low = (half - (1 << 64) if half >> 63 else half for half in halves)
    return high, low


@given(frame_arguments())
def test_every_field_that_was_built_is_read(arguments: dict[str, Any]) -> None:
    code, packet = parse(build_frame(**arguments))
    assert code is Parse.OK
    for name in ("opcode", "udp_source_port", "destination_qpn", "psn", "p_key"):
        assert packet[name] == arguments[name], name
    for name in ("ack_request", "solicited", "migrated", "fecn", "becn"):
        assert packet[name] == arguments[name], name
    for name in ("rkey", "dma_length", "syndrome", "msn", "immediate"):
        if name in arguments and not OPCODE_ROLES[arguments["opcode"]] & Role.ATOMIC_ETH:
            assert packet[name] == arguments[name], name
    assert packet["vlan"] == (arguments["vlan"] or 0)
    assert packet["ecn"] == arguments["traffic_class"] & 3
    assert packet["payload_bytes"] == len(arguments["payload"])
    assert packet["pad_bytes"] == -len(arguments["payload"]) % 4
    for end in ("source", "destination"):
        assert (packet[f"{end}_ip_high"], packet[f"{end}_ip_low"]) == mapped(arguments[f"{end}_ip"])


@given(frame_arguments(), st.data())
def test_payload_lies_where_the_packet_says(arguments: dict[str, Any], data: st.DataObject) -> None:
    frame = build_frame(**arguments)
    code, packet = parse(frame)
    assert code is Parse.OK
    assert frame[packet["payload_at"] :][: packet["payload_bytes"]].tobytes() == arguments["payload"]
    assert packet["icrc_at"] + 4 == frame.size
    longer = np.concatenate([frame, np.zeros(data.draw(st.integers(1, 40)), np.uint8)])
    assert parse(longer) == (code, packet), "Ethernet pads short frames, and the padding is not the packet's"


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 1021, 4096])
def test_padding_fills_up_to_four_bytes_and_the_icrc_comes_last(length: int) -> None:
    frame = build_frame(Opcode.SEND_ONLY, b"\xee" * length)
    code, packet = parse(frame)
    assert code is Parse.OK
    assert (packet["pad_bytes"], frame.size) == (-length % 4, 58 + length + -length % 4)


def changed(at: int, *values: int, opcode: int = Opcode.SEND_ONLY, payload: bytes = b"12345678") -> np.ndarray:
    """An IPv4 frame with bytes replaced at an offset from the IP header on; lengths and checksum made right again."""
    frame = build_frame(opcode, payload)
    frame[ETHERNET_BYTES + at : ETHERNET_BYTES + at + len(values)] = values
    return frame


def resealed(frame: np.ndarray) -> np.ndarray:
    finish_frame(frame, ETHERNET_BYTES, ETHERNET_BYTES + 20, frame.size)
    return frame


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (np.zeros(0, np.uint8), Parse.TRUNCATED),
        (np.zeros(13, np.uint8), Parse.TRUNCATED),
        (build_frame(Opcode.SEND_ONLY, vlan=5)[:17], Parse.TRUNCATED),
        (build_frame(Opcode.SEND_ONLY)[:33], Parse.TRUNCATED),
        (build_frame(Opcode.SEND_ONLY)[:41], Parse.TRUNCATED),
        (build_frame(Opcode.SEND_ONLY, source_ip="::1", destination_ip="::2")[:53], Parse.TRUNCATED),
        (build_frame(Opcode.SEND_ONLY, bytes(100))[:-1], Parse.TRUNCATED),
        (changed(24, 0, 8), Parse.BAD_LENGTH),
        (changed(10, 0, 0), Parse.BAD_HEADER),
        (changed(0, 0x44), Parse.BAD_HEADER),
        (changed(0, 0x65), Parse.BAD_HEADER),
        (changed(0, 0x4F), Parse.BAD_HEADER),
        (resealed(changed(29, 0x01)), Parse.BAD_HEADER),
        (resealed(changed(28, 0x1C)), Parse.UNKNOWN_OPCODE),
        (resealed(changed(28, 0xFF)), Parse.UNKNOWN_OPCODE),
        (resealed(changed(29, 0x30, payload=b"")), Parse.BAD_PADDING),
        (resealed(changed(28, Opcode.ACKNOWLEDGE)), Parse.BAD_PADDING),
        (resealed(changed(28, Opcode.RDMA_WRITE_ONLY)), Parse.TRUNCATED),
        (changed(9, 6), Parse.NOT_ROCE),
        (changed(6, 0x20, 0x00), Parse.NOT_ROCE),
        (changed(6, 0x00, 0x01), Parse.NOT_ROCE),
        (changed(22, 0x12, 0xB8), Parse.NOT_ROCE),
    ],
)
def test_bad_frames_are_refused_with_the_reason(frame: np.ndarray, code: Parse) -> None:
    assert parse(frame)[0] is code


@pytest.mark.parametrize("ethertype", [0x0806, 0x8915, 0x88CC, 0x8100, 0x0000])
def test_other_ethertypes_are_no_concern(ethertype: int) -> None:
    frame = np.zeros(64, np.uint8)
    frame[12:14] = ethertype >> 8, ethertype & 0xFF
    assert parse(frame)[0] is Parse.NOT_ROCE


def test_ipv4_options_are_stepped_over() -> None:
    plain = build_frame(Opcode.SEND_ONLY, b"payload.", psn=77)
    frame = np.concatenate([plain[:34], np.ones(8, np.uint8), plain[34:]])
    frame[14] = 0x47
    finish_frame(frame, 14, 42, frame.size)
    code, packet = parse(frame)
    row = make_packet_table()[0]
    parse_packet(frame, row)
    assert (code, packet["psn"], packet["udp_at"]) == (Parse.OK, 77, 42)
    assert icrc_is_good(frame, row)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_get_a_code(data: bytes) -> None:
    parse(np.frombuffer(bytearray(data), np.uint8) if data else np.empty(0, np.uint8))


@given(frame_arguments(), st.data())
def test_mutated_frames_get_a_code_and_offsets_within_the_frame(arguments: dict[str, Any], data: st.DataObject) -> None:
    """Most changes hit the headers; in plain Python a read past the end would raise."""
    frame = build_frame(**arguments)
    for at in data.draw(st.lists(st.integers(0, min(frame.size, 90) - 1), min_size=1, max_size=6)):
        frame[at] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(0, frame.size))].copy()
    code, packet = parse(frame)
    if code is Parse.OK:
        assert 0 <= packet["ip_at"] < packet["udp_at"] < packet["bth_at"] < packet["payload_at"] <= packet["icrc_at"]
        assert packet["payload_at"] + packet["payload_bytes"] + packet["pad_bytes"] == packet["icrc_at"]
        assert packet["icrc_at"] + 4 <= frame.size
