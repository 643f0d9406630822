"""The aggregator: which connections' copies of a packet are held, and the verdict on one more that arrives.

Copies are buffered, never accumulated as they come, and the first copy wins: a go-back-N replay may carry the *result*,
because results are scattered over the very tensor that was sent. The sum is made when the last copy is there, in the
order of ranks, and kept: a replay of a complete slot is answered with it, on its own connection only. A replay of a
message whose place was taken over goes on unchanged, since the successor surely has it and will answer with a duplicate
ACK.

A payload waits for the last one in the place that was freed last, and the last one waits nowhere. So what is written
and soon read again lies close together, and caches keep it: places for all payloads of all messages would not fit.

A packet lost on one uplink makes later slots complete first. With the gap policy `pass` they leave at once, every
receiver sees the gap, and everyone goes back. With `hold` slots leave in the order of their PSNs, and the one sender
whose packet is missing gets a NAK from the switch.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes, inlined, prefetch
from netreduce.switch.answers import note_arrival, owe_wait
from netreduce.switch.lookup import find_entry
from netreduce.switch.messages import ACCEPTED, open_message
from netreduce.switch.reduction import reduce_slot
from netreduce.switch.splice import copy_place, payload_bytes
from netreduce.switch.tables import HEADER_ROOM, NOBODY, SwitchTables
from netreduce.switch.translation import SUM, TOTAL, has_left, leads_out, may_leave
from netreduce.switch.verdicts import COMPLETE, FORWARD, KEPT, REPLAY
from netreduce.trace.events import DropReason, Event, emit
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.ina import INA_BYTES
from netreduce.wire.opcodes import Role
from netreduce.wire.psn import PSN_MASK, psn_add, psn_distance


@inlined
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
def _store_headers(
    buffers: np.ndarray, room_at: int, held: np.record, frame: np.ndarray, packet: np.record, slot: int, is_first: bool
) -> None:
    """Hold the headers of a rank's packet, at the end of the room at `room_at`.

    The newest headers count, because a retransmission may ask for an ACK, or carry ECN marks; but not its INA header.
    The UDP checksum is blanked, as RoCEv2 allows: it covers the payload, which will be replaced.
    """
    size = packet.payload_at
    header_bytes = size + (INA_BYTES if slot == 0 else 0)
    if is_first:
        held.header_bytes = header_bytes
        held.ip_at = packet.ip_at
        held.udp_at = packet.udp_at
        size = header_bytes
    elif header_bytes != held.header_bytes:
        return
    start = room_at + HEADER_ROOM - header_bytes
    copy_bytes(buffers, start, frame, 0, size)
    buffers[start + packet.udp_at + 6] = 0
    buffers[start + packet.udp_at + 7] = 0


@compiled
def _find_missing(messages: np.recarray, slots: np.recarray, ring: np.record, connection: np.record) -> None:
    """Step over the packets of a connection that are held, to the first that never arrived.

    A gap before that one may be answered with a NAK again. As with a receiver's own NAKs, each gap gets only one: they
    use up the sender's retries, and come at the rate of round trips.
    """
    place = connection.missing_message % ring.message_count
    for _ in range(ring.message_count * ring.message_packets):
        message = messages[ring.first_message + place]
        row = slots[ring.first_slot + place * ring.message_packets + connection.missing_slot]
        if message.message != connection.missing_message or row.bitmap & connection.bit == 0:
            return
        connection.missing_psn = psn_add(connection.missing_psn, 1)
        connection.owes_nak = 1
        connection.missing_slot += 1
        if connection.missing_slot == message.packets:
            connection.missing_message += 1
            connection.missing_slot = 0
            place = place + 1 if place + 1 < ring.message_count else 0


@inlined
def _take_payload(
    tables: SwitchTables,
    ring: np.record,
    message: np.record,
    row: np.record,
    place: int,
    copy: int,
    index: int,
    frame: np.ndarray,
) -> None:
    """Hold the payload of `frame`, which came on the connection `place`; the last of a slot completes its sum instead.

    `row` is the slot, which counts this copy already; `copy` and `index` are the places of both in the ring.
    """
    packet, slot, free = tables.packet[0], tables.state[0].slot, tables.free[ring.first_copy :]
    start, size = packet.payload_at, packet.payload_bytes
    if slot == 0:
        start, size = start + INA_BYTES, size - INA_BYTES
    if row.arrived < ring.child_count:
        ring.free_count -= 1
        at = free[ring.free_count]
        tables.held[ring.first_copy + copy].payload_at = at
        copy_bytes(tables.buffers, at, frame, start, size)
        return
    if row.arrived > ring.child_count:
        at = tables.outflows[ring.first_outflow + TOTAL].first_result + index * ring.path_mtu
        copy_bytes(tables.buffers, at, frame, start, size)
        return
    at = tables.outflows[ring.first_outflow + SUM].first_result + index * ring.path_mtu
    own, result = frame[start : start + size], tables.buffers[at : at + size]
    copies, stride = tables.held[ring.first_copy + copy - place * ring.message_packets :], ring.message_packets
    wide, totals, count = tables.wide, tables.totals, ring.child_count
    dtype, op = message.data_type, message.op
    reduce_slot(dtype, op, wide, totals, tables.buffers, copies, stride, count, place, own, result)
    prefetch(tables.buffers, at + ring.path_mtu, ring.path_mtu)  # for the next slot's
    for child in range(ring.child_count):
        if child != place:
            free[ring.free_count] = copies[child * stride].payload_at
            ring.free_count += 1


@inlined
def _take_copy(tables: SwitchTables, connection: np.record, frame: np.ndarray, now_ps: int) -> int:
    """Hold a copy that fits its place, the slot in `state`, and give the verdict."""
    packet, state = tables.packet[0], tables.state[0]
    ring, message, slot = tables.rings[state.ring], tables.messages[state.message], state.slot
    place = state.message - ring.first_message
    copy = copy_place(ring, place, connection.place, slot)
    index = place * ring.message_packets + slot
    row = tables.slots[ring.first_slot + index]
    if connection.place >= ring.child_count and row.arrived < ring.child_count:
        return DropReason.OUT_OF_SEQUENCE.value  # a total without its parts
    is_first = row.bitmap & connection.bit == 0
    room_at = ring.first_buffer + copy * HEADER_ROOM
    _store_headers(tables.buffers, room_at, tables.held[ring.first_copy + copy], frame, packet, slot, is_first)
    if not is_first:
        connection.asked = 0
        if has_left(ring, tables.outflows[connection.outflow], message, slot, row.arrived):
            if connection.quiet != 0 and leads_out(ring, connection):
                return DropReason.HELD.value  # the switch above would take it for a timer that fired
            ring.replays += 1
            state.outflow = connection.outflow
            return REPLAY
        owe_wait(state, connection)
        return DropReason.HELD.value
    if row.arrived == 0:
        row.first_ps = now_ps
    row.bitmap |= connection.bit
    row.arrived += 1
    _take_payload(tables, ring, message, row, connection.place, copy, index, frame)
    ring.payload_bytes_in += packet.payload_bytes
    if ring.hold != 0:
        _find_missing(tables.messages, tables.slots, ring, connection)
    kind, rank, number, size = Event.SLOT_FILLED.value, connection.rank, message.message, packet.payload_bytes
    emit(tables.log, now_ps, kind, -1, -1, packet.psn, ring.ring_id, rank, number, slot, size, row.bitmap)
    if row.arrived < ring.child_count:
        return KEPT
    if row.arrived == ring.connection_count:
        message.complete += 1
        if message.complete == message.packets:
            ring.messages_aggregated += 1
    state.outflow = ring.first_outflow + (SUM if row.arrived == ring.child_count else TOTAL)
    return COMPLETE if may_leave(ring, tables.outflows[state.outflow], message, slot) else KEPT


@inlined
def _find_slot(tables: SwitchTables, connection_index: int, frame: np.ndarray, now_ps: int) -> int:
    """Resolve the packet to its place, named in `state`; `KEPT`, or another verdict if it has none."""
    packet, state = tables.packet[0], tables.state[0]
    connection = tables.connections[connection_index]
    ring = tables.rings[state.ring]
    distance = psn_distance(packet.psn, connection.next_psn)
    if distance > 0:
        return DropReason.OUT_OF_SEQUENCE.value  # the first packet of its message was lost
    if distance == 0:
        refusal = open_message(tables, connection_index, frame, now_ps)
        if refusal != ACCEPTED:
            return refusal
    at = find_entry(tables.entries, ring, connection, packet.psn)
    number = tables.entries[at].message if at >= 0 else NOBODY
    state.message = ring.first_message + number % ring.message_count
    message = tables.messages[state.message]
    if number < 0 or message.message != number:
        ring.stale_passed += 1
        kind, port, rank = Event.STALE_PASSED.value, connection.port, connection.rank
        emit(tables.log, now_ps, kind, port, -1, packet.psn, ring.ring_id, rank, number, -1, frame.size, -1)
        return FORWARD
    state.slot = (packet.psn - tables.entries[at].first_psn) & PSN_MASK
    kind, qpn, port = Event.CLT_HIT.value, packet.destination_qpn, connection.port
    rank, slot = connection.rank, state.slot
    emit(tables.log, now_ps, kind, port, qpn, packet.psn, ring.ring_id, rank, number, slot, frame.size, -1)
    return KEPT if _place_fits(ring, message, packet, slot) else DropReason.BAD_PACKET_LENGTH.value


@inlined
def judge_data(
    tables: SwitchTables, port: int, connection_index: int, frame: np.ndarray, behind: np.ndarray, now_ps: int
) -> int:
    """The verdict on a data packet of a ring's connection, parsed into ``tables.packet``, that came in at `port`.

    `behind` is what follows `frame` in its burst. A core has room for so many requests to memory and no more, so only
    half of the next frame is asked for before this one is read, and the rest now that it is in the first-level cache.
    """
    packet, state = tables.packet[0], tables.state[0]
    connection = tables.connections[connection_index]
    ring = tables.rings[connection.ring]
    state.ring = connection.ring
    state.connection = connection_index
    if connection.port != port:
        return DropReason.WRONG_PORT.value
    if not icrc_is_good(frame, packet):
        return DropReason.BAD_ICRC.value
    prefetch(behind, frame.size // 2, min(frame.size, behind.size) - frame.size // 2)
    if ring.failed != 0:
        return DropReason.RING_FAILED.value
    note_arrival(state, ring, connection, packet.psn)
    verdict = _find_slot(tables, connection_index, frame, now_ps)
    return _take_copy(tables, connection, frame, now_ps) if verdict == KEPT else verdict
