"""PcapWriter, judged by tshark and by dpkt; and what a crash leaves behind."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from tests.wire.oracles import tshark_fields

from netreduce.errors import CaptureError
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.capture import CapturedFrame, read_capture
from netreduce.wire.opcodes import Opcode
from netreduce.wire.pcap import Direction, PcapWriter

EPOCH_NS = 1_700_000_000_123_456_789
PORTS = ["port 0", "port 1", "port 2"]


def sample_frames() -> list[np.ndarray]:
    return [
        build_frame(Opcode.SEND_ONLY, bytes(size), psn=size, destination_qpn=7) for size in (0, 1, 2, 3, 4, 1021, 4096)
    ]


def read_bytes(data: bytes) -> list[CapturedFrame]:
    return list(read_capture(io.BytesIO(data), "test"))


def read_until_fault(data: bytes) -> tuple[list[CapturedFrame], str]:
    frames: list[CapturedFrame] = []
    try:
        for frame in read_capture(io.BytesIO(data), "test"):
            frames.append(frame)
    except CaptureError as error:
        return frames, str(error)
    return frames, ""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "switch.pcapng"
    with PcapWriter(path, PORTS, epoch_ns=EPOCH_NS) as writer:
        writer.write_burst(2, Direction.INBOUND, build_burst(sample_frames(), 5_000_999))
        writer.write_burst(0, Direction.OUTBOUND, build_burst(sample_frames()[:2], 7_000_000))
    return path


def test_bursts_come_back_with_port_direction_and_nanoseconds(recorded: Path) -> None:
    frames = read_bytes(recorded.read_bytes())
    assert [frame.data for frame in frames[:7]] == [frame.tobytes() for frame in sample_frames()]
    assert {(f.interface_name, f.direction, f.time_ns) for f in frames[:7]} == {
        ("port 2", Direction.INBOUND, EPOCH_NS + 5_000)
    }
    assert {(f.interface_name, f.direction, f.time_ns) for f in frames[7:]} == {
        ("port 0", Direction.OUTBOUND, EPOCH_NS + 7_000)
    }
    assert [frame.number for frame in frames] == list(range(1, 10))


def test_tshark_reads_the_same(recorded: Path) -> None:
    rows = tshark_fields(
        recorded, "frame.time_epoch", "frame.interface_name", "frame.packet_flags_direction", "frame.len"
    )
    assert len(rows) == 9
    lengths = [str(frame.size) for frame in sample_frames()]
    assert [row[3] for row in rows] == lengths + lengths[:2]
    assert rows[0][:3] == ["1700000000.123461789", "port 2", "0x00000001"]
    assert rows[8][:3] == ["1700000000.123463789", "port 0", "0x00000002"]


def test_a_burst_is_in_the_file_before_the_writer_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "live.pcapng"
    with PcapWriter(path, PORTS) as writer:
        assert read_bytes(path.read_bytes()) == []
        writer.write_burst(1, Direction.INBOUND, build_burst(sample_frames()))
        assert len(read_bytes(path.read_bytes())) == 7


def test_a_file_cut_anywhere_gives_its_whole_frames_and_then_one_line(recorded: Path) -> None:
    data = recorded.read_bytes()
    whole = read_bytes(data)
    ends = [len(data)]
    for frame in reversed(whole):
        ends.append(ends[-1] - 44 - (len(frame.data) + 3) // 4 * 4)
    ends.reverse()
    for cut in sorted({*range(ends[0] + 1, ends[1] + 2), *range(ends[-2] - 3, len(data))}):
        count = sum(end <= cut for end in ends) - 1
        frames, problem = read_until_fault(data[:cut])
        assert frames == whole[:count]
        if cut not in ends:
            assert re.fullmatch(rf"test: the file ends inside a block.*after {count} packets", problem)


def test_closing_twice_does_no_harm(tmp_path: Path) -> None:
    writer = PcapWriter(tmp_path / "x.pcapng", PORTS)
    writer.close()
    writer.close()


def test_the_smallest_frames_fit_the_buffer(tmp_path: Path) -> None:
    path = tmp_path / "tiny.pcapng"
    tiny = [np.arange(1, size + 1, dtype=np.uint8) for size in range(1, 24)]
    with PcapWriter(path, ["p"]) as writer:
        for frame in tiny:
            writer.write_burst(0, Direction.UNKNOWN, build_burst([frame] * 50))
    assert [f.data for f in read_bytes(path.read_bytes())] == [f.tobytes() for f in tiny for _ in range(50)]
