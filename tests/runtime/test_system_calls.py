"""System calls of compiled code against what Python's own modules see of them."""

import os
import select
import signal
import socket
import threading
import time

import numpy as np
import pytest

from netreduce.runtime import system_calls
from netreduce.runtime.clock import Clock
from netreduce.units import PS_PER_MS, PS_PER_S


@pytest.fixture
def pair():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        yield near, far


@pytest.fixture
def scratch():
    return np.zeros(2, np.int64)


@pytest.fixture
def epoll():
    with select.epoll() as epoll:
        yield epoll


def test_the_clock_is_that_of_everybody_else(scratch):
    clock = Clock()
    before = clock.now_ps()
    now_ps = system_calls.now_ps(scratch, clock.epoch_ns)
    assert before <= now_ps <= clock.now_ps()


def test_a_bell_is_one_byte_that_is_taken_once(pair, scratch):
    near, far = pair
    assert system_calls.ring_bell(near.fileno(), scratch)
    assert system_calls.take_bell(far.fileno(), scratch)
    assert not system_calls.take_bell(far.fileno(), scratch)
    far.send(b"x")
    assert system_calls.take_bell(near.fileno(), scratch)


def test_a_bell_without_anybody_at_the_other_end_is_none_and_no_signal_kills(pair, scratch):
    near, far = pair
    far.close()
    assert not system_calls.ring_bell(near.fileno(), scratch)
    assert not system_calls.take_bell(near.fileno(), scratch)


def test_a_bell_that_does_not_fit_waits_for_nobody(pair, scratch):
    near, _ = pair
    rung = 0
    while system_calls.ring_bell(near.fileno(), scratch):
        rung += 1
    assert rung > 10


def ready(events, count):
    return {system_calls.ready_descriptor(events, row): system_calls.ready_mask(events, row) for row in range(count)}


def test_what_is_ready_is_told_with_its_mask(pair, epoll):
    near, far = pair
    events = system_calls.make_events(8)
    with select.epoll() as other:
        epoll.register(near, select.EPOLLIN)
        epoll.register(far, select.EPOLLOUT)
        assert ready(events, system_calls.wait(epoll.fileno(), events, 0)) == {far.fileno(): select.EPOLLOUT}
        far.send(b"x")
        both = {far.fileno(): select.EPOLLOUT, near.fileno(): select.EPOLLIN}
        assert ready(events, system_calls.wait(epoll.fileno(), events, PS_PER_S)) == both == dict(epoll.poll(0))
        assert system_calls.wait(other.fileno(), events, 0) == 0


def test_a_wait_lasts_as_long_as_asked_and_no_longer(epoll):
    start = time.monotonic()
    assert system_calls.wait(epoll.fileno(), system_calls.make_events(1), 20 * PS_PER_MS + 1) == 0
    assert time.monotonic() - start >= 0.02


def test_a_signal_ends_a_wait(epoll):
    previous = signal.signal(signal.SIGALRM, lambda *_: None)
    thread = threading.Thread(target=lambda: (time.sleep(0.1), os.kill(os.getpid(), signal.SIGALRM)))
    thread.start()
    try:
        assert system_calls.wait(epoll.fileno(), system_calls.make_events(1), PS_PER_S) == -1
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, previous)


def test_a_descriptor_is_watched_for_what_was_asked_last(pair, epoll):
    near, far = pair
    events = system_calls.make_events(1)
    epoll.register(near, select.EPOLLIN)
    far.send(b"x")
    system_calls.watch_for(epoll.fileno(), near.fileno(), 0, events)
    assert epoll.poll(0) == []
    system_calls.watch_for(epoll.fileno(), near.fileno(), int(select.EPOLLIN), events)
    assert epoll.poll(0) == [(near.fileno(), select.EPOLLIN)]
