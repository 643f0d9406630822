"""Make the corpus the smallest that walks every line-to-line step which it, and what was found since, walk.

    NUMBA_DISABLE_JIT=1 python -m tests.fuzz.minimise [TARGET ...]

Small inputs are taken first. Inputs with names of their own are findings: they stay, whatever they walk.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.fuzz import WORK
from tests.fuzz.replay import CORPUS, TARGETS, check_of, kept

import netreduce

PACKAGE = str(Path(netreduce.__file__).parent)
UNNAMED = re.compile(r"[0-9a-f]{40}")
Step = tuple[str, int, int]


def steps_of(check: Callable[[bytes], None], data: bytes) -> set[Step]:
    """The steps from line to line within the package that `check` walks with `data`."""
    steps: set[Step] = set()
    last: dict[FrameType, int] = {}

    def in_function(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            steps.add((frame.f_code.co_filename, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        elif event == "return":
            last.pop(frame, None)
        return in_function

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return in_function if frame.f_code.co_filename.startswith(PACKAGE) else None

    sys.settrace(on_call)
    try:
        check(data)
    finally:
        sys.settrace(None)
    return steps


def minimise(target: str) -> None:
    """Rewrite the corpus of one target."""
    check, folder = check_of(target), CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    named = [path for path in kept(target) if not UNNAMED.fullmatch(path.name)]
    found = (WORK / "found" / target).glob("*")
    others = {path.name: path for path in (*found, *kept(target)) if path not in named}
    seen: set[Step] = set()
    for path in named:
        seen |= steps_of(check, path.read_bytes())
    chosen = []
    for path in sorted(others.values(), key=lambda path: (path.stat().st_size, path.name)):
        steps = steps_of(check, path.read_bytes())
        if not steps <= seen:
            seen |= steps
            chosen.append(path)
    for path in chosen:
        if path.parent != folder:
            shutil.copy(path, folder / path.name)
    for path in set(kept(target)) - set(named) - {folder / path.name for path in chosen}:
        path.unlink()
    size = sum(path.stat().st_size for path in kept(target))
    print(f"{target:10} {len(kept(target))} of {len(others) + len(named)} inputs, {size:,} bytes, {len(seen):,} steps")


if __name__ == "__main__":
    for name in sys.argv[1:] or TARGETS:
        minimise(name)
