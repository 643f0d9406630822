"""The aggregator: which ranks' copies of a packet are held, and what happens when one more arrives.

Copies are buffered, never accumulated, and the first copy wins: a go-back-N replay may carry the *result*, because
results are scattered over the very tensor that was sent. A replay of a complete slot is summed again from the buffers
and answered on its own connection only; a replay of a message whose place was taken over goes on unchanged, since the
successor surely has it and will answer with a duplicate ACK.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.switch.answers import answer_waiting, note_arrival
from netreduce.switch.forwarding import count_drop, forward
from netreduce.switch.lookup import find_entry
from netreduce.switch.messages import ACCEPTED, open_message
from netreduce.switch.splice import first_copy, payload_bytes, splice, sum_slot
from netreduce.switch.tables import HEADER_ROOM, NOBODY, SwitchTables
from netreduce.trace.events import DropReason, Event, emit
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.ina import INA_BYTES
from netreduce.wire.opcodes import Role
from netreduce.wire.psn import PSN_MASK, psn_distance


@compiled
def _place_fits(ring: np.record, message: np.record, packet: np.record, slot: int) -> bool:
    """Whether opcode and payload length are those of packet `slot` of the message."""
    is_start = packet.roles & Role.START.value != 0
    is_end = packet.roles & Role.END.value != 0
    return (
        is_start == (slot == 0)
        and is_end == (slot == message.packets - 1)
        and packet.payload_bytes == payload_bytes(ring, message, slot)
    )


@compiled
def _store_headers(tables: SwitchTables, copy: int, buffer_at: int, frame: np.ndarray) -> None:
    """Keep the newest copy's headers, without the INA header: a retransmission may ask for an ACK, or carry ECN marks.

    The UDP checksum is blanked (RoCEv2 lets it be zero), for the payload that it covers is replaced.
    """
    packet = tables.packet[0]
    held = tables.held[copy]
    start = buffer_at + HEADER_ROOM - held.header_bytes
    copy_bytes(tables.buffers, start, frame, 0, packet.payload_at)
    tables.buffers[start + packet.udp_at + 6] = 0
    tables.buffers[start + packet.udp_at + 7] = 0


@compiled
def _store(tables: SwitchTables, copy: int, buffer_at: int, frame: np.ndarray, slot: int) -> None:
    """Hold the first copy of a rank's packet: headers, INA header and payload, which starts at `HEADER_ROOM`."""
    packet = tables.packet[0]
    ina_bytes = INA_BYTES if slot == 0 else 0
    held = tables.held[copy]
    held.header_bytes = packet.payload_at + ina_bytes
    held.ip_at = packet.ip_at
    held.udp_at = packet.udp_at
    start = buffer_at + HEADER_ROOM - held.header_bytes
    copy_bytes(tables.buffers, start, frame, 0, packet.payload_at + packet.payload_bytes)
    _store_headers(tables, copy, buffer_at, frame)


@compiled
def _complete(tables: SwitchTables, ring_index: int, message: np.record, slot: int, now_ps: int) -> None:
    """All copies of the slot are there: send the sum on every connection, in rank order."""
    ring = tables.rings[ring_index]
    message.complete += 1
    if message.complete == message.packets:
        ring.messages_aggregated += 1
    size = sum_slot(tables, ring, message, slot, now_ps)
    for rank in range(ring.rank_count):
        splice(tables, ring_index, message, slot, rank, size, Event.SPLICED.value, now_ps)


@compiled
def _take_copy(
    tables: SwitchTables, connection_index: int, message: np.record, slot: int, frame: np.ndarray, now_ps: int
) -> None:
    """Hold a copy that fits its place, or answer it if it is a replay."""
    packet = tables.packet[0]
    connection = tables.connections[connection_index]
    ring_index, rank = connection.ring, connection.rank
    ring = tables.rings[ring_index]
    place = message.message % ring.message_count
    row = tables.slots[ring.first_slot + place * ring.message_packets + slot]
    copy = first_copy(ring, message.message, slot) + rank
    buffer_at = ring.first_buffer + copy * ring.buffer_bytes
    if row.bitmap & connection.rank_bit == 0:
        _store(tables, ring.first_copy + copy, buffer_at, frame, slot)
        if row.arrived == 0:
            row.first_ps = now_ps
        row.bitmap |= connection.rank_bit
        row.arrived += 1
        ring.payload_bytes_in += packet.payload_bytes
        kind, ring_id, number, bits = Event.SLOT_FILLED.value, ring.ring_id, message.message, row.bitmap
        emit(tables.log, now_ps, kind, -1, -1, packet.psn, ring_id, rank, number, slot, packet.payload_bytes, bits)
        if row.arrived == ring.rank_count:
            _complete(tables, ring_index, message, slot, now_ps)
        return
    if packet.payload_at + (INA_BYTES if slot == 0 else 0) == tables.held[ring.first_copy + copy].header_bytes:
        _store_headers(tables, ring.first_copy + copy, buffer_at, frame)
    if row.arrived == ring.rank_count:
        ring.replays += 1
        size = sum_slot(tables, ring, message, slot, now_ps)
        splice(tables, ring_index, message, slot, rank, size, Event.REPLAYED.value, now_ps)
        return
    count_drop(tables, ring_index, connection.port, DropReason.HELD.value, frame.size, now_ps)
    answer_waiting(tables, connection_index, frame, now_ps)


@compiled
def _pass_stale(tables: SwitchTables, connection: np.record, frame: np.ndarray, now_ps: int) -> None:
    ring = tables.rings[connection.ring]
    ring.stale_passed += 1
    kind, psn = Event.STALE_PASSED.value, tables.packet[0].psn
    emit(tables.log, now_ps, kind, connection.port, -1, psn, ring.ring_id, connection.rank, -1, -1, frame.size, -1)
    forward(tables, connection.port, frame, now_ps)


@compiled
def _refusal(tables: SwitchTables, port: int, connection_index: int, frame: np.ndarray, now_ps: int) -> int:
    """Why a data packet of a ring cannot be resolved to a message, as a `DropReason`; or `ACCEPTED`."""
    packet = tables.packet[0]
    connection = tables.connections[connection_index]
    if connection.port != port:
        return DropReason.WRONG_PORT.value
    if not icrc_is_good(frame, packet):
        return DropReason.BAD_ICRC.value
    if tables.rings[connection.ring].failed != 0:
        return DropReason.RING_FAILED.value
    note_arrival(connection, packet.psn)
    distance = psn_distance(packet.psn, connection.next_psn)
    if distance > 0:
        return DropReason.OUT_OF_SEQUENCE.value  # the first packet of its message was lost
    if distance == 0:
        return open_message(tables, connection_index, frame, now_ps)
    return ACCEPTED


@compiled
def take_data(tables: SwitchTables, port: int, connection_index: int, frame: np.ndarray, now_ps: int) -> None:
    """Take a data packet of a ring's connection, parsed into ``tables.packet``, that came in at `port`."""
    packet = tables.packet[0]
    connection = tables.connections[connection_index]
    ring_index = connection.ring
    ring = tables.rings[ring_index]
    reason = _refusal(tables, port, connection_index, frame, now_ps)
    if reason != ACCEPTED:
        count_drop(tables, ring_index, port, reason, frame.size, now_ps)
        return
    at = find_entry(tables, connection_index, packet.psn)
    if at == NOBODY:
        _pass_stale(tables, connection, frame, now_ps)
        return
    entry = tables.entries[at]
    message = tables.messages[ring.first_message + entry.message % ring.message_count]
    if message.message != entry.message:
        _pass_stale(tables, connection, frame, now_ps)
        return
    slot = (packet.psn - entry.first_psn) & PSN_MASK
    kind, qpn, number = Event.CLT_HIT.value, packet.destination_qpn, entry.message
    emit(tables.log, now_ps, kind, port, qpn, packet.psn, ring.ring_id, connection.rank, number, slot, frame.size, -1)
    if not _place_fits(ring, message, packet, slot):
        count_drop(tables, ring_index, port, DropReason.BAD_PACKET_LENGTH.value, frame.size, now_ps)
        return
    _take_copy(tables, connection_index, message, slot, frame, now_ps)
