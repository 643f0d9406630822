"""Tables of the NIC: one NamedTuple of NumPy records that compiled code and the verbs objects share.

Work queues are rings. Their counters only grow, so `posted - retired` is what is in them, and a slot is the counter
masked by the ring's size. Packets of a queue pair are counted in the same way: packet 0 is the first one ever sent,
with PSN `first_psn`. Only the wire sees 24-bit PSNs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netreduce.compiled import compiled
from netreduce.trace.events import DropReason, EventLog, emit
from netreduce.units import NEVER_PS
from netreduce.wire.frames import FrameQueue, make_queue
from netreduce.wire.icrc import UDP_BYTES
from netreduce.wire.opcodes import BTH_BYTES
from netreduce.wire.packet import ETHERNET_BYTES, IPV4_BYTES, make_packet_table

SGE_MAX = 4
"""Most scatter-gather elements of a work request."""
INLINE_BYTES_MAX = 256
"""Most bytes of an inline send."""
MESSAGE_BYTES_MAX = 1 << 31
"""Longest message (IBA vol. 1, section 9.7.1)."""
TEMPLATE_BYTES = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + BTH_BYTES
"""Bytes of the headers that a queue pair's packets have in common."""
EVENTS_MAX = 64
"""Asynchronous events that wait to be read; older ones are overwritten."""
KEY_INDEX_SHIFT = 8
"""A memory key is the region's row, shifted, and a generation: a stale key finds a row but does not fit."""


class NicLimits(NamedTuple):
    """How much a NIC can hold. Memory is only touched where it is used."""

    queue_pairs: int = 256  # a power of two
    completion_queues: int = 64
    memory_regions: int = 4096
    send_depth: int = 1024  # work requests in one send queue
    receive_depth: int = 1024
    completion_depth: int = 16384
    psn_window: int = 1024  # packets sent and not acknowledged, per queue pair
    ack_every: int = 32  # packets between two that ask for an acknowledgement, inside a message
    egress_bytes: int = 512 * 1024


NIC_FIELDS = (
    "now_ps",  # the latest time told
    "mac",
    "ip",  # IPv4-mapped, as in `Packet.source_ip_low`
    "psn_window",
    "ack_every",
    "ready_head",
    "ready_count",
    "events_written",
    "events_read",
)
QP_FIELDS = (
    "qpn",  # 0: the row is free
    "state",
    "pd",
    "send_cq",
    "receive_cq",
    "access",  # what the peer may do
    "destination_qpn",
    "peer_ip",
    "path_mtu",  # bytes
    "ready",  # 1 while in the ready ring
    # requester
    "sq_depth",
    "sq_mask",
    "sq_posted",
    "sq_retired",
    "sq_next",  # work request whose packets are being sent
    "first_psn",
    "posted_packets",  # packets of all work requests ever posted
    "next_packet",  # the packet to send next
    "sent_packets",  # packets sent at least once; beyond it, nothing may be acknowledged
    "acked_packets",  # packets acknowledged
    "egress_mark",  # frames that had entered the egress queue when the latest packet had
    "send_error",  # status of the work request `sq_next`, which cannot be sent; reported when those before are done
    "timeout_ps",
    "retry_cnt",
    "retries_left",
    "rnr_retry",
    "rnr_retries_left",
    "rnr_waiting",  # 1 while the peer's RNR timer runs
    "drained",  # 1 once the event of an empty send queue was raised in SQD
    # responder
    "rq_depth",
    "rq_mask",
    "rq_posted",
    "rq_retired",
    "expected_psn",
    "msn",
    "operation",  # `Role.SEND` or `Role.WRITE` inside a message, else 0
    "received_bytes",  # of the message so far
    "write_address",
    "write_bytes",  # length that the RETH announced
    "write_key",
    "nak_sent",  # 1 from a NAK until the expected packet has come
    "answer",  # 1 while an ACK or NAK waits to be sent
    "syndrome",  # of that answer
    "min_rnr_timer",
    # figures
    "packets_sent",
    "packets_retransmitted",
    "packets_received",
    "timeouts",
)
SEND_FIELDS = (
    "wr_id",
    "opcode",
    "signaled",
    "solicited",
    "num_sge",
    "length",
    "packets",
    "first_packet",
    "immediate",
    "remote_address",
    "rkey",
)
RECEIVE_FIELDS = ("wr_id", "num_sge", "length")
SGE_FIELDS = ("address", "length", "key")  # key -1: the NIC's own memory, which needs no check
CQ_FIELDS = ("depth", "posted", "polled", "overflowed")  # depth 0: the row is free
CQE_FIELDS = ("wr_id", "status", "opcode", "byte_len", "imm_data", "qp_num", "src_qp", "wc_flags")
MR_FIELDS = ("key", "address", "length", "access", "pd", "valid")
EVENT_ROW_FIELDS = ("kind", "element")
COUNTER_FIELDS = (
    # mlx5's names, then rxe's, then our own
    "rx_write_requests",
    "rx_read_requests",
    "rx_atomic_requests",
    "rx_icrc_encapsulated",  # bad ICRC
    "out_of_sequence",  # packets beyond the expected one
    "out_of_buffer",  # no receive work request: an RNR NAK went out
    "duplicate_request",
    "packet_seq_err",  # sequence NAKs received
    "rnr_nak_retry_err",  # RNR NAKs received
    "local_ack_timeout_err",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_invalid_request",
    "req_remote_access_errors",
    "np_ecn_marked_roce_packets",
    "rp_cnp_ignored",
    "sent_pkts",
    "rcvd_pkts",
    "sent_bytes",
    "rcvd_bytes",
    "rdma_sends",  # messages
    "rdma_recvs",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "retransmitted_pkts",
    "acks_sent",
    "naks_sent",
    "cq_overflow",  # completions that found their queue full
)


def _dtype(fields: tuple[str, ...]) -> np.dtype:
    return np.dtype([(name, np.int64) for name in fields])


QP = _dtype(QP_FIELDS)
SEND_WQE = _dtype(SEND_FIELDS)
RECEIVE_WQE = _dtype(RECEIVE_FIELDS)
SGE_ROW = _dtype(SGE_FIELDS)
CQE = _dtype(CQE_FIELDS)


class NicTables(NamedTuple):
    """All state of one NIC. Records unless said otherwise; the index is the row."""

    nic: np.ndarray  # one row
    qp: np.ndarray  # [queue pair]; a QPN's row is its low bits
    deadline: np.ndarray  # int64[queue pair]: when its one timer fires
    ready: np.ndarray  # int64[queue pair]: ring of the rows that have something to send
    template: np.ndarray  # uint8[queue pair, TEMPLATE_BYTES]
    sq: np.ndarray  # [queue pair, slot]
    sq_sge: np.ndarray  # [queue pair, slot, element]
    rq: np.ndarray  # [queue pair, slot]
    rq_sge: np.ndarray  # [queue pair, slot, element]
    cq: np.ndarray  # [completion queue]
    cqe: np.ndarray  # [completion queue, slot]
    mr: np.ndarray  # [memory region]
    events: np.ndarray  # [EVENTS_MAX]: ring of asynchronous events
    counters: np.ndarray  # one row
    drops: np.ndarray  # int64[drop reason]
    packet: np.ndarray  # one row: the packet being parsed
    egress: FrameQueue
    log: EventLog


def make_tables(limits: NicLimits, mac: int, ip: int, log: EventLog) -> NicTables:
    """Empty tables; `mac` as a number, `ip` as an IPv4-mapped low half."""

    def table(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.zeros(shape, dtype).view(np.recarray)

    rows = limits.queue_pairs
    assert rows & (rows - 1) == 0
    tables = NicTables(
        nic=table(1, _dtype(NIC_FIELDS)),
        qp=table(rows, QP),
        deadline=np.full(rows, NEVER_PS, np.int64),
        ready=np.zeros(rows, np.int64),
        template=np.zeros((rows, TEMPLATE_BYTES), np.uint8),
        sq=table((rows, limits.send_depth), SEND_WQE),
        sq_sge=table((rows, limits.send_depth, SGE_MAX), SGE_ROW),
        rq=table((rows, limits.receive_depth), RECEIVE_WQE),
        rq_sge=table((rows, limits.receive_depth, SGE_MAX), SGE_ROW),
        cq=table(limits.completion_queues, _dtype(CQ_FIELDS)),
        cqe=table((limits.completion_queues, limits.completion_depth), CQE),
        mr=table(limits.memory_regions, _dtype(MR_FIELDS)),
        events=table(EVENTS_MAX, _dtype(EVENT_ROW_FIELDS)),
        counters=table(1, _dtype(COUNTER_FIELDS)),
        drops=np.zeros(len(DropReason) + 1, np.int64),
        packet=make_packet_table(),
        egress=make_queue(limits.egress_bytes),
        log=log,
    )
    nic = tables.nic[0]
    nic.mac, nic.ip = mac, ip
    nic.psn_window, nic.ack_every = limits.psn_window, limits.ack_every
    return tables


def plain(table: np.ndarray) -> np.ndarray:
    """The same memory as an ordinary structured array: reading a field of its rows takes 0.1 us, of a recarray's 1."""
    return table.view(_dtype(table.dtype.names), np.ndarray)


def words(table: np.ndarray) -> memoryview:
    """The same memory as int64 words, row after row: reading one takes a fifth of reading a field of a plain row."""
    return table.view(np.ndarray).reshape(-1).view(np.int64).data


@compiled
def note(tables: NicTables, kind: int, qpn: int, psn: int, length_bytes: int, detail: int) -> None:
    """Write one event of the data path, if logging is on."""
    if tables.log.state[0].enabled:
        emit(tables.log, tables.nic[0].now_ps, kind, 0, qpn, psn, -1, -1, -1, -1, length_bytes, detail)


@compiled
def make_ready(tables: NicTables, row: int) -> None:
    """Put a queue pair into the ring of those that may have something to send."""
    qp = tables.qp[row]
    if qp.ready:
        return
    qp.ready = 1
    nic = tables.nic[0]
    tables.ready[(nic.ready_head + nic.ready_count) & (tables.ready.size - 1)] = row
    nic.ready_count += 1


@compiled
def raise_event(tables: NicTables, kind: int, element: int) -> None:
    """Queue an asynchronous event; `element` is a QPN or a completion queue's row."""
    nic = tables.nic[0]
    event = tables.events[nic.events_written % EVENTS_MAX]
    event.kind = kind
    event.element = element
    nic.events_written += 1
