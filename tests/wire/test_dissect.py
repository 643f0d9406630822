"""What one frame is said to be."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import Watcher
from tests.wire.strategies import frame_arguments

from netreduce.wire.build import build_frame
from netreduce.wire.capture import CAPTURED_BYTES_MAX
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import finish_frame
from netreduce.wire.show import frame_line


def see(frame: np.ndarray | bytes, wire_bytes: int = 0) -> str:
    """The line of a frame without number, time and the spaces that align columns."""
    return " ".join(frame_line(Watcher().see(frame, wire_bytes=wire_bytes), "0").split()[2:])


def with_bytes(frame: np.ndarray, at: int, *values: int, reseal: bool = True) -> np.ndarray:
    frame = frame.copy()
    frame[at : at + len(values)] = values
    if reseal:
        finish_frame(frame, 14, 34, frame.size)
    return frame


ADDRESSES = "10.0.0.1 > 10.0.0.2"
SEND = build_frame(Opcode.SEND_ONLY, b"123", destination_qpn=0x11, psn=9)


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (SEND, "RC SEND_ONLY qp 0x000011 psn 9 3 B pad 1 icrc good"),
        (
            build_frame(
                Opcode.RDMA_WRITE_ONLY_WITH_IMMEDIATE, b"", remote_address=(1 << 64) - 1, rkey=0x77, immediate=5
            ),
            "RC RDMA_WRITE_ONLY_WITH_IMMEDIATE qp 0x000000 psn 0 0 B va 0xffffffffffffffff rkey 0x77 len 0 "
            "imm 0x00000005 icrc good",
        ),
        (build_frame(Opcode.ACKNOWLEDGE, msn=4), "RC ACKNOWLEDGE qp 0x000000 psn 0 ACK, msn 4 icrc good"),
        (
            build_frame(Opcode.ACKNOWLEDGE, syndrome=0x20),
            "RC ACKNOWLEDGE qp 0x000000 psn 0 RNR NAK, wait 655.36 ms, msn 0 icrc good",
        ),
        (build_frame(Opcode.CNP, destination_qpn=5), "CNP qp 0x000005 psn 0 0 B BECN icrc good"),
        (
            build_frame(Opcode.UC_SEND_ONLY, traffic_class=3, fecn=True),
            "UC SEND_ONLY qp 0x000000 psn 0 0 B CE FECN icrc good",
        ),
        (
            build_frame(Opcode.UD_SEND_ONLY, b"abcd", q_key=0x80010000, source_qpn=1, destination_qpn=1),
            "UD SEND_ONLY qp 0x000001 psn 0 4 B from qp 0x000001 qkey 0x80010000 icrc good",
        ),
        (
            build_frame(Opcode.SEND_MIDDLE, p_key=0x8001, vlan=0xE005, ack_request=True, solicited=True),
            "vlan 5 RC SEND_MIDDLE qp 0x000000 psn 0 0 B ackreq solicited pkey 0x8001 icrc good",
        ),
    ],
    ids=lambda value: value.split(" qp")[0] if isinstance(value, str) else "",
)
def test_packets_are_shown_with_what_their_headers_say(frame: np.ndarray, line: str) -> None:
    assert see(frame) == f"{ADDRESSES} {line}"


def test_a_wrong_icrc_is_shown_beside_the_right_one() -> None:
    right = SEND[-4:].tobytes().hex()
    assert see(with_bytes(SEND, SEND.size - 4, 1, 2, 3, 4, reseal=False)).endswith(
        f"ICRC BAD (found 01020304, right is {right})"
    )


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (SEND[:-1], "truncated: IP says 48 bytes, the frame has 47 from the IP header on"),
        (with_bytes(SEND, 38, 0, 9, reseal=False), "lengths disagree: IP says 28 bytes of UDP, UDP says 9"),
        (with_bytes(SEND, 24, 0, 0, reseal=False), "wrong IPv4 header checksum"),
        (with_bytes(SEND, 14, 0x65, reseal=False), "IP version 6 under ethertype 0x0800"),
        (with_bytes(SEND, 14, 0x42, reseal=False), "IPv4 header of 8 bytes"),
        (with_bytes(SEND, 43, 0x12), "BTH transport version 2"),
        (with_bytes(SEND, 42, 0x1C), "unknown opcode 0x1c"),
        (with_bytes(build_frame(Opcode.SEND_ONLY), 43, 0x30), "pad count 3 does not fit the payload"),
    ],
)
def test_malformed_frames_say_why(frame: np.ndarray, problem: str) -> None:
    assert see(frame).endswith(f"MALFORMED: {problem}")


def other(ethertype: int, body: bytes) -> bytes:
    return bytes.fromhex("0180c2000001020000000001") + struct.pack(">H", ethertype) + body.ljust(46, b"\0")


IPV4_TCP = bytes.fromhex("4500002800000000400600000a0000010a00000200501f90") + bytes(16)
ARP = bytes.fromhex("0001080006040001020000000001" + "0a000001" + "000000000000" + "0a000002")


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (other(0x0806, ARP), f"{ADDRESSES} ARP who has 10.0.0.2? tell 10.0.0.1"),
        (other(0x0806, ARP[:7] + b"\2" + ARP[8:]), f"{ADDRESSES} ARP 10.0.0.1 is at 02:00:00:00:00:01"),
        (other(0x0800, IPV4_TCP), f"{ADDRESSES} TCP port 80 to 8080"),
        (other(0x0800, IPV4_TCP[:6] + b"\0\x05" + IPV4_TCP[8:]), f"{ADDRESSES} TCP fragment"),
        (other(0x8100, b"\0\5\x08\0" + IPV4_TCP), f"{ADDRESSES} TCP port 80 to 8080"),
        (
            other(0x86DD, b"\x60" + bytes(5) + bytes([58, 255]) + bytes(15) + b"\1" + bytes(15) + b"\2"),
            "::1 > ::2 ICMPv6",
        ),
        (
            other(0x8808, bytes.fromhex("01010008000000000000ffff")),
            "02:00:00:00:00:01 > 01:80:c2:00:00:01 MAC control PFC pause, quanta by priority {3: 65535}",
        ),
        (
            other(0x8808, bytes.fromhex("00010007")),
            "02:00:00:00:00:01 > 01:80:c2:00:00:01 MAC control pause for 7 quanta",
        ),
        (other(0x8915, b""), "02:00:00:00:00:01 > 01:80:c2:00:00:01 RoCE v1 ethertype 0x8915, not decoded"),
        (other(0x1234, b""), "02:00:00:00:00:01 > 01:80:c2:00:00:01 Ethernet ethertype 0x1234, not decoded"),
        (other(0x0026, b""), "02:00:00:00:00:01 > 01:80:c2:00:00:01 802.3 length 38"),
    ],
)
def test_other_frames_get_a_short_honest_line(frame: bytes, line: str) -> None:
    assert see(frame) == line


def test_the_tiniest_frames_are_shown_too() -> None:
    for size in range(14):
        assert "MALFORMED: truncated" in see(bytes(size)), size


@pytest.mark.parametrize("captured", [54, 60, 70])
def test_of_a_frame_that_the_capture_cut_the_headers_are_still_read(captured: int) -> None:
    frame = build_frame(Opcode.SEND_ONLY, bytes(100), psn=9)
    line = see(frame[:captured], wire_bytes=frame.size)
    assert line == f"{ADDRESSES} RC SEND_ONLY qp 0x000000 psn 9 100 B captured {captured} of 158 bytes icrc unchecked"


@pytest.mark.parametrize("captured", [20, 30, 40, 50])
def test_a_frame_cut_inside_its_headers_is_not_called_malformed(captured: int) -> None:
    frame = build_frame(Opcode.SEND_ONLY, bytes(100), psn=9)
    line = see(frame[:captured], wire_bytes=frame.size)
    assert ("cut off by the capture inside its headers" if captured > 34 else "IPv4") in line
    assert f"captured {captured} of 158 bytes" in line
    assert "MALFORMED" not in line


def test_a_frame_that_claims_gigabytes_on_the_wire_costs_no_memory() -> None:
    view = Watcher().see(SEND, wire_bytes=(1 << 32) - 1)
    assert view.wire_bytes == (1 << 32) - 1 > CAPTURED_BYTES_MAX
    assert view.captured_bytes == SEND.size


@given(st.binary(max_size=120), st.integers(0, 2000))
def test_any_bytes_can_be_shown(data: bytes, wire_bytes: int) -> None:
    assert see(data, wire_bytes)


@given(frame_arguments(), st.data())
def test_any_broken_packet_can_be_shown(arguments: dict, data: st.DataObject) -> None:
    frame = build_frame(**arguments)
    for at in data.draw(st.lists(st.integers(0, min(frame.size, 90) - 1), max_size=4)):
        frame[at] = data.draw(st.integers(0, 255))
    assert see(frame[: data.draw(st.integers(0, frame.size))], wire_bytes=data.draw(st.sampled_from([0, frame.size])))
