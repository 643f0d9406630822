"""Compiling the data path once per installation, before anybody waits for it.

Numba keeps binaries in `compiled.CACHE_DIRECTORY`, whose name is a digest of the sources. A marker in it says that
everything is there. Processes that start together agree by a file lock on who compiles; the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from netreduce.compiled import CACHE_DIRECTORY, JIT_DISABLED

MARKER = "complete"
UNUSED_DAYS_MAX = 14
"""Caches of sources that nobody has started for so long are removed."""


def is_compiled() -> bool:
    """Whether a start needs no compilation."""
    return JIT_DISABLED or (CACHE_DIRECTORY / MARKER).exists()


def ensure_compiled(progress: Callable[[str], None] | None = None) -> None:
    """Return when the data path is compiled; at once when it is already.

    `progress` is told what happens, in sentences for the user. One process of many compiles, the others wait.
    """
    if is_compiled():
        _note_use()
        return
    say = progress or (lambda _text: None)
    CACHE_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with open(CACHE_DIRECTORY.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that compiles the data path ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_compiled():
            return
        say("compiling the data path (first run only, about a minute) ...")
        start = time.monotonic()
        _compile()
        (CACHE_DIRECTORY / MARKER).touch()
        _prune(CACHE_DIRECTORY.parent)
        say(f"compiled in {time.monotonic() - start:.0f} s")


def main() -> None:
    """``python -m netreduce.runtime.warmup``: compile now, for images and before test runs."""
    ensure_compiled(lambda text: print(f"netreduce: {text}", file=sys.stderr, flush=True))


def _note_use() -> None:
    """Keep the cache from being pruned."""
    with contextlib.suppress(OSError):  # nothing to keep with plain Python, or not ours to write
        os.utime(CACHE_DIRECTORY)


def _prune(root: Path) -> None:
    """Remove caches that have not been used for long: of sources that have changed since."""
    oldest = time.time() - UNUSED_DAYS_MAX * 24 * 3600
    for path in root.iterdir():
        if path.is_dir() and len(path.name) == len(CACHE_DIRECTORY.name) and path.stat().st_mtime < oldest:
            shutil.rmtree(path, ignore_errors=True)
            path.with_suffix(".lock").unlink(missing_ok=True)


def _compile() -> None:
    """Call everything that is compiled once, with the types of real runs."""
    from netreduce.runtime.exercise import exercise

    exercise()


if __name__ == "__main__":
    main()
