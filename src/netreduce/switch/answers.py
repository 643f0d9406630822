"""Answers that the switch reads, and those it gives itself on a successor's behalf.

RNR NAK, "wait" (IBA vol. 1, 9.7.5.2.8): a rank that is late makes the others' timers fire, and a retry count must not
kill a job that merely waits. So a retransmitted packet that is held, while others are missing, is answered with one.

Sequence NAK, "go back": with the gap policy `hold` no successor sees a gap, so the switch, which does, tells
the sender whose packet is missing.

Both carry the successor's first unacknowledged PSN, seen in the answers that pass. A NAK acknowledges all that lies
before its PSN: any later one would lose results for ever.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes, inlined
from netreduce.switch.forwarding import count_drop, write_mac
from netreduce.switch.tables import EXCUSED_BEYOND, EXCUSED_HERE, SwitchTables
from netreduce.trace.events import DropReason, Event, emit
from netreduce.wire.aeth import AETH_VALUE_MASK, AckKind, Syndrome
from netreduce.wire.bigendian import write_be24
from netreduce.wire.frames import RECORD_HEADER_BYTES, queue_commit, queue_reserve
from netreduce.wire.icrc import UDP_BYTES, icrc_is_good
from netreduce.wire.opcodes import AETH_BYTES, BTH_BYTES, ICRC_BYTES, Opcode
from netreduce.wire.packet import finish_frame, write_bth
from netreduce.wire.psn import psn_add, psn_distance

RNR_TIMER_FIRST = 14
RNR_TIMER_LAST = 28
RNR_TIMER_STEP = 2
"""Timer codes (IBA vol. 1, table 45) of successive RNR NAKs without progress: 1.28 ms, twice as long each time, up to
163.84 ms. A wait that a lost packet caused is over soon; one for a rank that evaluates its model costs little."""


@inlined
def note_acknowledgement(tables: SwitchTables, port: int, connection_index: int, frame: np.ndarray) -> None:
    """Read an ACKNOWLEDGE that passes from the successor: what it covers, and whether it asks to go back."""
    packet = tables.packet[0]
    connection = tables.connections[connection_index]
    if port != connection.answer_port or not icrc_is_good(frame, packet):
        return
    kind = packet.syndrome & ~AETH_VALUE_MASK
    if kind not in (AckKind.ACK.value, AckKind.RNR_NAK.value, AckKind.NAK.value):
        return
    covered = psn_add(packet.psn, 1) if kind == AckKind.ACK.value else packet.psn
    progress = psn_distance(covered, connection.unacknowledged_psn)
    if progress < 0 or progress > psn_distance(connection.next_psn, connection.unacknowledged_psn):
        return
    if progress > 0:
        connection.asked = 0
        connection.unacknowledged_psn = covered
        connection.rnr_timer = RNR_TIMER_FIRST
    connection.msn = packet.msn
    if packet.syndrome == Syndrome.NAK_PSN_SEQUENCE_ERROR.value:
        connection.excused = EXCUSED_BEYOND
        connection.asked = 1


@inlined
def note_arrival(state: np.record, ring: np.record, connection: np.record, psn: int) -> None:
    """Notice when a sender goes back, and with `hold` when one of its packets is missing.

    With no NAK that asked for it, a go-back means that the sender's timer fired: it is owed an answer. While one that
    was asked for is still to come, no other gap draws a NAK: the sender will fill all, and each costs it a retry.
    """
    if psn_distance(psn, connection.last_psn) <= 0:
        connection.owes_rnr = connection.excused == 0
        connection.quiet = connection.excused == EXCUSED_HERE
        connection.excused = 0
    connection.last_psn = psn
    if ring.hold == 0 or connection.owes_nak == 0 or connection.asked != 0:
        return
    if psn_distance(psn, connection.missing_psn) > 0:
        connection.owes_nak = 0
        if connection.excused == 0:
            connection.excused = EXCUSED_HERE
        connection.asked = 1
        state.answer = Syndrome.NAK_PSN_SEQUENCE_ERROR.value


@inlined
def owe_wait(state: np.record, connection: np.record) -> None:
    """Let a sender be told to wait, if its timer fired and it was not told yet: once each go-back."""
    if connection.owes_rnr != 0 and state.answer == 0:
        connection.owes_rnr = 0
        state.answer = AckKind.RNR_NAK.value | connection.rnr_timer
        connection.rnr_timer = min(connection.rnr_timer + RNR_TIMER_STEP, RNR_TIMER_LAST)


@compiled
def _write_reverse_headers(
    answer: np.ndarray, frame: np.ndarray, packet: np.record, state: np.record, own_mac: int
) -> None:
    """Copy the headers of `frame` up to UDP, turned round, without its ECN marks; `own_mac` is that of a router."""
    ip_at, udp_at = packet.ip_at, packet.udp_at
    copy_bytes(answer, 0, frame, 0, udp_at + UDP_BYTES)
    copy_bytes(answer, 0, frame, 6, 6)
    copy_bytes(answer, 6, frame, 0, 6)
    address_at, size, ecn_bits = ip_at + 12, 4, 0x03
    if packet.ip_version == 6:
        address_at, size, ecn_bits = ip_at + 8, 16, 0x30
    copy_bytes(answer, address_at, frame, address_at + size, size)
    copy_bytes(answer, address_at + size, frame, address_at, size)
    answer[ip_at + 1] = np.int64(answer[ip_at + 1]) & ~ecn_bits
    answer[udp_at + 6] = 0
    answer[udp_at + 7] = 0
    if state.hop >= 0:
        write_mac(answer, 0, state.sender_mac)
        write_mac(answer, 6, own_mac)


@inlined
def send_answer(tables: SwitchTables, frame: np.ndarray, now_ps: int) -> None:
    """Answer `frame` on the successor's behalf, with the syndrome in `state`."""
    packet, syndrome = tables.packet[0], tables.state[0].answer
    connection = tables.connections[tables.state[0].connection]
    ring, port = tables.rings[connection.ring], connection.port
    bth_at = packet.udp_at + UDP_BYTES
    length = bth_at + BTH_BYTES + AETH_BYTES + ICRC_BYTES
    data, queue = tables.egress_data[port], tables.egress_state[port]
    at = queue_reserve(data, queue, length)
    if at < 0:
        queue.dropped_frames += 1
        count_drop(tables, port, DropReason.QUEUE_FULL.value, length, now_ps)
        return
    answer = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
    _write_reverse_headers(answer, frame, packet, tables.state[0], tables.ports[port].mac)
    qpn, psn = connection.answer_qpn, connection.unacknowledged_psn
    write_bth(answer, bth_at, Opcode.ACKNOWLEDGE.value, 0, qpn, psn, False)
    answer[bth_at + BTH_BYTES] = syndrome
    write_be24(answer, bth_at + BTH_BYTES + 1, connection.msn)
    finish_frame(answer, packet.ip_at, packet.udp_at, length)
    queue_commit(data, queue, at, length, now_ps)
    kind = Event.NAK_SENT.value
    if syndrome == Syndrome.NAK_PSN_SEQUENCE_ERROR.value:
        ring.naks_sent += 1
    else:
        ring.rnr_sent += 1
        kind = Event.RNR_SENT.value
    emit(tables.log, now_ps, kind, port, qpn, psn, ring.ring_id, connection.rank, -1, -1, length, syndrome)
