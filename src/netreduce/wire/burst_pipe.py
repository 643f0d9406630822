"""A pipe: a bounded circle of bursts in memory that two processes share; one writes, one reads, and neither waits.

Counts of bytes only grow; a byte's place is its count modulo the capacity, a power of two. Each burst lies in one piece
behind an entry header; where it does not fit in front of the memory's end, a mark sends the reader to the start.
Whoever is about to sleep says so first and then looks once more, so that no news is missed; the other one then has to
wake it. Acknowledgements that nobody waits for wake nobody: they lie there until the reader looks for another reason.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from netreduce.compiled import compiled, copy_bytes, fence, memory_at
from netreduce.wire.aeth import AETH_VALUE_MASK, AckKind
from netreduce.wire.bigendian import read_be16
from netreduce.wire.frames import (
    BURST_BYTES_MAX,
    RECORD_ALIGNMENT,
    RECORD_HEADER_BYTES,
    burst_is_whole,
    queue_burst_end,
    queue_release,
    record_bytes,
    record_length,
)
from netreduce.wire.icrc import UDP_BYTES
from netreduce.wire.opcodes import AETH_BYTES, BTH_BYTES, ICRC_BYTES, Opcode
from netreduce.wire.packet import ETHERNET_BYTES, IPV4_BYTES, ROCE_UDP_PORT

ENTRY_BYTES = RECORD_ALIGNMENT
"""In front of each burst: its size (int64, little-endian)."""
SKIP = -1
"""In place of a size: go on at the start of the pipe."""
STATE_WORDS = 16
"""int64 words of a pipe's state: a cache line that the writer writes, and one that the reader writes."""
_WRITTEN, _WANTS_ROOM = 0, 1
_READ, _ASLEEP = 8, 9

_UDP_AT = ETHERNET_BYTES + IPV4_BYTES
_BTH_AT = _UDP_AT + UDP_BYTES
_AETH_AT = _BTH_AT + BTH_BYTES
_ACK_BYTES = _AETH_AT + AETH_BYTES + ICRC_BYTES


class Sleep(IntEnum):
    """What a reader is to be woken for."""

    AWAKE = 0  # nothing: it looks
    FOR_ANYTHING = 1
    FOR_DATA = 2  # all but acknowledgements


class Put(IntEnum):
    """What became of a burst, in two bits: `NO_ROOM` for all of it, and `DONE_WAKE` when the reader sleeps."""

    DONE = 0
    NO_ROOM = 1
    DONE_WAKE = 2
    NO_ROOM_WAKE = 3


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
def only_acknowledges(burst: np.ndarray) -> bool:
    """Whether every frame of `burst` (uint8, whole records) is an ACK, untagged; a NAK is none."""
    at = 0
    while at < burst.size:
        if record_length(burst, at) != _ACK_BYTES:
            return False
        frame = burst[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + _ACK_BYTES]
        if frame[_BTH_AT] != Opcode.ACKNOWLEDGE.value or read_be16(frame, _UDP_AT + 2) != ROCE_UDP_PORT:
            return False
        if np.int64(frame[_AETH_AT]) & ~AETH_VALUE_MASK != AckKind.ACK.value:
            return False
        at += record_bytes(_ACK_BYTES)
    return True


@compiled
def pipe_put(data: np.ndarray, state: np.ndarray, burst: np.ndarray, is_patient: bool) -> int:
    """Append a copy of `burst` (uint8, at most half of `data`). A `Put`; after `NO_ROOM` the reader tells of room.

    With `is_patient`, nobody waits for what is only acknowledged, and the reader need not be woken for it.
    """
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
    sleep = state[_ASLEEP]
    if sleep == Sleep.AWAKE.value:
        return Put.DONE.value
    if (is_patient or sleep == Sleep.FOR_DATA.value) and only_acknowledges(burst):
        return Put.DONE.value
    state[_ASLEEP] = Sleep.AWAKE.value
    return Put.DONE_WAKE.value


@compiled
def pipe_fill(data: np.ndarray, state: np.ndarray, queue: np.ndarray, queue_state: np.record, is_patient: bool) -> int:
    """Move the frames of a frame queue into the pipe, burst by burst, as `pipe_put` does. The `Put` of all together.

    Without room the rest stays in the queue.
    """
    outcome = Put.DONE.value
    while queue_state.frames > 0:
        end = queue_burst_end(queue, queue_state, BURST_BYTES_MAX)
        put = pipe_put(data, state, queue[queue_state.head : end], is_patient)
        outcome |= put
        if put == Put.NO_ROOM.value:
            return outcome
        queue_release(queue, queue_state, end)
    return outcome


@compiled
def pipe_awake(state: np.ndarray) -> None:
    """Say that the reader is awake: it looks for itself before it sleeps again."""
    state[_ASLEEP] = Sleep.AWAKE.value


@compiled
def pipe_next(data: np.ndarray, state: np.ndarray, place: np.ndarray) -> int:
    """Find the oldest burst: `place` (int64[2]) becomes its offset and size. A `Found`.

    The writer is another process, so everything is checked once here: bounds, and that the burst is whole records.
    """
    pipe_awake(state)
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
def pipe_rest(state: np.ndarray, sleep: int) -> bool:
    """Say that the reader is about to sleep, and how (`Sleep`); False if it must not, because there is a burst."""
    state[_ASLEEP] = sleep
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
    """`pipe_rest` for all of them, to be woken for anything; False if there is a burst in any."""
    may_sleep = True
    for place in range(states.size):
        state = memory_at(states[place], STATE_WORDS * 8).view(np.int64)
        may_sleep = pipe_rest(state, Sleep.FOR_ANYTHING.value) and may_sleep
    return may_sleep
