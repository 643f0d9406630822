"""Completion queues, and the error state that flushes all work (IBA vol. 1, sections 10.3.1 and 11.6)."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled
from netreduce.nic.enums import EventType, QpState, WcFlag, WcOpcode, WcStatus
from netreduce.nic.tables import NicTables, make_ready, note, raise_event
from netreduce.trace.events import Event
from netreduce.units import NEVER_PS

COMPLETION_OPCODES = np.array(
    [
        WcOpcode.IBV_WC_RDMA_WRITE,
        WcOpcode.IBV_WC_RDMA_WRITE,
        WcOpcode.IBV_WC_SEND,
        WcOpcode.IBV_WC_SEND,
    ],
    np.int64,
)
"""`WcOpcode` by `WrOpcode`. int64[4]."""


@compiled
def push_completion(
    tables: NicTables,
    row: int,
    cq_row: int,
    wr_id: int,
    status: int,
    opcode: int,
    byte_len: int,
    immediate: int,
    flags: int,
) -> None:
    """Append a completion of queue pair `row`.

    In a full queue it is lost. Then the completion queue is broken for good and says so, and the queue pair fails.
    """
    cq = tables.cq[cq_row]
    qp = tables.qp[row]
    note(tables, Event.COMPLETED.value, qp.qpn, -1, byte_len, status)
    if cq.posted - cq.polled >= cq.depth:
        tables.counters[0].cq_overflow += 1
        if cq.overflowed == 0:
            cq.overflowed = 1
            raise_event(tables, EventType.IBV_EVENT_CQ_ERR.value, cq_row)
        if qp.state != QpState.IBV_QPS_ERR.value:
            raise_event(tables, EventType.IBV_EVENT_QP_FATAL.value, qp.qpn)
            qp.state = QpState.IBV_QPS_ERR.value
            make_ready(tables, row)  # `advance` flushes
        return
    completion = tables.cqe[cq_row, cq.posted % cq.depth]
    completion.wr_id = wr_id
    completion.status = status
    completion.opcode = opcode
    completion.byte_len = byte_len
    completion.imm_data = immediate
    completion.qp_num = qp.qpn
    completion.src_qp = qp.destination_qpn
    completion.wc_flags = flags
    cq.posted += 1


@compiled
def retire_send(tables: NicTables, row: int, status: int) -> None:
    """Take the oldest work request off the send queue, with a completion if it asked for one or failed."""
    qp = tables.qp[row]
    work = tables.sq[row, qp.sq_retired & qp.sq_mask]
    qp.sq_retired += 1
    if status == WcStatus.IBV_WC_WR_FLUSH_ERR.value:
        tables.counters[0].req_cqe_flush_error += 1
    elif status != WcStatus.IBV_WC_SUCCESS.value:
        tables.counters[0].req_cqe_error += 1
    elif work.signaled == 0:
        return
    opcode = COMPLETION_OPCODES[work.opcode]
    push_completion(tables, row, qp.send_cq, work.wr_id, status, opcode, work.length, 0, 0)


@compiled
def retire_receive(tables: NicTables, row: int, status: int, opcode: int, byte_len: int, immediate: int) -> None:
    """Take the oldest work request off the receive queue, with a completion; `immediate` is -1 if there is none."""
    qp = tables.qp[row]
    work = tables.rq[row, qp.rq_retired & qp.rq_mask]
    qp.rq_retired += 1
    if status == WcStatus.IBV_WC_WR_FLUSH_ERR.value:
        tables.counters[0].resp_cqe_flush_error += 1
    elif status != WcStatus.IBV_WC_SUCCESS.value:
        tables.counters[0].resp_cqe_error += 1
    flags = WcFlag.IBV_WC_WITH_IMM.value if immediate >= 0 else 0
    push_completion(tables, row, qp.receive_cq, work.wr_id, status, opcode, byte_len, max(immediate, 0), flags)


@compiled
def enter_error(tables: NicTables, row: int) -> None:
    """Move a queue pair to ERR: its timer stops, all work completes with IBV_WC_WR_FLUSH_ERR, in order."""
    qp = tables.qp[row]
    qp.state = QpState.IBV_QPS_ERR.value
    qp.operation = 0
    tables.deadline[row] = NEVER_PS
    while qp.sq_retired < qp.sq_posted:
        retire_send(tables, row, WcStatus.IBV_WC_WR_FLUSH_ERR.value)
    qp.sq_next = qp.sq_posted
    while qp.rq_retired < qp.rq_posted:
        retire_receive(tables, row, WcStatus.IBV_WC_WR_FLUSH_ERR.value, WcOpcode.IBV_WC_RECV.value, 0, -1)


@compiled
def fail_send(tables: NicTables, row: int, status: int) -> None:
    """Complete the oldest work request with an error; everything behind it is flushed."""
    retire_send(tables, row, status)
    enter_error(tables, row)
