"""The requester: cuts messages into packets and sends them, within a window (IBA vol. 1, section 9.7.2 and 9.7.7).

Packets are made one at a time, only while the egress queue has room, straight from the user's memory. After a loss
sending goes on from any packet of any message (go-back-N), with the opcodes and PSNs of the first time.

The IPv4 identification is the low half of the PSN, so that consecutive packets have consecutive ones: segmentation
offload counts them so, and the ICRC, which covers them, stays right (see wire/segmentation.py).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.nic.completions import fail_send
from netreduce.nic.enums import EventType, QpState, WcStatus, WrOpcode
from netreduce.nic.memory import copy_elements
from netreduce.nic.tables import TEMPLATE_BYTES, NicTables, note, raise_event
from netreduce.trace.events import Event
from netreduce.units import NEVER_PS
from netreduce.wire.bigendian import write_be16, write_be24, write_be32, write_be64
from netreduce.wire.frames import RECORD_HEADER_BYTES, queue_commit, queue_reserve
from netreduce.wire.icrc import UDP_BYTES
from netreduce.wire.opcodes import BTH_BYTES, ICRC_BYTES, OPCODE_HEADER_BYTES, OPCODE_ROLES, RETH_BYTES, Opcode, Role
from netreduce.wire.packet import ETHERNET_BYTES, IPV4_BYTES, finish_frame
from netreduce.wire.psn import psn_add

TURN_PACKETS = 32
"""Packets that one queue pair sends before the next one's turn."""
UDP_AT = ETHERNET_BYTES + IPV4_BYTES
BTH_AT = UDP_AT + UDP_BYTES


class Turn(IntEnum):
    """How a queue pair's turn ended."""

    IDLE = 0  # nothing (more) to send now
    MORE = 1
    NO_ROOM = 2  # the egress queue is full


PACKET_OPCODES = np.zeros((4, 4), np.int64)
"""BTH opcode by `WrOpcode` and by 1 for a message's first packet plus 2 for its last. int64[4, 4]."""
PACKET_OPCODES[WrOpcode.IBV_WR_RDMA_WRITE] = (
    Opcode.RDMA_WRITE_MIDDLE,
    Opcode.RDMA_WRITE_FIRST,
    Opcode.RDMA_WRITE_LAST,
    Opcode.RDMA_WRITE_ONLY,
)
PACKET_OPCODES[WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM] = (
    Opcode.RDMA_WRITE_MIDDLE,
    Opcode.RDMA_WRITE_FIRST,
    Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE,
    Opcode.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
)
PACKET_OPCODES[WrOpcode.IBV_WR_SEND] = (Opcode.SEND_MIDDLE, Opcode.SEND_FIRST, Opcode.SEND_LAST, Opcode.SEND_ONLY)
PACKET_OPCODES[WrOpcode.IBV_WR_SEND_WITH_IMM] = (
    Opcode.SEND_MIDDLE,
    Opcode.SEND_FIRST,
    Opcode.SEND_LAST_WITH_IMMEDIATE,
    Opcode.SEND_ONLY_WITH_IMMEDIATE,
)


@compiled
def go_back(tables: NicTables, row: int) -> None:
    """Let sending go on at the first unacknowledged packet, wherever in its message that is."""
    qp = tables.qp[row]
    qp.next_packet = qp.acked_packets
    qp.sq_next = qp.sq_retired  # the oldest work request is the one that holds that packet
    qp.send_error = 0  # it will be met again


@compiled
def _may_send(tables: NicTables, row: int, qp: np.record) -> bool:
    if qp.sq_next == qp.sq_posted or qp.rnr_waiting or qp.send_error:
        return False
    if qp.next_packet - qp.acked_packets >= tables.nic[0].psn_window:
        return False
    if qp.state == QpState.IBV_QPS_SQD.value:  # finish the message that was begun, start none
        return qp.next_packet != tables.sq[row, qp.sq_next & qp.sq_mask].first_packet
    return qp.state == QpState.IBV_QPS_RTS.value


@compiled
def _write_extensions(frame: np.ndarray, work: np.record, opcode: int) -> None:
    """Write RETH and immediate data, as the opcode has them."""
    at = BTH_AT + BTH_BYTES
    roles = OPCODE_ROLES[opcode]
    if roles & Role.RETH.value:
        write_be64(frame, at, work.remote_address)
        write_be32(frame, at + 8, work.rkey)
        write_be32(frame, at + 12, work.length)
        at += RETH_BYTES
    if roles & Role.IMMEDIATE.value:
        write_be32(frame, at, work.immediate)


@compiled
def _send_packet(tables: NicTables, row: int, qp: np.record) -> int:
    """Make the next packet in the egress queue. A `Turn`."""
    slot = qp.sq_next & qp.sq_mask
    work = tables.sq[row, slot]
    index = qp.next_packet - work.first_packet
    is_last = index + 1 == work.packets
    size = min(qp.path_mtu, work.length - index * qp.path_mtu)
    pad = -size & 3
    opcode = PACKET_OPCODES[work.opcode, (1 if index == 0 else 0) + (2 if is_last else 0)]
    payload_at = BTH_AT + OPCODE_HEADER_BYTES[opcode]
    icrc_at = payload_at + size + pad
    length = icrc_at + ICRC_BYTES
    data = tables.egress.data
    at = queue_reserve(data, tables.egress.state[0], length)
    if at < 0:
        return Turn.NO_ROOM.value
    frame = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
    status = copy_elements(
        tables, qp.pd, tables.sq_sge[row, slot], work.num_sge, index * qp.path_mtu, frame, payload_at, size, 0
    )
    if status:
        qp.send_error = status
        return Turn.IDLE.value
    copy_bytes(frame, 0, tables.template[row], 0, TEMPLATE_BYTES)
    window_closes = qp.next_packet + 1 - qp.acked_packets == tables.nic[0].psn_window
    ask = is_last or window_closes or (qp.next_packet + 1) % tables.nic[0].ack_every == 0
    frame[BTH_AT] = opcode
    frame[BTH_AT + 1] = (pad << 4) | ((work.solicited << 7) if is_last else 0)
    frame[BTH_AT + 8] = 0x80 if ask else 0
    psn = psn_add(qp.first_psn, qp.next_packet)
    write_be24(frame, BTH_AT + 9, psn)
    write_be16(frame, ETHERNET_BYTES + 4, psn & 0xFFFF)
    _write_extensions(frame, work, opcode)
    for i in range(payload_at + size, icrc_at):
        frame[i] = 0
    finish_frame(frame, ETHERNET_BYTES, UDP_AT, length)
    queue_commit(data, tables.egress.state[0], at, length, tables.nic[0].now_ps)
    _count_packet(tables, qp, psn, opcode, size, length)
    qp.egress_mark = tables.egress.state[0].enqueued_frames
    qp.next_packet += 1
    qp.sent_packets = max(qp.sent_packets, qp.next_packet)
    if is_last:
        qp.sq_next += 1
    return Turn.MORE.value


@compiled
def _count_packet(tables: NicTables, qp: np.record, psn: int, opcode: int, size: int, length: int) -> None:
    counters = tables.counters[0]
    counters.sent_pkts += 1
    counters.sent_bytes += length
    qp.packets_sent += 1
    if qp.next_packet < qp.sent_packets:
        counters.retransmitted_pkts += 1
        qp.packets_retransmitted += 1
        note(tables, Event.RETRANSMITTED.value, qp.destination_qpn, psn, size, opcode)
    else:
        if OPCODE_ROLES[opcode] & Role.END.value:
            counters.rdma_sends += 1
        note(tables, Event.SENT.value, qp.destination_qpn, psn, size, opcode)


@compiled
def take_turn(tables: NicTables, row: int) -> int:
    """Send up to `TURN_PACKETS` packets of one queue pair. A `Turn`."""
    qp = tables.qp[row]
    outcome = Turn.MORE.value
    for _ in range(TURN_PACKETS):
        if not _may_send(tables, row, qp):
            outcome = Turn.IDLE.value
            break
        outcome = _send_packet(tables, row, qp)
        if outcome != Turn.MORE.value:
            break
    if tables.deadline[row] == NEVER_PS and qp.next_packet > qp.acked_packets:
        tables.deadline[row] = tables.nic[0].now_ps + qp.timeout_ps if qp.timeout_ps else NEVER_PS
    settle(tables, row)
    return outcome


@compiled
def settle(tables: NicTables, row: int) -> None:
    """Report what had to wait until all earlier work requests were done: a local error, a drained send queue."""
    qp = tables.qp[row]
    if qp.sq_retired < qp.sq_next:
        return
    if qp.send_error:
        status, qp.send_error = qp.send_error, 0
        fail_send(tables, row, status)
    elif qp.state == QpState.IBV_QPS_SQD.value and qp.drained == 0 and qp.next_packet == qp.acked_packets:
        qp.drained = 1
        raise_event(tables, EventType.IBV_EVENT_SQ_DRAINED.value, qp.qpn)


@compiled
def handle_timer(tables: NicTables, row: int) -> None:
    """The timer of a queue pair fired: end of an RNR wait, or nobody has acknowledged anything for too long.

    Packets that have not left the port yet, because the cable takes nothing, cannot have been acknowledged: their time
    starts anew.
    """
    qp = tables.qp[row]
    tables.deadline[row] = NEVER_PS
    if qp.rnr_waiting:
        qp.rnr_waiting = 0
        return
    egress = tables.egress.state[0]
    if egress.enqueued_frames - egress.frames < qp.egress_mark:
        tables.deadline[row] = tables.nic[0].now_ps + qp.timeout_ps
        return
    qp.timeouts += 1
    tables.counters[0].local_ack_timeout_err += 1
    note(tables, Event.TIMER_FIRED.value, qp.qpn, psn_add(qp.first_psn, qp.acked_packets), -1, qp.retries_left)
    if qp.retries_left == 0:
        tables.counters[0].retry_exceeded_err += 1
        fail_send(tables, row, WcStatus.IBV_WC_RETRY_EXC_ERR.value)
        return
    qp.retries_left -= 1
    go_back(tables, row)
