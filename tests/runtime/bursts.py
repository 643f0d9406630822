"""Bursts of random frames for tests."""

from __future__ import annotations

import numpy as np

from netreduce.wire.frames import RECORD_HEADER_BYTES, FrameQueue, make_queue, queue_put, record_bytes, record_length


def filled_queue(frames: list[np.ndarray], capacity_bytes: int = 1 << 20) -> FrameQueue:
    """A frame queue that holds `frames`."""
    queue = make_queue(capacity_bytes)
    for frame in frames:
        assert queue_put(queue.data, queue.state[0], frame, 0)
    return queue


def random_frames(rng: np.random.Generator, count: int, length_max: int = 4200) -> list[np.ndarray]:
    """`count` frames of random bytes and lengths."""
    return [rng.integers(0, 256, rng.integers(60, length_max), dtype=np.uint8) for _ in range(count)]


def frames_of(burst: np.ndarray) -> list[bytes]:
    """The frames of a burst."""
    frames, at = [], 0
    while at < burst.size:
        length = int(record_length(burst, at))
        frames.append(burst[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length].tobytes())
        at += int(record_bytes(length))
    return frames
