"""A pipe: a bounded circle of bursts in memory that two processes share; one writes, one reads, and neither waits.

Counts of bytes only grow; a byte's place is its count modulo the capacity, a power of two. Each burst lies in one piece
behind an entry header; where it does not fit in front of the memory's end, a mark sends the reader to the start.
Whoever is about to sleep says so first and then looks once more, so that no news is missed; the other one then has to
wake it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.compiled import compiled, copy_bytes, fence, memory_at
from netreduce.wire.frames import BURST_BYTES_MAX, RECORD_ALIGNMENT, burst_is_whole, queue_burst_end, queue_release

ENTRY_BYTES = RECORD_ALIGNMENT
"""In front of each burst: its size (int64, little-endian)."""
SKIP = -1
"""In place of a size: go on at the start of the pipe."""
STATE_WORDS = 16
"""int64 words of a pipe's state: a cache line that the writer writes, and one that the reader writes."""
_WRITTEN, _WANTS_ROOM = 0, 1
_READ, _ASLEEP = 8, 9


class Put(IntEnum):
    """What became of a burst."""

    NO_ROOM = 0
    DONE = 1
    DONE_WAKE = 2  # and the reader sleeps
    NO_ROOM_WAKE = 3  # not all of it had room, and the reader sleeps


class Found(IntEnum):
    """What the reader found."""

    NOTHING = 0
    BURST = 1
    NONSENSE = 2


@compiled
def _entry_bytes(size: int) -> int:
    return ENTRY_BYTES + (size + RECORD_ALIGNMENT - 1) // RECORD_ALIGNMENT * RECORD_ALIGNMENT


@compiled
def _write_size(data: np.ndarray, at: int, size: int) -> None:
    data[at : at + 8].view(np.int64)[0] = size


@compiled
def pipe_put(data: np.ndarray, state: np.ndarray, burst: np.ndarray) -> int:
    """Append a copy of `burst` (uint8, at most half of `data`). A `Put`; after `NO_ROOM` the reader tells of room."""
    need, written = _entry_bytes(burst.size), state[_WRITTEN]
    at = written & (data.size - 1)
    skipped = 0 if at + need <= data.size else data.size - at
    end = written + skipped + need
    if end - state[_READ] > data.size:
        state[_WANTS_ROOM] = 1
        fence()
        if end - state[_READ] > data.size:
            return Put.NO_ROOM.value
    if skipped > 0:
        _write_size(data, at, SKIP)
        at = 0
    _write_size(data, at, burst.size)
    copy_bytes(data, at + ENTRY_BYTES, burst, 0, burst.size)
    fence()
    state[_WRITTEN] = end
    fence()
    if state[_ASLEEP] == 0:
        return Put.DONE.value
    state[_ASLEEP] = 0
    return Put.DONE_WAKE.value


@compiled
def pipe_fill(data: np.ndarray, state: np.ndarray, queue: np.ndarray, queue_state: np.record) -> int:
    """Move the frames of a frame queue into the pipe, burst by burst. The `Put` of all together.

    Without room the rest stays in the queue.
    """
    outcome = Put.DONE.value
    while queue_state.frames > 0:
        end = queue_burst_end(queue, queue_state, BURST_BYTES_MAX)
        put = pipe_put(data, state, queue[queue_state.head : end])
        if put == Put.NO_ROOM.value:
            return Put.NO_ROOM_WAKE.value if outcome == Put.DONE_WAKE.value else Put.NO_ROOM.value
        outcome = max(outcome, put)
        queue_release(queue, queue_state, end)
    return outcome


@compiled
def pipe_next(data: np.ndarray, state: np.ndarray, place: np.ndarray) -> int:
    """Find the oldest burst: `place` (int64[2]) becomes its offset and size. A `Found`.

    The writer is another process, so everything is checked once here: bounds, and that the burst is whole records.
    """
    state[_ASLEEP] = 0
    for _ in range(2):
        read = state[_READ]
        held = state[_WRITTEN] - read
        if held == 0:
            return Found.NOTHING.value
        fence()
        at = read & (data.size - 1)
        size = data[at : at + 8].view(np.int64)[0]
        if size == SKIP and held > data.size - at:
            state[_READ] = read + data.size - at
            continue
        place[0] = at + ENTRY_BYTES
        place[1] = size
        if size < 0 or size > BURST_BYTES_MAX or _entry_bytes(size) > min(held, data.size - at):
            return Found.NONSENSE.value
        return Found.BURST.value if burst_is_whole(data[at + ENTRY_BYTES :], size) else Found.NONSENSE.value
    return Found.NONSENSE.value


@compiled
def pipe_release(data: np.ndarray, state: np.ndarray, size: int) -> bool:
    """Give the oldest burst's memory back; whether the writer waits for room, and half of the pipe is free now."""
    state[_READ] += _entry_bytes(size)
    fence()
    if state[_WANTS_ROOM] == 0 or 2 * (state[_WRITTEN] - state[_READ]) > data.size:
        return False
    state[_WANTS_ROOM] = 0
    return True


@compiled
def pipe_rest(state: np.ndarray) -> bool:
    """Say that the reader is about to sleep; False if it must not, because there is a burst."""
    state[_ASLEEP] = 1
    fence()
    return state[_WRITTEN] == state[_READ]


@compiled
def pipes_with_news(states: np.ndarray, places: np.ndarray) -> int:
    """Find the pipes that hold a burst, of those whose states lie at the addresses `states` (int64).

    Their places in `states` are written to `places`; returns how many there are.
    """
    count = 0
    for place in range(states.size):
        state = memory_at(states[place], STATE_WORDS * 8).view(np.int64)
        if state[_WRITTEN] != state[_READ]:
            places[count] = place
            count += 1
    return count


@compiled
def pipes_rest(states: np.ndarray) -> bool:
    """`pipe_rest` for all of them; False if there is a burst in any."""
    may_sleep = True
    for place in range(states.size):
        may_sleep = pipe_rest(memory_at(states[place], STATE_WORDS * 8).view(np.int64)) and may_sleep
    return may_sleep
