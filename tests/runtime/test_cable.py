import os
import select
import socket
import threading

import numpy as np
import pytest
from tests.runtime.bursts import filled_queue, frames_of, random_frames

from netreduce.errors import ConfigurationError, NetReduceError, SwitchLostError
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
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.frames import BURST_BYTES_MAX
from netreduce.wire.opcodes import Opcode


@pytest.fixture
def ends():
    address = new_address()
    with listen(address) as listener:
        connection = connect(address)
        far = Cable.offer(accept(listener))
        near = Cable.take(connection, 5.0)
    yield near, far
    near.close()
    far.close()


def test_bursts_cross_a_cable_unchanged_and_in_order(ends, rng):
    near, far = ends
    frames = random_frames(rng, 100)
    queue, buffer, arrived = filled_queue(frames), make_burst_buffer(), []
    while len(arrived) < len(frames):
        Outlet(near, queue).send()
        burst = far.receive(buffer)
        assert 0 < burst.size <= BURST_BYTES_MAX
        arrived += frames_of(burst)
    assert arrived == [frame.tobytes() for frame in frames]
    assert far.receive(buffer) is None


def test_both_directions_of_a_cable_are_independent(ends, rng):
    near, far = ends
    up, down = random_frames(rng, 20), random_frames(rng, 20)
    Outlet(near, filled_queue(up)).send()
    Outlet(far, filled_queue(down)).send()
    assert frames_of(far.receive(make_burst_buffer())) == [frame.tobytes() for frame in up]
    assert frames_of(near.receive(make_burst_buffer())) == [frame.tobytes() for frame in down]


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
    while (burst := far.receive(buffer)) is not None:
        arrived += frames_of(burst)
        Outlet(near, queue).send()
    assert arrived == [frame.tobytes() for frame in sent]


def is_readable(cable):
    return bool(select.select([cable], [], [], 0)[0])


def test_a_burst_rings_only_for_an_end_that_rests(ends, rng):
    near, far = ends
    burst = build_burst(random_frames(rng, 3))
    near.send_burst(burst)
    assert not is_readable(far)
    assert not far.rest()  # the burst is there already
    while far.receive(make_burst_buffer()) is not None:
        pass
    assert far.rest()
    near.send_burst(burst)
    near.send_burst(burst)
    assert is_readable(far)
    far.wake()
    assert not is_readable(far)


def test_an_end_that_is_patient_neither_rings_for_acknowledgements_nor_is_rung_for(ends):
    near, far = ends
    acknowledgements = build_burst([build_frame(Opcode.ACKNOWLEDGE)])
    near.is_patient = True
    assert all(end.rest() for end in ends)
    assert all(end.send_burst(acknowledgements) for end in ends)
    assert not is_readable(near)
    assert not is_readable(far)
    near.is_patient = False
    near.send_burst(acknowledgements)
    assert is_readable(far)


def test_whoever_found_a_cable_full_is_rung_for_when_there_is_room(ends, rng):
    near, far = ends
    burst = build_burst(random_frames(rng, 20))
    while near.send_burst(burst):
        pass
    assert near.rest()
    while not is_readable(near):
        assert far.receive(make_burst_buffer()) is not None
    assert near.send_burst(burst)


def test_two_processes_exchange_bursts_and_sleep_in_between(ends):
    near, far = ends
    echo = threading.Thread(target=_echo, args=(far, ECHOES))
    echo.start()
    for number in range(ECHOES):
        assert near.send_burst(build_burst([np.full(100, number % 256, np.uint8)]))
        assert frames_of(_wait(near)) == [bytes([number % 256]) * 100]
    echo.join()


ECHOES = 300


def _echo(cable, count):
    for _ in range(count):
        assert cable.send_burst(_wait(cable).copy())


def _wait(cable):
    while (burst := cable.receive(make_burst_buffer())) is None:
        if cable.rest():
            assert select.select([cable], [], [], 10)[0], "nobody rang"
            cable.wake()
    return burst


def test_a_tap_sees_every_burst_once(ends, rng):
    near, _ = ends
    frames, seen = random_frames(rng, 20), []
    assert Outlet(near, filled_queue(frames), lambda burst: seen.extend(frames_of(burst))).send()
    assert seen == [frame.tobytes() for frame in frames]


@pytest.mark.parametrize(
    "nonsense",
    [b"x", b"\0" * 10, b"\0" * 16, b"\xff" * 64],
    ids=["short", "header only", "empty frame", "lying length"],
)
def test_a_malformed_burst_is_noticed_at_the_door(ends, nonsense):
    near, far = ends
    assert near.send_burst(np.frombuffer(nonsense, np.uint8).copy())
    with pytest.raises(BadBurstError, match=rf"{len(nonsense)} bytes"):
        far.receive(make_burst_buffer())


def test_the_end_of_one_side_wakes_the_other(ends):
    near, far = ends
    assert far.rest()
    near.close()
    assert is_readable(far)
    with pytest.raises(CableClosedError):
        far.wake()
    with pytest.raises(CableClosedError):
        far.wake()


def test_a_worker_is_told_when_the_switch_hangs_up_instead_of_offering_a_cable():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    far.close()
    with near, pytest.raises(CableClosedError):
        Cable.take(near, 5.0)


def test_memory_that_could_shrink_is_not_used():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = os.memfd_create("shrinking", os.MFD_ALLOW_SEALING)
    with near, far:
        socket.send_fds(far, [b"memory"], [memory])
        os.close(memory)
        with pytest.raises(NetReduceError, match="could shrink"):
            Cable.take(near, 5.0)


def test_the_kernel_tells_who_is_at_the_other_end():
    address = new_address()
    with listen(address) as listener, connect(address), accept(listener) as accepted:
        assert peer_credentials(accepted) == (os.getpid(), os.getuid())


def test_an_address_without_a_switch_is_a_clear_error():
    with pytest.raises(SwitchLostError, match="no switch at local:"):
        connect(new_address())


@pytest.mark.parametrize("address", ["", "local:", "tcp:somewhere", "local:" + "x" * 101])
def test_a_wrong_address_is_a_clear_error(address):
    with pytest.raises(ConfigurationError, match="switch address"):
        connect(address)
