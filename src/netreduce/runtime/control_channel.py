"""The control channel: messages of `wire.control`, one datagram each over SOCK_SEQPACKET, behind its length over TCP.

Both ends use it without blocking. What the peer does not read waits in a bounded queue; a peer that lets it overflow
is treated as gone, for it would miss the news that it needs.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque

import msgspec

from netreduce.errors import NetReduceError
from netreduce.runtime.cable import CableClosedError, hang_up
from netreduce.wire import control

OUTBOX_MESSAGES_MAX = 256


class BadMessageError(NetReduceError):
    """A datagram is no control message, or none that belongs here."""


def decoded(data: bytes) -> control.Message:
    """The message; `BadMessageError` if it is none."""
    try:
        return control.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessageError(f"malformed control message of {len(data)} bytes: {error}") from error


class ControlChannel:
    """One end of a control connection; `connection` becomes non-blocking."""

    BYTES_MAX = control.CONTROL_BYTES_MAX

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._outbox: deque[bytes] = deque()

    def fileno(self) -> int:
        """The socket's descriptor, for poll and epoll."""
        return self.connection.fileno()

    def receive(self) -> control.Message | None:
        """The next message, or None when none waits.

        Raises `CableClosedError` when the peer is gone and `BadMessageError` for a malformed datagram.
        """
        try:
            data = self.connection.recv(self.BYTES_MAX + 1)
        except BlockingIOError:
            return None
        except OSError as error:
            raise CableClosedError(f"control connection broken: {error.strerror}") from error
        if not data:
            raise CableClosedError("control connection closed by the other end")
        return decoded(data)

    def receive_within(self, timeout_s: float) -> control.Message | None:
        """The next message, waiting at most `timeout_s` for it; None when it did not come."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return self.receive() if poll.poll(timeout_s * 1000) else None

    def send(self, message: control.Message) -> None:
        """Send `message`, or queue it while the connection is full; `CableClosedError` when the peer is gone."""
        self._outbox.append(self._encode(message))
        self.flush()
        if len(self._outbox) > OUTBOX_MESSAGES_MAX:
            raise CableClosedError(f"the peer left {OUTBOX_MESSAGES_MAX} control messages unread")

    def flush(self) -> bool:
        """Send what is queued; True when nothing is left."""
        while self._outbox:
            try:
                sent = self.connection.send(self._outbox[0])
            except BlockingIOError:
                return False
            except OSError as error:
                raise CableClosedError(f"control connection broken: {error.strerror}") from error
            if sent < len(self._outbox[0]):
                self._outbox[0] = self._outbox[0][sent:]
            else:
                self._outbox.popleft()
        return True

    def _encode(self, message: control.Message) -> bytes:
        return control.encode(message)

    def close(self) -> None:
        """Close; the other end sees it."""
        hang_up(self.connection)


_LENGTH = struct.Struct("!I")
_READ_BYTES = 64 * 1024
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 5, 2, 3


class StreamChannel(ControlChannel):
    """The same over a TCP `connection`: each message behind its length (32 bits, big-endian).

    A peer whose host is gone without a word is noticed by keep-alive probes, after about 11 s.
    """

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._incoming = bytearray()
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S),
            (socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S),
            (socket.TCP_KEEPCNT, _KEEPALIVE_PROBES),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def receive(self) -> control.Message | None:
        """As `ControlChannel.receive`; several messages may have come together, so call it until it says None."""
        message = self._take()
        if message is None:
            self._read()
            message = self._take()
        return message

    def receive_within(self, timeout_s: float) -> control.Message | None:
        """The next message, waiting at most `timeout_s` for each of its parts."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        message = self.receive()
        while message is None and poll.poll(timeout_s * 1000):
            message = self.receive()
        return message

    def _read(self) -> None:
        try:
            data = self.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise CableClosedError(f"control connection broken: {error.strerror}") from error
        if not data:
            raise CableClosedError("control connection closed by the other end")
        self._incoming += data

    def _take(self) -> control.Message | None:
        if len(self._incoming) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._incoming)
        if length > control.CONTROL_BYTES_MAX:
            raise BadMessageError(
                f"a control message of {length} bytes, at most {control.CONTROL_BYTES_MAX} are allowed"
            )
        end = _LENGTH.size + length
        if len(self._incoming) < end:
            return None
        data = bytes(self._incoming[_LENGTH.size : end])
        del self._incoming[:end]
        return decoded(data)

    def _encode(self, message: control.Message) -> bytes:
        data = control.encode(message)
        return _LENGTH.pack(len(data)) + data
