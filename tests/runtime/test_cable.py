import os
import socket

import numpy as np
import pytest
from tests.runtime.bursts import filled_queue, frames_of, random_frames

from netreduce.errors import ConfigurationError, SwitchLostError
from netreduce.runtime.cable import (
    BadBurstError,
    Cable,
    CableClosedError,
    Outlet,
    accept,
    connect,
    listen,
    make_burst_buffer,
    new_address,
    peer_credentials,
)
from netreduce.wire.frames import BURST_BYTES_MAX


@pytest.fixture
def ends():
    address = new_address()
    with listen(address) as listener:
        near = Cable(connect(address))
        far = Cable(accept(listener))
    yield near, far
    near.close()
    far.close()


def test_bursts_cross_a_cable_unchanged_and_in_order(ends, rng):
    near, far = ends
    frames = random_frames(rng, 100)
    queue, buffer, arrived = filled_queue(frames), make_burst_buffer(), []
    while len(arrived) < len(frames):
        Outlet(near, queue).send()
        size = far.receive(buffer)
        assert 0 < size <= BURST_BYTES_MAX
        arrived += frames_of(buffer[:size])
    assert arrived == [frame.tobytes() for frame in frames]
    assert far.receive(buffer) == 0


def test_a_full_cable_leaves_the_rest_in_the_queue_and_loses_nothing(ends, rng):
    near, far = ends
    sent, arrived, buffer = [], [], make_burst_buffer()
    while True:
        frames = random_frames(rng, 100)
        sent += frames
        queue = filled_queue(frames)
        if not Outlet(near, queue).send():
            break
    assert queue.state[0].frames > 0
    while size := far.receive(buffer):
        arrived += frames_of(buffer[:size])
        Outlet(near, queue).send()
    assert arrived == [frame.tobytes() for frame in sent]


def test_a_tap_sees_every_burst_once(ends, rng):
    near, _ = ends
    frames, seen = random_frames(rng, 20), []
    assert Outlet(near, filled_queue(frames), lambda burst: seen.extend(frames_of(burst))).send()
    assert seen == [frame.tobytes() for frame in frames]


@pytest.mark.parametrize(
    "datagram",
    [b"x", b"\0" * 10, b"\0" * 16, b"\xff" * 64, b"\1" * (BURST_BYTES_MAX + 1)],
    ids=["short", "header only", "empty frame", "lying length", "too long"],
)
def test_a_malformed_burst_is_noticed_at_the_door(ends, datagram):
    near, far = ends
    assert near.send_burst(np.frombuffer(datagram, np.uint8).copy())
    with pytest.raises(BadBurstError, match=rf"{len(datagram)} bytes"):
        far.receive(make_burst_buffer())


def test_the_end_of_one_side_is_seen_at_the_other(ends):
    near, far = ends
    near.close()
    with pytest.raises(CableClosedError):
        far.receive(make_burst_buffer())
    with pytest.raises(CableClosedError):
        far.send_burst(np.zeros(16, np.uint8))


def test_the_kernel_tells_who_is_at_the_other_end():
    address = new_address()
    with listen(address) as listener, connect(address), accept(listener) as accepted:
        assert peer_credentials(accepted) == (os.getpid(), os.getuid())
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= BURST_BYTES_MAX


def test_an_address_without_a_switch_is_a_clear_error():
    with pytest.raises(SwitchLostError, match="no switch at local:"):
        connect(new_address())


@pytest.mark.parametrize("address", ["", "local:", "tcp:somewhere", "local:" + "x" * 101])
def test_a_wrong_address_is_a_clear_error(address):
    with pytest.raises(ConfigurationError, match="switch address"):
        connect(address)
