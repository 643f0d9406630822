"""The way of a frame through the switch: learn, route, look up, judge, then carry the verdict out."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, inlined, prefetch
from netreduce.switch.aggregator import judge_data
from netreduce.switch.answers import note_acknowledgement, send_answer
from netreduce.switch.forwarding import count_drop, forward, learn, read_mac
from netreduce.switch.lookup import find_packet
from netreduce.switch.routing import route
from netreduce.switch.splice import send_sums
from netreduce.switch.tables import NOBODY, ROLE_ACKNOWLEDGE, ROLE_DATA, SwitchTables
from netreduce.switch.verdicts import COMPLETE, FORWARD, REPLAY
from netreduce.trace.events import DropReason
from netreduce.wire.frames import RECORD_HEADER_BYTES, burst_is_whole, record_bytes, record_length
from netreduce.wire.opcodes import Opcode, Role
from netreduce.wire.packet import ETHERNET_BYTES, Parse, parse_packet

DATA_ROLES = Role.SEND.value | Role.WRITE.value


@inlined
def _judge(tables: SwitchTables, port: int, frame: np.ndarray, behind: np.ndarray, now_ps: int) -> int:
    """The verdict on a frame (see verdicts.py); `behind` is what follows it in its burst."""
    if frame.size < ETHERNET_BYTES:
        return DropReason.TRUNCATED.value
    if not learn(tables, port, read_mac(frame, 6), now_ps):
        return DropReason.WRONG_PORT.value
    if tables.ports[port].mac != 0:
        refusal = route(tables, tables.ports[port].mac, frame)
        if refusal != FORWARD:
            return refusal
    packet = tables.packet[0]
    if tables.state[0].keys_used == 0 or parse_packet(frame, packet) != Parse.OK.value:
        return FORWARD
    at = find_packet(tables.keys, packet)
    if at < 0:
        return FORWARD
    key = tables.keys[at]
    connection = tables.connections[key.connection]
    if tables.rings[connection.ring].pinned != 0:
        tables.state[0].way = connection.answer_port if key.role == ROLE_DATA else connection.port
    if key.role == ROLE_DATA and packet.roles & DATA_ROLES:
        return judge_data(tables, port, key.connection, frame, behind, now_ps)
    if key.role == ROLE_ACKNOWLEDGE and packet.opcode == Opcode.ACKNOWLEDGE.value:
        note_acknowledgement(tables, port, key.connection, frame)
    return FORWARD


@compiled
def take_burst(tables: SwitchTables, port: int, burst: np.ndarray, now_ps: int) -> None:
    """Take every frame of `burst` (uint8, whole records; writable, because the ICRC is computed in place)."""
    state = tables.state[0]
    if not burst_is_whole(burst, burst.size):
        state.ring = NOBODY
        count_drop(tables, port, DropReason.TRUNCATED.value, burst.size, now_ps)
        return
    counters = tables.ports[port]
    at = 0
    while at < burst.size:
        length = record_length(burst, at)
        frame = burst[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
        at += record_bytes(length)
        behind = burst[at:]
        prefetch(behind, 0, min(length // 2, behind.size))  # of the next frame, which is likely as long
        counters.packets_in += 1
        counters.bytes_in += length
        state.ring = NOBODY
        state.hop = NOBODY
        state.way = NOBODY
        state.answer = 0
        verdict = _judge(tables, port, frame, behind, now_ps)
        if verdict == FORWARD:
            forward(tables, port, frame, now_ps)
        elif verdict > 0:
            count_drop(tables, port, verdict, length, now_ps)
        elif verdict in (COMPLETE, REPLAY):
            send_sums(tables, verdict, now_ps)
        if state.answer != 0:
            send_answer(tables, frame, now_ps)
