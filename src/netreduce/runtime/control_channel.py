"""The control channel: messages of `wire.control`, one datagram each, over a SOCK_SEQPACKET connection.

Both ends use it without blocking. What the peer does not read waits in a bounded queue; a peer that lets it overflow
is treated as gone, for it would miss the news that it needs.
"""

from __future__ import annotations

import select
import socket
from collections import deque

import msgspec

from netreduce.errors import NetReduceError
from netreduce.runtime.cable import CableClosedError, hang_up
from netreduce.wire import control

OUTBOX_MESSAGES_MAX = 256


class BadMessageError(NetReduceError):
    """A datagram is no control message, or none that belongs here."""


class ControlChannel:
    """One end of a control connection; `connection` becomes non-blocking."""

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
            data = self.connection.recv(control.CONTROL_BYTES_MAX + 1)
        except BlockingIOError:
            return None
        except OSError as error:
            raise CableClosedError(f"control connection broken: {error.strerror}") from error
        if not data:
            raise CableClosedError("control connection closed by the other end")
        try:
            return control.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessageError(f"malformed control message of {len(data)} bytes: {error}") from error

    def receive_within(self, timeout_s: float) -> control.Message | None:
        """The next message, waiting at most `timeout_s` for it; None when it did not come."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return self.receive() if poll.poll(timeout_s * 1000) else None

    def send(self, message: control.Message) -> None:
        """Send `message`, or queue it while the connection is full; `CableClosedError` when the peer is gone."""
        self._outbox.append(control.encode(message))
        self.flush()
        if len(self._outbox) > OUTBOX_MESSAGES_MAX:
            raise CableClosedError(f"the peer left {OUTBOX_MESSAGES_MAX} control messages unread")

    def flush(self) -> bool:
        """Send what is queued; True when nothing is left."""
        while self._outbox:
            try:
                self.connection.send(self._outbox[0])
            except BlockingIOError:
                return False
            except OSError as error:
                raise CableClosedError(f"control connection broken: {error.strerror}") from error
            self._outbox.popleft()
        return True

    def close(self) -> None:
        """Close; the other end sees it."""
        hang_up(self.connection)
