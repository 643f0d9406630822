"""The responder: what arrives is checked, executed, completed and answered (IBA vol. 1, section 9.7.3 to 9.7.5, 9.9.3).

A packet passes a chain of small checks. The first that fails gives a `Refusal`, and one table says what becomes of it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.compiled import compiled, copy_bytes, memory_at
from netreduce.nic.completions import enter_error, retire_receive
from netreduce.nic.drops import drop
from netreduce.nic.enums import AccessFlag, EventType, QpState, WcOpcode, WcStatus
from netreduce.nic.memory import copy_elements, may_access
from netreduce.nic.requester import BTH_AT, UDP_AT
from netreduce.nic.tables import MESSAGE_BYTES_MAX, TEMPLATE_BYTES, NicTables, make_ready, note, raise_event
from netreduce.trace.events import DropReason, Event
from netreduce.wire.aeth import AckKind, Syndrome
from netreduce.wire.bigendian import write_be24
from netreduce.wire.frames import RECORD_HEADER_BYTES, queue_commit, queue_reserve
from netreduce.wire.opcodes import AETH_BYTES, BTH_BYTES, ICRC_BYTES, Opcode, Role
from netreduce.wire.packet import ETHERNET_BYTES, finish_frame
from netreduce.wire.psn import psn_add, psn_distance

ANSWER_BYTES = BTH_AT + BTH_BYTES + AETH_BYTES + ICRC_BYTES


class Refusal(IntEnum):
    """Why a packet at the expected PSN is not executed."""

    NONE = 0
    NOT_READY = 1  # no receive work request
    INVALID_REQUEST = 2
    REMOTE_ACCESS = 3
    TOO_LONG = 4  # for the receive work request
    PROTECTION = 5  # a receive element's key does not open its memory


FATAL = np.zeros((6, 3), np.int64)
"""By `Refusal`: NAK syndrome, status of the receive work request in use, asynchronous event. int64[6, 3]."""
FATAL[Refusal.INVALID_REQUEST] = (
    Syndrome.NAK_INVALID_REQUEST,
    WcStatus.IBV_WC_REM_INV_REQ_ERR,
    EventType.IBV_EVENT_QP_REQ_ERR,
)
FATAL[Refusal.REMOTE_ACCESS] = (
    Syndrome.NAK_REMOTE_ACCESS_ERROR,
    WcStatus.IBV_WC_WR_FLUSH_ERR,
    EventType.IBV_EVENT_QP_ACCESS_ERR,
)
FATAL[Refusal.TOO_LONG] = (Syndrome.NAK_INVALID_REQUEST, WcStatus.IBV_WC_LOC_LEN_ERR, EventType.IBV_EVENT_QP_FATAL)
FATAL[Refusal.PROTECTION] = (
    Syndrome.NAK_REMOTE_OPERATIONAL_ERROR,
    WcStatus.IBV_WC_LOC_PROT_ERR,
    EventType.IBV_EVENT_QP_FATAL,
)


@compiled
def _ask_for_answer(tables: NicTables, row: int, syndrome: int) -> None:
    qp = tables.qp[row]
    qp.answer = 1
    qp.syndrome = syndrome
    make_ready(tables, row)


@compiled
def take_request(tables: NicTables, row: int, frame: np.ndarray, packet: np.record) -> None:
    """Process a request packet for queue pair `row`."""
    qp = tables.qp[row]
    state = qp.state
    if state != QpState.IBV_QPS_RTR.value and state != QpState.IBV_QPS_RTS.value and state != QpState.IBV_QPS_SQD.value:
        drop(tables, DropReason.QP_STATE.value, qp.qpn, packet.psn)
        return
    if packet.psn != qp.expected_psn:
        _take_unexpected(tables, row, packet)
        return
    refusal = _check_sequence(qp, packet)
    if refusal == Refusal.NONE.value:
        refusal = _check_length(qp, packet)
    if refusal == Refusal.NONE.value:
        refusal = _check_receive(tables, row, packet)
    if refusal == Refusal.NONE.value:
        refusal = _check_rkey(tables, qp, packet)
    if refusal == Refusal.NONE.value:
        refusal = _execute(tables, row, frame, packet)
    if refusal == Refusal.NONE.value:
        _accept(tables, row, packet)
    elif refusal == Refusal.NOT_READY.value:
        tables.counters[0].out_of_buffer += 1
        qp.nak_sent = 1  # what follows is out of sequence, and the sender knows
        _ask_for_answer(tables, row, AckKind.RNR_NAK.value | qp.min_rnr_timer)
    else:
        _refuse(tables, row, refusal)


@compiled
def _take_unexpected(tables: NicTables, row: int, packet: np.record) -> None:
    """Before the expected PSN: a duplicate, acknowledged again. After it: a gap, which draws one NAK."""
    qp = tables.qp[row]
    if psn_distance(packet.psn, qp.expected_psn) < 0:
        tables.counters[0].duplicate_request += 1
        drop(tables, DropReason.DUPLICATE.value, qp.qpn, packet.psn)
        if qp.answer == 0:
            _ask_for_answer(tables, row, Syndrome.ACK.value)
        return
    tables.counters[0].out_of_sequence += 1
    drop(tables, DropReason.OUT_OF_SEQUENCE.value, qp.qpn, packet.psn)
    if qp.nak_sent == 0:
        qp.nak_sent = 1
        _ask_for_answer(tables, row, Syndrome.NAK_PSN_SEQUENCE_ERROR.value)


@compiled
def _check_sequence(qp: np.record, packet: np.record) -> int:
    """The opcode must begin a message between messages, and go on with it within one."""
    operation = packet.roles & (Role.SEND.value | Role.WRITE.value)
    if operation == 0 or packet.roles & Role.INVALIDATE.value:
        return Refusal.INVALID_REQUEST.value  # reads, atomics and invalidation are not supported
    begun = 0 if packet.roles & Role.START.value else operation
    return Refusal.NONE.value if qp.operation == begun else Refusal.INVALID_REQUEST.value


@compiled
def _check_length(qp: np.record, packet: np.record) -> int:
    """Full packets up to the last; RDMA WRITE as long as its RETH says."""
    size, roles = packet.payload_bytes, packet.roles
    starts, ends = roles & Role.START.value != 0, roles & Role.END.value != 0
    if size > qp.path_mtu or (not ends and size < qp.path_mtu) or (ends and not starts and size == 0):
        return Refusal.INVALID_REQUEST.value
    if roles & Role.WRITE.value:
        rest = (packet.dma_length if starts else qp.write_bytes - qp.received_bytes) - size
        if rest < 0 or (rest == 0) != ends or (starts and packet.dma_length > MESSAGE_BYTES_MAX):
            return Refusal.INVALID_REQUEST.value
    return Refusal.NONE.value


@compiled
def _check_receive(tables: NicTables, row: int, packet: np.record) -> int:
    """SEND and immediate data need a receive work request, SEND one that is long enough."""
    qp = tables.qp[row]
    roles = packet.roles
    if roles & (Role.SEND.value | Role.IMMEDIATE.value) == 0:
        return Refusal.NONE.value
    if qp.rq_retired == qp.rq_posted:
        return Refusal.NOT_READY.value
    received = 0 if roles & Role.START.value else qp.received_bytes
    if roles & Role.SEND.value and received + packet.payload_bytes > tables.rq[row, qp.rq_retired & qp.rq_mask].length:
        return Refusal.TOO_LONG.value
    return Refusal.NONE.value


@compiled
def _check_rkey(tables: NicTables, qp: np.record, packet: np.record) -> int:
    """An RDMA WRITE needs a key to all of its memory. One of zero bytes touches none, so its key does not matter."""
    if packet.roles & Role.RETH.value == 0 or packet.dma_length == 0:
        return Refusal.NONE.value
    access = AccessFlag.IBV_ACCESS_REMOTE_WRITE.value
    if qp.access & access and may_access(tables, qp.pd, packet.rkey, packet.remote_address, packet.dma_length, access):
        return Refusal.NONE.value
    return Refusal.REMOTE_ACCESS.value


@compiled
def _execute(tables: NicTables, row: int, frame: np.ndarray, packet: np.record) -> int:
    """Copy the payload to its place."""
    qp = tables.qp[row]
    size = packet.payload_bytes
    if packet.roles & Role.START.value:
        qp.received_bytes = 0
        if packet.roles & Role.WRITE.value:
            qp.write_address = packet.remote_address
            qp.write_bytes = packet.dma_length
            qp.write_key = packet.rkey
    if size == 0:
        return Refusal.NONE.value
    if packet.roles & Role.SEND.value:
        slot = qp.rq_retired & qp.rq_mask
        elements, count = tables.rq_sge[row, slot], tables.rq[row, slot].num_sge
        access = AccessFlag.IBV_ACCESS_LOCAL_WRITE.value
        offset, at = qp.received_bytes, packet.payload_at
        if copy_elements(tables, qp.pd, elements, count, offset, frame, at, size, access):
            return Refusal.PROTECTION.value
        return Refusal.NONE.value
    address = qp.write_address + qp.received_bytes
    if not may_access(tables, qp.pd, qp.write_key, address, size, AccessFlag.IBV_ACCESS_REMOTE_WRITE.value):
        return Refusal.REMOTE_ACCESS.value  # deregistered since the first packet
    copy_bytes(memory_at(address, size), 0, frame, packet.payload_at, size)
    return Refusal.NONE.value


@compiled
def _accept(tables: NicTables, row: int, packet: np.record) -> None:
    """The packet was executed: complete its message if it was the last, and acknowledge if asked."""
    qp = tables.qp[row]
    roles = packet.roles
    qp.expected_psn = psn_add(packet.psn, 1)
    qp.received_bytes += packet.payload_bytes
    qp.packets_received += 1
    qp.operation = roles & (Role.SEND.value | Role.WRITE.value)
    note(tables, Event.RECEIVED.value, qp.qpn, packet.psn, packet.payload_bytes, packet.opcode)
    if packet.ack_request or qp.nak_sent:  # a NAK that still waits to be sent is settled
        _ask_for_answer(tables, row, Syndrome.ACK.value)
        qp.nak_sent = 0
    if roles & Role.END.value == 0:
        return
    qp.operation = 0
    qp.msn = (qp.msn + 1) & 0xFFFFFF
    if roles & Role.WRITE.value:
        tables.counters[0].rx_write_requests += 1
    if roles & (Role.SEND.value | Role.IMMEDIATE.value):
        tables.counters[0].rdma_recvs += 1
        is_send = roles & Role.SEND.value
        opcode = WcOpcode.IBV_WC_RECV.value if is_send else WcOpcode.IBV_WC_RECV_RDMA_WITH_IMM.value
        immediate = packet.immediate if roles & Role.IMMEDIATE.value else -1
        retire_receive(tables, row, WcStatus.IBV_WC_SUCCESS.value, opcode, qp.received_bytes, immediate)


@compiled
def _refuse(tables: NicTables, row: int, refusal: int) -> None:
    """A fatal error: NAK, an event, and the queue pair goes to ERR."""
    qp = tables.qp[row]
    if refusal == Refusal.TOO_LONG.value:
        tables.counters[0].resp_local_length_error += 1
    elif refusal == Refusal.REMOTE_ACCESS.value:
        tables.counters[0].resp_remote_access_errors += 1
    _ask_for_answer(tables, row, FATAL[refusal, 0])
    raise_event(tables, FATAL[refusal, 2], qp.qpn)
    is_in_use = qp.operation == Role.SEND.value or refusal >= Refusal.TOO_LONG.value
    if is_in_use and qp.rq_retired < qp.rq_posted:
        retire_receive(tables, row, FATAL[refusal, 1], WcOpcode.IBV_WC_RECV.value, 0, -1)
    enter_error(tables, row)


@compiled
def send_answer(tables: NicTables, row: int) -> bool:
    """Put the ACK or NAK that queue pair `row` owes into the egress queue; False if there is no room.

    An ACK carries the last PSN executed, a NAK the expected one; either acknowledges all before.
    """
    qp = tables.qp[row]
    data = tables.egress.data
    at = queue_reserve(data, tables.egress.state[0], ANSWER_BYTES)
    if at < 0:
        return False
    is_ack = qp.syndrome == Syndrome.ACK.value
    psn = psn_add(qp.expected_psn, -1 if is_ack else 0)
    frame = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + ANSWER_BYTES]
    copy_bytes(frame, 0, tables.template[row], 0, TEMPLATE_BYTES)
    frame[BTH_AT] = Opcode.ACKNOWLEDGE.value
    write_be24(frame, BTH_AT + 9, psn)
    frame[BTH_AT + BTH_BYTES] = qp.syndrome
    write_be24(frame, BTH_AT + BTH_BYTES + 1, qp.msn)
    finish_frame(frame, ETHERNET_BYTES, UDP_AT, ANSWER_BYTES)
    queue_commit(data, tables.egress.state[0], at, ANSWER_BYTES, tables.nic[0].now_ps)
    qp.answer = 0
    tables.counters[0].sent_pkts += 1
    tables.counters[0].sent_bytes += ANSWER_BYTES
    if is_ack:
        tables.counters[0].acks_sent += 1
        note(tables, Event.ACK_SENT.value, qp.destination_qpn, psn, -1, qp.syndrome)
    else:
        tables.counters[0].naks_sent += 1
        note(tables, Event.NAK_SENT.value, qp.destination_qpn, psn, -1, qp.syndrome)
    return True
