"""What all tests share: one printed seed from which every random choice follows, and the Hypothesis profiles.

`pytest --seed N` repeats a run. Locally each run draws a new seed; with ``CI=true`` the seed is fixed, so that a change
is judged by its own faults, and finding new ones is left to the soak runs.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

IN_CI = os.environ.get("CI", "").lower() == "true"
CI_SEED = 20_230_325  # the day the paper was presented

settings.register_profile("dev", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", deadline=None, max_examples=100, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if IN_CI else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed of every random choice in the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed before Hypothesis asks for its own; xdist hands both on to its workers."""
    if config.option.seed is None:
        config.option.seed = CI_SEED if IN_CI else random.SystemRandom().randrange(1 << 32)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(config.option.seed)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed} (repeat with --seed {config.option.seed})"


GARBAGE_BYTES = 512 * 1024 * 1024
_settled_bytes = [0]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def no_mountain_of_garbage() -> Iterator[None]:
    """Free the tables of NICs and switches: few objects, so that Python sees no hurry, but of hundreds of megabytes."""
    yield
    if _resident_bytes() > _settled_bytes[0] + GARBAGE_BYTES:
        gc.collect()
        _settled_bytes[0] = _resident_bytes()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own, drawn from the run's; a failing test shows it."""
    text = f"{request.config.option.seed} {request.node.nodeid}"
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
    print(f"seed of this test: {value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A NumPy generator seeded by `seed`."""
    return np.random.default_rng(seed)
