"""Memory that an operation lends to the NIC, for as long as it runs."""

from __future__ import annotations

import numpy as np

from netreduce.collectives.provider import MR, PD
from netreduce.collectives.schedule import Span
from netreduce.nic.verbs import IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE


class Memory:
    """A flat array as a memory region; `key` is its lkey and rkey while it is registered."""

    __slots__ = ("_mr", "array", "item_bytes", "key")

    def __init__(self, array: np.ndarray) -> None:
        assert array.ndim == 1
        assert array.flags.c_contiguous
        self.array = array
        self.item_bytes = array.itemsize
        self.key = 0
        self._mr: MR | None = None

    def register(self, pd: PD, *, for_peers: bool) -> None:
        """Let the NIC read and write it; and peers write into it, if they are told the key."""
        if self.array.nbytes:
            access = IBV_ACCESS_LOCAL_WRITE | (IBV_ACCESS_REMOTE_WRITE if for_peers else 0)
            self._mr = pd.verbs.MR(pd, self.array.nbytes, access, address=self.address)
            self.key = self._mr.lkey

    def release(self) -> None:
        """Take it back: whatever the network still does, this memory is safe."""
        if self._mr is not None:
            self._mr.close()
            self._mr = None

    def whole(self, name: str) -> Span:
        """All of it, as a span of the buffer `name`."""
        return Span(name, 0, self.array.size)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.array.ctypes.data)

    def address_of(self, span: Span) -> int:
        """Address of the span's first element."""
        return self.address + span.start * self.item_bytes

    def bytes_of(self, span: Span) -> memoryview:
        """The span's bytes."""
        return self.view(span).view(np.uint8).data

    def view(self, span: Span) -> np.ndarray:
        """The span's elements."""
        return self.array[span.start : span.start + span.count]
