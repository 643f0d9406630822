"""Lines: what happens to a frame between one port's egress queue and the port at the other end, compiled.

A *line* is one direction of a link. It takes frames from the head of the sender's egress queue while it is free, so
that queue stays the real, bounded buffer; a frame then occupies the line for its bytes and Ethernet's overhead, and
arrives `delay_ps` after its last bit left. Frames in flight lie in a frame queue of the line, stamped with their
arrival. One call walks all lines: the rows hold the addresses of the queues, whose owners the links keep alive.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes, memory_at
from netreduce.fabric.ecn import mark_congestion, next_random, red_marks
from netreduce.units import NEVER_PS, PS_PER_S
from netreduce.wire.frames import (
    BURST_BYTES_MAX,
    QUEUE_STATE,
    RECORD_HEADER_BYTES,
    queue_burst_end,
    queue_commit,
    queue_release,
    queue_reserve,
    record_bytes,
    record_length,
    record_time,
)

OVERHEAD_BYTES = 24
"""Preamble and start delimiter 8, FCS 4, interframe gap 12 (IEEE 802.3, clauses 3 and 4.4.2)."""
FRAME_BYTES_MIN = 60
"""A shorter frame occupies the line as one of 60 bytes, which the MAC pads it to (IEEE 802.3, clause 4.2.3.3)."""
FRAMES_PER_DRAW_MAX = 1 << 20
"""A line that takes more frames than this within one instant has a rate beyond reason."""

LINE_FIELDS = (
    "sender",  # index of the node that sends into the line
    "rate_bps",
    "delay_ps",
    "free_at_ps",  # when the last frame's last bit has left
    "next_start_ps",  # when the frame at the egress queue's head can start; NEVER_PS for none
    "next_arrival_ps",  # of the frame at the head of the flight; NEVER_PS for none
    "late_ps",  # next arrival among the frames that faults hold back; NEVER_PS for none
    "stalled_until_ps",  # nothing starts before
    "egress_address",
    "egress_bytes",
    "egress_state_address",
    "flight_address",
    "flight_bytes",
    "flight_state_address",
    "ecn_kmin_bytes",  # -1: no marking
    "ecn_kmax_bytes",
    "ecn_p_max_32",
    "random",
    "frames",  # that entered the line
    "bytes",
    "marked_frames",
    "arrived_frames",  # that reached the other end, before faults
    "arrived_bytes",
)
LINE = np.dtype([(name, np.int64) for name in LINE_FIELDS])
_QUEUE_RECORD = np.dtype((np.record, QUEUE_STATE))
_QUEUE_STATE_BYTES = QUEUE_STATE.itemsize


@compiled
def _queue_state_at(address: int) -> np.record:
    return memory_at(address, _QUEUE_STATE_BYTES).view(_QUEUE_RECORD)[0]


@compiled
def occupancy_ps(length_bytes: int, rate_bps: int) -> int:
    """Time for which a frame of `length_bytes` (without FCS) occupies a line, in picoseconds, rounded up."""
    return -(-(max(length_bytes, FRAME_BYTES_MIN) + OVERHEAD_BYTES) * 8 * PS_PER_S // rate_bps)


@compiled
def _maybe_mark(line: np.record, frame: np.ndarray, queued_bytes: int) -> None:
    line.random = next_random(line.random)
    if red_marks(
        queued_bytes, line.ecn_kmin_bytes, line.ecn_kmax_bytes, line.ecn_p_max_32, line.random
    ) and mark_congestion(frame):
        line.marked_frames += 1


@compiled
def _draw(line: np.record, now_ps: int, horizon_ps: int) -> int:
    """Take the frames that start from `now_ps` until `horizon_ps` from the egress queue into flight; how many."""
    egress = memory_at(line.egress_address, line.egress_bytes)
    flight = memory_at(line.flight_address, line.flight_bytes)
    egress_state = _queue_state_at(line.egress_state_address)
    flight_state = _queue_state_at(line.flight_state_address)
    line.next_start_ps = NEVER_PS
    for drawn in range(FRAMES_PER_DRAW_MAX):
        if egress_state.frames == 0:
            return drawn
        queue_burst_end(egress, egress_state, 0)  # brings the head round the wrap
        at = egress_state.head
        start_ps = max(now_ps, line.free_at_ps, line.stalled_until_ps, record_time(egress, at))
        length = record_length(egress, at)
        to = queue_reserve(flight, flight_state, length)
        if start_ps > horizon_ps or to < 0:  # a full flight has room when its first frame arrives
            line.next_start_ps = start_ps if to >= 0 else line.next_arrival_ps
            return drawn
        copy_bytes(flight, to + RECORD_HEADER_BYTES, egress, at + RECORD_HEADER_BYTES, length)
        if line.ecn_kmin_bytes >= 0:
            _maybe_mark(line, flight[to + RECORD_HEADER_BYTES : to + RECORD_HEADER_BYTES + length], egress_state.bytes)
        line.free_at_ps = start_ps + occupancy_ps(length, line.rate_bps)
        queue_commit(flight, flight_state, to, length, line.free_at_ps + line.delay_ps)
        if flight_state.frames == 1:
            line.next_arrival_ps = line.free_at_ps + line.delay_ps
        queue_release(egress, egress_state, at + record_bytes(length))
        line.frames += 1
        line.bytes += length
    return FRAMES_PER_DRAW_MAX


@compiled
def draw_lines(lines: np.ndarray, count: int, ran: np.ndarray, now_ps: int, horizon_ps: int, drew: np.ndarray) -> int:
    """Let lines take frames that start from `now_ps` until `horizon_ps`; how many frames went.

    Looks at each of the first `count` rows of `lines` whose sender ran (`ran`, int64 by node) or whose next start is
    due. Sets `drew` (int64 by node) for each sender whose egress queue has more room now.
    """
    total = 0
    for i in range(count):
        line = lines[i]
        if ran[line.sender] != 0 or line.next_start_ps <= horizon_ps:
            drawn = _draw(line, now_ps, horizon_ps)
            if drawn > 0:
                drew[line.sender] = 1
                total += drawn
    return total


@compiled
def take_arrivals(lines: np.ndarray, count: int, now_ps: int, due: np.ndarray) -> int:
    """Take the frames that have arrived until `now_ps` out of flight, as rows of `due`; how many rows.

    A row of `due` (int64[n, 3]) is line, start and end offset in its flight queue: one burst, still to be read there
    before the next `draw_lines`. Rows are ordered by line, and by time within a line. Call again if all rows are used.
    """
    rows = 0
    for i in range(count):
        line = lines[i]
        while line.next_arrival_ps <= now_ps and rows < due.shape[0]:
            flight = memory_at(line.flight_address, line.flight_bytes)
            state = _queue_state_at(line.flight_state_address)
            limit = queue_burst_end(flight, state, BURST_BYTES_MAX)
            start = state.head
            end = start
            frames, frame_bytes = state.frames, state.bytes
            while end < limit and record_time(flight, end) <= now_ps:
                end += record_bytes(record_length(flight, end))
            queue_release(flight, state, end)
            line.arrived_frames += frames - state.frames
            line.arrived_bytes += frame_bytes - state.bytes
            due[rows, 0] = i
            due[rows, 1] = start
            due[rows, 2] = end
            rows += 1
            queue_burst_end(flight, state, 0)
            line.next_arrival_ps = record_time(flight, state.head) if state.frames > 0 else NEVER_PS
    return rows


@compiled
def earliest_arrival_ps(lines: np.ndarray, count: int) -> int:
    """When the next frame arrives on any of the first `count` lines; `NEVER_PS` for none."""
    earliest = NEVER_PS
    for i in range(count):
        earliest = min(earliest, lines[i].next_arrival_ps, lines[i].late_ps)
    return earliest


@compiled
def earliest_start_ps(lines: np.ndarray, count: int) -> int:
    """When the next waiting frame can start on any of the first `count` lines; `NEVER_PS` for none."""
    earliest = NEVER_PS
    for i in range(count):
        earliest = min(earliest, lines[i].next_start_ps)
    return earliest
