"""Every table of the switch: what it knows of ports, addresses, rings, connections, messages and packets.

All rings share statically sized pools; a ring takes contiguous ranges of them (see registry.py) and gives them back.
The per-packet code is free functions over these tables. The four arrays of the paper's FPGA are here as well: State
Record (`slots`), Header Buffer and Payload Buffer (`held`, `buffers`), Aggregation Value (results in `buffers`).

A ring of P ranks with N messages in flight has ``2 N`` *messages* here, each of up to `message_packets` *slots* (one
per packet of the message), each with P *copies* (one per connection). Rows of `held` are in the order of message,
connection, slot. The ring's range of `buffers` has ``HEADER_ROOM + path_mtu`` bytes for each copy: first the headers of
all copies, then the *results* of all slots, then *places* for payloads that wait for the last one. The last payload of
a slot goes into the sum from where it arrived, so a slot needs one place less than it has ranks.

Where only part of a ring meets, its connections are those whose data this switch sums, *children*, and behind them the
one that enters from above with the total; translation.py says how the two become *outflows*.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netreduce.compiled import CACHE_LINE_BYTES
from netreduce.switch.checksum import make_shift
from netreduce.trace.events import DropReason, EventLog
from netreduce.wire.control import PATH_MTUS
from netreduce.wire.packet import make_packet_table

MESSAGES_MAX = 128
"""Most messages a ring can hold: twice the largest message window."""
PATH_MTU_MAX = PATH_MTUS[-1]
HEADER_ROOM = 192
"""Bytes for a copy's headers: at most 134 (VLAN tag, longest IPv4 header, RETH, immediate data and INA header), rounded
up to whole cache lines. Headers end where their room ends, so that most touch one line of it."""
PROBES_MAX = 16
"""Places where a MAC address may lie in its table."""
WANTED_MAX = 16
"""Destinations that may wait for the control plane to look for their next hop."""
EXCUSED_BEYOND = 1
"""By a NAK that went by."""
EXCUSED_HERE = 2
"""By this switch alone: what has left here was not asked for by anybody further on."""
OUTFLOWS = 2
"""Outflows of a ring: the sum of its children, and the total from above."""
NOBODY = -1

ROLE_NONE = 0
ROLE_DATA = 1
"""Key of a connection's data: to be aggregated."""
ROLE_ACKNOWLEDGE = 2
"""Key of a connection's answers: to be read in passing and forwarded."""


def _record(*names: str) -> np.dtype:
    return np.dtype([(name, np.int64) for name in names])


PORT = _record(
    "up",  # a cable is plugged in: frames may be flooded here
    "mac",  # of a port that routes: its own address; 0 for one that bridges
    "trunk",  # another switch is there: senders that may come by several ways are let in here
    "blocked",  # frames are not flooded here: they would go round for ever
    "packets_in",
    "bytes_in",
)
MAC = _record("mac", "port", "seen_ps", "fixed")  # `mac` 0: free; `fixed`: one of the next three
MAC_LEARNED = 0
MAC_ATTACHED = 1
"""At this port and at no other; neither moves nor ages."""
MAC_BEYOND = 2
"""Behind other switches: found by this port, and let in by any trunk."""
HOP = _record("ip_high", "ip_low", "mac", "port")  # of a router; `port` `NOBODY`: an address of the switch's own host
WANTED = _record("ip_high", "ip_low")  # destinations whose next hop is asked for
KEY = _record(
    "source_ip_high",
    "source_ip_low",
    "destination_ip_high",
    "destination_ip_low",
    "destination_qpn",
    "role",
    "connection",
)
RING_COUNTERS = (
    "messages_aggregated",
    "packets_spliced",
    "payload_bytes_in",
    "payload_bytes_out",
    "replays",
    "stale_passed",
    "rnr_sent",
    "naks_sent",
)
RING = _record(
    "used",
    "ring_id",
    "child_count",  # connections whose data are summed here
    "connection_count",  # the children, and the one from above if there is one
    "pinned",  # frames of its connections take the ports that are set, not those of their addresses
    "message_count",  # 2 N
    "message_packets",
    "path_mtu",
    "first_shift",  # where the tables for a whole packet's CRC start in `shifts`
    "first_connection",
    "first_outflow",
    "first_message",
    "first_slot",
    "first_copy",  # row of `held` of the first copy
    "first_buffer",  # byte of `buffers` where its range starts, with the headers of the first copy
    "free_count",  # entries of `free`, from `first_copy` on, that are in use
    "hold",  # slots leave in the order of their PSNs, see aggregator.py
    "failed",  # ranks disagreed; nothing is aggregated any more
    "failed_message",
    "failed_rank",  # the rank that disagreed with `first_rank` of the message
    "failed_length_bytes",
    "failed_data_type",
    "failed_op",
    "failed_ina_flags",
    *RING_COUNTERS,
)
OUTFLOW = _record(  # what leaves of a slot, and on which connections; two a ring, see translation.py
    "arrived",  # copies that a slot must hold before it can leave here
    "first_result",  # byte of `buffers` where what leaves of the ring's first slot is kept
    "first_translation",  # range of `translations`: the connections that it leaves on
    "translation_count",
    "next_message",  # with `hold`: the slot to leave next
    "next_slot",
)
CONNECTION = _record(
    "ring",
    "rank",  # of the sender, in the ring
    "place",  # among the connections of the ring at this switch
    "bit",  # in a slot's bitmap
    "outflow",  # row of `outflows`: what leaves on this connection
    "translation",  # row of `translations` that names it
    "first_entry",
    "port",  # towards the sender: the port that owns the source address, or `NOBODY`
    "answer_port",  # towards the successor: the port that owns the destination address
    "answer_qpn",  # queue pair of the sender, where answers go
    "newest",  # number of the newest message; -1 before the first. Not taken modulo 2^32, unlike the message id
    "next_psn",  # first PSN of the message after `newest`
    "unacknowledged_psn",  # first PSN that the successor has not acknowledged
    "msn",  # message sequence number in the successor's last answer
    "last_psn",  # of the last data packet that arrived
    "missing_message",  # with `hold`: the first packet that never arrived, by message number, ...
    "missing_slot",  # ... slot ...
    "missing_psn",  # ... and PSN
    "excused",  # a NAK asked for the next go-back, which is no sign of waiting: `EXCUSED_BEYOND` or `EXCUSED_HERE`
    "quiet",  # this go-back concerns this switch alone
    "owes_rnr",  # this go-back has not been answered with an RNR NAK yet
    "rnr_timer",  # timer code of the next RNR NAK
    "owes_nak",  # this gap was not answered with a NAK yet
    "asked",  # a NAK went out, and neither a packet came again since nor news of an ACK: the go-back is still to come
)
ENTRY = _record("message", "first_psn", "packets")  # one message of one connection in the Connection Lookup Table
MESSAGE = _record(
    "message",  # number of the message that holds this place, -1 if none did yet
    "packets",
    "length_bytes",
    "data_type",
    "op",
    "ina_flags",
    "first_rank",  # the rank that named it
    "complete",  # slots that are complete
)
SLOT = _record(
    "bitmap",  # connections whose copy is held
    "arrived",  # how many
    "first_ps",  # when the first came
)
COPY = _record(
    "header_bytes",  # with the INA header
    "ip_at",
    "udp_at",
    "payload_at",  # byte of `buffers` where the payload lies, until the slot is complete
)

STATE = _record(
    # what the verdict on the current frame is about
    "ring",  # row of `rings`, or `NOBODY`
    "connection",
    "message",  # row of `messages`
    "slot",
    "outflow",  # row of `outflows`
    "way",  # port by which the frame must go on, or `NOBODY`: where its address is
    "answer",  # AETH syndrome of the answer that the switch gives itself, 0 for none
    "total_crc",  # CRC-32 of the payload that leaves
    "hop",  # row of `hops` of a routed frame, or `NOBODY`
    "sender_mac",  # of a routed frame, before its addresses were replaced
    # totals
    "keys_used",
    "failures",  # rings that failed since the start
    "forwarded",
    "flooded",
    "filtered",  # frames whose destination is at the port they came from
    "not_learned",  # source addresses for which the table had no room
    "routed",
    "wanted",  # rows of `wanted` in use
)


class SwitchTables(NamedTuple):
    """The tables of one switch. Recarrays of the dtypes above, unless stated."""

    state: np.recarray  # one row
    packet: np.recarray  # one row of wire.packet.PACKET, scratch
    ports: np.recarray
    egress_data: np.ndarray  # uint8[ports, egress_bytes]
    egress_state: np.recarray  # QUEUE_STATE, one row a port
    macs: np.recarray
    hops: np.recarray
    wanted: np.recarray
    keys: np.recarray
    rings: np.recarray
    outflows: np.recarray  # OUTFLOW[rings, OUTFLOWS], flat
    connections: np.recarray
    translations: np.ndarray  # int64[connections], rows of `connections`: the Connection Translation Table
    entries: np.recarray  # ENTRY[connections, MESSAGES_MAX], flat
    messages: np.recarray  # MESSAGE[rings, MESSAGES_MAX], flat
    slots: np.recarray
    held: np.recarray  # COPY
    free: np.ndarray  # int64, as many as `held`: where a ring's free places for payloads are, last freed last
    buffers: np.ndarray  # uint8
    drops: np.ndarray  # int64[rings + 1, reasons]; the last row counts what belongs to no ring
    totals: np.ndarray  # uint8[2 * PATH_MTU_MAX], sums of some ranks on the way to that of all
    shifts: np.ndarray  # int64[path MTUs * SHIFT_ENTRIES], see checksum.py
    wide: np.ndarray  # float32[3, PATH_MTU_MAX // 2], half-precision sums and operand in float32
    log: EventLog


class SwitchLimits(NamedTuple):
    """How much the switch holds. What does not fit is refused at set-up, or dropped and counted."""

    memory_bytes: int = 1024 * 1024 * 1024
    """Aggregator memory: buffers for the copies of all rings."""
    egress_bytes: int = 4 * 1024 * 1024
    """Egress queue of one port, record headers included; a multiple of 16."""
    ring_memory_bytes: int = 1 << 62
    """Most of it that one ring may take."""
    rings: int = 64
    connections: int = 1024
    macs: int = 4096
    """Learned addresses; a power of two."""
    hops: int = 4096
    """Destinations of a router; a power of two."""


def _rows(dtype: np.dtype, count: int) -> np.recarray:
    return np.zeros(count, dtype).view(np.recarray)


def _aligned_bytes(count: int) -> np.ndarray:
    """Zeros, uint8[count], from the start of a cache line on."""
    raw = np.zeros(count + CACHE_LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE_BYTES
    return raw[start : start + count]


def make_tables(port_count: int, limits: SwitchLimits, egress_state: np.recarray, log: EventLog) -> SwitchTables:
    """Empty tables. Memory is touched only when it is used: the pools cost address space, not pages.

    NumPy advises the kernel to use huge pages for arrays of 4 MiB and more, so the large ones here seldom miss the TLB.
    """
    copies = limits.memory_bytes // (HEADER_ROOM + 256)
    keys = 1 << (8 * limits.connections - 1).bit_length()  # two keys a connection, a quarter full at most
    assert limits.macs & (limits.macs - 1) == 0
    assert limits.hops & (limits.hops - 1) == 0
    return SwitchTables(
        state=_rows(STATE, 1),
        packet=make_packet_table(),
        ports=_rows(PORT, port_count),
        egress_data=np.zeros((port_count, limits.egress_bytes), np.uint8),
        egress_state=egress_state,
        macs=_rows(MAC, limits.macs),
        hops=_rows(HOP, limits.hops),
        wanted=_rows(WANTED, WANTED_MAX),
        keys=_rows(KEY, keys),
        rings=_rows(RING, limits.rings),
        outflows=_rows(OUTFLOW, limits.rings * OUTFLOWS),
        connections=_rows(CONNECTION, limits.connections),
        translations=np.zeros(limits.connections, np.int64),
        entries=_rows(ENTRY, limits.connections * MESSAGES_MAX),
        messages=_rows(MESSAGE, limits.rings * MESSAGES_MAX),
        slots=_rows(SLOT, copies),
        held=_rows(COPY, copies),
        free=np.zeros(copies, np.int64),
        buffers=_aligned_bytes(limits.memory_bytes),
        drops=np.zeros((limits.rings + 1, max(DropReason) + 1), np.int64),
        totals=_aligned_bytes(2 * PATH_MTU_MAX),
        shifts=np.concatenate([make_shift(path_mtu) for path_mtu in PATH_MTUS]),
        wide=np.zeros((3, PATH_MTU_MAX // 2), np.float32),
        log=log,
    )
