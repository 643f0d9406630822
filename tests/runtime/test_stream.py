"""Streams of length-prefixed frames, as a QEMU guest's NIC has them, at a port of a live switch."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.bursts import filled_queue

from netreduce.errors import ConfigurationError
from netreduce.runtime.cable import BadBurstError, CableClosedError, Outlet, make_burst_buffer
from netreduce.runtime.stream import StreamCarrier, listen_at
from netreduce.wire.build import burst_frames


@pytest.fixture
def ends():
    near, far = socket.socketpair()
    carrier = StreamCarrier(near, lambda: 7)
    with far:
        yield carrier, far
        carrier.close()


def framed(frame: bytes) -> bytes:
    return struct.pack(">I", len(frame)) + frame


def test_frames_that_come_in_pieces_are_put_together(ends):
    carrier, far = ends
    frames = [bytes([n]) * (60 + n) for n in range(50)]
    stream = b"".join(framed(frame) for frame in frames)
    buffer, found = make_burst_buffer(), []
    for start in range(0, len(stream), 37):
        far.send(stream[start : start + 37])
        if (burst := carrier.receive(buffer)) is not None:
            found += [frame.tobytes() for _, frame in burst_frames(burst)]
    assert found == frames
    assert carrier.receive(buffer) is None


def test_a_full_stream_refuses_bursts_and_goes_on_where_it_stopped(ends):
    carrier, far = ends
    frames = [bytes([n]) * 4000 for n in range(200)]
    queue = filled_queue([np.frombuffer(frame, np.uint8) for frame in frames], 2 * 1024 * 1024)
    outlet = Outlet(carrier, queue)
    assert not outlet.send()
    assert not carrier.send_burst(np.zeros(0, np.uint8))
    received = b""
    far.setblocking(False)
    while not outlet.send() or len(received) < 200 * 4004:
        with contextlib.suppress(BlockingIOError):
            received += far.recv(1 << 20)
    assert received == b"".join(framed(frame) for frame in frames)


def test_nonsense_and_the_end_are_told_apart(ends):
    carrier, far = ends
    far.send(b"\xff" * 8)
    with pytest.raises(BadBurstError, match="impossible length"):
        carrier.receive(make_burst_buffer())
    far.close()
    with pytest.raises(CableClosedError):
        carrier.receive(make_burst_buffer())


def test_a_path_that_nobody_listens_at_any_more_is_taken_over_and_another_is_not(tmp_path: Path):
    path = tmp_path / "guest"
    listen_at(path).close()
    with listen_at(path), pytest.raises(ConfigurationError, match="Address already in use"):
        listen_at(path)
    with pytest.raises(ConfigurationError, match="No such file"):
        listen_at(tmp_path / "nowhere" / "guest")
