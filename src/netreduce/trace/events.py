"""The catalogue of data-path events, and the bounded log that nodes write them into.

Every step of the data path can emit one event. The viewer, `examples/one_gradient.py`, tests and error messages read
this one stream. Logging is off unless `enable` was called; then an event costs one row.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from netreduce.compiled import compiled


class Event(IntEnum):
    """What happened. The fields of a row that do not apply are -1."""

    POSTED = 1  # a work request entered the send queue: qpn, bytes
    SENT = 2  # a NIC put a packet into its egress queue: qpn (destination), psn, bytes, detail = opcode
    RETRANSMITTED = 3  # the same, for a packet that was sent before
    RECEIVED = 4  # a NIC took an in-order packet: qpn (own), psn, bytes, detail = opcode
    ACK_SENT = 5  # qpn (destination), psn, detail = AETH syndrome; a NAK has its own code
    NAK_SENT = 6
    ACK_RECEIVED = 7  # qpn (own), psn, detail = AETH syndrome
    NAK_RECEIVED = 8
    TIMER_FIRED = 9  # a retransmission timer: qpn, psn of the oldest unacknowledged packet
    COMPLETED = 10  # a completion entered a completion queue: qpn, bytes, detail = verbs status
    DROPPED = 11  # detail = `DropReason`
    FORWARDED = 12  # the switch passed a frame unchanged: port (egress)
    FLOODED = 13  # the switch sent a frame to all other ports
    CLT_FILLED = 14  # a first packet named its message: ring, rank, message, psn
    CLT_HIT = 15  # a packet was resolved to its slot: ring, rank, message, slot, psn
    SLOT_FILLED = 16  # a rank's payload was stored: ring, rank, message, slot, bytes, detail = bitmap
    SUMMED = 17  # all ranks present, the sum leaves for the first time: ring, message, slot, bytes
    SPLICED = 18  # a connection's frame left with the sum inside: ring, rank (connection), message, slot, psn, port
    REPLAYED = 19  # a complete slot was sent again on one connection: as SPLICED
    STALE_PASSED = 20  # a replay older than the slot's message went on unchanged: ring, rank, psn
    RNR_SENT = 21  # the switch told a waiting sender to wait: ring, rank, psn
    MISMATCHED = 22  # ranks disagree about a message: ring, rank, message, detail = the first rank seen
    CNP_RECEIVED = 23  # a congestion notification for qpn (own)


class DropReason(IntEnum):
    """Why a frame was dropped. Each reason has a counter of the same name, in lower case, behind ``drop_``."""

    TRUNCATED = 1
    BAD_LENGTH = 2
    BAD_HEADER = 3
    UNKNOWN_OPCODE = 4
    BAD_PADDING = 5
    BAD_ICRC = 6
    NOT_FOR_ME = 7  # NIC: other MAC, IP address or no such queue pair
    QP_STATE = 8  # NIC: the queue pair is not ready to receive
    BAD_P_KEY = 9
    OUT_OF_SEQUENCE = 10  # NIC: a gap before this packet; switch: its message's first packet or its parts are missing
    DUPLICATE = 11
    QUEUE_FULL = 12
    UNSUPPORTED = 13
    WRONG_PORT = 14  # switch: the source address belongs to another port
    BAD_INA_HEADER = 15  # switch: ring, rank, version, length or window do not fit the connection
    MISMATCH = 16  # switch: ranks disagree about the message
    BAD_PACKET_LENGTH = 17  # switch: payload length does not fit the packet's place in its message
    RING_FAILED = 18  # switch: the ring was failed or removed
    HELD = 19  # switch: a copy of a packet that is already held
    HOP_LIMIT = 20  # router: TTL or hop limit is used up
    NO_NEXT_HOP = 21  # router: the destination's next hop is not known yet, or there is none


EVENT_FIELDS = (
    "time_ps",
    "kind",
    "port",
    "qpn",
    "psn",
    "ring_id",
    "rank",
    "message_id",
    "slot",  # relative PSN of the packet in its message
    "bytes",
    "detail",
)
EVENT = np.dtype([(name, np.int64) for name in EVENT_FIELDS])
LOG_STATE = np.dtype([("enabled", np.int64), ("written", np.int64)])


class EventLog(NamedTuple):
    """The last `rows.size` events of one node: `rows` recarray of `EVENT`, `state` one row of `LOG_STATE`."""

    rows: np.ndarray
    state: np.ndarray


def make_event_log(capacity: int = 1) -> EventLog:
    """An event log that keeps the last `capacity` events; it stays off until `enable`."""
    return EventLog(np.zeros(capacity, EVENT).view(np.recarray), np.zeros(1, LOG_STATE).view(np.recarray))


def enable(log: EventLog) -> None:
    """Start logging."""
    log.state[0].enabled = 1


def drain(log: EventLog) -> tuple[np.ndarray, int]:
    """The events since the last call, oldest first (recarray of `EVENT`), and how many older ones were overwritten."""
    written, capacity = int(log.state[0].written), log.rows.size
    kept = min(written, capacity)
    order = np.arange(written - kept, written) % capacity
    log.state[0].written = 0
    return log.rows[order], written - kept


@compiled
def _write(
    log: EventLog,
    time_ps: int,
    kind: int,
    port: int,
    qpn: int,
    psn: int,
    ring_id: int,
    rank: int,
    message_id: int,
    slot: int,
    length_bytes: int,
    detail: int,
) -> None:
    state = log.state[0]
    row = log.rows[state.written % log.rows.size]
    state.written += 1
    row.time_ps = time_ps
    row.kind = kind
    row.port = port
    row.qpn = qpn
    row.psn = psn
    row.ring_id = ring_id
    row.rank = rank
    row.message_id = message_id
    row.slot = slot
    row.bytes = length_bytes
    row.detail = detail


@compiled
def emit(
    log: EventLog,
    time_ps: int,
    kind: int,
    port: int,
    qpn: int,
    psn: int,
    ring_id: int,
    rank: int,
    message_id: int,
    slot: int,
    length_bytes: int,
    detail: int,
) -> None:
    """Write one event, if logging is on. Pass -1 for what does not apply.

    Two functions, so that a caller has only the test inlined: passing all arguments costs more than most steps of a
    packet.
    """
    if log.state[0].enabled != 0:
        _write(log, time_ps, kind, port, qpn, psn, ring_id, rank, message_id, slot, length_bytes, detail)
