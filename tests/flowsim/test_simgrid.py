"""SimGrid as the outside oracle: an independent, published simulator must give the same times, to 1e-9.

Needs the Debian package python3-simgrid (3.32), which serves the system's interpreter only.
"""

import json
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.flowsim.cases import Case, draw_case, run_case

SYSTEM_PYTHON = "/usr/bin/python3"
SEED = 20230325
CASES = 60


@cache
def simgrid_works() -> bool:
    try:
        return subprocess.run([SYSTEM_PYTHON, "-c", "import simgrid"], capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not simgrid_works(), reason=f"{SYSTEM_PYTHON} has no simgrid: apt install python3-simgrid"
)


def simgrid(mode: str, cases: list[Case]) -> list[list[float]]:
    script = Path(__file__).with_name("simgrid_oracle.py")
    done = subprocess.run(
        [SYSTEM_PYTHON, str(script), mode],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("mode", "latencies", "weight_by_latency"),
    [("flows", "equal", False), ("flows", "drawn", True), ("coupled", "none", False)],
)
def test_every_flow_ends_when_simgrid_says_so(mode, latencies, weight_by_latency):
    generator = np.random.default_rng(SEED)
    print(f"seed {SEED}")
    cases = [draw_case(generator, coupled_flows=mode == "coupled", latencies=latencies) for _ in range(CASES)]
    for case, expected in zip(cases, simgrid(mode, cases), strict=True):
        assert run_case(case, weight_by_latency=weight_by_latency) == pytest.approx(expected, rel=1e-9), case
