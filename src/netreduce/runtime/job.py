"""One run: a switch, the workers on it, and what the network did; what `netreduce run` and `netreduce demo` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from netreduce.runtime.embedded import SwitchProcess
from netreduce.runtime.launcher import Failure, Launcher, new_run_id, reserve_port, worker_environment
from netreduce.runtime.observer import observe
from netreduce.runtime.warmup import ensure_compiled
from netreduce.wire.control import Statistics

Sink = Callable[[bytes], None]


class Outcome(NamedTuple):
    """The first worker that failed, if any; else what the network did."""

    failure: Failure | None
    statistics: Statistics | None


def launch(
    command: Sequence[str], workers: int, switch_address: str, out: Sink, err: Sink, *, prefix: bool
) -> Failure | None:
    """Run `command` as so many workers, with torchrun's environment; the switch may be "" if they need none."""
    with reserve_port() as reserved:
        port, run_id = reserved.getsockname()[1], new_run_id()
        environments = [
            worker_environment(rank, workers, port, run_id, switch_address, os.environ) for rank in range(workers)
        ]
        return Launcher(command, environments, out, err, prefix=prefix).run()


def run_job(
    command: Sequence[str],
    workers: int,
    out: Sink,
    err: Sink,
    *,
    say: Callable[[str], None],
    prefix: bool = True,
    pcap: Path | None = None,
    verbose: bool = False,
) -> Outcome:
    """Run `command` as so many workers on a switch of their own. `say` hears what happens before they start.

    Raises `SwitchLostError` when the switch does not start, `ConfigurationError` when the command does not.
    """
    ensure_compiled(say)
    switch = SwitchProcess(max(workers, 2), pcap, "INFO" if verbose else "WARNING")
    try:
        switch.wait_until_ready()
        failure = launch(command, workers, switch.address, out, err, prefix=prefix)
        return Outcome(failure, None if failure else observe(switch.address))
    finally:
        switch.close()
