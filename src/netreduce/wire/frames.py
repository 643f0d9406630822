"""Frames in memory: records, bursts and bounded queues.

A *burst* is a run of whole Ethernet frames in one uint8 buffer, each behind a record header of ten bytes: the time in
picoseconds (int64, little-endian: when the frame arrived or became ready to leave) and the frame's length (uint16).
Records start at multiples of 16. Ten and the 54 bytes of Ethernet, IPv4, UDP and BTH make 64, so that payloads are
aligned. A burst crosses a cable in one system call and every frame in it stays as it was on the wire.

A *frame queue* is a bounded FIFO of such records in one contiguous buffer: any run of it is a burst, without a copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netreduce.compiled import compiled, copy_bytes, prefetch

RECORD_HEADER_BYTES = 10
RECORD_ALIGNMENT = 16
FRAME_BYTES_MAX = 9216
"""Longest frame that is carried: an MTU of 9,000 with headers, tags and some room."""
BURST_BYTES_MAX = 128 * 1024
"""Longest burst that one system call carries."""

QUEUE_STATE = np.dtype(
    [
        ("head", np.int64),  # offset of the oldest record
        ("tail", np.int64),  # offset where the next record goes
        ("wrap", np.int64),  # records end here and go on at 0, while tail < head
        ("frames", np.int64),  # frames held now
        ("bytes", np.int64),  # frame bytes held now, without record headers
        ("enqueued_frames", np.int64),
        ("enqueued_bytes", np.int64),
        ("dropped_frames", np.int64),  # frames refused because the queue was full
        ("peak_bytes", np.int64),
    ]
)


class FrameQueue(NamedTuple):
    """One bounded queue: `data` uint8[capacity], `state` a one-row recarray of `QUEUE_STATE`."""

    data: np.ndarray
    state: np.ndarray


def make_queue(capacity_bytes: int) -> FrameQueue:
    """An empty queue of `capacity_bytes` (records included; a multiple of 16)."""
    assert capacity_bytes % RECORD_ALIGNMENT == 0
    return FrameQueue(np.zeros(capacity_bytes, np.uint8), np.zeros(1, QUEUE_STATE).view(np.recarray))


@compiled
def record_bytes(length: int) -> int:
    """Bytes that a frame of `length` takes as a record, its alignment included."""
    return (RECORD_HEADER_BYTES + length + RECORD_ALIGNMENT - 1) // RECORD_ALIGNMENT * RECORD_ALIGNMENT


@compiled
def record_length(buffer: np.ndarray, at: int) -> int:
    """Length in bytes of the frame whose record starts at offset `at`."""
    return np.int64(buffer[at + 8]) | (np.int64(buffer[at + 9]) << 8)


@compiled
def record_time(buffer: np.ndarray, at: int) -> int:
    """Time stamp of the record at offset `at`, in picoseconds."""
    return buffer[at : at + 8].view(np.int64)[0]


@compiled
def stamp_record(buffer: np.ndarray, at: int, time_ps: int) -> None:
    """Overwrite the time stamp of the record at offset `at`."""
    buffer[at : at + 8].view(np.int64)[0] = time_ps


@compiled
def write_record_header(buffer: np.ndarray, at: int, length: int, time_ps: int) -> None:
    """Write time and length of the record at offset `at`; its frame starts at ``at + RECORD_HEADER_BYTES``."""
    buffer[at : at + 8].view(np.int64)[0] = time_ps
    buffer[at + 8] = length & 0xFF
    buffer[at + 9] = length >> 8


@compiled
def burst_is_whole(buffer: np.ndarray, size: int) -> bool:
    """Whether the first `size` bytes of `buffer` are whole records, each of 1 to `FRAME_BYTES_MAX` frame bytes.

    Bursts come from other processes, so they are checked once at the door.
    """
    at = 0
    while at < size:
        if at + RECORD_HEADER_BYTES > size:
            return False
        length = record_length(buffer, at)
        if at == 0:  # where each record starts is read in the one before: they would be waited for one by one
            for start in range(record_bytes(length), size, record_bytes(length)):
                prefetch(buffer, start, 1)
        if length == 0 or length > FRAME_BYTES_MAX:
            return False
        at += record_bytes(length)
    return at == size


@compiled
def queue_reserve(data: np.ndarray, state: np.record, length: int) -> int:
    """Offset for a record with a frame of `length` bytes, or -1 when the queue has no room (nothing changes).

    Write the frame at the offset + `RECORD_HEADER_BYTES`, then call `queue_commit`.
    """
    size = record_bytes(length)
    if state.frames == 0:
        state.head = 0
        state.tail = 0
        return 0 if size <= data.size else -1
    if state.tail > state.head:
        if state.tail + size <= data.size:
            return state.tail
        return 0 if size <= state.head else -1
    return state.tail if state.tail + size <= state.head else -1


@compiled
def queue_commit(data: np.ndarray, state: np.record, at: int, length: int, time_ps: int) -> None:
    """Append the frame that was written at the reserved offset `at`."""
    write_record_header(data, at, length, time_ps)
    if at == 0 and state.frames > 0:
        state.wrap = state.tail
    state.tail = at + record_bytes(length)
    state.frames += 1
    state.bytes += length
    state.enqueued_frames += 1
    state.enqueued_bytes += length
    state.peak_bytes = max(state.peak_bytes, state.bytes)


@compiled
def queue_put(data: np.ndarray, state: np.record, frame: np.ndarray, time_ps: int) -> bool:
    """Append a copy of `frame` (uint8); False, and one more in `dropped_frames`, when the queue has no room."""
    at = queue_reserve(data, state, frame.size)
    if at < 0:
        state.dropped_frames += 1
        return False
    copy_bytes(data, at + RECORD_HEADER_BYTES, frame, 0, frame.size)
    queue_commit(data, state, at, frame.size, time_ps)
    return True


@compiled
def queue_burst_end(data: np.ndarray, state: np.record, size_max: int) -> int:
    """End offset of the longest burst of at most `size_max` bytes at the queue's head; equal to `head` if empty."""
    if state.frames == 0:
        return state.head
    if state.head == state.wrap and state.tail <= state.head:
        state.head = 0
    limit = state.tail if state.tail > state.head else state.wrap
    if limit - state.head <= size_max:
        return limit
    at = state.head
    while True:
        size = record_bytes(record_length(data, at))
        if at + size - state.head > size_max:
            return at
        at += size


@compiled
def queue_release(data: np.ndarray, state: np.record, end: int) -> None:
    """Drop the frames from the head up to the offset `end` (from `queue_burst_end`, or any record's end before it)."""
    at = state.head
    while at < end:
        length = record_length(data, at)
        at += record_bytes(length)
        state.frames -= 1
        state.bytes -= length
    state.head = end
