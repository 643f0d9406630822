"""Between bursts and length-prefixed streams of frames.

A stream is that of QEMU's ``-netdev stream`` (qemu-options: each frame behind its length as a 32-bit big-endian
number).
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes
from netreduce.wire.bigendian import read_be32
from netreduce.wire.frames import (
    FRAME_BYTES_MAX,
    RECORD_HEADER_BYTES,
    record_bytes,
    record_length,
    write_record_header,
)

LENGTH_BYTES = 4


@compiled
def stream_to_burst(stream: np.ndarray, size: int, burst: np.ndarray, time_ps: int, done: np.ndarray) -> bool:
    """Turn the whole frames at the start of `stream[:size]` into records, as long as `burst` has room.

    `done` (int64[2]) tells the bytes used of the stream and written to the burst. False: a length is impossible.
    """
    done[0] = 0
    done[1] = 0
    while done[0] + LENGTH_BYTES <= size:
        length = read_be32(stream, done[0])
        if length == 0 or length > FRAME_BYTES_MAX:
            return False
        if done[0] + LENGTH_BYTES + length > size or done[1] + record_bytes(length) > burst.size:
            return True
        write_record_header(burst, done[1], length, time_ps)
        copy_bytes(burst, done[1] + RECORD_HEADER_BYTES, stream, done[0] + LENGTH_BYTES, length)
        done[0] += LENGTH_BYTES + length
        done[1] += record_bytes(length)
    return True


@compiled
def burst_to_stream(burst: np.ndarray, stream: np.ndarray) -> int:
    """Write the frames of `burst` to `stream`, each behind its length; the bytes written, always fewer than read."""
    read_at = 0
    at = 0
    while read_at < burst.size:
        length = record_length(burst, read_at)
        stream[at] = 0
        stream[at + 1] = 0
        stream[at + 2] = length >> 8
        stream[at + 3] = length & 0xFF
        copy_bytes(stream, at + LENGTH_BYTES, burst, read_at + RECORD_HEADER_BYTES, length)
        at += LENGTH_BYTES + length
        read_at += record_bytes(length)
    return at
