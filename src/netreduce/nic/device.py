"""The verbs objects around a queue pair: device context, protection domain, memory region, completion queue.

Closing an object closes what was made from it, as pyverbs does. Each is also a context manager.
"""

from __future__ import annotations

import itertools
import struct
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from netreduce.compiled import memory_at
from netreduce.errors import VerbsError
from netreduce.nic.attributes import WC, AsyncEvent
from netreduce.nic.enums import AccessFlag
from netreduce.nic.tables import CQ_FIELDS, CQE_FIELDS, EVENTS_MAX, words

if TYPE_CHECKING:
    from typing_extensions import Self

    from netreduce.nic.nic import Nic

__all__ = ["CQ", "MR", "PD", "Context"]


_DEPTH, _POSTED, _POLLED, _OVERFLOWED = map(CQ_FIELDS.index, ("depth", "posted", "polled", "overflowed"))
_CQE = struct.Struct(f"={len(CQE_FIELDS)}q")


class Resource:
    """Something that is closed once, after the things that were made from it."""

    def __init__(self) -> None:
        self._children: list[Resource] = []
        self._parents: list[Resource] = []
        self.closed = False

    def _belongs_to(self, *parents: Resource) -> None:
        for parent in parents:
            if parent.closed:
                raise VerbsError(f"{type(parent).__name__} is closed")
        for parent in parents:
            parent._children.append(self)
            self._parents.append(parent)

    def close(self) -> None:
        """Give it back to the NIC. Harmless when it is closed already."""
        if self.closed:
            return
        for child in list(self._children):
            child.close()
        self.closed = True
        for parent in self._parents:
            if self in parent._children:
                parent._children.remove(self)
        self._release()

    def _release(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Context(Resource):
    """The program's handle of one NIC."""

    def __init__(self, nic: Nic) -> None:
        super().__init__()
        self.nic = nic
        self.ip, self.mac = nic.ip, nic.mac
        self._pd_numbers = itertools.count(1)

    @property
    def verbs(self) -> Any:
        """The module `netreduce.nic.verbs`, whose classes take this context."""
        from netreduce.nic import verbs

        return verbs

    def next_pd(self) -> int:
        """A number for a protection domain."""
        return next(self._pd_numbers)

    def get_async_event(self) -> AsyncEvent | None:
        """The oldest asynchronous event that was not read, or None; `EVENTS_MAX` are kept."""
        nic, events = self.nic.tables.nic[0], self.nic.tables.events
        nic.events_read = max(nic.events_read, nic.events_written - EVENTS_MAX)
        if nic.events_read == nic.events_written:
            return None
        event = events[nic.events_read % EVENTS_MAX]
        nic.events_read += 1
        return AsyncEvent(int(event.kind), int(event.element))


class PD(Resource):
    """A protection domain: queue pairs reach only memory of their own domain."""

    def __init__(self, creator: Context) -> None:
        super().__init__()
        self._belongs_to(creator)
        self.nic = creator.nic
        self.verbs = creator.verbs
        self.number = creator.next_pd()


class MR(Resource):
    """A memory region: `length` bytes at `address` in this process, or of a buffer of its own if that is None.

    `access` is a combination of `IBV_ACCESS_*`. Data goes straight to and from that memory: keep it alive until the
    region is closed.
    """

    def __init__(self, creator: PD, length: int = 0, access: int = 0, address: int | None = None) -> None:
        super().__init__()
        if length < 0:
            raise VerbsError(f"memory region of {length} bytes")
        remote = AccessFlag.IBV_ACCESS_REMOTE_WRITE | AccessFlag.IBV_ACCESS_REMOTE_ATOMIC
        if access & remote and not access & AccessFlag.IBV_ACCESS_LOCAL_WRITE:
            raise VerbsError("memory that peers may write needs IBV_ACCESS_LOCAL_WRITE too")
        self._belongs_to(creator)
        self._own = np.zeros(length, np.uint8) if address is None else None
        self.buf = int(self._own.ctypes.data) if self._own is not None else int(address or 0)
        self.length = length
        self._nic = creator.nic
        self._index, self.lkey = self._nic.allocate_region()
        self.rkey = self.lkey
        row = self._nic.regions[self._index]
        row["key"], row["address"], row["length"], row["access"] = self.lkey, self.buf, length, access
        row["pd"], row["valid"] = creator.number, 1

    def read(self, length: int, offset: int = 0) -> bytes:
        """`length` bytes from `offset` on."""
        self._check(length, offset)
        return memory_at(self.buf + offset, length).tobytes()

    def write(self, data: bytes, length: int, offset: int = 0) -> None:
        """Put the first `length` bytes of `data` at `offset`."""
        self._check(length, offset)
        memory_at(self.buf + offset, length)[:] = np.frombuffer(data, np.uint8, length)

    def _check(self, length: int, offset: int) -> None:
        if self.closed or offset < 0 or length < 0 or offset + length > self.length:
            raise VerbsError(f"bytes {offset} to {offset + length} of a memory region of {self.length}")

    def _release(self) -> None:
        self._nic.regions[self._index]["valid"] = 0


class CQ(Resource):
    """A completion queue for `cqe` completions; one that overflows is broken for good (IBV_EVENT_CQ_ERR)."""

    def __init__(self, context: Context, cqe: int) -> None:
        super().__init__()
        nic = context.nic
        if not 1 <= cqe <= nic.limits.completion_depth:
            raise VerbsError(f"completion queue of {cqe} entries; 1 to {nic.limits.completion_depth} are possible")
        self._belongs_to(context)
        self.row = nic.allocate_cq()
        self.cqe = cqe
        self._state = words(nic.tables.cq[self.row : self.row + 1])
        self._entries = words(nic.tables.cqe[self.row])
        self._state[_POSTED] = self._state[_POLLED] = self._state[_OVERFLOWED] = 0
        self._state[_DEPTH] = cqe

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Up to `num_entries` completions, oldest first, and their number.

        Raises `VerbsError` once the queue has overflowed: completions are missing then.
        """
        state = self._state
        polled = state[_POLLED]
        count = min(state[_POSTED] - polled, num_entries)
        if count <= 0:
            if state[_OVERFLOWED]:
                raise VerbsError(
                    f"completion queue {self.row} of {self.cqe} entries overflowed and lost completions: "
                    "make it as long as all work requests that can complete into it, or poll more often"
                )
            return 0, []
        entries, depth = self._entries, self.cqe
        found = [WC._make(_CQE.unpack_from(entries, (polled + i) % depth * _CQE.size)) for i in range(count)]
        state[_POLLED] = polled + count
        return count, found

    def _release(self) -> None:
        self._state[_DEPTH] = 0
