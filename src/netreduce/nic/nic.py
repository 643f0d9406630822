"""The embedded RoCEv2 NIC: a fabric node with one port, whose program side is `netreduce.nic.verbs`."""

from __future__ import annotations

import numpy as np

from netreduce.compiled import entry
from netreduce.errors import ConfigurationError, VerbsError
from netreduce.nic import path, posting
from netreduce.nic.attributes import ip_to_number
from netreduce.nic.enums import QpState
from netreduce.nic.tables import (
    COUNTER_FIELDS,
    INLINE_BYTES_MAX,
    KEY_INDEX_SHIFT,
    NIC_FIELDS,
    NicLimits,
    NicTables,
    make_ready,
    make_tables,
    plain,
    words,
)
from netreduce.trace.events import DropReason, EventLog, make_event_log
from netreduce.units import NEVER_PS
from netreduce.wire.build import mac_bytes
from netreduce.wire.frames import FrameQueue
from netreduce.wire.psn import PSN_MASK

QPN_FIRST = 0x11
QPN_LAST = PSN_MASK
"""Queue pair numbers have 24 bits. 0 and 1 are special, low ones look like mistakes."""
DEFAULT_LIMITS = NicLimits()
KEY_GENERATIONS = 1 << KEY_INDEX_SHIFT
_READY_COUNT = NIC_FIELDS.index("ready_count")


class Nic:
    """One RoCEv2 NIC: Reliable Connection queue pairs over IPv4, at one port.

    `mac` and `ip` are written as text; `neighbours` maps peers' IP addresses to MAC addresses (a static ARP table).
    Numbers that it hands out depend on the order of calls only. One thread drives it and posts to it.
    """

    port_count = 1

    def __init__(
        self, name: str, mac: str, ip: str, *, limits: NicLimits = DEFAULT_LIMITS, events: EventLog | None = None
    ) -> None:
        if limits.queue_pairs & (limits.queue_pairs - 1):
            raise ConfigurationError(f"NicLimits.queue_pairs is {limits.queue_pairs}, a power of two is needed")
        self.name = name
        self.mac = mac
        self.ip = ip
        self.limits = limits
        self.neighbours: dict[str, str] = {ip: mac}
        self.tables: NicTables = make_tables(
            limits, int.from_bytes(mac_bytes(mac), "big"), ip_to_number(ip), events or make_event_log()
        )
        self.inline = np.zeros((limits.queue_pairs, limits.send_depth, INLINE_BYTES_MAX), np.uint8)
        self._next_qpn = QPN_FIRST
        self._key_generations = np.zeros(limits.memory_regions, np.int64)
        self._next_region = 0
        self.regions = plain(self.tables.mr)
        self._words = words(self.tables.nic)
        self._receive = entry(path.receive, self.tables, np.zeros(0, np.uint8), 0)
        self._advance = entry(path.advance, self.tables, 0)
        self._next_timer = entry(path.next_timer, self.tables)
        self._make_ready = entry(make_ready, self.tables, 0)
        self.queue_send = entry(posting.queue_send, self.tables, *[0] * 10)
        self.queue_receive = entry(posting.queue_receive, self.tables, *[0] * 4)

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        """Take the frames of `burst` (uint8, writable: the ICRC check masks header bytes for a moment)."""
        assert burst.flags.carray, "a burst is contiguous, writable memory"
        self._receive(self.tables, burst, now_ps)

    def advance(self, now_ps: int) -> None:
        """Fire due timers and put packets into the egress queue, as far as it has room."""
        self._advance(self.tables, now_ps)

    def next_timer_ps(self) -> int:
        """When `advance` is due: now, if something waits to be sent and there is room; else the earliest timer."""
        return self._next_timer(self.tables)

    @property
    def is_held_up(self) -> bool:
        """Whether something waits for room in the egress queue."""
        return self._words[_READY_COUNT] > 0

    def egress(self, port: int) -> FrameQueue:
        """The queue of frames that wait to leave."""
        return self.tables.egress

    def counters(self) -> dict[str, int]:
        """Counters by name: mlx5's and rxe's names where these have one, and ``drop_<reason>``."""
        row = self.tables.counters[0]
        named = {name: int(row[name]) for name in COUNTER_FIELDS}
        return named | {f"drop_{reason.name.lower()}": int(self.tables.drops[reason]) for reason in DropReason}

    def describe(self) -> str:
        """A table of the queue pairs, as `ibstat` or `rdma resource show qp` would print it."""
        lines = [
            f"{self.name}  {self.mac}  {self.ip}",
            f"{'QPN':>8} {'state':<6} {'peer QPN':>8} {'send PSN':>9} {'expected':>9} "
            f"{'unacked':>8} {'posted':>7} {'receives':>8} {'retries':>7} {'resent':>7} {'timeouts':>8}",
        ]
        for qp in self.tables.qp[self.tables.qp["qpn"] != 0]:
            state = QpState(qp.state).name.removeprefix("IBV_QPS_")
            lines.append(
                f"{qp.qpn:#8x} {state:<6} {qp.destination_qpn:#8x} {(qp.first_psn + qp.next_packet) & PSN_MASK:#9x} "
                f"{qp.expected_psn:#9x} {qp.next_packet - qp.acked_packets:8} {qp.sq_posted - qp.sq_retired:7} "
                f"{qp.rq_posted - qp.rq_retired:8} {qp.retries_left:7} {qp.packets_retransmitted:7} {qp.timeouts:8}"
            )
        return "\n".join(lines)

    # What the verbs objects need.

    def allocate_qpn(self) -> int:
        """A queue pair number whose row is free. Numbers are not reused before all 2^24 had their turn."""
        mask = self.limits.queue_pairs - 1
        for _ in range(self.limits.queue_pairs):
            qpn = self._next_qpn
            self._next_qpn = qpn + 1 if qpn < QPN_LAST else QPN_FIRST
            if self.tables.qp[qpn & mask].qpn == 0:
                return qpn
        raise VerbsError(f"{self.name}: all {self.limits.queue_pairs} queue pairs are in use (NicLimits.queue_pairs)")

    def allocate_region(self) -> tuple[int, int]:
        """A free row of the memory region table and a fresh key for it."""
        count = self.limits.memory_regions
        for step in range(count):
            index = (self._next_region + step) % count
            if not self.regions[index]["valid"]:
                self._next_region = index + 1
                # Generations start at 1, so that no key is 0.
                self._key_generations[index] = self._key_generations[index] % (KEY_GENERATIONS - 1) + 1
                return index, index << KEY_INDEX_SHIFT | int(self._key_generations[index])
        raise VerbsError(f"{self.name}: all {count} memory regions are in use (NicLimits.memory_regions)")

    def allocate_cq(self) -> int:
        """A free row of the completion queue table."""
        free = np.flatnonzero(self.tables.cq["depth"] == 0)
        if free.size == 0:
            raise VerbsError(
                f"{self.name}: all {self.limits.completion_queues} completion queues are in use "
                "(NicLimits.completion_queues)"
            )
        return int(free[0])

    def make_ready(self, row: int) -> None:
        """Have the next `advance` look at a queue pair."""
        self._make_ready(self.tables, row)

    def disarm(self, row: int) -> None:
        """Stop the timer of a queue pair."""
        self.tables.deadline[row] = NEVER_PS
