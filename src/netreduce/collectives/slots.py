"""Clear-to-send slots: 64 bytes that a receiver RDMA WRITEs into its sender's memory, laid out as NCCL 2.30 does.

Per pair of ranks there is a FIFO of 256 of them, and one place more: there a sender that must refuse writes what it
would have sent, in the same format.
"""

from __future__ import annotations

import numpy as np

from netreduce.collectives.provider import PD
from netreduce.nic.verbs import IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE

FIFO_SLOTS = 256
"""Receives that may be outstanding per pair of ranks: NCCL's 32 requests of 8 buffers each."""
REFUSAL_PLACE = FIFO_SLOTS
"""The place behind the FIFO, for refusals."""
REFUSED = 1 << 31
"""Bit of an immediate: no data came, the refusal place says why. The other bits are the request's index, modular."""
INDEX_MASK = REFUSED - 1

SLOT = np.dtype(
    [
        ("address", "<u8"),
        ("size_bytes", "<u8"),
        ("rkeys", "<u4", 8),  # one per device; with our one device, entry 1 carries the fingerprint
        ("request_count", "<u4"),
        ("tag", "<u4"),
        ("index", "<u8"),  # counts requests from 1; a slot is fresh when it shows the index that is due
    ]
)
SLOT_BYTES = SLOT.itemsize
assert SLOT_BYTES == 64
_SLOT_WORDS = SLOT_BYTES // 8
_INDEX_WORD = _SLOT_WORDS - 1


class SlotMemory:
    """One rank's half of the FIFOs shared with one peer: `inbox` is written by the peer, `outbox` by this rank."""

    def __init__(self, pd: PD) -> None:
        self.inbox = np.zeros(FIFO_SLOTS + 1, SLOT)
        self.outbox = np.zeros(FIFO_SLOTS + 1, SLOT)
        self._inbox_words = self.inbox.view(np.uint64).data
        access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
        self.inbox_mr = pd.verbs.MR(pd, self.inbox.nbytes, access, address=self.inbox.ctypes.data)
        self.outbox_mr = pd.verbs.MR(pd, self.outbox.nbytes, IBV_ACCESS_LOCAL_WRITE, address=self.outbox.ctypes.data)
        self._outbox_address = int(self.outbox.ctypes.data)

    def is_fresh(self, index: int) -> bool:
        """Whether the peer has written request `index` into the inbox."""
        return self._inbox_words[(index - 1) % FIFO_SLOTS * _SLOT_WORDS + _INDEX_WORD] == index

    def outgoing(self, place: int) -> tuple[int, int]:
        """Address and lkey of the outbox's slot at `place`."""
        return self._outbox_address + place * SLOT_BYTES, self.outbox_mr.lkey

    def close(self) -> None:
        """Deregister both."""
        self.inbox_mr.close()
        self.outbox_mr.close()


def write_slot(
    slots: np.ndarray, place: int, address: int, size_bytes: int, rkey: int, fingerprint: int, tag: int, index: int
) -> None:
    """Fill one slot of `slots` (`SLOT`)."""
    slots[place] = (address, size_bytes, (rkey, fingerprint, 0, 0, 0, 0, 0, 0), 1, tag, index)
