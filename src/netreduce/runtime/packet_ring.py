"""Frames received at a packet(7) socket: a ring of slots that the kernel fills, and its receive queue beside.

Frames are read where the kernel has put them, without a system call. What is longer than a slot, as super-frames are,
the kernel queues in its turn at the socket (PACKET_COPY_THRESH); they are received several in one call, and cut into
frames here.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import socket
import struct
from collections.abc import Callable
from functools import cache

import numpy as np

from netreduce.compiled import entry
from netreduce.wire.packet_slots import Long, Seen, longs_to_burst, ring_to_burst
from netreduce.wire.segmentation import SUPER_FRAME_BYTES_MAX, VNET_BYTES

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
LONG_BYTES = VNET_BYTES + SUPER_FRAME_BYTES_MAX + 51
"""Room for the longest super-frame; so many that the next one starts at a multiple of 4, and not of a page."""
LONGS_PER_CALL = 4
"""With the frames cut from them, they stay in a second-level cache of 1 MiB."""
CUT_BYTES_MAX = 80 * 1024
"""Of the records cut from a super-frame: 128 times 80 bytes of headers and alignment more than itself, at most."""
TRIES_MAX = 3
"""Of receiving, for an interruption, or a link that went down, is told instead of a packet, once."""
RECEIVED_BYTES = LONGS_PER_CALL * CUT_BYTES_MAX + 64 * 1024
"""Longest burst that is handed out."""

SOL_PACKET = 263
PACKET_VNET_HDR = 15
_PACKET_RX_RING, _PACKET_COPY_THRESH, _PACKET_VERSION = 5, 7, 10
_TPACKET_V2 = 1
_SO_RCVBUFFORCE = 33


_libc = ctypes.CDLL(None, use_errno=True)


@cache
def load() -> tuple[Callable[..., int], Callable[..., int]]:
    """The compiled functions that rings use: slots to bursts, and long packets to bursts."""
    row, table, numbers = np.zeros(0, np.uint8), np.zeros((1, 64), np.uint8), np.zeros(8, np.int64)
    return (
        entry(ring_to_burst, table, 0, row, 0, 0, numbers, numbers),
        entry(longs_to_burst, table, 0, table, numbers, row, 0, 0, numbers),
    )


class Ring:
    """The kernel's received packets at `connection`, which is not bound yet; frames have up to `packet_bytes`.

    `seen` counts what is special (`Seen`).
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
        self._done = np.zeros(3, np.int64)
        self._longs = np.zeros((LONGS_PER_CALL, LONG_BYTES), np.uint8)
        self._parts = np.array([[long.ctypes.data, long.size] for long in self._longs], np.int64)  # struct iovec
        self._messages = np.zeros((LONGS_PER_CALL, 8), np.int64)  # struct mmsghdr of a 64-bit Linux
        self._messages[:, 2] = self._parts.ctypes.data + 16 * np.arange(LONGS_PER_CALL)
        self._messages[:, 3] = 1
        self._lengths = self._messages.view(np.uint32)[:, 14]
        self._sizes = np.zeros(LONGS_PER_CALL, np.int64)
        self._burst = np.zeros(RECEIVED_BYTES, np.uint8)
        self.seen = np.zeros(len(Seen), np.int64)
        self._to_burst, self._longs_to_burst = load()

    def receive(self, now_ps: int) -> np.ndarray:
        """As many frames as have come and fit into a burst, good until the next call; empty when none waits."""
        at = 0
        while True:
            at = int(self._to_burst(self._slots, self._next, self._burst, at, now_ps, self.seen, self._done))
            taken, what, count = self._done.tolist()
            self._next = (self._next + taken) % len(self._slots)
            count = min(count, LONGS_PER_CALL, (RECEIVED_BYTES - at) // CUT_BYTES_MAX)
            if count == 0:
                return self._burst[:at]
            sizes = self._sizes[:count]
            sizes[:] = -1
            if what == Long.QUEUED:
                sizes[:] = 0
                found = self._from_queue(count)
                sizes[:found] = self._lengths[:found]
            slots, longs = self._slots, self._longs
            at = int(self._longs_to_burst(slots, self._next, longs, sizes, self._burst, at, now_ps, self.seen))
            self._next = (self._next + count) % len(slots)

    def _from_queue(self, count: int) -> int:
        """Receive `count` packets that slots announce; how many there were."""
        messages, flags = ctypes.c_void_p(self._messages.ctypes.data), socket.MSG_DONTWAIT | socket.MSG_TRUNC
        for _ in range(TRIES_MAX):
            found = _libc.recvmmsg(self._socket.fileno(), messages, count, flags, None)
            if found >= 0:
                return int(found)
            if ctypes.get_errno() == errno.EAGAIN:
                break
        return 0
