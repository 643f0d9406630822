"""Captures written as they happen: pcapng with one interface per port (draft-ietf-opsawg-pcapng, version 1.0).

Each burst is written whole and flushed, so after a crash the file is readable up to its last whole block. The blocks of
a burst are laid out by compiled code, so that recording does not slow the ports down much. For reading see capture.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.wire.frames import RECORD_HEADER_BYTES, record_bytes, record_length, record_time

LINK_ETHERNET = 1
NS_PER_S = 1_000_000_000
PS_PER_NS = 1000
OPTION_PACKET_FLAGS = 2
_ENHANCED_PACKET = 6
_BLOCK_HEAD_BYTES = 28  # type, length, interface, time (two words), captured length, length on the wire
_BLOCK_TAIL_BYTES = 16  # the flags option (8), the end of the options (4), the length again (4)


class Direction(IntEnum):
    """Which way a frame crossed its interface, as pcapng's packet flags have it."""

    UNKNOWN = 0
    INBOUND = 1
    OUTBOUND = 2


@compiled
def _put_words(out: np.ndarray, at: int, first: int, second: int) -> None:
    """Write two little-endian 32-bit words."""
    words = out[at : at + 8].view(np.uint32)
    words[0] = first & 0xFFFFFFFF
    words[1] = second & 0xFFFFFFFF


@compiled
def _lay_out_blocks(burst: np.ndarray, out: np.ndarray, interface: int, direction: int, epoch_ns: int) -> int:
    """Write an enhanced packet block for each frame of `burst` to `out`; the number of bytes written."""
    read_at = 0
    at = 0
    while read_at < burst.size:
        length = record_length(burst, read_at)
        padded = (length + 3) // 4 * 4
        size = _BLOCK_HEAD_BYTES + padded + _BLOCK_TAIL_BYTES
        time_ns = epoch_ns + record_time(burst, read_at) // PS_PER_NS
        _put_words(out, at, _ENHANCED_PACKET, size)
        _put_words(out, at + 8, interface, time_ns >> 32)
        _put_words(out, at + 16, time_ns, length)
        _put_words(out, at + 24, length, 0)  # the second word is overwritten by the frame
        data_at = at + _BLOCK_HEAD_BYTES
        start = read_at + RECORD_HEADER_BYTES
        out[data_at + padded - 4 : data_at + padded] = 0
        copy_bytes(out, data_at, burst, start, length)
        _put_words(out, data_at + padded, 4 << 16 | OPTION_PACKET_FLAGS, direction)
        _put_words(out, data_at + padded + 8, 0, size)
        read_at += record_bytes(length)
        at += size
    return at


class PcapWriter:
    """A pcapng file with one Ethernet interface per port, nanosecond times and packet directions.

    `epoch_ns` is what ``now_ps == 0`` was on the wall clock, in nanoseconds since 1970. Not thread-safe.
    Raises OSError when the file cannot be created or written (a full disk).
    """

    def __init__(self, path: str | Path, interface_names: Sequence[str], *, epoch_ns: int = 0) -> None:
        from dpkt import pcapng  # here, because a switch without a capture does not need it

        self._epoch_ns = epoch_ns
        self._buffer = np.empty(0, np.uint8)
        option, end = pcapng.PcapngOptionLE, pcapng.PcapngOptionLE()
        head = bytes(pcapng.SectionHeaderBlockLE(opts=[option(code=4, data=b"netreduce"), end]))
        for name in interface_names:
            options = [option(code=2, data=name.encode()), option(code=9, data=b"\x09"), end]
            head += bytes(pcapng.InterfaceDescriptionBlockLE(linktype=LINK_ETHERNET, snaplen=0, opts=options))
        self._file = open(path, "wb")  # noqa: SIM115 (closed by close)
        self._file.write(head)
        self._file.flush()

    def write_burst(self, port: int, direction: Direction, burst: np.ndarray) -> None:
        """Append the frames of `burst` (uint8, whole records; see frames.py) as seen at interface number `port`."""
        # The shortest record, 16 bytes, grows to a block of up to 52.
        if self._buffer.size < 4 * burst.size:
            self._buffer = np.empty(4 * burst.size, np.uint8)
        size = _lay_out_blocks(burst, self._buffer, port, int(direction), self._epoch_ns)
        self._file.write(self._buffer[:size].data)
        self._file.flush()

    def close(self) -> None:
        """Close the file; more than once does no harm."""
        self._file.close()

    def __enter__(self) -> PcapWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
