"""Answers that the switch reads, and the one it gives itself: RNR NAK, "wait", to a sender whose timer fired.

A rank that is late makes the others' timers fire, and a retry count must not kill a job that merely waits. So a
retransmitted packet that is held, while others are missing, is answered on the successor's behalf with an RNR NAK (IBA
vol. 1, 9.7.5.2.8) at the successor's first unacknowledged PSN, seen in the answers that pass. A NAK acknowledges all
that lies before its PSN: any later one would lose results for ever.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.switch.forwarding import count_drop
from netreduce.switch.tables import SwitchTables
from netreduce.trace.events import DropReason, Event, emit
from netreduce.wire.bigendian import write_be24
from netreduce.wire.frames import RECORD_HEADER_BYTES, queue_commit, queue_reserve
from netreduce.wire.icrc import UDP_BYTES, icrc_is_good
from netreduce.wire.opcodes import AETH_BYTES, BTH_BYTES, ICRC_BYTES, Opcode
from netreduce.wire.packet import finish_frame, write_bth
from netreduce.wire.psn import psn_add, psn_distance

SYNDROME_RNR = 0x20
SYNDROME_SEQUENCE = 0x60
KIND_ACK = 0  # upper three bits of a syndrome
KIND_RNR = 1
KIND_NAK = 3
RNR_TIMER = 28
"""163.84 ms (IBA vol. 1, encoding of the RNR NAK timer field): long beside a round trip, short beside a training step.
Progress ends the wait sooner."""


@compiled
def note_acknowledgement(tables: SwitchTables, port: int, connection_index: int, frame: np.ndarray) -> None:
    """Read an ACKNOWLEDGE that passes from the successor: what it covers, and whether it asks to go back."""
    packet = tables.packet[0]
    connection = tables.connections[connection_index]
    if port != connection.answer_port or not icrc_is_good(frame, packet):
        return
    kind = packet.syndrome >> 5
    if kind != KIND_ACK and kind != KIND_RNR and kind != KIND_NAK:
        return
    covered = psn_add(packet.psn, 1) if kind == KIND_ACK else packet.psn
    progress = psn_distance(covered, connection.unacknowledged_psn)
    if progress < 0 or progress > psn_distance(connection.next_psn, connection.unacknowledged_psn):
        return
    connection.unacknowledged_psn = covered
    connection.msn = packet.msn
    if packet.syndrome == SYNDROME_SEQUENCE:
        connection.excused = 1


@compiled
def note_arrival(connection: np.record, psn: int) -> None:
    """Notice when a sender goes back: with no NAK that asked for it, its timer fired, and it is owed an answer."""
    if psn_distance(psn, connection.last_psn) <= 0:
        connection.owes_rnr = 1 - connection.excused
        connection.excused = 0
    connection.last_psn = psn


@compiled
def _send_answer(tables: SwitchTables, connection: np.record, frame: np.ndarray, syndrome: int, now_ps: int) -> bool:
    """Answer `frame` on the successor's behalf: its headers up to UDP turned round, BTH, AETH, ICRC."""
    packet = tables.packet[0]
    bth_at = packet.udp_at + UDP_BYTES
    length = bth_at + BTH_BYTES + AETH_BYTES + ICRC_BYTES
    data, state = tables.egress_data[connection.port], tables.egress_state[connection.port]
    at = queue_reserve(data, state, length)
    if at < 0:
        state.dropped_frames += 1
        count_drop(tables, connection.ring, connection.port, DropReason.QUEUE_FULL.value, length, now_ps)
        return False
    answer = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
    copy_bytes(answer, 0, frame, 0, bth_at)
    copy_bytes(answer, 0, frame, 6, 6)
    copy_bytes(answer, 6, frame, 0, 6)
    if packet.ip_version == 4:
        copy_bytes(answer, packet.ip_at + 12, frame, packet.ip_at + 16, 4)
        copy_bytes(answer, packet.ip_at + 16, frame, packet.ip_at + 12, 4)
        answer[packet.ip_at + 1] = answer[packet.ip_at + 1] & 0xFC  # the sender's ECN marks are not the answer's
    else:
        copy_bytes(answer, packet.ip_at + 8, frame, packet.ip_at + 24, 16)
        copy_bytes(answer, packet.ip_at + 24, frame, packet.ip_at + 8, 16)
        answer[packet.ip_at + 1] = answer[packet.ip_at + 1] & 0xCF
    answer[packet.udp_at + 6] = 0
    answer[packet.udp_at + 7] = 0
    opcode = Opcode.ACKNOWLEDGE.value
    write_bth(answer, bth_at, opcode, 0, connection.answer_qpn, connection.unacknowledged_psn, False)
    answer[bth_at + BTH_BYTES] = syndrome
    write_be24(answer, bth_at + BTH_BYTES + 1, connection.msn)
    finish_frame(answer, packet.ip_at, packet.udp_at, length)
    queue_commit(data, state, at, length, now_ps)
    return True


@compiled
def answer_waiting(tables: SwitchTables, connection_index: int, frame: np.ndarray, now_ps: int) -> None:
    """Tell the sender of `frame`, a replay of a packet that is held and incomplete, to wait: once each go-back."""
    connection = tables.connections[connection_index]
    if connection.owes_rnr == 0:
        return
    connection.owes_rnr = 0
    if not _send_answer(tables, connection, frame, SYNDROME_RNR | RNR_TIMER, now_ps):
        return
    ring = tables.rings[connection.ring]
    ring.rnr_sent += 1
    kind, qpn, psn, detail = Event.RNR_SENT.value, connection.answer_qpn, connection.unacknowledged_psn, RNR_TIMER
    emit(tables.log, now_ps, kind, connection.port, qpn, psn, ring.ring_id, connection.rank, -1, -1, -1, detail)
