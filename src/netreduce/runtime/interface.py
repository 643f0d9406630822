"""Frames at a Linux network interface, by a packet(7) socket: a port of the switch, or an embedded NIC's only port.

Received frames lie in a ring of slots that the kernel fills and this process reads, without a system call; frames are
sent from where they lie, many in one call (sendmmsg). Opening needs CAP_NET_RAW. What the interface's offloads would
spoil is told by `offloads.py`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from netreduce.compiled import entry
from netreduce.errors import ConfigurationError
from netreduce.runtime.cable import CableClosedError
from netreduce.runtime.carrier import Watched
from netreduce.units import PS_PER_MS, PS_PER_S
from netreduce.wire.frames import BURST_BYTES_MAX, FRAME_BYTES_MAX, record_bytes
from netreduce.wire.framing import frame_parts, ring_to_burst

PACKETS_PER_CALL = 64
HEADERS_BYTES = 14 + 2 * 4
"""Ethernet header and two tags, which the MTU does not count."""
SEND_BUFFER_BYTES = 16 * 1024 * 1024
RING_BYTES = 16 * 1024 * 1024
"""Memory of a ring: with slots of 2 KiB 8,192 frames, of 16 KiB (an MTU of 9,000) 1,024."""
STREAM_BYTES = 1024
"""A burst of that size is part of a stream, one of `FULL_BYTES` needs no more frames."""
FULL_BYTES = BURST_BYTES_MAX // 2
STREAM_GAP_PS = 5 * PS_PER_MS
"""What comes later starts a new stream."""
GATHER_SHARE = 1 / 128
GATHER_MAX_S = 150e-6
BLOCK_BYTES = 64 * 1024
SLOT_OVERHEAD_BYTES = 66
"""Where a packet starts in a slot: struct tpacket2_hdr (32) and sockaddr_ll (20), aligned so that its network header
lies at 80."""
SYSFS = Path("/sys/class/net")

_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_ADD_MEMBERSHIP, _PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION, _PACKET_IGNORE_OUTGOING = 1, 5, 6, 10, 23
_TPACKET_V2 = 1
_SLOT_IS_MINE = 1
_PACKET_MR_PROMISC = 1
_SO_SNDBUFFORCE, _SO_ATTACH_FILTER = 32, 26
_FRAME_REFUSED = (errno.ENOBUFS, errno.EMSGSIZE, errno.ENETDOWN)
"""The interface's queue is full, the frame too long, the link down: a frame is lost, as on any wire."""

_libc = ctypes.CDLL(None, use_errno=True)

MESSAGE = np.dtype(
    [
        ("name", np.int64), ("name_bytes", np.int64), ("parts", np.int64), ("part_count", np.int64),
        ("control", np.int64), ("control_bytes", np.int64), ("flags", np.int64), ("length", np.int64),
    ]
)  # fmt: skip
"""struct mmsghdr of a 64-bit Linux: struct msghdr, then the length (32 bits and padding)."""


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


def attach_filter(connection: socket.socket, program: Sequence[tuple[int, int, int, int]]) -> None:
    """Let only frames through that the classic BPF `program` (code, jt, jf, k) accepts."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    fprog = struct.pack("HL", len(program), ctypes.addressof(code))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)


def roce_to(ip: str) -> list[tuple[int, int, int, int]]:
    """A classic BPF program that accepts RoCEv2 over IPv4 (UDP port 4791, no fragment) for `ip`."""
    address = struct.unpack("!I", socket.inet_aton(ip))[0]
    return [
        (0x28, 0, 0, 12),  # ldh the ethertype
        (0x15, 0, 9, 0x0800),
        (0x20, 0, 0, 30),  # ld the destination
        (0x15, 0, 7, address),
        (0x30, 0, 0, 23),  # ldb the protocol
        (0x15, 0, 5, socket.IPPROTO_UDP),
        (0x28, 0, 0, 20),  # ldh flags and fragment offset
        (0x45, 3, 0, 0x1FFF),
        (0xB1, 0, 0, 14),  # ldx 4 * (IP header length)
        (0x48, 0, 0, 16),  # ldh the UDP destination port
        (0x15, 1, 0, 4791),
        (0x06, 0, 0, 0),  # ret nothing
        (0x06, 0, 0, 0x40000),  # ret the whole frame
    ]


def ip_to(mac: str) -> list[tuple[int, int, int, int]]:
    """A classic BPF program that accepts IPv4 and IPv6 packets to `mac`. The kernel has taken the VLAN tag out."""
    number = int.from_bytes(bytes.fromhex(mac.replace(":", "")), "big")
    return [
        (0x28, 0, 0, 0),  # ldh the destination's first half word
        (0x15, 0, 6, number >> 32),
        (0x20, 0, 0, 2),  # ld the rest of it
        (0x15, 0, 4, number & 0xFFFFFFFF),
        (0x28, 0, 0, 12),  # ldh the ethertype
        (0x15, 1, 0, 0x0800),
        (0x15, 0, 1, 0x86DD),
        (0x06, 0, 0, 0x40000),  # ret the whole frame
        (0x06, 0, 0, 0),  # ret nothing
    ]


@cache
def load() -> tuple[Callable[..., int], Callable[..., int]]:
    """The compiled functions that interfaces use: slots to bursts, and where the frames of a burst lie."""
    row, table, numbers = np.zeros(0, np.uint8), np.zeros((1, 1), np.uint8), np.zeros(2, np.int64)
    return (
        entry(ring_to_burst, table, 0, 0, row, 0, numbers),
        entry(frame_parts, row, 0, 0, np.zeros((1, 2), np.int64), numbers),
    )


class _Ring:
    """The kernel's received packets at `connection`, of up to `packet_bytes` each, in slots that both share."""

    def __init__(self, connection: socket.socket, packet_bytes: int) -> None:
        slot_bytes = max(2048, 1 << (SLOT_OVERHEAD_BYTES + packet_bytes - 1).bit_length())
        count = RING_BYTES // slot_bytes
        request = struct.pack("IIII", BLOCK_BYTES, RING_BYTES // BLOCK_BYTES, slot_bytes, count)
        connection.setsockopt(_SOL_PACKET, _PACKET_VERSION, struct.pack("i", _TPACKET_V2))
        connection.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
        memory = mmap.mmap(connection.fileno(), RING_BYTES)
        self._slots = np.frombuffer(memory, np.uint8).reshape(count, slot_bytes)
        self._status = self._slots[:, :4].view(np.uint32)[:, 0]
        self._per_burst = BURST_BYTES_MAX // int(record_bytes(packet_bytes))
        self._next = 0
        self.seen = np.zeros(2, np.int64)
        self._to_burst, _ = load()

    def receive(self, buffer: np.ndarray, now_ps: int) -> int:
        """Take as many packets as surely fit into `buffer`; the burst's size in bytes, 0 when none waits."""
        status = self._status[self._next : self._next + self._per_burst]
        is_mine = status & _SLOT_IS_MINE
        count = status.size if is_mine.all() else int(is_mine.argmin())
        if count == 0:
            return 0
        size = int(self._to_burst(self._slots, self._next, count, buffer, now_ps, self.seen))
        status[:count] = 0  # the kernel's again
        self._next = (self._next + count) % self._status.size
        return size


class InterfaceCarrier(Watched):
    """Frames at interface `name`: all of them (`program` None, promiscuous), or those that a BPF program accepts.

    `ConfigurationError` when it does not exist or may not be opened. `now_ps` stamps what arrives.
    """

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
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        if program is None:
            membership = struct.pack("iHH8s", index, _PACKET_MR_PROMISC, 0, b"")
            self._socket.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
        self._ring = _Ring(self._socket, min(interface_mtu(name) + HEADERS_BYTES, FRAME_BYTES_MAX))
        self._socket.bind((name, _ETH_P_ALL))
        self._stream_start_ps = self._stream_last_ps = -STREAM_GAP_PS
        self._burst_bytes = 0
        self._dropped_out = 0
        self._kernel_drops = 0
        self._out_parts, self._out_messages = _make_messages(PACKETS_PER_CALL)
        self._done = np.zeros(1, np.int64)
        self._rest = np.zeros(BURST_BYTES_MAX, np.uint8)
        self._rest_span = (0, 0)
        _, self._find_parts = load()

    def fileno(self) -> int:
        """The socket's descriptor, for poll and epoll."""
        return self._socket.fileno()

    def receive(self, buffer: np.ndarray) -> np.ndarray | None:
        """Up to as many frames as surely fit into `buffer`, as a burst there; None when none waits.

        A link that goes down may come up again; `CableClosedError` when there is no such interface any more.
        """
        now_ps = self._now_ps()
        size = self._ring.receive(buffer, now_ps)
        if size >= STREAM_BYTES:
            if now_ps - self._stream_last_ps > STREAM_GAP_PS:
                self._stream_start_ps = now_ps
            self._stream_last_ps = now_ps
        self._burst_bytes = size or self._burst_bytes
        if size:
            return buffer[:size]
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) and not (SYSFS / self.name).exists():
            raise CableClosedError(f"interface {self.name!r} is gone")
        return None

    def gather_s(self) -> float:
        """A small share of the time that a stream lasts already, so that it costs little; short frames do not wait."""
        if not STREAM_BYTES <= self._burst_bytes < FULL_BYTES:
            return 0.0
        return min(GATHER_MAX_S, (self._stream_last_ps - self._stream_start_ps) * GATHER_SHARE / PS_PER_S)

    def send_burst(self, burst: np.ndarray) -> bool:
        """Hand `burst` to the interface, once the previous one has left; False while it has not."""
        if not self.flush():
            return False
        sent = self._send(burst)
        rest = burst.size - sent
        self._rest[:rest] = burst[sent:]
        self._rest_span = (0, rest)
        return True

    def flush(self) -> bool:
        """Send what is left; True when nothing is."""
        start, end = self._rest_span
        if start < end:
            start += self._send(self._rest[start:end])
            self._rest_span = (start, end)
        return start == end

    def _send(self, burst: np.ndarray) -> int:
        """Send frames until the socket is full; the offset of the first one that is left."""
        at = 0
        while at < burst.size:
            end = int(self._find_parts(burst, at, burst.ctypes.data, self._out_parts, self._done))
            count = int(self._done[0])
            messages = ctypes.c_void_p(self._out_messages.ctypes.data)
            sent = _libc.sendmmsg(self.fileno(), messages, count, socket.MSG_DONTWAIT)
            if sent == count:
                at = end
            elif sent >= 0:
                at = int(self._find_parts(burst, at, burst.ctypes.data, self._out_parts[:sent], self._done))
            elif (number := ctypes.get_errno()) == errno.EAGAIN:
                break
            elif number in _FRAME_REFUSED:
                at = int(self._find_parts(burst, at, burst.ctypes.data, self._out_parts[:1], self._done))
                self._dropped_out += 1
            elif number != errno.EINTR:
                raise CableClosedError(f"interface {self.name!r} is broken: {os.strerror(number)}")
        return at

    def counters(self) -> dict[str, int]:
        """Frames lost by a full ring, refused by the interface, too long; checksums left to offloads."""
        data = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)  # and sets them back to 0
        self._kernel_drops += struct.unpack("II", data)[1]
        return {
            "interface_drops_in": self._kernel_drops,
            "interface_drops_out": self._dropped_out,
            "interface_frames_too_long": int(self._ring.seen[0]),
            "interface_checksums_unfilled": int(self._ring.seen[1]),
        }

    def close(self) -> None:
        """Stop listening; the interface goes on without."""
        self._socket.close()


def _make_messages(count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` parts (struct iovec: address, bytes), and as many messages of one part each."""
    parts, messages = np.zeros((count, 2), np.int64), np.zeros(count, MESSAGE)
    messages["parts"] = parts.ctypes.data + np.arange(count) * parts.strides[0]
    messages["part_count"] = 1
    return parts, messages
