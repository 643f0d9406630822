"""Opening a message: a first packet's INA header is checked against its connection, its ring and the other ranks.

Nothing in the header is believed. It must name the ring and rank that the connection belongs to and the very next
message, and agree with what the other ranks said of that message. A place is taken over from the message ``2 N`` before
only when that one is complete and every successor has acknowledged it: the senders' window implies this, and a sender
without one is refused here, before it could spoil a sum that somebody still needs.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, inlined
from netreduce.switch.tables import SwitchTables
from netreduce.trace.events import DropReason, Event, emit
from netreduce.wire.bigendian import read_be16, read_be32
from netreduce.wire.ina import ELEMENT_BYTES, INA_BYTES, INA_VERSION, MESSAGE_ID_MASK, InaFlag, ReduceOp
from netreduce.wire.opcodes import Role
from netreduce.wire.psn import psn_add, psn_distance

ACCEPTED = 0
KNOWN_FLAGS = InaFlag.START.value | InaFlag.END.value | InaFlag.AVERAGE.value


@compiled
def _header_fits(ring: np.record, connection: np.record, frame: np.ndarray, at: int) -> bool:
    """Whether the INA header at offset `at` is one that this connection may send now."""
    length, dtype, op = read_be32(frame, at + 8), frame[at + 12], frame[at + 13]
    element = ELEMENT_BYTES[dtype]
    return (
        read_be16(frame, at) == ring.ring_id
        and read_be16(frame, at + 2) == connection.rank
        and read_be32(frame, at + 4) == (connection.newest + 1) & MESSAGE_ID_MASK
        and frame[at + 14] == INA_VERSION
        and element > 0
        and length % element == 0
        and INA_BYTES + length <= ring.message_packets * ring.path_mtu
        and op >= ReduceOp.SUM.value
        and op <= ReduceOp.PRODUCT.value
        and np.int64(frame[at + 15]) & ~KNOWN_FLAGS == 0
    )


@compiled
def _is_its_first_packet(ring: np.record, packet: np.record, length_bytes: int) -> bool:
    """Whether opcode and payload length are those of the first packet of a message of `length_bytes`."""
    size = INA_BYTES + length_bytes
    is_only = packet.roles & Role.END.value != 0
    return packet.payload_bytes == min(size, ring.path_mtu) and is_only == (size <= ring.path_mtu)


@compiled
def _may_replace(tables: SwitchTables, ring: np.record, message: np.record) -> bool:
    """Whether the message that holds this place is complete and all successors are known to have it."""
    if message.complete < message.packets:
        return False
    for place in range(ring.connection_count):
        connection = tables.connections[ring.first_connection + place]
        entry = tables.entries[connection.first_entry + message.message % ring.message_count]
        if psn_distance(connection.unacknowledged_psn, psn_add(entry.first_psn, entry.packets)) < 0:
            return False
    return True


@compiled
def _start(tables: SwitchTables, ring: np.record, message: np.record, number: int, frame: np.ndarray, at: int) -> None:
    """Let message `number` take the place `message`, as the INA header at offset `at` describes it."""
    message.message = number
    message.length_bytes = read_be32(frame, at + 8)
    message.packets = (INA_BYTES + message.length_bytes + ring.path_mtu - 1) // ring.path_mtu
    message.data_type = frame[at + 12]
    message.op = frame[at + 13]
    message.ina_flags = frame[at + 15]
    message.first_rank = read_be16(frame, at + 2)
    message.complete = 0
    first_slot = ring.first_slot + (number % ring.message_count) * ring.message_packets
    for slot in range(first_slot, first_slot + message.packets):
        tables.slots[slot].bitmap = 0
        tables.slots[slot].arrived = 0


@compiled
def _fail_ring(
    tables: SwitchTables, ring: np.record, message: np.record, rank: int, frame: np.ndarray, at: int, now_ps: int
) -> None:
    """Stop aggregating for the ring: `rank` disagrees about `message`. Both sides are kept for the notice."""
    ring.failed = 1
    ring.failed_message = message.message
    ring.failed_rank = rank
    ring.failed_length_bytes = read_be32(frame, at + 8)
    ring.failed_data_type = frame[at + 12]
    ring.failed_op = frame[at + 13]
    ring.failed_ina_flags = frame[at + 15]
    tables.state[0].failures += 1
    kind, number = Event.MISMATCHED.value, message.message
    emit(tables.log, now_ps, kind, -1, -1, -1, ring.ring_id, rank, number, 0, -1, message.first_rank)


@inlined
def open_message(tables: SwitchTables, connection_index: int, frame: np.ndarray, now_ps: int) -> int:
    """Enter the message that `frame`, with the connection's next PSN, should start; a `DropReason` or `ACCEPTED`."""
    packet = tables.packet[0]
    connection = tables.connections[connection_index]
    ring = tables.rings[connection.ring]
    at = packet.payload_at
    if packet.roles & Role.START.value == 0 or packet.payload_bytes < INA_BYTES:
        return DropReason.BAD_INA_HEADER.value
    if not _header_fits(ring, connection, frame, at):
        return DropReason.BAD_INA_HEADER.value
    if not _is_its_first_packet(ring, packet, read_be32(frame, at + 8)):
        return DropReason.BAD_PACKET_LENGTH.value  # and nothing of it is believed: its header might not come again
    number = connection.newest + 1
    place = number % ring.message_count
    message = tables.messages[ring.first_message + place]
    if message.message != number:
        if connection.place >= ring.child_count:
            return DropReason.OUT_OF_SEQUENCE.value  # a total without its parts
        if message.message >= 0 and not (
            message.message == number - ring.message_count and _may_replace(tables, ring, message)
        ):
            return DropReason.BAD_INA_HEADER.value
        _start(tables, ring, message, number, frame, at)
    elif (
        message.length_bytes != read_be32(frame, at + 8)
        or message.data_type != frame[at + 12]
        or message.op != frame[at + 13]
        or message.ina_flags != frame[at + 15]
    ):
        _fail_ring(tables, ring, message, connection.rank, frame, at, now_ps)
        return DropReason.MISMATCH.value
    entry = tables.entries[connection.first_entry + place]
    entry.message = number
    entry.first_psn = packet.psn
    entry.packets = message.packets
    connection.newest = number
    connection.next_psn = psn_add(packet.psn, message.packets)
    kind, ring_id = Event.CLT_FILLED.value, ring.ring_id
    emit(tables.log, now_ps, kind, -1, packet.destination_qpn, packet.psn, ring_id, connection.rank, number, 0, -1, -1)
    return ACCEPTED
