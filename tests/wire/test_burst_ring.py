"""The ring of bursts between two processes, against a plain list, and against a writer that lies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netreduce.wire.build import build_burst
from netreduce.wire.burst_ring import (
    ENTRY_BYTES,
    STATE_WORDS,
    Found,
    Put,
    ring_next,
    ring_put,
    ring_release,
    ring_rest,
)

CAPACITY = 4096


class Ring:
    def __init__(self):
        self.data = np.zeros(CAPACITY, np.uint8)
        self.state = np.zeros(STATE_WORDS, np.int64)
        self.place = np.zeros(2, np.int64)

    def put(self, burst):
        return ring_put(self.data, self.state, burst)

    def next(self):
        return ring_next(self.data, self.state, self.place)

    def take(self):
        """The next burst, whose memory is given back; None when there is none."""
        if self.next() == Found.NOTHING:
            return None
        start, size = self.place
        burst = self.data[start : start + size].copy()
        self.wanted = ring_release(self.data, self.state, size)
        return burst


def burst_of(length, fill):
    return build_burst([np.full(length, fill, np.uint8)])


@given(st.lists(st.one_of(st.integers(1, 2000), st.none()), max_size=200))
@settings(max_examples=100, deadline=None)
def test_what_was_put_comes_out_in_order_whatever_the_sizes_and_however_often_the_ring_turns(steps):
    ring, held, largest = Ring(), [], 0
    for number, length in enumerate(steps):
        if length is None:
            burst = ring.take()
            assert (burst is None) == (not held)
            if held:
                assert np.array_equal(burst, held.pop(0))
        else:
            burst = burst_of(length, number % 256)
            largest = max(largest, ENTRY_BYTES + burst.size)
            if ring.put(burst) == Put.DONE:
                held.append(burst)
            else:  # only for lack of room; at the ring's end, less than a burst may lie idle
                assert sum(ENTRY_BYTES + each.size for each in [*held, burst]) + largest > CAPACITY
    for burst in held:
        assert np.array_equal(ring.take(), burst)
    assert ring.take() is None


def test_the_writer_hears_once_that_the_reader_sleeps():
    ring, burst = Ring(), burst_of(100, 1)
    assert ring.put(burst) == Put.DONE
    assert not ring_rest(ring.state)
    ring.take()
    assert ring_rest(ring.state)
    assert ring.put(burst) == Put.DONE_WAKE
    assert ring.put(burst) == Put.DONE


def test_the_reader_hears_once_that_the_writer_wants_room_and_only_when_half_the_ring_is_free():
    ring, burst = Ring(), burst_of(500, 1)
    while ring.put(burst) == Put.DONE:
        pass
    heard = []
    while ring.take() is not None:
        heard.append(ring.wanted)
    assert heard.count(True) == 1
    assert 0 < heard.index(True) < len(heard) - 1


@pytest.mark.parametrize("size", [-2, -(1 << 62), 1, 1 << 40, CAPACITY], ids=str)
def test_a_size_that_cannot_be_is_nonsense(size):
    ring = Ring()
    ring.put(burst_of(100, 1))
    ring.data[:8].view(np.int64)[0] = size
    assert ring.next() == Found.NONSENSE


def test_counts_that_cannot_be_are_nonsense():
    ring = Ring()
    ring.put(burst_of(100, 1))
    for held in (1, 16, -5, 1 << 40):
        ring.state[:] = 0
        ring.state[0] = held
        ring.data[:8].view(np.int64)[0] = -1  # go on at the start: for ever?
        assert ring.next() == Found.NONSENSE
