"""Frames sent at a packet(7) socket: from where they lie, many in a system call, runs of RoCE packets as super-frames.

All of that is one compiled call for the caller, be it with a burst or with a frame queue.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from netreduce.compiled import compiled, entry
from netreduce.runtime.cable import CableClosedError
from netreduce.runtime.system_calls import send_messages
from netreduce.wire.frames import RECORD_ALIGNMENT, make_queue, queue_burst_end, queue_release
from netreduce.wire.segmentation import GSO_NONE, GSO_UDP_L4, HEAD_BYTES, SEGMENTS_MAX, lay_out

MESSAGES_PER_CALL = 64
PARTS_PER_CALL = 1024 + 1 + SEGMENTS_MAX

SENDER = np.dtype(
    [
        ("descriptor", np.int64),
        ("offload", np.int64),  # as which runs of packets leave; `GSO_NONE` once the kernel has refused
        ("dropped", np.int64),  # frames that the interface refused
        ("super_frames", np.int64),
        ("error", np.int64),  # the errno with which it broke
    ]
)
_EAGAIN, _EINVAL, _EINTR = errno.EAGAIN, errno.EINVAL, errno.EINTR
_ENOBUFS, _EMSGSIZE, _ENETDOWN = errno.ENOBUFS, errno.EMSGSIZE, errno.ENETDOWN
"""The interface's queue is full, the frame too long, the link down: a frame is lost, as on any wire."""


class SenderTables(NamedTuple):
    """`state` is a one-row recarray of `SENDER`; for the others see `lay_out`."""

    state: np.ndarray
    messages: np.ndarray
    parts: np.ndarray
    heads: np.ndarray
    marks: np.ndarray


def make_tables(descriptor: int) -> SenderTables:
    """Tables of the socket `descriptor`."""
    state = np.zeros(1, SENDER).view(np.recarray)
    state[0].descriptor, state[0].offload = descriptor, GSO_UDP_L4
    return SenderTables(
        state,
        np.zeros((MESSAGES_PER_CALL, 8), np.int64),
        np.zeros((PARTS_PER_CALL, 2), np.int64),
        np.zeros((MESSAGES_PER_CALL + 1, HEAD_BYTES), np.uint8),
        np.zeros((MESSAGES_PER_CALL, 2), np.int64),
    )


@compiled
def send(tables: SenderTables, burst: np.ndarray, start: int) -> int:
    """Send frames from the record at `start` on, until the socket is full; the offset of the first one that is left."""
    state, marks, at = tables.state[0], tables.marks, start
    while at < burst.size:
        count = lay_out(burst, at, state.offload, tables.messages, tables.parts, tables.heads, marks)
        sent = send_messages(state.descriptor, tables.messages, count)
        if sent > 0:
            at = marks[sent - 1, 0]
            for i in range(sent):
                state.super_frames += 1 if marks[i, 1] > 1 else 0
        elif sent == -_EAGAIN:
            break
        elif sent == -_EINVAL and marks[0, 1] > 1:
            state.offload = GSO_NONE
        elif sent == -_ENOBUFS or sent == -_EMSGSIZE or sent == -_ENETDOWN:
            at = marks[0, 0]
            state.dropped += marks[0, 1]
        elif sent != -_EINTR:
            state.error = -sent
            break
    return at


@compiled
def send_queue(tables: SenderTables, data: np.ndarray, row: np.record) -> bool:
    """Send what waits in a frame queue, until that is empty (True), or the socket full (False)."""
    while row.frames > 0:
        end = queue_burst_end(data, row, data.size)
        at = send(tables, data[:end], row.head)
        queue_release(data, row, at)
        if at < end:
            return False
    return True


class _Compiled(NamedTuple):
    send: Callable[[SenderTables, np.ndarray, int], int]
    send_queue: Callable[[SenderTables, np.ndarray, np.record], bool]


@cache
def load() -> _Compiled:
    """Both, compiled or loaded."""
    tables, queue = make_tables(-1), make_queue(RECORD_ALIGNMENT)
    return _Compiled(entry(send, tables, queue.data, 0), entry(send_queue, tables, queue.data, queue.state[0]))


class Sender:
    """Sends at `connection`, a packet(7) socket with PACKET_VNET_HDR. `CableClosedError` when that is broken."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._name = name
        self._tables = make_tables(connection.fileno())
        self._state = self._tables.state.view(np.ndarray)  # reading fields of a recarray costs ten times as much
        self._errors = self._state["error"]
        self._send, self._send_queue = load()

    def send(self, burst: np.ndarray) -> int:
        """Send frames of `burst` until the socket is full; the offset of the first one that is left."""
        sent = self._send(self._tables, burst, 0)
        self._check()
        return sent

    def send_queue(self, data: np.ndarray, row: np.record) -> bool:
        """Send what waits in a frame queue of these `data` and state; False when the socket is full."""
        is_done = self._send_queue(self._tables, data, row)
        if not is_done:
            self._check()
        return is_done

    def _check(self) -> None:
        if self._errors[0]:
            raise CableClosedError(f"interface {self._name!r} is broken: {os.strerror(self._errors[0])}")

    def count(self, what: str) -> int:
        """A counter of `SENDER`."""
        return int(self._state[what][0])

    def close(self) -> None:
        """Forget the socket, whose descriptor may soon be another file's."""
        self._state["descriptor"] = -1
