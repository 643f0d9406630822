"""Bursts and streams of any bytes, as other processes send them: what is whole gets in, and comes out as it was.

Input: one byte of choices, and the burst or stream.
"""

from __future__ import annotations

import struct

import numpy as np
from tests.fuzz.script import Script, as_frame

from netreduce.switch import Switch, SwitchLimits
from netreduce.wire.frames import BURST_BYTES_MAX, FRAME_BYTES_MAX, burst_is_whole
from netreduce.wire.framing import burst_to_stream, stream_to_burst

PORTS = 3
LIMITS = SwitchLimits(memory_bytes=1 << 16, egress_bytes=1 << 16, rings=1, connections=1, macs=16)


def check(data: bytes) -> None:
    """Raise AssertionError when a burst or a stream is taken wrongly."""
    script = Script(data)
    choice = script.byte()
    rest = script.rest()[: BURST_BYTES_MAX // 2]
    (_check_burst, _check_stream)[choice % 2](choice // 2, rest)


def _whole_records(data: bytes) -> list[bytes] | None:
    """The frames of a burst by the book (wire/frames.py), or None if it is no run of whole records."""
    frames, at = [], 0
    while at < len(data):
        if len(data) - at < 10:
            return None
        (length,) = struct.unpack_from("<H", data, at + 8)
        size = -(-(10 + length) // 16) * 16
        if not 0 < length <= FRAME_BYTES_MAX or at + size > len(data):
            return None
        frames.append(data[at + 10 : at + 10 + length])
        at += size
    return frames


def _check_burst(choice: int, data: bytes) -> None:
    """The switch forwards, filters, drops or floods each frame of a whole burst, and none of another."""
    burst, frames = as_frame(data), _whole_records(data)
    assert bool(burst_is_whole(burst, burst.size)) == (frames is not None)
    switch = Switch("switch", PORTS, limits=LIMITS)
    switch.receive(choice % PORTS, burst, 1000)
    counters = switch.counters()
    drops = sum(value for name, value in counters.items() if name.startswith("drop_") and name != "drop_queue_full")
    if frames is None:
        assert (counters["packets_in"], drops) == (0, 1)
        return
    assert counters["packets_in"] == len(frames)
    fates = [counters[name] for name in ("forwarded", "flooded", "filtered")]
    assert sum(fates) + drops == len(frames)
    assert counters["packets_out"] + counters["egress_drops"] == fates[0] + (PORTS - 1) * fates[1]
    assert burst.tobytes() == data


def _check_stream(_choice: int, data: bytes) -> None:
    """Whole frames leave a stream as they came, up to the first of impossible length."""
    burst, done = np.zeros(BURST_BYTES_MAX, np.uint8), np.zeros(2, np.int64)
    if not stream_to_burst(as_frame(data), len(data), burst, 5, done):
        (length,) = struct.unpack_from(">I", data, int(done[0]))
        assert not 0 < length <= FRAME_BYTES_MAX
    used, written = (int(number) for number in done)
    assert used <= len(data)
    assert burst_is_whole(burst, written)
    stream = np.zeros(max(written, 1), np.uint8)
    size = int(burst_to_stream(burst[:written], stream))
    assert stream[:size].tobytes() == data[:used]
