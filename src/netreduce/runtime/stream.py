"""Frames over Unix stream sockets, each behind its length: the network of a QEMU guest (``-netdev stream``).

QEMU connects to a path where the switch listens. One guest's NIC is one connection; when it hangs up, the next may
connect.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from netreduce.compiled import entry
from netreduce.errors import ConfigurationError
from netreduce.runtime.cable import BadBurstError, CableClosedError, hang_up
from netreduce.runtime.carrier import Watched
from netreduce.wire.frames import BURST_BYTES_MAX
from netreduce.wire.framing import burst_to_stream, stream_to_burst

STREAM_BYTES = BURST_BYTES_MAX // 2
"""Bytes taken from a stream at a time: as records, even frames of 14 bytes behind 4 (18 become 32) fit into a burst."""


def listen_at(path: Path) -> socket.socket:
    """A non-blocking listening stream socket at `path`; one that nobody listens at any more is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and listener.connect_ex(str(path)) != 0:
            path.unlink()
            listener.close()
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen at {path}: {error.strerror}") from error
    listener.listen(1)
    listener.setblocking(False)
    return listener


@cache
def load() -> tuple[Callable[..., bool], Callable[..., int]]:
    """The compiled functions that streams use: to bursts, and from bursts."""
    data = np.zeros(0, np.uint8)
    return entry(stream_to_burst, data, 0, data, 0, np.zeros(2, np.int64)), entry(burst_to_stream, data, data)


class StreamCarrier(Watched):
    """One end of a stream of frames over `connection`, which becomes non-blocking. `now_ps` stamps what arrives."""

    def __init__(self, connection: socket.socket, now_ps: Callable[[], int]) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._now_ps = now_ps
        self._incoming = np.zeros(STREAM_BYTES, np.uint8)
        self._incoming_size = 0
        self._outgoing = np.zeros(BURST_BYTES_MAX, np.uint8)
        self._outgoing_span = (0, 0)
        self._done = np.zeros(2, np.int64)
        self._to_burst, self._to_stream = load()

    def fileno(self) -> int:
        """The socket's descriptor, for poll and epoll."""
        return self._connection.fileno()

    def receive(self, buffer: np.ndarray) -> np.ndarray | None:
        """What has arrived, as a burst in `buffer`; None when no frame is complete."""
        try:
            count = self._connection.recv_into(self._incoming[self._incoming_size :].data)
        except BlockingIOError:
            return None
        except OSError as error:
            raise CableClosedError(f"stream broken: {error.strerror}") from error
        if count == 0:
            raise CableClosedError("stream closed by the other end")
        size = self._incoming_size + count
        if not self._to_burst(self._incoming, size, buffer, self._now_ps(), self._done):
            raise BadBurstError("malformed stream: a frame of impossible length")
        used, written = (int(number) for number in self._done)
        self._incoming_size = size - used
        self._incoming[: self._incoming_size] = self._incoming[used:size].copy()
        return buffer[:written] if written else None

    def send_burst(self, burst: np.ndarray) -> bool:
        """Take `burst` once the previous one has left; False while it has not."""
        if not self.flush():
            return False
        self._outgoing_span = (0, int(self._to_stream(burst, self._outgoing)))
        self.flush()
        return True

    def flush(self) -> bool:
        """Send what is left; True when nothing is."""
        start, end = self._outgoing_span
        while start < end:
            try:
                start += self._connection.send(self._outgoing[start:end].data)
            except BlockingIOError:
                break
            except OSError as error:
                raise CableClosedError(f"stream broken: {error.strerror}") from error
        self._outgoing_span = (start, end)
        return start == end

    def counters(self) -> dict[str, int]:
        """Nothing is lost on a stream."""
        return {}

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            hang_up(self._connection)
