"""The completer: what the requester learns from the peer's answers (IBA vol. 1, sections 9.7.5 and 9.9.2)."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled
from netreduce.nic.completions import fail_send, retire_send
from netreduce.nic.drops import drop
from netreduce.nic.enums import QpState, WcStatus
from netreduce.nic.requester import go_back, settle
from netreduce.nic.tables import NicTables, make_ready, note
from netreduce.trace.events import DropReason, Event
from netreduce.units import NEVER_PS
from netreduce.wire.aeth import AETH_VALUE_MASK, RNR_TIMER_PS, AckKind, Syndrome
from netreduce.wire.opcodes import Opcode
from netreduce.wire.psn import psn_add, psn_distance

NAK_STATUSES = np.zeros(256, np.int64)
"""Status with which a fatal NAK completes the work request, by syndrome; 0 for all others. int64[256]."""
NAK_STATUSES[Syndrome.NAK_INVALID_REQUEST] = WcStatus.IBV_WC_REM_INV_REQ_ERR
NAK_STATUSES[Syndrome.NAK_REMOTE_ACCESS_ERROR] = WcStatus.IBV_WC_REM_ACCESS_ERR
NAK_STATUSES[Syndrome.NAK_REMOTE_OPERATIONAL_ERROR] = WcStatus.IBV_WC_REM_OP_ERR

RETRY_FOR_EVER = 7
"""The value of rnr_retry that has no end (IBA vol. 1, section 9.7.5.2.8)."""


@compiled
def acknowledge(tables: NicTables, row: int, count: int) -> bool:
    """All packets before packet `count` have arrived. Whether that was news."""
    qp = tables.qp[row]
    if count <= qp.acked_packets:
        return False
    qp.acked_packets = count
    qp.retries_left = qp.retry_cnt
    qp.rnr_retries_left = qp.rnr_retry
    qp.rnr_waiting = 0
    while qp.sq_retired < qp.sq_posted:
        work = tables.sq[row, qp.sq_retired & qp.sq_mask]
        if work.first_packet + work.packets > count:
            break
        retire_send(tables, row, WcStatus.IBV_WC_SUCCESS.value)
        if qp.state == QpState.IBV_QPS_ERR.value:  # the completion queue overflowed
            return True
    if qp.next_packet < count:  # acknowledged while sending had gone back behind it
        go_back(tables, row)
    tables.deadline[row] = NEVER_PS
    if qp.next_packet > count and qp.timeout_ps:
        tables.deadline[row] = tables.nic[0].now_ps + qp.timeout_ps
    make_ready(tables, row)
    settle(tables, row)
    return True


@compiled
def _repeat(tables: NicTables, row: int, is_news: bool) -> None:
    """The peer saw a gap: send again what is unacknowledged. Costs a retry unless something arrived since the last.

    A copy of a NAK that finds nothing sent again yet says nothing new: a network that copies frames costs no retries.
    """
    qp = tables.qp[row]
    if qp.rnr_waiting:
        return
    if qp.next_packet == qp.acked_packets:
        drop(tables, DropReason.DUPLICATE.value, qp.qpn, psn_add(qp.first_psn, qp.acked_packets))
        return
    tables.counters[0].packet_seq_err += 1
    if not is_news:
        if qp.retries_left == 0:
            tables.counters[0].retry_exceeded_err += 1
            fail_send(tables, row, WcStatus.IBV_WC_RETRY_EXC_ERR.value)
            return
        qp.retries_left -= 1
    go_back(tables, row)
    tables.deadline[row] = NEVER_PS
    make_ready(tables, row)


@compiled
def _wait(tables: NicTables, row: int, timer: int) -> None:
    """The peer has no receive work request: wait as long as it says, then send again."""
    qp = tables.qp[row]
    if qp.rnr_waiting:
        return
    tables.counters[0].rnr_nak_retry_err += 1
    if qp.rnr_retry != RETRY_FOR_EVER:
        if qp.rnr_retries_left == 0:
            tables.counters[0].retry_rnr_exceeded_err += 1
            fail_send(tables, row, WcStatus.IBV_WC_RNR_RETRY_EXC_ERR.value)
            return
        qp.rnr_retries_left -= 1
    qp.retries_left = qp.retry_cnt  # the peer lives
    go_back(tables, row)
    qp.rnr_waiting = 1
    tables.deadline[row] = tables.nic[0].now_ps + RNR_TIMER_PS[timer]


@compiled
def take_answer(tables: NicTables, row: int, packet: np.record) -> None:
    """Process an ACK or NAK for queue pair `row`."""
    qp = tables.qp[row]
    if qp.state != QpState.IBV_QPS_RTS.value and qp.state != QpState.IBV_QPS_SQD.value:
        drop(tables, DropReason.QP_STATE.value, qp.qpn, packet.psn)
        return
    if packet.opcode != Opcode.ACKNOWLEDGE.value:
        drop(tables, DropReason.UNSUPPORTED.value, qp.qpn, packet.psn)
        return
    number = qp.acked_packets + psn_distance(packet.psn, psn_add(qp.first_psn, qp.acked_packets))
    if number >= qp.sent_packets:  # a ghost: it answers what was never sent
        drop(tables, DropReason.OUT_OF_SEQUENCE.value, qp.qpn, packet.psn)
        return
    kind = packet.syndrome & ~AETH_VALUE_MASK  # with bit 7, which is reserved: an ACK has it 0
    if kind == AckKind.ACK.value:
        note(tables, Event.ACK_RECEIVED.value, qp.qpn, packet.psn, -1, packet.syndrome)
        acknowledge(tables, row, number + 1)
        return
    note(tables, Event.NAK_RECEIVED.value, qp.qpn, packet.psn, -1, packet.syndrome)
    if number < qp.acked_packets:
        drop(tables, DropReason.DUPLICATE.value, qp.qpn, packet.psn)
        return
    is_news = acknowledge(tables, row, number)  # a NAK acknowledges everything before it
    if qp.state == QpState.IBV_QPS_ERR.value:
        return
    if kind == AckKind.RNR_NAK.value:
        _wait(tables, row, packet.syndrome & AETH_VALUE_MASK)
    elif packet.syndrome == Syndrome.NAK_PSN_SEQUENCE_ERROR.value:
        _repeat(tables, row, is_news)
    elif NAK_STATUSES[packet.syndrome] != 0:
        _count_fatal(tables, packet.syndrome)
        fail_send(tables, row, NAK_STATUSES[packet.syndrome])
    else:
        drop(tables, DropReason.UNSUPPORTED.value, qp.qpn, packet.psn)


@compiled
def _count_fatal(tables: NicTables, syndrome: int) -> None:
    if NAK_STATUSES[syndrome] == WcStatus.IBV_WC_REM_INV_REQ_ERR.value:
        tables.counters[0].req_remote_invalid_request += 1
    elif NAK_STATUSES[syndrome] == WcStatus.IBV_WC_REM_ACCESS_ERR.value:
        tables.counters[0].req_remote_access_errors += 1
