"""A capture in figures."""

from __future__ import annotations

import msgspec
import pytest
from tests.wire.conversation import Watcher, answer, message_frames

from netreduce.wire.build import build_frame
from netreduce.wire.opcodes import Opcode
from netreduce.wire.pcap import Direction
from netreduce.wire.summary import Summary


@pytest.fixture
def summary() -> Summary:
    """Two messages of rank 0, one of rank 1; a repeat, a gap, answers of each kind, a CNP, an ARP, damaged frames."""
    watcher, figures = Watcher(), Summary()
    damaged = build_frame(Opcode.SEND_ONLY)
    damaged[-1] ^= 1
    frames = [*message_frames(0, 0), *message_frames(1, 4), *message_frames(0, 0, rank=1, packets=1)]
    frames += [frames[7], *message_frames(2, 10)[:1], answer(0, 3), answer(0, 4, 0x60), answer(0, 4, 0x2C)]
    frames += [build_frame(Opcode.CNP, traffic_class=3), damaged, build_frame(0x1C), damaged[:30], bytes(60)]
    for frame in frames:
        figures.add(watcher.see(frame, "port 0", Direction.INBOUND))
    figures.add(watcher.see(frames[0], "port 1", Direction.OUTBOUND))
    return figures


def test_every_frame_is_counted_where_it_belongs(summary: Summary) -> None:
    assert (summary.frames, summary.icrc_good, summary.icrc_bad, summary.icrc_unchecked) == (20, 16, 1, 0)
    assert (summary.malformed, summary.retransmitted, summary.missing) == (2, 1, 2)
    assert (summary.acknowledgements, summary.naks, summary.rnr_naks) == (1, 1, 1)
    assert (summary.congestion_notifications, summary.congestion_marks) == (1, 1)
    assert summary.kinds["RC SEND_FIRST"].frames == 4
    assert summary.kinds["RC SEND_ONLY"].bad == 1
    assert sum(kind.frames for kind in summary.kinds.values()) == summary.frames
    assert sum(kind.wire_bytes for kind in summary.kinds.values()) == summary.wire_bytes
    assert summary.ports["port 0"].frames_in == 19
    assert summary.ports["port 1"].frames_out == 1


def test_messages_are_counted_per_ring_and_rank(summary: Summary) -> None:
    rank_0, rank_1 = summary.ranks[3, 0], summary.ranks[3, 1]
    assert (rank_0.messages, rank_0.first_message_id, rank_0.last_message_id) == (3, 0, 2)
    assert (rank_0.frames_in, rank_0.frames_out, rank_0.retransmitted) == (10, 1, 1)
    assert (rank_0.bytes_in, rank_0.bytes_out) == (2 * (3 * 256 + 156) + 156 + 256, 256)
    assert (rank_1.messages, rank_1.frames_in) == (1, 1)


def test_connections_have_their_losses(summary: Summary) -> None:
    row = summary.connections["10.78.0.1", "10.78.0.2", 0x20]  # type: ignore[index]
    assert (row.frames, row.retransmitted, row.missing, row.ring_id, row.rank) == (11, 1, 2, 3, 0)


def test_the_text_has_a_table_for_everything_and_json_the_same_figures(summary: Summary) -> None:
    text = "\n".join(summary.lines())
    for words in (
        "20 frames", "16 good, 1 bad", "malformed: 2; ", "retransmitted: 1; missing", "ACK 1, NAK 1, RNR NAK 1, CNP 1",
        "Frames by kind", "Ports", "Connections", "10.78.0.1 > 10.78.0.2  0x000020", "ring 3 rank 0",
    ):  # fmt: skip
        assert words in text
    figures = msgspec.json.decode(msgspec.json.encode(summary.as_dict()))
    assert figures["frames"] == 20
    assert {(row["ring_id"], row["rank"], row["messages"]) for row in figures["ranks"]} == {(3, 0, 3), (3, 1, 1)}
    assert len(figures["connections"]) == len(summary.connections)


def test_a_capture_without_frames_has_no_tables() -> None:
    assert "0 frames" in Summary().lines()[0]
    assert not any("Connections" in line for line in Summary().lines())
