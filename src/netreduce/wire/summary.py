"""A capture in figures: frames by kind, ICRC, losses and repeats, connections, INA messages of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import astuple

from netreduce.wire.aeth import AETH_KIND_MASK, AckKind
from netreduce.wire.conversations import ConnectionKey
from netreduce.wire.dissect import FrameView
from netreduce.wire.opcodes import Opcode
from netreduce.wire.pcap import NS_PER_S

ROWS_MAX = 10_000
"""Connections, and ranks of rings, that are listed one by one; frames of further ones are only counted."""


class KindRow(Struct):
    """Frames of one opcode or other protocol."""

    frames: int = 0
    wire_bytes: int = 0
    bad: int = 0


class ConnectionRow(Struct):
    """One direction of a queue pair. A frame that the capture saw at two ports counts twice."""

    source_ip: str
    destination_ip: str
    destination_qpn: int
    frames: int = 0
    payload_bytes: int = 0
    first_psn: int = -1
    last_psn: int = -1
    retransmitted: int = 0
    missing: int = 0
    ring_id: int = -1
    rank: int = -1


class TrafficRow(Struct):
    """Frames by direction. A capture at a switch sees most of them twice: coming in, and going out."""

    frames_in: int = 0
    bytes_in: int = 0
    frames_out: int = 0
    bytes_out: int = 0
    frames_unknown: int = 0
    bytes_unknown: int = 0

    def add(self, direction: str, length_bytes: int) -> None:
        """Count a frame whose direction is ``in``, ``out`` or empty."""
        suffix = direction or "unknown"
        setattr(self, f"frames_{suffix}", getattr(self, f"frames_{suffix}") + 1)
        setattr(self, f"bytes_{suffix}", getattr(self, f"bytes_{suffix}") + length_bytes)


class RankRow(TrafficRow):
    """INA messages of one rank of a ring; bytes are those of payloads."""

    ring_id: int = -1
    rank: int = -1
    messages: int = 0
    first_message_id: int = -1
    last_message_id: int = -1
    retransmitted: int = 0


class Summary(Struct):
    """Figures of a capture, or of the part of it that a filter admits. Add each view once."""

    frames: int = 0
    wire_bytes: int = 0
    first_time_ns: int = 0
    last_time_ns: int = 0
    icrc_good: int = 0
    icrc_bad: int = 0
    icrc_unchecked: int = 0
    malformed: int = 0
    retransmitted: int = 0
    missing: int = 0
    acknowledgements: int = 0
    naks: int = 0
    rnr_naks: int = 0
    congestion_notifications: int = 0
    congestion_marks: int = 0
    kinds: dict[str, KindRow] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    ports: dict[str, TrafficRow] = field(default_factory=dict)
    connections: dict[ConnectionKey, ConnectionRow] = field(default_factory=dict)
    ranks: dict[tuple[int, int], RankRow] = field(default_factory=dict)

    def add(self, view: FrameView) -> None:
        """Count one frame."""
        self.first_time_ns = min(self.first_time_ns, view.time_ns) if self.frames else view.time_ns
        self.last_time_ns = max(self.last_time_ns, view.time_ns) if self.frames else view.time_ns
        self.frames += 1
        self.wire_bytes += view.wire_bytes
        self.icrc_good += view.icrc == "good"
        self.icrc_bad += view.icrc == "bad"
        self.icrc_unchecked += view.icrc == "unchecked"
        self.congestion_marks += view.congestion_experienced
        self.congestion_notifications += view.opcode == Opcode.CNP
        kind = self.kinds.setdefault(view.opcode_name or view.protocol, KindRow())
        kind.frames += 1
        kind.wire_bytes += view.wire_bytes
        kind.bad += view.is_bad
        if view.problem:
            self.malformed += 1
            self.problems[view.problem.partition(":")[0]] += 1
        if view.port or view.direction:
            self.ports.setdefault(view.port, TrafficRow()).add(view.direction, view.wire_bytes)
        if view.destination_qpn >= 0 and not view.is_bad:
            self._count_packet(view)

    def _count_packet(self, view: FrameView) -> None:
        self.retransmitted += view.retransmitted
        self.missing += view.gap
        if view.syndrome >= 0:
            kind = view.syndrome & (AETH_KIND_MASK | 0x80)
            self.acknowledgements += kind == AckKind.ACK
            self.naks += kind == AckKind.NAK
            self.rnr_naks += kind == AckKind.RNR_NAK
        key = ConnectionKey(view.source_ip, view.destination_ip, view.destination_qpn)
        if key in self.connections or len(self.connections) < ROWS_MAX:
            row = self.connections.setdefault(key, ConnectionRow(*key))
            row.frames += 1
            row.payload_bytes += max(view.payload_bytes, 0)
            if view.opcode != Opcode.CNP:  # its PSN means nothing
                row.first_psn = view.psn if row.first_psn < 0 else row.first_psn
                row.last_psn = view.psn
            row.retransmitted += view.retransmitted
            row.missing += view.gap
            if view.ring_id >= 0 and not view.acknowledges:
                row.ring_id, row.rank = view.ring_id, view.rank
        if view.ring_id >= 0 and not view.acknowledges:
            self._count_rank(view)

    def _count_rank(self, view: FrameView) -> None:
        key = view.ring_id, view.rank
        if key not in self.ranks and len(self.ranks) == ROWS_MAX:
            return
        row = self.ranks.setdefault(key, RankRow(ring_id=key[0], rank=key[1]))
        row.add(view.direction, view.payload_bytes)
        row.retransmitted += view.retransmitted
        if row.first_message_id < 0:
            row.first_message_id, row.last_message_id, row.messages = view.message_id, view.message_id, 1
        elif 0 < (view.message_id - row.last_message_id) & 0xFFFFFFFF < 1 << 31:
            row.last_message_id = view.message_id
            row.messages += 1

    def as_dict(self) -> dict[str, Any]:
        """The figures for JSON: connections and ranks as lists of objects."""
        lists = {"connections": list(self.connections.values()), "ranks": list(self.ranks.values())}
        plain = {name: getattr(self, name) for name in self.__struct_fields__ if name not in lists}
        return to_builtins({**plain, **lists})

    def lines(self) -> list[str]:
        """The figures as text."""
        duration_s = (self.last_time_ns - self.first_time_ns) / NS_PER_S
        lines = [
            f"{self.frames} frames, {self.wire_bytes} bytes, {duration_s:.9f} s",
            f"ICRC: {self.icrc_good} good, {self.icrc_bad} bad, {self.icrc_unchecked} unchecked (cut by the capture)",
            f"malformed: {self.malformed}" + "".join(f"; {count} {why}" for why, count in self.problems.most_common()),
            f"retransmitted: {self.retransmitted}; missing before a packet (lost, or not captured): {self.missing}",
            f"ACK {self.acknowledgements}, NAK {self.naks}, RNR NAK {self.rnr_naks}, "
            f"CNP {self.congestion_notifications}, marked congestion experienced {self.congestion_marks}",
        ]
        kinds = sorted(self.kinds.items(), key=lambda item: -item[1].frames)
        lines += _table("Frames by kind", _KIND_HEADER, [(name, *astuple(row)) for name, row in kinds])
        lines += _table("Ports", _PORT_HEADER, [(name, *astuple(row)) for name, row in self.ports.items()])
        lines += _table("Connections", _CONNECTION_HEADER, map(_connection_cells, self.connections.values()))
        ranks = [self.ranks[key] for key in sorted(self.ranks)]
        return lines + _table("INA messages by ring and rank", _RANK_HEADER, map(_rank_cells, ranks))


_KIND_HEADER = ("kind", "frames", "bytes", "bad")
_TRAFFIC_HEADER = ("frames in", "bytes in", "frames out", "bytes out", "unknown", "bytes")
_PORT_HEADER = ("port", *_TRAFFIC_HEADER)
_CONNECTION_HEADER = (
    *(
        "connection",
        "qpn",
        "frames",
        "payload bytes",
        "first psn",
        "last psn",
        "retransmitted",
        "missing",
        "ring",
        "rank",
    ),
)
_RANK_HEADER = ("rank", *_TRAFFIC_HEADER, "messages", "first id", "last id", "retransmitted")


def _connection_cells(row: ConnectionRow) -> tuple[object, ...]:
    source, destination, qpn, *numbers = astuple(row)
    cells = ("-" if number < 0 else number for number in numbers)
    return f"{source} > {destination}", f"0x{qpn:06x}", *cells


def _rank_cells(row: RankRow) -> tuple[object, ...]:
    *traffic, _ring_id, _rank, messages, first, last, retransmitted = astuple(row)
    return f"ring {row.ring_id} rank {row.rank}", *traffic, messages, first, last, retransmitted


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a table: first column to the left, the others to the right; nothing without rows."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    if len(cells) == 1:
        return []
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for name, *numbers in cells:
        right = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  " + "  ".join([name.ljust(widths[0]), *right]).rstrip())
    return ["", title, *lines]
