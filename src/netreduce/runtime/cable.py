"""Cables: Unix SOCK_SEQPACKET connections that carry one burst of whole Ethernet frames a system call.

The listening socket lives in Linux's abstract namespace under a random name, so that nothing is left behind in any
file system, however the process ends. Both ends must belong to one user (SO_PEERCRED). The kernel's buffers give
back-pressure: a full cable refuses a burst, which then stays in its bounded egress queue.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from netreduce.compiled import entry
from netreduce.errors import ConfigurationError, NetReduceError, SwitchLostError
from netreduce.runtime.carrier import Carrier
from netreduce.wire.frames import (
    BURST_BYTES_MAX,
    RECORD_ALIGNMENT,
    FrameQueue,
    burst_is_whole,
    make_queue,
    queue_burst_end,
    queue_release,
)

ADDRESS_SCHEME = "local:"
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
"""Asked of the kernel for each direction; net.core.wmem_max may grant less. It holds a window of messages in flight."""
LISTEN_BACKLOG = 256

_PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


class CableClosedError(NetReduceError):
    """The other end of a cable or control connection is gone."""


class BadBurstError(NetReduceError):
    """A burst is no run of whole records: its sender is broken, and nothing of it can be used."""


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


def _sized(connection: socket.socket) -> socket.socket:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    return connection


def listen(address: str) -> socket.socket:
    """A non-blocking listening socket at `address`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(socket_name(address))
    listener.listen(LISTEN_BACKLOG)
    listener.setblocking(False)
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """The next waiting connection, non-blocking and with big buffers; None when there is none."""
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionError):
        return None
    connection.setblocking(False)
    return _sized(connection)


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
    return _sized(connection)


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
    is_whole: Callable[[np.ndarray, int], bool]
    burst_end: Callable[[np.ndarray, np.record, int], int]
    release: Callable[[np.ndarray, np.record, int], None]


@cache
def load() -> _Compiled:
    """The compiled functions that cables use. Loading them takes a while: better at the start than amid the traffic."""
    queue = make_queue(RECORD_ALIGNMENT)
    data, row = queue.data, queue.state[0]
    return _Compiled(
        entry(burst_is_whole, data, 0), entry(queue_burst_end, data, row, 0), entry(queue_release, data, row, 0)
    )


class Cable:
    """One end of a cable over a connected SOCK_SEQPACKET `connection`, which becomes non-blocking."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._is_whole = load().is_whole

    def fileno(self) -> int:
        """The socket's descriptor, for poll and epoll."""
        return self._connection.fileno()

    def receive(self, buffer: np.ndarray) -> int:
        """Take one burst into `buffer` (of `make_burst_buffer`); its size in bytes, or 0 when none waits.

        Raises `CableClosedError` when the other end is gone, `BadBurstError` when the burst is malformed.
        """
        try:
            size = self._connection.recv_into(buffer.data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise CableClosedError(f"cable broken: {error.strerror}") from error
        if size == 0:
            raise CableClosedError("cable closed by the other end")
        if size > BURST_BYTES_MAX or not self._is_whole(buffer, size):
            raise BadBurstError(f"malformed burst of {size} bytes")
        return size

    def send_burst(self, burst: np.ndarray) -> bool:
        """Send `burst` (uint8, whole records, at most `BURST_BYTES_MAX`); False when the cable is full."""
        try:
            self._connection.send(burst.data)
        except BlockingIOError:
            return False
        except OSError as error:
            raise CableClosedError(f"cable broken: {error.strerror}") from error
        return True

    def flush(self) -> bool:
        """True: a burst leaves whole or not at all."""
        return True

    def counters(self) -> dict[str, int]:
        """Nothing is lost on a cable."""
        return {}

    def close(self) -> None:
        """Unplug; the other end sees it."""
        hang_up(self._connection)


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

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, here or in the carrier."""
        return not self._frames[0] and self._is_flushed

    def send(self) -> bool:
        """Send bursts until nothing waits (True) or the carrier is full (False)."""
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
