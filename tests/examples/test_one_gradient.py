"""The printed journey has every step, and the sum arrives, with and without a lost packet."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "one_gradient.py"), run_name="example")


def journey(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    EXAMPLE["main"](list(arguments))
    return capsys.readouterr().out.splitlines()


def test_each_step_of_the_journey_is_told_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    lines = journey(capsys)
    steps = ["POSTED", "SENT", "CLT_FILLED", "SLOT_FILLED", "SUMMED", "SPLICED", "RECEIVED", "ACK_SENT", "COMPLETED"]
    first = [next(number for number, line in enumerate(lines) if step in line) for step in steps[:-1]]
    assert first == sorted(first)
    assert sum("SPLICED" in line and "60 x 111, ICRC" in line for line in lines) == 6
    assert sum("SENT  " in line and "x 10," in line for line in lines) == 2
    assert lines[-1] == "Gradients: rank 0 holds 111, rank 1 holds 111, rank 2 holds 111"


def test_a_lost_packet_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    lines = journey(capsys, "--loss")
    for word in ("OUT_OF_SEQUENCE", "NAK_SENT", "NAK_RECEIVED", "RETRANSMITTED"):
        assert any(word in line for line in lines), word
    assert lines[-1].endswith("rank 2 holds 111")
