"""Bursts and frame queues against a deque, over every way to fill, wrap and drain them."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from netreduce.wire import frames
from netreduce.wire.build import build_burst, burst_frames

CAPACITY = 512


def frame_of(length: int, mark: int) -> np.ndarray:
    return (np.arange(length) + mark).astype(np.uint8)


class QueueMachine(RuleBasedStateMachine):
    """A queue of 512 bytes, so that it wraps often, beside a deque of (time, frame)."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = frames.make_queue(CAPACITY)
        self.state = self.queue.state[0]
        self.model: deque[tuple[int, bytes]] = deque()
        self.put_count = self.put_bytes = self.dropped = 0

    @rule(length=st.integers(1, 300), time_ps=st.integers(-1, 1 << 60))
    def put(self, length: int, time_ps: int) -> None:
        frame = frame_of(length, self.put_count)
        if frames.queue_put(self.queue.data, self.state, frame, time_ps):
            self.model.append((time_ps, frame.tobytes()))
            self.put_count += 1
            self.put_bytes += length
        else:
            self.dropped += 1
            held = sum(int(frames.record_bytes(len(frame))) for _, frame in self.model)
            size = int(frames.record_bytes(length))
            # Records are contiguous, so up to one record's space may be lost at the end, and one before the head.
            assert held + 2 * size + 310 > CAPACITY, "a queue with room must take the frame"

    @rule(size_max=st.integers(16, 600), share=st.floats(0, 1))
    def take(self, size_max: int, share: float) -> None:
        end = int(frames.queue_burst_end(self.queue.data, self.state, size_max))
        head = int(self.state.head)
        burst = self.queue.data[head:end]
        assert burst.size <= size_max
        assert frames.burst_is_whole(burst, burst.size)
        taken = [(time, frame.tobytes()) for time, frame in burst_frames(burst)]
        assert taken == [self.model[i] for i in range(len(taken))]
        if self.model and frames.record_bytes(len(self.model[0][1])) <= size_max:
            assert taken
        keep = round(share * len(taken))
        frames.queue_release(
            self.queue.data, self.state, head + sum(int(frames.record_bytes(len(frame))) for _, frame in taken[:keep])
        )
        for _ in range(keep):
            self.model.popleft()

    @invariant()
    def counters_are_right(self) -> None:
        assert self.state.frames == len(self.model)
        assert self.state.bytes == sum(len(frame) for _, frame in self.model)
        assert self.state.enqueued_frames == self.put_count
        assert self.state.enqueued_bytes == self.put_bytes
        assert self.state.dropped_frames == self.dropped
        assert self.state.peak_bytes >= self.state.bytes


TestQueue = QueueMachine.TestCase


def test_a_reservation_that_is_not_committed_changes_nothing() -> None:
    queue = frames.make_queue(CAPACITY)
    state = queue.state[0]
    frames.queue_put(queue.data, state, frame_of(100, 0), 1)
    before = state.tolist()
    assert frames.queue_reserve(queue.data, state, 50) > 0
    assert frames.queue_reserve(queue.data, state, 500) == -1
    assert state.tolist() == before


def test_a_frame_that_can_never_fit_is_refused() -> None:
    queue = frames.make_queue(64)
    assert not frames.queue_put(queue.data, queue.state[0], frame_of(55, 0), 0)
    assert frames.queue_put(queue.data, queue.state[0], frame_of(54, 0), 0)


@given(st.lists(st.integers(1, frames.FRAME_BYTES_MAX), max_size=6), st.integers(0, (1 << 63) - 1))
def test_a_burst_holds_its_frames_at_aligned_records(lengths: list[int], time_ps: int) -> None:
    wanted = [frame_of(length, i) for i, length in enumerate(lengths)]
    burst = build_burst(wanted, time_ps)
    assert frames.burst_is_whole(burst, burst.size)
    assert burst.size % frames.RECORD_ALIGNMENT == 0
    assert [(time, frame.tobytes()) for time, frame in burst_frames(burst)] == [(time_ps, f.tobytes()) for f in wanted]


def test_a_time_stamp_can_be_replaced() -> None:
    burst = build_burst([frame_of(20, 0), frame_of(30, 1)], 5)
    frames.stamp_record(burst, frames.record_bytes(20), 9)
    assert [time for time, _ in burst_frames(burst)] == [5, 9]


@pytest.mark.parametrize("cut", [1, 9, 16, 31, 47])
def test_a_burst_that_is_cut_is_not_whole(cut: int) -> None:
    burst = build_burst([frame_of(20, 0), frame_of(5, 1)])
    assert burst.size == 48
    assert not frames.burst_is_whole(burst, cut)


@pytest.mark.parametrize("length", [0, frames.FRAME_BYTES_MAX + 1, 0xFFFF])
def test_a_burst_with_an_impossible_length_is_not_whole(length: int) -> None:
    burst = np.zeros(1 << 17, np.uint8)
    frames.write_record_header(burst, 0, length, 0)
    assert not frames.burst_is_whole(burst, burst.size)


@given(st.binary(max_size=100))
def test_any_bytes_can_be_asked_whether_they_are_a_burst(data: bytes) -> None:
    buffer = np.frombuffer(bytearray(data), np.uint8) if data else np.empty(0, np.uint8)
    assert frames.burst_is_whole(buffer, buffer.size) in (True, False)
