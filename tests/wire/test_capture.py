"""Capture files that others write, and files that nobody should have written."""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.oracles import editcap

from netreduce.errors import CaptureError
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.capture import CapturedFrame, read_capture
from netreduce.wire.opcodes import Opcode
from netreduce.wire.pcap import Direction, PcapWriter

FRAME = build_frame(Opcode.SEND_ONLY, b"gradient", psn=9).tobytes()


def read_bytes(data: bytes) -> list[CapturedFrame]:
    return list(read_capture(io.BytesIO(data), "test"))


def pcap_file(order: str = "<", magic: int = 0xA1B2C3D4, link_type: int = 1, frames: int = 2, cut: int = 0) -> bytes:
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link_type)
    for i in range(frames):
        captured = FRAME[: cut or None]
        data += struct.pack(order + "IIII", 1_700_000_000, 123_456 + i, len(captured), len(FRAME)) + captured
    return data


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(order: str, kind: int, body: bytes) -> bytes:
    length = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + length + body + length


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, *options: tuple[int, bytes], link_type: int = 1) -> bytes:
    body = b"".join(option(order, code, value) for code, value in options)
    return block(
        order, 1, struct.pack(order + "HHI", link_type, 0, 0) + body + (option(order, 0, b"") if body else b"")
    )


def packet(order: str, index: int, units: int, data: bytes = FRAME, captured: int | None = None) -> bytes:
    head = struct.pack(order + "IIIII", index, units >> 32, units & 0xFFFFFFFF, captured or len(data), len(data))
    return block(order, 6, head + data + bytes(-len(data) % 4))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit_ns"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_pcap_files_of_either_byte_order_and_unit_are_read(order: str, magic: int, unit_ns: int) -> None:
    frames = read_bytes(pcap_file(order, magic))
    assert [(f.number, f.data, f.time_ns) for f in frames] == [
        (1 + i, FRAME, 1_700_000_000_000_000_000 + (123_456 + i) * unit_ns) for i in range(2)
    ]


def test_a_frame_cut_by_the_snap_length_keeps_its_length_on_the_wire() -> None:
    assert [(len(f.data), f.wire_bytes) for f in read_bytes(pcap_file(cut=20))] == [(20, len(FRAME))] * 2


def test_an_interface_name_cannot_steer_the_terminal() -> None:
    data = section("<") + interface("<", (2, b"\x1b[2Jeth\n0 \xe2\x82\xac")) + packet("<", 0, 1)
    assert [f.interface_name for f in read_bytes(data)] == ["\ufffd[2Jeth\ufffd0 \u20ac"]


@pytest.mark.parametrize("order", ["<", ">"])
def test_each_interface_of_a_pcapng_file_has_its_own_clock_and_name(order: str) -> None:
    """dpkt's and others' readers apply the first interface's resolution to all (kbandla/dpkt#681)."""
    data = section(order)
    data += interface(order, (2, b"eth0"), (9, b"\x09"))
    data += interface(order, (9, b"\x06"), (14, struct.pack(order + "q", 1_000_000)))
    data += interface(order, (2, b"fpga"), (9, bytes([0x80 | 10])))
    data += packet(order, 0, 1_700_000_000_123_456_789) + packet(order, 1, 700_000) + packet(order, 2, 1024 * 5 + 512)
    frames = read_bytes(data)
    assert [f.time_ns for f in frames] == [1_700_000_000_123_456_789, 1_000_000_700_000_000, 5_500_000_000]
    assert [f.interface_name for f in frames] == ["eth0", "1", "fpga"]
    assert [f.direction for f in frames] == [Direction.UNKNOWN] * 3


def test_sections_of_different_byte_order_may_follow_each_other() -> None:
    data = b"".join(section(o) + interface(o, (2, b"eth" + o.encode())) + packet(o, 0, 1) for o in "<>")
    assert [f.interface_name for f in read_bytes(data)] == ["eth<", "eth>"]
    with pytest.raises(CaptureError, match="packet of interface 0, which is not described"):
        read_bytes(section("<") + interface("<") + section("<") + packet("<", 0, 1))


def test_simple_and_obsolete_packet_blocks_are_read_and_unknown_blocks_skipped() -> None:
    simple = block("<", 3, struct.pack("<I", len(FRAME)) + FRAME + bytes(-len(FRAME) % 4))
    old = struct.pack("<HHIIII", 0, 0, 0, 1_000_000, len(FRAME), len(FRAME)) + FRAME + bytes(-len(FRAME) % 4)
    unknown = block("<", 0xBAD, bytes(500_000))
    frames = read_bytes(section("<") + interface("<") + unknown + simple + block("<", 2, old))
    assert [(f.data, f.time_ns) for f in frames] == [(FRAME, 0), (FRAME, 1_000_000_000)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "test: not a pcap or pcapng file, it is empty"),
        (b"hello world", "not a pcap or pcapng file, it starts with 68656c6c"),
        (b"\x1f\x8b\x08\x00rest", "use 'gunzip' first"),
        (pcap_file()[:20], "the file ends inside the file header, at byte 4, after 0 packets"),
        (pcap_file()[:30], "inside the header of packet 1, at byte 24, after 0 packets"),
        (pcap_file()[:-1], "inside packet 2, .*after 1 packets"),
        (
            pcap_file(link_type=113),
            r"link type 113 \(Linux cooked, as 'tcpdump -i any' makes\); capture on an Ethernet",
        ),
        (pcap_file(link_type=147), "link type 147 .*linktypes"),
        (pcap_file(frames=0) + struct.pack("<IIII", 0, 0, 1 << 30, 1 << 30), "packet 1 claims 1073741824 bytes"),
        (section("<")[:8] + b"nope" + section("<")[12:], "without byte-order magic"),
        (section("<") + struct.pack("<II", 6, 7), "impossible length 7"),
        (section("<") + struct.pack("<II", 6, 1 << 30), "claims 1073741824 bytes"),
        (section("<") + interface("<", link_type=276) + packet("<", 0, 1), "link type 276"),
        (section("<") + interface("<") + packet("<", 1, 1), "packet of interface 1"),
        (section("<") + interface("<") + packet("<", 0, 1, captured=9000), "longer than its block"),
        (section("<") + interface("<") + packet("<", 0, 1)[:-4] + b"abcd", "two lengths disagree"),
        (section("<") + interface("<", (1, b"\xff\xfe\xfd\xfc")), "damaged block"),
        (section("<") + interface("<", (14, b"\x01")), "damaged block"),
        (section("<") + interface("<") + block("<", 6, bytes(8)), "damaged block"),
    ],
)
def test_bad_files_get_one_line_that_says_what_and_where(data: bytes, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        read_bytes(data)
    assert "\n" not in str(caught.value)


@given(st.data())
def test_damaged_files_never_raise_anything_but_a_capture_error(data: st.DataObject) -> None:
    whole = data.draw(
        st.sampled_from(
            [
                pcap_file(),
                pcap_file(">", 0xA1B23C4D),
                section("<") + interface("<", (2, b"eth0"), (9, b"\x09")) + packet("<", 0, 1) * 2,
                section(">") + interface(">") + packet(">", 0, 1) * 2,
            ]
        )
    )
    damaged = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    with contextlib.suppress(CaptureError):
        read_bytes(bytes(damaged))


@pytest.mark.parametrize(("kind", "unit_ns"), [("pcapng", 1), ("nsecpcap", 1), ("pcap", 1000), ("modpcap", 1000)])
def test_files_rewritten_by_editcap_read_the_same(tmp_path: Path, kind: str, unit_ns: int) -> None:
    original, rewritten = tmp_path / "a.pcapng", tmp_path / f"b.{kind}"
    frames = [build_frame(Opcode.SEND_ONLY, bytes(size), psn=size) for size in (0, 5, 1024)]
    with PcapWriter(original, ["port 0"], epoch_ns=1_700_000_000_123_456_789) as writer:
        writer.write_burst(0, Direction.INBOUND, build_burst(frames, 1_000))
    editcap(original, rewritten, "-F", kind)
    before, after = read_bytes(original.read_bytes()), read_bytes(rewritten.read_bytes())
    assert [f.data for f in after] == [f.data for f in before]
    assert [f.time_ns for f in after] == [f.time_ns // unit_ns * unit_ns for f in before]


def test_a_file_cut_by_editcap_shows_whole_lengths(tmp_path: Path) -> None:
    original, rewritten = tmp_path / "a.pcapng", tmp_path / "b.pcapng"
    with PcapWriter(original, ["port 0"]) as writer:
        writer.write_burst(0, Direction.INBOUND, build_burst([np.frombuffer(bytearray(FRAME), np.uint8)]))
    editcap(original, rewritten, "-s", "60")
    assert [(len(f.data), f.wire_bytes) for f in read_bytes(rewritten.read_bytes())] == [(60, len(FRAME))]
