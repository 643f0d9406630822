"""Splicing: the sum leaves inside each connection's own frame.

The frame is the sender's from Ethernet to BTH and its extension headers, ECN bits and INA header included; only the
payload is replaced, and the ICRC made anew. PSN and opcode stay what the successor expects.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.switch.forwarding import count_drop, find_mac, read_mac
from netreduce.switch.reduction import reduce_slot
from netreduce.switch.tables import HEADER_ROOM, MESSAGES_MAX, NOBODY, SwitchTables
from netreduce.trace.events import DropReason, Event, emit
from netreduce.wire.frames import RECORD_HEADER_BYTES, queue_commit, queue_reserve
from netreduce.wire.icrc import write_icrc
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
def data_bytes(ring: np.record, message: np.record, slot: int) -> int:
    """Bytes of packet `slot` that are reduced."""
    return payload_bytes(ring, message, slot) - (INA_BYTES if slot == 0 else 0)


@compiled
def first_copy(ring: np.record, message_number: int, slot: int) -> int:
    """How many copies lie before those of this slot, in the ring's ranges of `held` and `buffers`."""
    return ((message_number % ring.message_count) * ring.message_packets + slot) * ring.rank_count


@compiled
def _write_frame(tables: SwitchTables, port: int, copy: int, buffer_at: int, size: int, now_ps: int) -> bool:
    """Write the frame of the held `copy` with ``tables.total[:size]`` inside into the egress queue of `port`."""
    held = tables.held[copy]
    pad = -size & 3
    length = held.header_bytes + size + pad + ICRC_BYTES
    data, state = tables.egress_data[port], tables.egress_state[port]
    at = queue_reserve(data, state, length)
    if at < 0:
        state.dropped_frames += 1
        return False
    frame = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
    copy_bytes(frame, 0, tables.buffers, buffer_at + HEADER_ROOM - held.header_bytes, held.header_bytes)
    copy_bytes(frame, held.header_bytes, tables.total, 0, size)
    for i in range(pad):
        frame[held.header_bytes + size + i] = 0
    write_icrc(frame, held.ip_at, held.udp_at, length - ICRC_BYTES)
    queue_commit(data, state, at, length, now_ps)
    return True


@compiled
def _splice_to(
    tables: SwitchTables, port: int, ring_index: int, message: np.record, slot: int, rank: int, size: int, now_ps: int
) -> bool:
    ring = tables.rings[ring_index]
    offset = first_copy(ring, message.message, slot) + rank
    if not _write_frame(
        tables, port, ring.first_copy + offset, ring.first_buffer + offset * ring.buffer_bytes, size, now_ps
    ):
        count_drop(tables, ring_index, port, DropReason.QUEUE_FULL.value, size, now_ps)
        return False
    ring.packets_spliced += 1
    ring.payload_bytes_out += size
    return True


@compiled
def splice(
    tables: SwitchTables, ring_index: int, message: np.record, slot: int, rank: int, size: int, kind: int, now_ps: int
) -> None:
    """Send ``tables.total[:size]`` on the connection of `rank`, in place of its packet `slot` of the message.

    `kind` is the event to log. A destination that is not known yet is flooded, as the frame itself would have been.
    """
    ring = tables.rings[ring_index]
    connection_index = ring.first_connection + rank
    copy = first_copy(ring, message.message, slot) + rank
    header_bytes = tables.held[ring.first_copy + copy].header_bytes
    frame_at = ring.first_buffer + copy * ring.buffer_bytes + HEADER_ROOM - header_bytes
    at = find_mac(tables, read_mac(tables.buffers, frame_at), now_ps)
    port = tables.macs[at].port if at >= 0 else NOBODY
    if at >= 0:
        sent = _splice_to(tables, port, ring_index, message, slot, rank, size, now_ps)
    else:
        sent = False
        for other in range(tables.ports.size):
            if other != tables.connections[connection_index].port and tables.ports[other].up != 0:
                sent |= _splice_to(tables, other, ring_index, message, slot, rank, size, now_ps)
    if sent:
        entry = tables.entries[connection_index * MESSAGES_MAX + message.message % ring.message_count]
        psn = psn_add(entry.first_psn, slot)
        emit(tables.log, now_ps, kind, port, -1, psn, ring.ring_id, rank, message.message, slot, size, -1)


@compiled
def sum_slot(tables: SwitchTables, ring: np.record, message: np.record, slot: int, now_ps: int) -> int:
    """Reduce a complete slot into ``tables.total``; the sum's length in bytes."""
    size = data_bytes(ring, message, slot)
    first = ring.first_buffer + first_copy(ring, message.message, slot) * ring.buffer_bytes + HEADER_ROOM
    reduce_slot(tables, message.data_type, message.op, size, first, ring.buffer_bytes, ring.rank_count)
    emit(tables.log, now_ps, Event.SUMMED.value, -1, -1, -1, ring.ring_id, -1, message.message, slot, size, -1)
    return size
