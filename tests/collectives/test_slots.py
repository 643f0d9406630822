"""Clear-to-send slots have NCCL's layout, and are fresh exactly once."""

from __future__ import annotations

import struct

from netreduce.collectives.slots import FIFO_SLOTS, SLOT, SlotMemory, write_slot
from netreduce.nic import Nic
from netreduce.nic import verbs as v


def test_a_slot_is_laid_out_as_nccls_struct() -> None:
    """struct ncclIbSendFifo: u64 addr, u64 size, u32 rkeys[8], u32 nreqs, u32 tag, u64 idx."""
    nic = Nic("nic", "02:4e:52:00:00:01", "10.78.0.1")
    memory = SlotMemory(v.PD(v.Context(nic)))
    write_slot(memory.outbox, 3, 0x1234, 1 << 20, 0xABCD, 0xF1, 77, 4)
    packed = struct.pack("<QQ8IIIQ", 0x1234, 1 << 20, 0xABCD, 0xF1, 0, 0, 0, 0, 0, 0, 1, 77, 4)
    assert len(packed) == SLOT.itemsize == 64
    assert memory.outbox[3].tobytes() == packed
    address, lkey = memory.outgoing(3)
    assert address == memory.outbox.ctypes.data + 3 * 64
    assert lkey == memory.outbox_mr.lkey
    memory.close()


def test_a_slot_is_fresh_when_it_shows_the_index_that_is_due() -> None:
    nic = Nic("nic", "02:4e:52:00:00:01", "10.78.0.1")
    memory = SlotMemory(v.PD(v.Context(nic)))
    assert not memory.is_fresh(1)
    write_slot(memory.inbox, 0, 0, 0, 0, 0, 0, 1)
    assert memory.is_fresh(1)
    assert not memory.is_fresh(2)
    assert not memory.is_fresh(FIFO_SLOTS + 1)  # the same place, one pass later
    write_slot(memory.inbox, 0, 0, 0, 0, 0, 0, FIFO_SLOTS + 1)
    assert memory.is_fresh(FIFO_SLOTS + 1)
    memory.close()


def test_only_the_inbox_is_open_to_the_peer() -> None:
    nic = Nic("nic", "02:4e:52:00:00:01", "10.78.0.1")
    memory = SlotMemory(v.PD(v.Context(nic)))
    rights = {int(row.address): int(row.access) for row in nic.tables.mr[nic.tables.mr.valid == 1]}
    assert rights[memory.inbox.ctypes.data] & v.IBV_ACCESS_REMOTE_WRITE
    assert not rights[memory.outbox.ctypes.data] & v.IBV_ACCESS_REMOTE_WRITE
    memory.close()
    assert not nic.tables.mr.valid.any()
