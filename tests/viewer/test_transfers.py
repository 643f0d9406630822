"""The walk of any run tells transfers between hosts as what they are: clear to send, data, completions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from netreduce.collectives.algorithms import Algorithm
from netreduce.fabric.rules import SeenFrame
from netreduce.viewer.stage import Stage
from netreduce.viewer.walks import walk_of
from netreduce.wire.control import Geometry
from netreduce.wire.opcodes import Role

HOSTS = 3
HOPS = 2 * (HOSTS - 1)


def walked(algorithm: Algorithm, *, loses_data: bool = False) -> list[dict[str, Any]]:
    """The steps of an all-reduce of 10^r over three hosts, each on a cable of its own length."""
    stage = Stage("any run", HOSTS, Geometry(1, 4, 256), skew_ps=100_000)
    if loses_data:
        stage.lose(0, "up", is_data)
    arrays = [np.full(HOSTS * 100, 10.0**rank, np.float32) for rank in range(HOSTS)]
    stage.run([e.all_reduce(a, algorithm=algorithm) for e, a in zip(stage.engines, arrays, strict=True)])
    assert all(np.all(array == 111) for array in arrays)
    steps: list[dict[str, Any]] = walk_of(stage.trace)["walks"][0]["steps"]
    return steps


def is_data(frame: SeenFrame) -> bool:
    return frame.packet is not None and bool(int(frame.packet.roles) & Role.IMMEDIATE)


@pytest.fixture(scope="module")
def ring() -> list[dict[str, Any]]:
    return walked(Algorithm.RING)


def test_every_slot_of_a_ring_is_told_when_it_passes_and_when_it_arrives(ring: list[dict[str, Any]]) -> None:
    titles = Counter(step["title"] for step in ring)
    assert titles["Clear to send passes"] == HOSTS * HOPS
    assert sum(titles[f"Worker {rank} is clear to send"] for rank in range(HOSTS)) == HOSTS * HOPS
    assert titles["Clear to send is posted"] > 0
    for step in ring:
        if step["title"] == "Clear to send passes":
            assert [frame["label"] for frame in step["frames"]] == ["CTS"]


def test_data_is_told_with_the_partial_sum_that_it_carries(ring: list[dict[str, Any]]) -> None:
    arrivals = [step for step in ring if step["title"].endswith("receives data")]
    assert len(arrivals) == 2 * HOSTS * HOPS, "400 bytes are two packets"
    ends = [step["text"] for step in arrivals if "The immediate completes the receive" in step["text"]]
    assert len(ends) == HOSTS * HOPS
    assert sum("first element 111," in text for text in ends) == HOSTS * (HOSTS - 1), "finished chunks, passed on"
    assert any(step["title"] == "Data passes" for step in ring)


def test_no_step_of_a_ring_speaks_of_what_only_the_adding_switch_does(ring: list[dict[str, Any]]) -> None:
    told = " ".join(step["title"] + step["text"] + step["why"] for step in ring)
    assert "successor" not in told
    assert "INA header" not in told


def test_the_adding_switchs_own_story_stays_as_it_was() -> None:
    titles = [step["title"] for step in walked(Algorithm.NETREDUCE)]
    assert any("sum and splice" in title for title in titles)
    assert "Data passes" not in titles
    assert "Clear to send passes" not in titles


def test_a_loss_among_transfers_is_still_told_as_a_loss() -> None:
    titles = [step["title"] for step in walked(Algorithm.RING, loses_data=True)]
    assert "A frame is lost" in titles
    assert "Go-back-N" in titles
