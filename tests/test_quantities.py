"""Quantities read as people write them, and refuse what has no unit."""

import pytest

from netreduce import quantities
from netreduce.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "value"),
    [("100Gbps", 12.5e9), ("100 Gbit/s", 12.5e9), ("12.5GB/s", 12.5e9), ("1.5e3Mbps", 187.5e6), ("1KiB/s", 1024.0)],
)
def test_rates_are_bytes_a_second(text, value):
    assert quantities.rate(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"), [("1us", 1e-6), ("0.5 ms", 5e-4), ("2s", 2.0), ("3µs", 3e-6), ("7ns", 7e-9)]
)
def test_durations_are_seconds(text, value):
    assert quantities.duration(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("100MB", 10**8), ("64KiB", 65536), ("4M", 4 * 10**6), ("512", 512)])
def test_sizes_are_bytes(text, value):
    assert quantities.size(text) == value


@pytest.mark.parametrize("text", ["", "fast", "100", "-1Gbps", "100GBit"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ConfigurationError):
        quantities.rate(text)


@pytest.mark.parametrize("text", ["5", "1 minute", "s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigurationError, match="write 1us"):
        quantities.duration(text)


def test_nothing_is_no_size():
    with pytest.raises(ConfigurationError, match="above zero"):
        quantities.size("0MB")


def test_results_are_shown_in_the_unit_that_fits():
    assert [quantities.show_time(t) for t in (1.5, 8.002e-3, 4e-6, 1e-9)] == ["1.5 s", "8.002 ms", "4 us", "1 ns"]
    assert [quantities.show_size(b) for b in (2.5e9, 25e6, 1024, 7)] == ["2.5 GB", "25 MB", "1.02 kB", "7 B"]
