"""The fuzzer's corpus, replayed without a fuzzer, compiled and as plain Python: what it reached still holds."""

from __future__ import annotations

import pytest
from tests.fuzz.replay import CORPUS, TARGETS, check_of, kept

CORPUS_BYTES_MAX = 300_000


@pytest.mark.parametrize("target", TARGETS)
def test_every_kept_input_holds(target: str) -> None:
    check, inputs = check_of(target), kept(target)
    assert inputs
    for path in inputs:
        try:
            check(path.read_bytes())
        except Exception as error:
            raise AssertionError(f"replay with: python -m tests.fuzz.replay {target} {path}") from error


def test_the_corpus_stays_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) <= CORPUS_BYTES_MAX
