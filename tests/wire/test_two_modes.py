"""Compiled and plain Python read the same from the same bytes; and plain Python, which checks bounds, never raises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.wire import fuzz_parse

from netreduce.compiled import JIT_DISABLED

ROOT = Path(__file__).parents[2]


def test_both_modes_agree_on_broken_frames(seed: int) -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0" if JIT_DISABLED else "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-W", "error", "-m", "tests.wire.fuzz_parse", str(seed)]
    other = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert other.returncode == 0, other.stderr
    mine = fuzz_parse.digest(seed)
    assert other.stdout.strip() == mine
    assert fuzz_parse.FRAMES // 10 < int(mine.split()[1]) < fuzz_parse.FRAMES, "some frames must parse, some must not"
