"""State rebuilt from a trace: the tables that stand beside the picture, as they are after each moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netreduce.nic.enums import WcStatus, WrOpcode
from netreduce.trace.recording import BufferMoment, EventMoment, FrameMoment, Header, Moment
from netreduce.wire.opcodes import Opcode

ROWS_SHOWN = 8
"""Newest rows of a table that are shown: beside a picture nobody reads more."""


def sample_text(sample: str, element: str) -> str:
    """The first element of a frame's data as a number, "" without data."""
    data = bytes.fromhex(sample)
    dtype = np.dtype(element)
    return f"{np.frombuffer(data, dtype, 1)[0]:g}" if len(data) >= dtype.itemsize else ""


@dataclass
class QueuePairRow:
    """What a host's queue pair was seen to do."""

    sent_psn: str = ""
    acknowledged_psn: str = ""
    expected_psn: str = ""
    retransmitted: int = 0


@dataclass
class Replay:
    """The tables of all nodes, fed with moments in order."""

    header: Header
    clt: dict[tuple[int, int, int], list[str]] = field(default_factory=dict)
    slots: dict[tuple[int, int, int], dict[str, Any]] = field(default_factory=dict)
    queue_pairs: dict[tuple[str, int], QueuePairRow] = field(default_factory=dict)
    work: dict[str, list[list[str]]] = field(default_factory=dict)
    completions: dict[str, list[list[str]]] = field(default_factory=dict)
    buffers: dict[str, list[str]] = field(default_factory=dict)
    _arrived: dict[tuple[str, int], FrameMoment] = field(default_factory=dict)
    _value: str = ""

    def apply(self, moment: Moment) -> None:
        """Take the next moment."""
        if isinstance(moment, BufferMoment):
            self.buffers[moment.node] = moment.values
        elif isinstance(moment, FrameMoment):
            if not moment.lost:
                self._arrived[moment.target, moment.view.psn] = moment
                self._value = sample_text(moment.sample, self.header.element)
        else:
            handler = getattr(self, f"_on_{moment.event.lower()}", None)
            if handler is not None:
                handler(moment)

    # The switch

    def _on_clt_filled(self, event: EventMoment) -> None:
        frame = self._arrived.get((event.node, event.psn))
        addresses = [frame.view.source_ip, frame.view.destination_ip] if frame else ["", ""]
        packets = str(frame.view.message_packets) if frame else ""
        row = [*addresses, hex(event.qpn), str(event.rank), str(event.message_id), str(event.psn), packets]
        self.clt[event.ring_id, event.rank, event.message_id] = row

    def _on_slot_filled(self, event: EventMoment) -> None:
        slot = self.slots.setdefault((event.ring_id, event.message_id, event.slot), {"values": {}, "sum": ""})
        slot["values"][event.rank] = self._value
        slot["bitmap"] = event.detail

    def _on_summed(self, event: EventMoment) -> None:
        slot = self.slots.setdefault((event.ring_id, event.message_id, event.slot), {"values": {}, "sum": ""})
        slot["sum"] = "?"

    def learn_sum(self, event: EventMoment, value: str) -> None:
        """The sum of the slot that `event` (SUMMED) completed, as seen in a frame that left."""
        self.slots[event.ring_id, event.message_id, event.slot]["sum"] = value

    # The hosts

    def _row(self, node: str, qpn: int) -> QueuePairRow:
        return self.queue_pairs.setdefault((node, qpn), QueuePairRow())

    def _on_posted(self, event: EventMoment) -> None:
        rows = self.work.setdefault(event.node, [])
        rows.append([hex(event.qpn), WrOpcode(event.detail).name, str(event.bytes), "posted"])

    def _on_sent(self, event: EventMoment) -> None:
        self._row(event.node, event.qpn).sent_psn = str(event.psn)

    def _on_retransmitted(self, event: EventMoment) -> None:
        self._row(event.node, event.qpn).retransmitted += 1

    def _on_received(self, event: EventMoment) -> None:
        self._row(event.node, event.qpn).expected_psn = str((event.psn + 1) & 0xFFFFFF)

    def _on_ack_received(self, event: EventMoment) -> None:
        self._row(event.node, event.qpn).acknowledged_psn = str(event.psn)

    def _on_completed(self, event: EventMoment) -> None:
        rows = self.completions.setdefault(event.node, [])
        rows.append([hex(event.qpn), WcStatus(event.detail).name, str(event.bytes)])

    # Tables

    def tables(self) -> list[dict[str, Any]]:
        """All tables that have rows, newest rows last."""
        ranks = sum(node.kind == "host" for node in self.header.nodes)
        clt_columns = ["source", "destination", "QPN", "rank", "message", "first PSN", "packets"]
        slot_columns = ["message", "slot", "bitmap", *(f"rank {rank}" for rank in range(ranks)), "sum"]
        slots = [
            [str(message), str(slot), f"{row.get('bitmap', 0):0{ranks}b}"[::-1]]
            + [row["values"].get(rank, "") for rank in range(ranks)]
            + [row["sum"]]
            for (_, message, slot), row in self.slots.items()
        ]
        pairs = [
            [node, hex(qpn), row.sent_psn, row.acknowledged_psn, row.expected_psn, str(row.retransmitted)]
            for (node, qpn), row in sorted(self.queue_pairs.items())
        ]
        pair_columns = ["host", "QPN", "last sent PSN", "acknowledged", "expected PSN", "sent again"]
        work = [[node, *row] for node, rows in sorted(self.work.items()) for row in rows[-2:]]
        done = [[node, *row] for node, rows in sorted(self.completions.items()) for row in rows[-2:]]
        found = [
            ("switch", "Connection lookup table", clt_columns, list(self.clt.values())),
            ("switch", "Aggregator: slots, bitmaps (rank 0 first)", slot_columns, slots),
            ("hosts", "Queue pairs", pair_columns, pairs),
            ("hosts", "Work requests (newest two a host)", ["host", "QPN", "opcode", "bytes", "state"], work),
            ("hosts", "Completions (newest two a host)", ["host", "QPN", "status", "bytes"], done),
        ]
        return [
            {"node": node, "name": name, "columns": columns, "rows": rows[-max(ROWS_SHOWN, 4 * ranks) :]}
            for node, name, columns, rows in found
            if rows
        ]


def frame_fields(moment: FrameMoment, element: str) -> list[list[str]]:
    """The header fields of a frame, as name and text, in the order in which they lie on the wire."""
    view = moment.view
    if view.opcode < 0:
        return [["protocol", view.protocol], ["note", view.problem or view.note]]
    fields = [
        ["IPv4", f"{view.source_ip} → {view.destination_ip}"],
        ["opcode", view.opcode_name],
        ["destination QPN", f"0x{view.destination_qpn:x}"],
        ["PSN", str(view.psn)],
    ]
    if view.acknowledgement:
        fields += [["AETH", f"{view.acknowledgement}, MSN {view.msn}"]]
    if view.rkey >= 0:
        fields += [["RETH", f"address 0x{view.remote_address:x}, rkey 0x{view.rkey:x}, {view.dma_length} bytes"]]
    if view.ina_header:
        place = f"ring {view.ring_id}, rank {view.rank}, message {view.message_id}"
        fields += [["INA header", f"{place}: {view.ina_header}"]]
    elif view.ring_id >= 0:
        fields += [["message (by PSN)", f"rank {view.rank}, message {view.message_id}, slot {view.slot}"]]
    if view.immediate >= 0:
        fields += [["immediate", f"0x{view.immediate:08x}"]]
    if value := sample_text(moment.sample, element):
        fields += [["first element", value]]
    if view.opcode != Opcode.ACKNOWLEDGE:
        fields += [
            ["payload", f"{view.payload_bytes} bytes" + (f", {view.pad_bytes} of padding" if view.pad_bytes else "")]
        ]
    return [
        *fields,
        ["ICRC", view.icrc if view.icrc != "bad" else f"bad: {view.icrc_found} is not {view.icrc_expected}"],
    ]
