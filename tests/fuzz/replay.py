"""Run targets on kept inputs, without a fuzzer: what a test does with the corpus, and anybody with a finding.

python -m tests.fuzz.replay frame path/to/input ...
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
TARGETS = sorted(path.stem for path in (Path(__file__).parent / "targets").glob("*.py"))


def check_of(target: str) -> Callable[[bytes], None]:
    """The function of a target that judges one input."""
    check: Callable[[bytes], None] = importlib.import_module(f"tests.fuzz.targets.{target}").check
    return check


def kept(target: str) -> list[Path]:
    """The inputs of a target's corpus, in a fixed order."""
    return sorted((CORPUS / target).iterdir())


if __name__ == "__main__":
    for name in sys.argv[2:]:
        check_of(sys.argv[1])(Path(name).read_bytes())
        print(f"{name}: holds")
