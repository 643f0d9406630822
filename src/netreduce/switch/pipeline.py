"""The way of a frame through the switch: learn, look up, then aggregate or forward."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled
from netreduce.switch.aggregator import take_data
from netreduce.switch.answers import note_acknowledgement
from netreduce.switch.forwarding import count_drop, forward, learn, read_mac
from netreduce.switch.lookup import find_packet
from netreduce.switch.tables import NOBODY, ROLE_ACKNOWLEDGE, ROLE_DATA, SwitchTables
from netreduce.trace.events import DropReason
from netreduce.wire.frames import RECORD_HEADER_BYTES, burst_is_whole, record_bytes, record_length
from netreduce.wire.opcodes import Opcode, Role
from netreduce.wire.packet import ETHERNET_BYTES, Parse, parse_packet

DATA_ROLES = Role.SEND.value | Role.WRITE.value


@compiled
def _take_frame(tables: SwitchTables, port: int, frame: np.ndarray, now_ps: int) -> None:
    if frame.size < ETHERNET_BYTES:
        count_drop(tables, NOBODY, port, DropReason.TRUNCATED.value, frame.size, now_ps)
        return
    if not learn(tables, port, read_mac(frame, 6), now_ps):
        count_drop(tables, NOBODY, port, DropReason.WRONG_PORT.value, frame.size, now_ps)
        return
    packet = tables.packet[0]
    if tables.state[0].keys_used > 0 and parse_packet(frame, packet) == Parse.OK.value:
        at = find_packet(tables, packet)
        if at >= 0:
            key = tables.keys[at]
            if key.role == ROLE_DATA and packet.roles & DATA_ROLES:
                take_data(tables, port, key.connection, frame, now_ps)
                return
            if key.role == ROLE_ACKNOWLEDGE and packet.opcode == Opcode.ACKNOWLEDGE.value:
                note_acknowledgement(tables, port, key.connection, frame)
    forward(tables, port, frame, now_ps)


@compiled
def take_burst(tables: SwitchTables, port: int, burst: np.ndarray, now_ps: int) -> None:
    """Take every frame of `burst` (uint8, whole records; writable, because the ICRC is computed in place)."""
    if not burst_is_whole(burst, burst.size):
        count_drop(tables, NOBODY, port, DropReason.TRUNCATED.value, burst.size, now_ps)
        return
    row = tables.ports[port]
    at = 0
    while at < burst.size:
        length = record_length(burst, at)
        row.packets_in += 1
        row.bytes_in += length
        _take_frame(tables, port, burst[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length], now_ps)
        at += record_bytes(length)
