"""Every scenario runs with both gap policies of the switch."""

from __future__ import annotations

import pytest
from tests.scenarios.scenario import Scenario


@pytest.fixture(autouse=True, params=["pass", "hold"])
def gap_policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Scenario, "gap_policy", request.param)
    return str(request.param)
