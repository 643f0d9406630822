"""Splicing: the sum leaves inside each connection's own frame.

The frame is the sender's from Ethernet to BTH and its extension headers, ECN bits and INA header included; only the
payload is replaced, and the ICRC made anew. PSN and opcode stay what the successor expects.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes, crc32, inlined
from netreduce.switch.checksum import SHIFT_ENTRIES, shifted
from netreduce.switch.forwarding import count_drop, find_mac, read_mac
from netreduce.switch.tables import HEADER_ROOM, NOBODY, SwitchTables
from netreduce.switch.translation import next_to_leave
from netreduce.switch.verdicts import REPLAY
from netreduce.trace.events import DropReason, Event, emit
from netreduce.wire.frames import RECORD_HEADER_BYTES, queue_commit, queue_reserve
from netreduce.wire.icrc import icrc, store_icrc, write_icrc
from netreduce.wire.ina import INA_BYTES
from netreduce.wire.opcodes import ICRC_BYTES
from netreduce.wire.psn import psn_add


@compiled
def payload_bytes(ring: np.record, message: np.record, slot: int) -> int:
    """Payload length of packet `slot` of the message, with the INA header if it is the first."""
    if slot < message.packets - 1:
        return ring.path_mtu
    return INA_BYTES + message.length_bytes - slot * ring.path_mtu


@compiled
def copy_place(ring: np.record, message_place: int, place: int, slot: int) -> int:
    """Place of a connection's copy of a slot of a message among the ring's rows of `held` and rooms for headers.

    Copies of one connection follow each other: a burst is one run of its packets, and is written in one run, too.
    """
    return (message_place * ring.connection_count + place) * ring.message_packets + slot


@compiled
def _write_frame(
    data: np.ndarray,
    queue: np.record,
    buffers: np.ndarray,
    headers_at: int,
    held: np.record,
    payload: np.ndarray,
    payload_crc: int,
    shift: np.ndarray,
    now_ps: int,
) -> bool:
    """Append to a queue the frame of headers ``buffers[headers_at:]`` and `payload`; False if there is no room.

    `shift` is made for the payload's length (see checksum.py), or empty: then the ICRC is computed over all bytes.
    """
    size = payload.size
    pad = -size & 3
    length = held.header_bytes + size + pad + ICRC_BYTES
    at = queue_reserve(data, queue, length)
    if at < 0:
        queue.dropped_frames += 1
        return False
    frame = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
    copy_bytes(frame, 0, buffers, headers_at, held.header_bytes)
    copy_bytes(frame, held.header_bytes, payload, 0, size)
    for i in range(pad):
        frame[held.header_bytes + size + i] = 0
    if shift.size > 0:
        headers_crc = np.int64(icrc(frame, held.ip_at, held.udp_at, held.header_bytes))
        store_icrc(frame, length - ICRC_BYTES, shifted(shift, headers_crc) ^ payload_crc)
    else:
        write_icrc(frame, held.ip_at, held.udp_at, length - ICRC_BYTES)
    queue_commit(data, queue, at, length, now_ps)
    return True


@inlined
def _splice(
    tables: SwitchTables,
    ring: np.record,
    connection: np.record,
    place: int,
    slot: int,
    payload: np.ndarray,
    kind: int,
    now_ps: int,
) -> None:
    """Send `payload`, of a slot of the ring's message `place`, on `connection`; `kind` is the event to log.

    A destination that is not known yet is flooded, as the frame itself would have been.
    """
    copy = copy_place(ring, place, connection.place, slot)
    held = tables.held[ring.first_copy + copy]
    headers_at = ring.first_buffer + copy * HEADER_ROOM + HEADER_ROOM - held.header_bytes
    port, end, own = 0, tables.ports.size, connection.port
    if ring.pinned != 0:
        port, own = max(connection.answer_port, 0), NOBODY
        end = connection.answer_port + 1
    else:
        at = find_mac(tables.macs, read_mac(tables.buffers, headers_at), now_ps)
        if at >= 0:
            port, own = tables.macs[at].port, NOBODY
            end = port + 1
    psn = psn_add(tables.entries[connection.first_entry + place].first_psn, slot)
    rank, number, size = connection.rank, tables.messages[ring.first_message + place].message, payload.size
    emit(tables.log, now_ps, kind, end - 1, -1, psn, ring.ring_id, rank, number, slot, size, -1)
    payload_crc = tables.state[0].total_crc
    shift = tables.shifts[ring.first_shift : ring.first_shift + (SHIFT_ENTRIES if size == ring.path_mtu else 0)]
    while port < end:
        if port != own and tables.ports[port].up != 0:
            data, queue = tables.egress_data[port], tables.egress_state[port]
            if _write_frame(data, queue, tables.buffers, headers_at, held, payload, payload_crc, shift, now_ps):
                ring.packets_spliced += 1
                ring.payload_bytes_out += size
            else:
                count_drop(tables, port, DropReason.QUEUE_FULL.value, size, now_ps)
        port += 1


@inlined
def _send_out(
    tables: SwitchTables,
    ring: np.record,
    outflow: np.record,
    place: int,
    slot: int,
    first: int,
    last: int,
    kind: int,
    now_ps: int,
) -> None:
    """Send an outflow of a slot of the ring's message `place` on the connections of ``translations[first:last]``."""
    message = tables.messages[ring.first_message + place]
    size = payload_bytes(ring, message, slot) - (INA_BYTES if slot == 0 else 0)
    at = outflow.first_result + (place * ring.message_packets + slot) * ring.path_mtu
    payload = tables.buffers[at : at + size]
    if size == ring.path_mtu:
        tables.state[0].total_crc = crc32(payload, 0)
    if kind == Event.SPLICED.value:
        emit(tables.log, now_ps, Event.SUMMED.value, -1, -1, -1, ring.ring_id, -1, message.message, slot, size, -1)
    for row in range(first, last):
        _splice(tables, ring, tables.connections[tables.translations[row]], place, slot, payload, kind, now_ps)


@inlined
def send_sums(tables: SwitchTables, verdict: int, now_ps: int) -> None:
    """Carry out `COMPLETE` or `REPLAY`: the slot in `state` leaves, and with `hold` those that waited for it."""
    state = tables.state[0]
    ring, outflow = tables.rings[state.ring], tables.outflows[state.outflow]
    place, slot = state.message - ring.first_message, state.slot
    first, kind = outflow.first_translation, Event.SPLICED.value
    last = first + outflow.translation_count
    if verdict == REPLAY:
        first = tables.connections[state.connection].translation
        last, kind = first + 1, Event.REPLAYED.value
    for _ in range(ring.message_count * ring.message_packets):
        _send_out(tables, ring, outflow, place, slot, first, last, kind, now_ps)
        if verdict == REPLAY or ring.hold == 0:
            return
        place = next_to_leave(tables, ring, outflow, place)
        if place < 0:
            return
        slot = outflow.next_slot
