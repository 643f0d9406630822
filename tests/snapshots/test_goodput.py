"""Goodput against loss, compared with a committed snapshot: a change of transport or switch shows as a diff in numbers.

`python benchmarks/goodput.py --write tests/snapshots/goodput.json` renews it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netreduce.compiled import JIT_DISABLED
from netreduce.soak.goodput import LOSSES, METHODS, all_reduce_ps
from netreduce.units import MIB

SNAPSHOT = json.loads((Path(__file__).parent / "goodput.json").read_text())


@pytest.mark.skipif(JIT_DISABLED, reason="thousands of packets: minutes in plain Python")
@pytest.mark.parametrize("loss", [0.0, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("method", METHODS)
def test_the_virtual_time_of_an_all_reduce_under_loss_is_that_of_the_snapshot(method: str, loss: float) -> None:
    times = [all_reduce_ps(METHODS[method], loss, seed, world_size=4, length_bytes=MIB) for seed in range(2)]
    assert times == SNAPSHOT[method][f"{loss:g}"][:2]


def test_the_snapshot_has_every_method_and_loss() -> None:
    assert list(SNAPSHOT) == list(METHODS)
    assert all(list(SNAPSHOT[method]) == [f"{loss:g}" for loss in LOSSES] for method in METHODS)


def test_holding_back_is_never_slower_than_passing_on() -> None:
    """Why `hold` is there: no successor sees a gap, so one sender goes back instead of all."""
    for loss in SNAPSHOT["hold"]:
        assert sum(SNAPSHOT["hold"][loss]) <= sum(SNAPSHOT["pass"][loss])
