"""The two entries of the data path: a burst has arrived, and time has passed."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled
from netreduce.nic.completer import take_answer
from netreduce.nic.completions import enter_error
from netreduce.nic.drops import drop
from netreduce.nic.enums import QpState
from netreduce.nic.requester import Turn, handle_timer, take_turn
from netreduce.nic.responder import send_answer, take_request
from netreduce.nic.tables import NicTables, make_ready, note
from netreduce.trace.events import DropReason, Event
from netreduce.wire.bigendian import read_be16, read_be32
from netreduce.wire.frames import FRAME_BYTES_MAX, RECORD_HEADER_BYTES, queue_reserve, record_bytes, record_length
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.opcodes import Role
from netreduce.wire.packet import P_KEY_DEFAULT, Parse, parse_packet

ECN_CONGESTION_EXPERIENCED = 3
OTHER_SERVICES = Role.UC.value | Role.UD.value
FULL_MEMBER = 0x8000

PARSE_DROPS = np.zeros(8, np.int64)
"""`DropReason` by `Parse` code. int64[8]."""
PARSE_DROPS[Parse.NOT_ROCE] = DropReason.UNSUPPORTED
PARSE_DROPS[Parse.TRUNCATED] = DropReason.TRUNCATED
PARSE_DROPS[Parse.BAD_LENGTH] = DropReason.BAD_LENGTH
PARSE_DROPS[Parse.BAD_HEADER] = DropReason.BAD_HEADER
PARSE_DROPS[Parse.UNKNOWN_OPCODE] = DropReason.UNKNOWN_OPCODE
PARSE_DROPS[Parse.BAD_PADDING] = DropReason.BAD_PADDING
PARSE_DROPS[Parse.BAD_ICRC] = DropReason.BAD_ICRC


@compiled
def receive(tables: NicTables, burst: np.ndarray, now_ps: int) -> None:
    """Process every frame of a burst of whole records."""
    tables.nic[0].now_ps = now_ps
    at = 0
    while at < burst.size:
        length = record_length(burst, at)
        _receive_frame(tables, burst[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length])
        at += record_bytes(length)


@compiled
def _is_for_me(tables: NicTables, frame: np.ndarray, packet: np.record) -> bool:
    nic = tables.nic[0]
    mac = (read_be16(frame, 0) << 32) | read_be32(frame, 2)
    return mac == nic.mac and packet.destination_ip_low == nic.ip and packet.destination_ip_high == 0


@compiled
def _receive_frame(tables: NicTables, frame: np.ndarray) -> None:
    """Check what concerns every packet, then hand it to the responder or the completer."""
    counters = tables.counters[0]
    counters.rcvd_pkts += 1
    counters.rcvd_bytes += frame.size
    packet = tables.packet[0]
    code = parse_packet(frame, packet)
    if code != Parse.OK.value:
        drop(tables, PARSE_DROPS[code], -1, -1)
        return
    if not _is_for_me(tables, frame, packet):
        drop(tables, DropReason.NOT_FOR_ME.value, packet.destination_qpn, packet.psn)
        return
    if not icrc_is_good(frame, packet):
        counters.rx_icrc_encapsulated += 1
        drop(tables, DropReason.BAD_ICRC.value, packet.destination_qpn, packet.psn)
        return
    row = packet.destination_qpn & (tables.qp.size - 1)
    qp = tables.qp[row]
    if qp.qpn == 0 or qp.qpn != packet.destination_qpn:
        drop(tables, DropReason.NOT_FOR_ME.value, packet.destination_qpn, packet.psn)
    elif (packet.p_key | FULL_MEMBER) != P_KEY_DEFAULT:  # limited members may talk to us, who are a full one
        drop(tables, DropReason.BAD_P_KEY.value, qp.qpn, packet.psn)
    elif qp.peer_ip != packet.source_ip_low or packet.source_ip_high != 0:
        drop(tables, DropReason.NOT_FOR_ME.value, qp.qpn, packet.psn)
    elif packet.roles & OTHER_SERVICES:  # silently: a NAK would end the connection (IBA vol. 1, section 9.6)
        drop(tables, DropReason.UNSUPPORTED.value, qp.qpn, packet.psn)
    elif packet.roles & Role.CNP.value:
        counters.rp_cnp_ignored += 1
        note(tables, Event.CNP_RECEIVED.value, qp.qpn, -1, -1, -1)
    elif packet.roles & Role.ACK.value:
        take_answer(tables, row, packet)
    else:
        if packet.ecn == ECN_CONGESTION_EXPERIENCED:
            counters.np_ecn_marked_roce_packets += 1
        take_request(tables, row, frame, packet)


@compiled
def advance(tables: NicTables, now_ps: int) -> None:
    """Fire due timers, then let ready queue pairs send: answers first, then packets in turns while there is room."""
    nic = tables.nic[0]
    nic.now_ps = now_ps
    for row in range(tables.deadline.size):
        if tables.deadline[row] <= now_ps:
            handle_timer(tables, row)
            make_ready(tables, row)
    mask = tables.ready.size - 1
    for i in range(nic.ready_count):
        row = tables.ready[(nic.ready_head + i) & mask]
        if tables.qp[row].answer and not send_answer(tables, row):
            return
    while nic.ready_count > 0:
        row = tables.ready[nic.ready_head & mask]
        nic.ready_head += 1
        nic.ready_count -= 1
        tables.qp[row].ready = 0
        if tables.qp[row].state == QpState.IBV_QPS_ERR.value:
            enter_error(tables, row)  # a completion queue that overflowed left work to flush
            continue
        outcome = take_turn(tables, row)
        if outcome != Turn.IDLE.value:
            make_ready(tables, row)
        if outcome == Turn.NO_ROOM.value:
            return


@compiled
def next_timer(tables: NicTables) -> int:
    """When `advance` is due: now, if something waits to be sent and there is room; else the earliest timer."""
    egress = tables.egress
    if tables.nic[0].ready_count > 0 and queue_reserve(egress.data, egress.state[0], FRAME_BYTES_MAX) >= 0:
        return tables.nic[0].now_ps
    earliest = tables.deadline[0]
    for row in range(1, tables.deadline.size):
        earliest = min(earliest, tables.deadline[row])
    return earliest
