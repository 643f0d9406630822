"""Syndromes and the RNR timer table against the specification's own numbers."""

from __future__ import annotations

import pytest

from netreduce.units import PS_PER_US
from netreduce.wire.aeth import RNR_TIMER_PS, AckKind, Syndrome, describe_syndrome

# IBA vol. 1, table 45, in milliseconds.
TABLE_45_MS = (
    "655.36 0.01 0.02 0.03 0.04 0.06 0.08 0.12 0.16 0.24 0.32 0.48 0.64 0.96 1.28 1.92 2.56 3.84 5.12 7.68 10.24 15.36 "
    "20.48 30.72 40.96 61.44 81.92 122.88 163.84 245.76 327.68 491.52"
)


def test_rnr_timers_are_those_of_the_specification() -> None:
    assert [timer / PS_PER_US for timer in RNR_TIMER_PS] == [round(float(ms) * 1000) for ms in TABLE_45_MS.split()]


@pytest.mark.parametrize(
    ("syndrome", "text"),
    [
        (Syndrome.ACK, "ACK"),
        (0x05, "ACK, credit code 5"),
        (AckKind.RNR_NAK | 12, "RNR NAK, wait 0.64 ms"),
        (0x60, "NAK PSN sequence error"),
        (0x61, "NAK invalid request"),
        (0x62, "NAK remote access error"),
        (0x63, "NAK remote operational error"),
        (0x65, "reserved syndrome 0x65"),
        (0x41, "reserved syndrome 0x41"),
        (0x9F, "reserved syndrome 0x9f"),
    ],
)
def test_syndromes_are_told_in_words(syndrome: int, text: str) -> None:
    assert describe_syndrome(syndrome) == text
