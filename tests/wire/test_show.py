"""Times as text: a capture may claim any."""

from __future__ import annotations

import pytest

from netreduce.wire.show import utc_text


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z"),
        (10**21 + 5, "1000000000000.000000005s"),  # the year has five digits
        (10**27, "1000000000000000000.000000000s"),  # found by fuzzing: the C library refuses it in another way
        (-(10**27), "-1000000000000000000.000000000s"),
    ],
)
def test_a_time_that_no_calendar_knows_is_told_in_seconds(time_ns: int, text: str) -> None:
    assert utc_text(time_ns) == text
