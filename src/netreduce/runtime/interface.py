"""Frames at a Linux network interface, by a packet(7) socket: a port of the switch, or an embedded NIC's only port.

Runs of RoCE packets cross it as super-frames (see wire/segmentation.py); `packet_sender.py` sends, `packet_ring.py`
receives. Opening needs CAP_NET_RAW and CAP_NET_ADMIN. What its offloads would spoil is told by `offloads.py`.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.runtime import packet_ring, packet_sender
from netreduce.runtime.cable import CableClosedError
from netreduce.runtime.carrier import Watched
from netreduce.runtime.packet_filters import attach_filter
from netreduce.runtime.packet_ring import SOL_PACKET, Ring
from netreduce.runtime.packet_sender import Sender
from netreduce.units import PS_PER_MS, PS_PER_S
from netreduce.wire.frames import BURST_BYTES_MAX
from netreduce.wire.packet_slots import Seen

logger = logging.getLogger("netreduce")

SEND_BUFFER_BYTES = 16 * 1024 * 1024
STREAM_BYTES = 1024
"""A burst of that size is part of a stream, one of `FULL_BYTES` needs no more frames."""
FULL_BYTES = BURST_BYTES_MAX // 2
STREAM_GAP_PS = 5 * PS_PER_MS
"""What comes later starts a new stream."""
GATHER_SHARE = 1 / 128
GATHER_MAX_S = 150e-6
SYSFS = Path("/sys/class/net")

_ETH_P_ALL = 3
_PACKET_ADD_MEMBERSHIP, _PACKET_STATISTICS, _PACKET_IGNORE_OUTGOING = 1, 6, 23
_PACKET_MR_PROMISC = 1
_SO_SNDBUFFORCE = 32


def interface_mtu(name: str) -> int:
    """The interface's MTU; `ConfigurationError` when there is no such interface."""
    return int(_attribute(name, "mtu"))


def interface_index(name: str) -> int:
    """The kernel's number of the interface; `ConfigurationError` when there is no such interface."""
    return int(_attribute(name, "ifindex"))


def interface_mac(name: str) -> str:
    """The interface's MAC address."""
    return _attribute(name, "address")


def _attribute(name: str, attribute: str) -> str:
    try:
        return (SYSFS / name / attribute).read_text().strip()
    except OSError as error:
        present = ", ".join(sorted(path.name for path in SYSFS.iterdir()))
        raise ConfigurationError(f"no network interface {name!r} here; there are {present}") from error


def _open(name: str) -> socket.socket:
    try:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    except PermissionError as error:
        raise ConfigurationError(
            f"interface {name!r} needs the capability CAP_NET_RAW: run as root, or once and for all users: "
            f"sudo setcap cap_net_raw,cap_net_admin+ep {os.path.realpath(sys.executable)}"
        ) from error


def load() -> None:
    """Load what is compiled for interfaces: better at the start than amid the traffic."""
    packet_ring.load()
    packet_sender.load()


class InterfaceCarrier(Watched):
    """Frames at interface `name`: all of them (`program` None, promiscuous), or those that a BPF program accepts.

    `ConfigurationError` when it does not exist or may not be opened. `now_ps` stamps what arrives.
    """

    gives_all = True

    def __init__(
        self, name: str, now_ps: Callable[[], int], program: Sequence[tuple[int, int, int, int]] | None = None
    ) -> None:
        self.name = name
        index = interface_index(name)
        self._now_ps = now_ps
        self._socket = _open(name)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
        if program is not None:
            attach_filter(self._socket, program)
        self._socket.setsockopt(SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        if program is None:
            membership = struct.pack("iHH8s", index, _PACKET_MR_PROMISC, 0, b"")
            self._socket.setsockopt(SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
        self._ring = Ring(self._socket)
        self._sender = Sender(self._socket, name)
        self._socket.bind((name, _ETH_P_ALL))
        self._stream_start_ps = self._stream_last_ps = -STREAM_GAP_PS
        self._burst_bytes = 0
        self._kernel_drops = 0
        self._was_woken = False
        self._rest = np.zeros(BURST_BYTES_MAX, np.uint8)
        self._rest_span = (0, 0)

    def fileno(self) -> int:
        """The socket's descriptor, for poll and epoll."""
        return self._socket.fileno()

    def receive(self, buffer: np.ndarray) -> np.ndarray | None:
        """Frames that have come, good until the next call (`buffer` is not needed); None when none waits.

        A link that goes down may come up again; `CableClosedError` when there is no such interface any more.
        """
        now_ps = self._now_ps()
        burst = self._ring.receive(now_ps)
        if burst.size >= STREAM_BYTES:
            if now_ps - self._stream_last_ps > STREAM_GAP_PS:
                self._stream_start_ps = now_ps
            self._stream_last_ps = now_ps
        if burst.size:
            self._burst_bytes = burst.size
            self._was_woken = False
            return burst
        if self._was_woken:  # for nothing: by an error, perhaps
            self._was_woken = False
            if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) and not (SYSFS / self.name).exists():
                raise CableClosedError(f"interface {self.name!r} is gone")
        return None

    def wake(self) -> None:
        """The descriptor is readable, or has an error to tell."""
        self._was_woken = True

    def gather_s(self) -> float:
        """A small share of the time that a stream lasts already, so that it costs little; short frames do not wait."""
        if not STREAM_BYTES <= self._burst_bytes < FULL_BYTES:
            return 0.0
        return min(GATHER_MAX_S, (self._stream_last_ps - self._stream_start_ps) * GATHER_SHARE / PS_PER_S)

    def send_burst(self, burst: np.ndarray) -> bool:
        """Hand `burst` to the interface, once the previous one has left; False while it has not."""
        if not self.flush():
            return False
        sent = self._sender.send(burst)
        rest = burst.size - sent
        self._rest[:rest] = burst[sent:]
        self._rest_span = (0, rest)
        return True

    def send_queue(self, data: np.ndarray, row: np.record) -> bool:
        """Send what waits in a frame queue of these `data` and state; False when the socket is full."""
        return self.flush() and self._sender.send_queue(data, row)

    def flush(self) -> bool:
        """Send what is left; True when nothing is."""
        start, end = self._rest_span
        if start < end:
            start += self._sender.send(self._rest[start:end])
            self._rest_span = (start, end)
        return start == end

    def counters(self) -> dict[str, int]:
        """Frames lost by a full ring or queue, refused by the interface, or left out; super-frames; checksums."""
        data = self._socket.getsockopt(SOL_PACKET, _PACKET_STATISTICS, 8)  # and sets them back to 0
        self._kernel_drops += struct.unpack("II", data)[1]
        seen = {what: int(count) for what, count in zip(Seen, self._ring.seen, strict=True)}
        return {
            "interface_drops_in": self._kernel_drops + seen[Seen.LOST],
            "interface_drops_out": self._sender.count("dropped"),
            "interface_frames_too_long": seen[Seen.TOO_LONG],
            "interface_frames_malformed": seen[Seen.MALFORMED],
            "interface_checksums_filled": seen[Seen.FILLED],
            "interface_super_frames_in": seen[Seen.SUPER_FRAMES],
            "interface_super_frames_out": self._sender.count("super_frames"),
        }

    def close(self) -> None:
        """Stop listening; the interface goes on without."""
        self._ring.close()
        self._sender.close()
        self._socket.close()
