"""Memory of one test is given back before the next one."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Nodes, lines and programs know each other: the tables of dozens of NICs would pile up to gigabytes."""
    yield
    gc.collect()
