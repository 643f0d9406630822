"""A capture file of any bytes, read and summed up as `netreduce show` does.

Input: the file.
"""

from __future__ import annotations

import io

import msgspec

from netreduce.errors import CaptureError
from netreduce.wire.capture import CAPTURED_BYTES_MAX, read_capture
from netreduce.wire.conversations import Conversations
from netreduce.wire.dissect import Dissector
from netreduce.wire.show import frame_line, seconds_text, utc_text
from netreduce.wire.summary import Summary


def check(data: bytes) -> None:
    """Raise AssertionError, or anything but a CaptureError, when a file harms the reader."""
    dissector, conversations, summary = Dissector(), Conversations(), Summary()
    seen_bytes = count = 0
    try:
        for captured in read_capture(io.BytesIO(data), "file"):
            count += 1
            assert captured.number == count
            assert len(captured.data) <= min(captured.wire_bytes, CAPTURED_BYTES_MAX)
            seen_bytes += len(captured.data)
            view, payload = dissector.view(captured)
            conversations.follow(view, payload)
            summary.add(view)
            assert frame_line(view, utc_text(view.time_ns)).isprintable(), "a file must not steer the terminal"
            seconds_text(view.time_ns)
            assert msgspec.json.encode(view)
    except CaptureError as error:
        assert "\n" not in str(error)  # noqa: PT017 (the file may as well be whole)
    assert seen_bytes <= len(data), "frames are made of the file's bytes"
    assert msgspec.json.encode(summary.as_dict())
    assert "".join(summary.lines()).isprintable()
