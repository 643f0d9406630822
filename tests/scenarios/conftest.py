"""Every scenario runs with both gap policies of the switch, and over one switch, two levels and three.

Over several levels faults strike where the connection passes between switches, if it does, or next to the hosts.
"""

from __future__ import annotations

import pytest
from tests.scenarios.scenario import Scenario

VARIANTS = [
    "star-pass",
    "star-hold",
    "two-core-pass",
    "two-edge-hold",
    "three-core-hold",
]


@pytest.fixture(autouse=True, params=VARIANTS)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, *where, policy = request.param.split("-")
    monkeypatch.setattr(Scenario, "gap_policy", policy)
    monkeypatch.setattr(Scenario, "shape", shape)
    monkeypatch.setattr(Scenario, "at_core", where == ["core"])
