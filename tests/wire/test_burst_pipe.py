"""The pipe of bursts between two processes, against a plain list, and against a writer that lies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netreduce.wire.aeth import Syndrome
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.burst_pipe import (
    ENTRY_BYTES,
    STATE_WORDS,
    Found,
    Put,
    Sleep,
    pipe_fill,
    pipe_next,
    pipe_put,
    pipe_release,
    pipe_rest,
    pipes_rest,
    pipes_with_news,
)
from netreduce.wire.frames import make_queue, queue_put
from netreduce.wire.opcodes import Opcode

CAPACITY = 4096


class Pipe:
    def __init__(self):
        self.data = np.zeros(CAPACITY, np.uint8)
        self.state = np.zeros(STATE_WORDS, np.int64)
        self.place = np.zeros(2, np.int64)

    def put(self, burst, is_patient=False):
        return pipe_put(self.data, self.state, burst, is_patient)

    def rest(self, sleep=Sleep.FOR_ANYTHING):
        return pipe_rest(self.state, int(sleep))

    def next(self):
        return pipe_next(self.data, self.state, self.place)

    def take(self):
        """The next burst, whose memory is given back; None when there is none."""
        if self.next() == Found.NOTHING:
            return None
        start, size = self.place
        burst = self.data[start : start + size].copy()
        self.wanted = pipe_release(self.data, self.state, size)
        return burst


def burst_of(length, fill):
    return build_burst([np.full(length, fill, np.uint8)])


@given(st.lists(st.one_of(st.integers(1, 2000), st.none()), max_size=200))
@settings(max_examples=100, deadline=None)
def test_what_was_put_comes_out_in_order_whatever_the_sizes_and_however_often_the_ring_turns(steps):
    pipe, held, largest = Pipe(), [], 0
    for number, length in enumerate(steps):
        if length is None:
            burst = pipe.take()
            assert (burst is None) == (not held)
            if held:
                assert np.array_equal(burst, held.pop(0))
        else:
            burst = burst_of(length, number % 256)
            largest = max(largest, ENTRY_BYTES + burst.size)
            if pipe.put(burst) == Put.DONE:
                held.append(burst)
            else:  # only for lack of room; at the pipe's end, less than a burst may lie idle
                assert sum(ENTRY_BYTES + each.size for each in [*held, burst]) + largest > CAPACITY
    for burst in held:
        assert np.array_equal(pipe.take(), burst)
    assert pipe.take() is None


def test_the_writer_hears_once_that_the_reader_sleeps():
    pipe, burst = Pipe(), burst_of(100, 1)
    assert pipe.put(burst) == Put.DONE
    assert not pipe.rest()
    pipe.take()
    assert pipe.rest()
    assert pipe.put(burst) == Put.DONE_WAKE
    assert pipe.put(burst) == Put.DONE


def answer(syndrome=Syndrome.ACK):
    return build_frame(Opcode.ACKNOWLEDGE, syndrome=syndrome)


@pytest.mark.parametrize(("sleep", "is_patient"), [(Sleep.FOR_ANYTHING, True), (Sleep.FOR_DATA, False)])
def test_acknowledgements_that_nobody_waits_for_lie_there_until_something_else_comes(sleep, is_patient):
    pipe, burst = Pipe(), build_burst([answer(), answer()])
    assert pipe.rest(sleep)
    assert pipe.put(burst, is_patient) == Put.DONE
    assert pipe.put(burst_of(100, 1), is_patient) == Put.DONE_WAKE
    assert np.array_equal(pipe.take(), burst)


@pytest.mark.parametrize(
    "frames",
    [
        [answer(Syndrome.NAK_PSN_SEQUENCE_ERROR)],
        [answer(0x20 | 12)],  # receiver not ready
        [answer(), np.full(62, 0x11, np.uint8)],
        [answer(), build_frame(Opcode.SEND_ONLY, payload=bytes(4))],
    ],
    ids=["sequence NAK", "RNR NAK", "no RoCE", "data behind an ACK"],
)
def test_what_is_no_mere_acknowledgement_wakes_everybody(frames):
    pipe = Pipe()
    assert pipe.rest(Sleep.FOR_DATA)
    assert pipe.put(build_burst(frames), is_patient=True) == Put.DONE_WAKE


def test_acknowledgements_wake_whoever_waits_for_them():
    pipe = Pipe()
    assert pipe.rest()
    assert pipe.put(build_burst([answer()])) == Put.DONE_WAKE


def test_the_reader_hears_once_that_the_writer_wants_room_and_only_when_half_the_ring_is_free():
    pipe, burst = Pipe(), burst_of(500, 1)
    while pipe.put(burst) == Put.DONE:
        pass
    heard = []
    while pipe.take() is not None:
        heard.append(pipe.wanted)
    assert heard.count(True) == 1
    assert 0 < heard.index(True) < len(heard) - 1


@pytest.mark.parametrize("size", [-2, -(1 << 62), 1, 1 << 40, CAPACITY], ids=str)
def test_a_size_that_cannot_be_is_nonsense(size):
    pipe = Pipe()
    pipe.put(burst_of(100, 1))
    pipe.data[:8].view(np.int64)[0] = size
    assert pipe.next() == Found.NONSENSE


def test_counts_that_cannot_be_are_nonsense():
    pipe = Pipe()
    pipe.put(burst_of(100, 1))
    for held in (1, 16, -5, 1 << 40):
        pipe.state[:] = 0
        pipe.state[0] = held
        pipe.data[:8].view(np.int64)[0] = -1  # go on at the start: for ever?
        assert pipe.next() == Found.NONSENSE


def test_a_frame_queue_is_emptied_into_the_ring_as_far_as_there_is_room_and_in_order():
    pipe, queue, frames = Pipe(), make_queue(1 << 14), [np.full(300, number, np.uint8) for number in range(20)]
    for frame in frames:
        assert queue_put(queue.data, queue.state[0], frame, 0)
    large = Pipe()
    large.data = np.zeros(1 << 15, np.uint8)
    assert pipe_fill(pipe.data, pipe.state, queue.data, queue.state[0], False) == Put.NO_ROOM  # one burst, and too long
    assert queue.state[0].frames == len(frames)
    assert large.rest()
    assert pipe_fill(large.data, large.state, queue.data, queue.state[0], False) == Put.DONE_WAKE
    assert queue.state[0].frames == 0
    assert np.array_equal(large.take(), build_burst(frames))
    assert pipe_fill(large.data, large.state, queue.data, queue.state[0], False) == Put.DONE


def test_of_many_rings_those_with_bursts_are_found_and_all_are_told_of_the_readers_sleep():
    pipes = [Pipe() for _ in range(5)]
    states = np.array([pipe.state.ctypes.data for pipe in pipes], np.int64)
    places = np.zeros(len(pipes), np.int64)
    assert pipes_with_news(states, places) == 0
    assert pipes_rest(states)
    assert all(pipe.put(burst_of(100, 1)) == Put.DONE_WAKE for pipe in (pipes[1], pipes[4]))
    assert pipes_with_news(states, places) == 2
    assert places[:2].tolist() == [1, 4]
    assert not pipes_rest(states)
