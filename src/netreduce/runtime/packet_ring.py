"""Frames received at a packet(7) socket: a ring of slots that the kernel fills, and its receive queue beside.

Frames are read where the kernel has put them, without a system call. What is longer than a slot, as super-frames are,
the kernel queues in its turn at the socket (PACKET_COPY_THRESH). Several are received in one call, their payloads
straight into records; all of that is one compiled call for the caller.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from netreduce.compiled import compiled, entry
from netreduce.runtime.system_calls import receive_messages
from netreduce.wire.packet_slots import (
    PARTS_PER_LONG,
    Long,
    Seen,
    complete_longs,
    place_longs,
    ring_to_burst,
    slot_to_burst,
)
from netreduce.wire.segmentation import HEAD_BYTES

RING_BYTES = 16 * 1024 * 1024
"""Memory of a ring: 8,192 frames in slots of 2 KiB."""
SLOT_BYTES = 2048
"""Of a packet that is longer, the kernel copies that much into the slot in vain. Packets of 1 KiB fit."""
RECEIVE_BUFFER_BYTES = 32 * 1024 * 1024
"""Of the receive queue: some 500 super-frames, which is fifteen message windows."""
BLOCK_BYTES = 64 * 1024
LONGS_PER_CALL = 8
TRIES_MAX = 3
"""Of receiving, for an interruption, or a link that went down, is told instead of a packet, once."""
RECEIVED_BYTES = 512 * 1024
"""Longest burst that is handed out: half of a second-level cache of 1 MiB."""

SOL_PACKET = 263
PACKET_VNET_HDR = 15
_PACKET_RX_RING, _PACKET_COPY_THRESH, _PACKET_VERSION = 5, 7, 10
_TPACKET_V2 = 1
_SO_RCVBUFFORCE = 33


class RingTables(NamedTuple):
    """`state` int64[2]: descriptor, next slot. `slots` uint8[n, bytes]. `burst` is handed out, `seen` counts."""

    state: np.ndarray
    slots: np.ndarray
    burst: np.ndarray
    seen: np.ndarray
    done: np.ndarray
    messages: np.ndarray
    parts: np.ndarray
    scrap: np.ndarray


def make_tables(descriptor: int, slots: np.ndarray) -> RingTables:
    """Tables of the socket `descriptor` with these `slots`."""
    return RingTables(
        np.array([descriptor, 0], np.int64),
        slots,
        np.zeros(RECEIVED_BYTES, np.uint8),
        np.zeros(len(Seen), np.int64),
        np.zeros(3, np.int64),
        np.zeros((LONGS_PER_CALL, 8), np.int64),
        np.zeros((LONGS_PER_CALL * PARTS_PER_LONG, 2), np.int64),
        np.zeros(HEAD_BYTES, np.uint8),
    )


@compiled
def _receive_longs(tables: RingTables, count: int) -> int:
    """Receive `count` packets that are placed; how many there were."""
    for _ in range(TRIES_MAX):
        found = receive_messages(tables.state[0], tables.messages, count)
        if found >= 0:
            return found
    return 0


@compiled
def receive(tables: RingTables, now_ps: int) -> int:
    """Receive as many frames as have come and fit into the burst; its size."""
    state, slots, burst, seen, done = tables.state, tables.slots, tables.burst, tables.seen, tables.done
    at = 0
    while True:
        at = ring_to_burst(slots, state[1], burst, at, now_ps, seen, done)
        first, what = (state[1] + done[0]) % slots.shape[0], done[1]
        state[1] = first
        if what == Long.NONE.value:
            return at
        if what == Long.IN_SLOT.value:
            count, end = 1, slot_to_burst(slots[first], burst, at, now_ps, tables.parts, seen)
            if end < 0:
                return at
            at = end
        else:
            count = place_longs(slots, first, done[2], burst, at, tables.messages, tables.parts, tables.scrap)
            if count == 0:
                return at
            found = _receive_longs(tables, count)
            at = complete_longs(slots, first, count, found, tables.messages, burst, at, now_ps, seen)
        state[1] = (first + count) % slots.shape[0]


@cache
def load() -> Callable[[RingTables, int], int]:
    """`receive`, compiled or loaded."""
    return entry(receive, make_tables(-1, np.zeros((1, SLOT_BYTES), np.uint8)), 0)


class Ring:
    """What `connection` receives, a packet(7) socket that is not bound yet. `seen` counts (int64, by `Seen`)."""

    def __init__(self, connection: socket.socket) -> None:
        count = RING_BYTES // SLOT_BYTES
        request = struct.pack("IIII", BLOCK_BYTES, RING_BYTES // BLOCK_BYTES, SLOT_BYTES, count)
        connection.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        connection.setsockopt(SOL_PACKET, _PACKET_VERSION, struct.pack("i", _TPACKET_V2))
        connection.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        connection.setsockopt(SOL_PACKET, _PACKET_COPY_THRESH, 1)
        connection.setsockopt(SOL_PACKET, _PACKET_RX_RING, request)
        memory = mmap.mmap(connection.fileno(), RING_BYTES)
        slots = np.frombuffer(memory, np.uint8).reshape(count, SLOT_BYTES)
        self._tables = make_tables(connection.fileno(), slots)
        self._receive = load()
        self.seen = self._tables.seen

    def receive(self, now_ps: int) -> np.ndarray:
        """As many frames as have come and fit into a burst, good until the next call; empty when none waits."""
        return self._tables.burst[: self._receive(self._tables, now_ps)]

    def close(self) -> None:
        """Forget the socket, whose descriptor may soon be another file's."""
        self._tables.state[0] = -1
