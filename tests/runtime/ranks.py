"""Ranks as real processes from a nest, on a switch process of their own: started in milliseconds, watched by a test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.patience import eventually, is_alive

from netreduce.runtime.embedded import SwitchProcess

NEST = Path(__file__).with_name("nest.py")


@dataclass
class Rank:
    """One process; `log` has what it wrote."""

    pid: int
    log: Path

    def wait(self, timeout_s: float = 60) -> str:
        """What it wrote, once it has ended."""
        assert eventually(lambda: not is_alive(self.pid), timeout_s), f"process {self.pid} lives: {self.text()}"
        return self.text()

    def text(self) -> str:
        """What it has written so far."""
        return self.log.read_text() if self.log.exists() else ""


class Nest:
    """Forks ranks that run code with the variables of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ranks: list[Rank] = []
        self.process = subprocess.Popen(
            [sys.executable, str(NEST)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def start(self, code: str, **variables: Any) -> Rank:
        """A new process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        log = self._folder / f"{len(self._ranks)}.log"
        request = {"code": code, "variables": {**variables, "log": str(log)}, "log": str(log)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        rank = Rank(int(self.process.stdout.readline()), log)
        self._ranks.append(rank)
        return rank

    def close(self) -> None:
        """End all that it started, and itself."""
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
        self.process.communicate()


@contextlib.contextmanager
def nest(folder: Path) -> Iterator[Nest]:
    """A nest that ends with the block."""
    made = Nest(folder)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def switch(**options: Any) -> Iterator[SwitchProcess]:
    """A switch process that serves."""
    made = SwitchProcess(**options)
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.close()
