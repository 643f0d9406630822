"""The data writes of one queue pair: long ones in pieces, a few of them posted at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from netreduce.collectives.send_queue import SendQueue
from netreduce.nic.verbs import IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM
from netreduce.units import MIB

WRITE_BYTES_MAX = 1 * MIB
"""Data of one work request. Longer transfers are cut, so that both ends of the wire work at the same time."""
WRITES_IN_FLIGHT = 4
"""Data work requests posted at once: enough to fill the wire, and a clear-to-send waits behind no more than these."""


@dataclass(slots=True)
class Part:
    """What one queue pair carries of a transfer: `size_bytes` from `local` (address, lkey) to `remote` (address, rkey).

    The last work request carries `immediate`; `done` runs when it is acknowledged.
    """

    local: tuple[int, int]
    remote: tuple[int, int]
    size_bytes: int
    immediate: int
    done: Callable[[], None]
    posted_bytes: int = 0


class DataStream:
    """Parts that leave through `queue`, one after the other."""

    def __init__(self, queue: SendQueue) -> None:
        self.queue = queue
        self._parts: deque[Part] = deque()
        self._writes_in_flight = 0

    def add(self, part: Part) -> None:
        """Write `part` behind those that wait."""
        self._parts.append(part)
        self.pump()

    def pump(self) -> None:
        """Post data writes, as far as there is room."""
        while self._parts and self._writes_in_flight < WRITES_IN_FLIGHT and self.queue.has_room:
            self._writes_in_flight += 1
            if self._write(self._parts[0]):
                self._parts.popleft()

    def _write(self, part: Part) -> bool:
        """Post the next piece; whether it is the last one."""
        offset = part.posted_bytes
        length = min(WRITE_BYTES_MAX, part.size_bytes - offset)
        part.posted_bytes += length
        last = part.posted_bytes == part.size_bytes
        self.queue.write(
            IBV_WR_RDMA_WRITE_WITH_IMM if last else IBV_WR_RDMA_WRITE,
            (part.local[0] + offset, length, part.local[1]),
            (part.remote[0] + offset, part.remote[1]),
            immediate=part.immediate if last else 0,
            done=(lambda: self._part_sent(part)) if last else self._piece_sent,
        )
        return last

    def _piece_sent(self) -> None:
        self._writes_in_flight -= 1

    def _part_sent(self, part: Part) -> None:
        self._writes_in_flight -= 1
        part.done()
