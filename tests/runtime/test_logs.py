"""Logs as lines of JSON."""

from __future__ import annotations

import json
import logging
import sys

from netreduce.runtime.logs import JsonLines


def line_of(**fields) -> dict[str, object]:
    record = logging.LogRecord("netreduce.switch", logging.INFO, "f.py", 1, "port %d: %s", (3, 'a "b"\n'), None)
    vars(record).update(fields)
    text = JsonLines().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_has_time_level_logger_message_and_the_callers_fields():
    line = line_of(created=0.25, event="gone", ip="10.0.0.1")
    assert line == {
        "time": "1970-01-01T00:00:00.250+00:00", "level": "info", "logger": "netreduce.switch",
        "message": 'port 3: a "b"\n', "event": "gone", "ip": "10.0.0.1",
    }  # fmt: skip


def test_an_exception_stays_in_its_line():
    try:
        raise ValueError("why")
    except ValueError:
        assert "ValueError: why" in str(line_of(exc_info=sys.exc_info())["exception"])
