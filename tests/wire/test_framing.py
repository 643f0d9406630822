"""Frames between bursts, length-prefixed streams. Oracles: struct, and the frames themselves."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netreduce.wire.build import build_burst, burst_frames
from netreduce.wire.frames import FRAME_BYTES_MAX
from netreduce.wire.framing import (
    burst_to_stream,
    stream_to_burst,
)

frames = st.lists(st.binary(min_size=14, max_size=400), max_size=8)


def as_stream(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in payloads)


def as_burst(payloads: list[bytes]) -> np.ndarray:
    return build_burst([np.frombuffer(frame, np.uint8) for frame in payloads])


def frames_in(burst: np.ndarray) -> list[bytes]:
    return [frame.tobytes() for _, frame in burst_frames(burst)]


def unframe(stream: bytes, room: int = 128 * 1024) -> tuple[bool, int, list[bytes]]:
    """Whether the stream makes sense, the bytes used, the frames."""
    burst, done = np.zeros(room, np.uint8), np.zeros(2, np.int64)
    data = np.frombuffer(stream, np.uint8).copy()
    fine = bool(stream_to_burst(data, data.size, burst, 7, done))
    return fine, int(done[0]), frames_in(burst[: done[1]])


@given(frames, st.integers(0, 400))
def test_whole_frames_are_taken_from_a_stream_and_the_beginning_of_the_next_one_waits(payloads, cut):
    stream = as_stream([*payloads, bytes(401)])[: -1 - cut]
    fine, used, found = unframe(stream)
    assert (fine, used, found) == (True, len(as_stream(payloads)), payloads)


@given(frames)
def test_a_burst_becomes_the_stream_that_qemu_expects(payloads):
    stream = np.zeros(8192, np.uint8)
    size = burst_to_stream(as_burst(payloads), stream)
    assert stream[:size].tobytes() == as_stream(payloads)


def test_frames_that_find_no_room_in_the_burst_wait_in_the_stream():
    payloads = [bytes([n]) * 100 for n in range(4)]
    fine, used, found = unframe(as_stream(payloads), room=2 * 112)
    assert (fine, used, found) == (True, 208, payloads[:2])


def test_a_frame_of_no_bytes_or_of_too_many_spoils_the_stream():
    assert not unframe(struct.pack(">I", 0))[0]
    assert not unframe(struct.pack(">I", FRAME_BYTES_MAX + 1))[0]
    assert not unframe(b"GET / HTTP/1.1\r\n")[0]
    assert unframe(as_stream([bytes(FRAME_BYTES_MAX)]))[0]
