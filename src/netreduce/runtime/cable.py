"""Cables: bursts of whole Ethernet frames in memory that worker and switch share, and a Unix socket as their bell.

Two pipes (wire/burst_pipe.py), one for each direction, carry the bursts; nobody makes a system call for one unless the
other end sleeps. The SOCK_SEQPACKET connection wakes it with a byte, and tells of the other end's death. The listening
socket lives in Linux's abstract namespace under a random name, and the memory has no name at all, so that nothing is
left behind, however the process ends. Both ends must belong to one user (SO_PEERCRED). A full pipe refuses a burst,
which then stays in its bounded egress queue.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import select
import socket
import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from netreduce.compiled import entry
from netreduce.errors import ConfigurationError, NetReduceError, SwitchLostError
from netreduce.runtime.carrier import Carrier, Queued
from netreduce.runtime.shared_memory import allocate, map_memory
from netreduce.wire.burst_pipe import (
    STATE_WORDS,
    Found,
    Put,
    Sleep,
    pipe_fill,
    pipe_next,
    pipe_put,
    pipe_release,
    pipe_rest,
    pipes_rest,
    pipes_with_news,
)
from netreduce.wire.frames import (
    BURST_BYTES_MAX,
    RECORD_ALIGNMENT,
    FrameQueue,
    make_queue,
    queue_burst_end,
    queue_release,
)

ADDRESS_SCHEME = "local:"
PIPE_BYTES = 1024 * 1024
"""What each direction holds: a window of messages in flight, and no more than a processor's cache likes."""
LISTEN_BACKLOG = 256

_STATE_BYTES = STATE_WORDS * 8
_HEADER_BYTES = mmap.PAGESIZE
_MEMORY_BYTES = _HEADER_BYTES + 2 * PIPE_BYTES
"""A cable's memory: the states of both pipes in one page, then the pipe to the switch, then that to the worker."""
_GREETING = b"memory"
_BELL = b"\0"
_SLEEP, _PATIENT_SLEEP = int(Sleep.FOR_ANYTHING), int(Sleep.FOR_DATA)

_PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


class CableClosedError(NetReduceError):
    """The other end of a cable or control connection is gone."""


class BadBurstError(NetReduceError):
    """A burst is no run of whole records: its sender is broken, and nothing of it can be used."""

    @classmethod
    def of(cls, size: int) -> BadBurstError:
        """The error about a burst of `size` bytes."""
        return cls(f"malformed burst of {size} bytes")


Tap = Callable[[np.ndarray], None]
"""Sees bursts that have crossed a cable; it must not keep or change them."""


class PeerCredentials(NamedTuple):
    """Process and user at the other end, as the kernel vouches for them; a `pid` of 0 is outside our namespace."""

    pid: int
    uid: int


def new_address() -> str:
    """A fresh random address, such as ``local:netreduce-2b7e151628aed2a6``."""
    return f"{ADDRESS_SCHEME}netreduce-{secrets.token_hex(8)}"


def socket_name(address: str) -> str:
    """The abstract socket name for a switch's `address`; `ConfigurationError` for anything else."""
    name = address.removeprefix(ADDRESS_SCHEME)
    if not address.startswith(ADDRESS_SCHEME) or not 0 < len(name) <= 100:
        raise ConfigurationError(f"switch address {address!r}: want {ADDRESS_SCHEME}NAME, as NETREDUCE_SWITCH gives it")
    return "\0" + name


def listen(address: str) -> socket.socket:
    """A non-blocking listening socket at `address`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(socket_name(address))
    listener.listen(LISTEN_BACKLOG)
    listener.setblocking(False)
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """The next waiting connection, non-blocking; None when there is none."""
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionError):
        return None
    connection.setblocking(False)
    return connection


def connect(address: str) -> socket.socket:
    """A blocking connection to the switch at `address`; `SwitchLostError` when nobody listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(socket_name(address))
        uid = peer_credentials(connection).uid
        if uid != os.getuid():
            raise SwitchLostError(f"the switch at {address} belongs to user {uid}, not to user {os.getuid()}")
    except OSError as error:
        connection.close()
        raise SwitchLostError(f"no switch at {address} ({error.strerror}): it has ended, or runs elsewhere") from error
    except BaseException:
        connection.close()
        raise
    return connection


def peer_credentials(connection: socket.socket) -> PeerCredentials:
    """Who is at the other end."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, uid, _ = _PEER_CREDENTIALS.unpack(data)
    return PeerCredentials(pid, uid)


def hang_up(connection: socket.socket) -> None:
    """Close for everyone: a forked child that inherited the descriptor does not keep the other end waiting."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def make_burst_buffer() -> np.ndarray:
    """A buffer for `Cable.receive`: uint8, one byte longer than any burst, so that a longer one is noticed."""
    return np.zeros(BURST_BYTES_MAX + 1, np.uint8)


class _Compiled(NamedTuple):
    burst_end: Callable[[np.ndarray, np.record, int], int]
    release: Callable[[np.ndarray, np.record, int], None]
    pipe_put: Callable[[np.ndarray, np.ndarray, np.ndarray, bool], int]
    pipe_fill: Callable[[np.ndarray, np.ndarray, np.ndarray, np.record, bool], int]
    pipe_next: Callable[[np.ndarray, np.ndarray, np.ndarray], int]
    pipe_release: Callable[[np.ndarray, np.ndarray, int], bool]
    pipe_rest: Callable[[np.ndarray, int], bool]
    pipes_with_news: Callable[[np.ndarray, np.ndarray], int]
    pipes_rest: Callable[[np.ndarray], bool]


@cache
def load() -> _Compiled:
    """The compiled functions that cables use. Loading them takes a while: better at the start than amid the traffic."""
    queue = make_queue(RECORD_ALIGNMENT)
    data, row, words = queue.data, queue.state[0], np.zeros(0, np.int64)
    return _Compiled(
        entry(queue_burst_end, data, row, 0),
        entry(queue_release, data, row, 0),
        entry(pipe_put, data, words, data, False),
        entry(pipe_fill, data, words, data, row, False),
        entry(pipe_next, data, words, words),
        entry(pipe_release, data, words, 0),
        entry(pipe_rest, words, 0),
        entry(pipes_with_news, words, words),
        entry(pipes_rest, words),
    )


class Cable:
    """One end of a cable over a connected SOCK_SEQPACKET `connection`, which becomes non-blocking.

    The switch makes a cable with `offer`, the worker gets its end by `take`. `memory` is the descriptor of memory that
    both ends map, and is closed. Whoever wants to sleep on `fileno` calls `rest` before and `wake` after it.
    While `is_patient`, acknowledgements alone ring at neither end.
    """

    def __init__(self, connection: socket.socket, memory: int, *, is_switch: bool) -> None:
        connection.setblocking(False)
        self._connection = connection
        mapped = map_memory(memory, _MEMORY_BYTES)
        directions = []
        for number in range(2):
            state = np.frombuffer(mapped, np.int64, STATE_WORDS, number * _STATE_BYTES)
            directions.append((np.frombuffer(mapped, np.uint8, PIPE_BYTES, _HEADER_BYTES + number * PIPE_BYTES), state))
        (self._data_in, self._state_in), (self._data_out, self._state_out) = directions[:: 1 if is_switch else -1]
        self._place = np.zeros(2, np.int64)
        self._held_bytes = -1  # of the burst that was received last; -1 when its memory was given back
        self.is_patient = False
        compiled = load()
        self._put, self._fill, self._next = compiled.pipe_put, compiled.pipe_fill, compiled.pipe_next
        self._release, self._rest = compiled.pipe_release, compiled.pipe_rest

    @classmethod
    def offer(cls, connection: socket.socket) -> Cable:
        """The switch's end: makes the memory, and sends it to the worker. Raises `CableClosedError`."""
        memory = allocate("netreduce-cable", _MEMORY_BYTES)
        try:
            socket.send_fds(connection, [_GREETING], [memory])
        except OSError as error:
            os.close(memory)
            raise CableClosedError(f"cable broken: {error.strerror}") from error
        return cls(connection, memory, is_switch=True)

    @classmethod
    def take(cls, connection: socket.socket, timeout_s: float) -> Cable:
        """The worker's end, when the switch has offered it. Raises `CableClosedError`."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.poll(timeout_s * 1000)
        try:
            greeting, descriptors, _, _ = socket.recv_fds(connection, len(_GREETING), 1)
        except OSError as error:
            raise CableClosedError(f"cable broken: {error.strerror}") from error
        if greeting != _GREETING or len(descriptors) != 1:
            raise CableClosedError("cable closed by the other end")
        return cls(connection, descriptors[0], is_switch=False)

    def fileno(self) -> int:
        """The bell's descriptor, for poll and epoll: readable when a burst, or room for one, ends a `rest`."""
        return self._connection.fileno()

    def receive(self, buffer: np.ndarray) -> np.ndarray | None:
        """The oldest burst, where it lies, good until the next call (`buffer` is not needed); None when there is none.

        Raises `BadBurstError` when it is malformed.
        """
        if self._held_bytes >= 0:
            if self._release(self._data_in, self._state_in, self._held_bytes):
                self.ring()
            self._held_bytes = -1
        found = self._next(self._data_in, self._state_in, self._place)
        if found == Found.NOTHING:
            return None
        start, size = self._place.tolist()
        if found == Found.NONSENSE:
            raise BadBurstError.of(size)
        self._held_bytes = size
        return self._data_in[start : start + size]

    def send_burst(self, burst: np.ndarray) -> bool:
        """Send `burst` (uint8, whole records, at most `BURST_BYTES_MAX`); False when the cable is full."""
        return self._is_done(self._put(self._data_out, self._state_out, burst, self.is_patient))

    def send_queue(self, data: np.ndarray, row: np.record) -> bool:
        """Send what waits in a frame queue of these `data` and state; False when the cable is full."""
        return self._is_done(self._fill(self._data_out, self._state_out, data, row, self.is_patient))

    def _is_done(self, outcome: int) -> bool:
        if outcome & Put.DONE_WAKE:
            self.ring()
        return not outcome & Put.NO_ROOM

    @property
    def pipes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Data and state of the pipe from which this end reads, then of the one to which it writes."""
        return self._data_in, self._state_in, self._data_out, self._state_out

    @property
    def sleep(self) -> int:
        """The `Sleep` of this end."""
        return _PATIENT_SLEEP if self.is_patient else _SLEEP

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Where the `pipes` lie; `PIPE_BYTES` is the size of their data."""
        data_in, state_in, data_out, state_out = (int(part.ctypes.data) for part in self.pipes)
        return data_in, state_in, data_out, state_out

    def rest(self) -> bool:
        """Before sleeping on `fileno`: whether it will tell of what comes. False when a burst is there already."""
        return self._rest(self._state_in, self.sleep)

    def gather_s(self) -> float:
        """Nothing: whoever sends rings only for those who sleep."""
        return 0.0

    def wake(self) -> None:
        """`fileno` is readable: take the bell. Raises `CableClosedError` when the other end is gone."""
        try:
            if not self._connection.recv(len(_BELL)):
                raise CableClosedError("cable closed by the other end")
        except BlockingIOError:
            return
        except OSError as error:
            raise CableClosedError(f"cable broken: {error.strerror}") from error

    def ring(self) -> None:
        """Wake the other end. Raises `CableClosedError` when it is gone."""
        try:
            self._connection.send(_BELL)
        except BlockingIOError:
            return  # so many bells wait there that one more makes no difference
        except OSError as error:
            raise CableClosedError(f"cable broken: {error.strerror}") from error

    def flush(self) -> bool:
        """True: a burst leaves whole or not at all."""
        return True

    def counters(self) -> dict[str, int]:
        """Nothing is lost on a cable."""
        return {}

    def close(self) -> None:
        """Unplug; the other end sees it."""
        hang_up(self._connection)
        self._state_in, self._state_out = np.zeros((2, STATE_WORDS), np.int64)  # an empty pipe, and a full one
        self._data_in = self._data_out = np.zeros(0, np.uint8)
        self._held_bytes = -1


class Outlet:
    """Sends what waits in `queue` (a node's egress) by `carrier`. `tap` sees each burst that was sent."""

    def __init__(self, carrier: Carrier, queue: FrameQueue, tap: Tap | None = None) -> None:
        self._carrier = carrier
        self._data = queue.data
        self._row = queue.state[0]
        self._tap = tap
        self._is_flushed = True
        state = queue.state.view(np.ndarray)  # reading fields of a recarray costs ten times as much
        self._frames = state["frames"]
        self._head = state["head"]
        self._burst_end, self._release = load().burst_end, load().release
        self._queued = carrier if tap is None and isinstance(carrier, Queued) else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, here or in the carrier."""
        return not self._frames[0] and self._is_flushed

    def send(self) -> bool:
        """Send bursts until nothing waits (True) or the carrier is full (False)."""
        if self._queued is not None:
            return self._queued.send_queue(self._data, self._row)
        while self._frames[0]:
            end = self._burst_end(self._data, self._row, BURST_BYTES_MAX)
            burst = self._data[self._head[0] : end]
            if not self._carrier.send_burst(burst):
                return False
            if self._tap is not None:
                self._tap(burst)
            self._release(self._data, self._row, end)
        self._is_flushed = self._carrier.flush()
        return self._is_flushed
