"""Runs over the switches of a topology file, with real processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

TOPOLOGY = """
[[switch]]
name = "leaf"
count = 2
[[switch]]
name = "spine"
count = 2
[[rack]]
switch = "leaf0"
hosts = 2
[[rack]]
switch = "leaf1"
hosts = 3
[[link]]
ends = ["leaf*", "spine*"]
"""
CODE = """
import numpy as np, netreduce
world = netreduce.Communicator.connect()
parts = [np.random.default_rng(rank).standard_normal(50_000).astype(np.float32) for rank in range(5)]
a, b, c, d, e = parts
found = world.all_reduce(parts[world.rank].copy())
print(found.tobytes() == ((a + b) + ((c + d) + e)).tobytes(), found.tobytes() == ((((a + b) + c) + d) + e).tobytes())
"""


def run(path: Path, topology: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = path / "topology.toml"
    file.write_text(topology)
    command = [sys.executable, "-m", "netreduce", "run", "--topology", str(file), *options, "--"]
    command += [sys.executable, "-c", textwrap.dedent(CODE)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


def test_workers_stand_in_the_racks_of_the_file_by_rank_and_are_summed_rack_by_rack(tmp_path: Path) -> None:
    result = run(tmp_path, TOPOLOGY)
    assert (result.returncode, sorted(result.stdout.splitlines())) == (0, [f"[{r}] True False" for r in range(5)]), (
        result
    )
    assert "in-network reduction was ACTIVE: 1 messages" in result.stderr


@pytest.mark.parametrize(
    ("topology", "options", "reason"),
    [
        (TOPOLOGY, ["--workers", "6"], "has 5 hosts: leave out --workers 6, or add hosts"),
        (TOPOLOGY, ["--trace", "trace.jsonl"], "--trace follows one switch"),
        (TOPOLOGY.replace('"spine*"]', '"leaf1"]'), [], "link leaf1--leaf1: joins a switch with itself"),
    ],
    ids=["too many workers", "trace", "loop"],
)
def test_what_cannot_be_is_one_line_before_anything_starts(
    topology: str, options: list[str], reason: str, tmp_path: Path
) -> None:
    result = run(tmp_path, topology, *options)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert reason in line
