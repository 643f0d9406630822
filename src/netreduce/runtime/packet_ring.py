"""Frames received at a packet(7) socket: a ring of slots that the kernel fills, and its receive queue beside.

Frames are read where the kernel has put them, without a system call. What is longer than a slot, as super-frames are,
the kernel queues in its turn at the socket (PACKET_COPY_THRESH), for one call each; it is cut into frames here.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from netreduce.compiled import entry
from netreduce.wire.frames import BURST_BYTES_MAX
from netreduce.wire.framing import Long, Seen, give_back, ring_to_burst
from netreduce.wire.segmentation import GSO_UDP_L4, SUPER_FRAME_BYTES_MAX, VNET_BYTES, cut, look_at

RING_BYTES = 16 * 1024 * 1024
"""Memory of a ring: with slots of 2 KiB 8,192 frames, of 8 KiB (an MTU of 4,200 and more) 2,048."""
SLOT_BYTES_MAX = 8192
"""Of a packet that is longer, the kernel copies that much into the slot in vain. A path MTU of 4,096 fits."""
RECEIVE_BUFFER_BYTES = 32 * 1024 * 1024
"""Of the receive queue: some 500 super-frames, which is fifteen message windows."""
BLOCK_BYTES = 64 * 1024
SLOT_OVERHEAD_BYTES = 76
"""Where a packet starts in a slot: struct tpacket2_hdr (32) and sockaddr_ll (20), aligned so that its network header
lies at 80, and struct virtio_net_hdr (10)."""
LONG_BYTES = VNET_BYTES + SUPER_FRAME_BYTES_MAX + 1024

SOL_PACKET = 263
PACKET_VNET_HDR = 15
_PACKET_RX_RING, _PACKET_COPY_THRESH, _PACKET_VERSION = 5, 7, 10
_TPACKET_V2 = 1
_SO_RCVBUFFORCE = 33


class _Compiled(NamedTuple):
    ring_to_burst: Callable[..., int]
    look_at: Callable[..., int]
    cut: Callable[..., int]
    give_back: Callable[..., None]


@cache
def load() -> _Compiled:
    """The compiled functions that rings use."""
    row, table, numbers = np.zeros(0, np.uint8), np.zeros((1, 64), np.uint8), np.zeros(4, np.int64)
    return _Compiled(
        entry(ring_to_burst, table, 0, row, 0, 0, numbers, numbers),
        entry(look_at, row, 0, 0),
        entry(cut, row, 0, 0, row, 0, 0),
        entry(give_back, row),
    )


class Ring:
    """The kernel's received packets at `connection`, which is not bound yet; frames have up to `packet_bytes`.

    `seen` counts what is special (`Seen`), `super_frames` those cut, `malformed` and `too_long` packets left out.
    """

    def __init__(self, connection: socket.socket, packet_bytes: int) -> None:
        slot_bytes = min(SLOT_BYTES_MAX, max(2048, 1 << (SLOT_OVERHEAD_BYTES + packet_bytes - 1).bit_length()))
        count = RING_BYTES // slot_bytes
        request = struct.pack("IIII", BLOCK_BYTES, RING_BYTES // BLOCK_BYTES, slot_bytes, count)
        connection.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        connection.setsockopt(SOL_PACKET, _PACKET_VERSION, struct.pack("i", _TPACKET_V2))
        connection.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        connection.setsockopt(SOL_PACKET, _PACKET_COPY_THRESH, 1)
        connection.setsockopt(SOL_PACKET, _PACKET_RX_RING, request)
        memory = mmap.mmap(connection.fileno(), RING_BYTES)
        self._socket = connection
        self._slots = np.frombuffer(memory, np.uint8).reshape(count, slot_bytes)
        self._next = 0
        self._done = np.zeros(4, np.int64)
        self._long = np.zeros(LONG_BYTES, np.uint8)
        self._long_size = self._long_tag = 0
        self._cut_bytes = 0  # of the records of the packet in `_long`, which is still to be handed out; 0: none is
        self.seen = np.zeros(len(Seen), np.int64)
        self.super_frames = self.malformed = self.too_long = 0
        self._compiled = load()

    def receive(self, buffer: np.ndarray, now_ps: int) -> int:
        """Take as many frames as fit into `buffer`; the burst's size in bytes, 0 when none waits."""
        buffer = buffer[:BURST_BYTES_MAX]
        at = 0
        while True:
            if self._cut_bytes:
                if at + self._cut_bytes > buffer.size:
                    return at
                at = int(self._compiled.cut(self._long, self._long_size, self._long_tag, buffer, at, now_ps))
                self._cut_bytes = 0
            to_burst = self._compiled.ring_to_burst
            at = int(to_burst(self._slots, self._next, buffer, at, now_ps, self.seen, self._done))
            taken, where, length, tag = self._done.tolist()
            self._next = (self._next + taken) % len(self._slots)
            if where == Long.NONE:
                return at
            self._take_long(where, length, tag)

    def _take_long(self, where: int, length: int, tag: int) -> None:
        """Take the next slot's packet, of `length`, from where it is."""
        slot = self._slots[self._next]
        size = VNET_BYTES + length
        if where == Long.QUEUED:
            found = self._from_queue(size)
        else:
            self._long[:size] = slot[SLOT_OVERHEAD_BYTES - VNET_BYTES :][:size]
            found = True
        self._compiled.give_back(slot)
        self._next = (self._next + 1) % len(self._slots)
        if not found:
            self.seen[Seen.LOST] += 1
            return
        cut_bytes = int(self._compiled.look_at(self._long, size, tag)) if size <= LONG_BYTES else 0
        self.malformed += cut_bytes < 0
        self.too_long += cut_bytes == 0
        self._long_size, self._long_tag, self._cut_bytes = size, tag, max(0, cut_bytes)
        self.super_frames += cut_bytes > 0 and int(self._long[1]) == GSO_UDP_L4

    def _from_queue(self, size: int) -> bool:
        """Receive the packet that a slot announces; False when it is not there."""
        while True:
            try:
                if self._socket.recv_into(self._long.data, 0, socket.MSG_TRUNC) == size:
                    return True
            except BlockingIOError:
                return False
            except OSError:
                continue  # the link went down, which is told once
