"""One run: a switch, the workers on it, and what the network did; what `netreduce run` and `netreduce demo` share."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from netreduce.errors import ConfigurationError
from netreduce.runtime.embedded import SwitchProcess
from netreduce.runtime.launcher import Failure, Launcher, new_run_id, reserve_port, worker_environment
from netreduce.runtime.observer import observe
from netreduce.runtime.tracing import TRACE_VARIABLE, assemble
from netreduce.runtime.warmup import ensure_compiled
from netreduce.runtime.worker import FIRST_PSN_VARIABLE
from netreduce.wire.control import Statistics

TITLE_CHARACTERS_MAX = 80
"""A trace is titled by the command that was run, as far as that fits."""

Sink = Callable[[bytes], None]


class Outcome(NamedTuple):
    """The first worker that failed, if any; what the network did if none has, or if faults were on the links."""

    failure: Failure | None
    statistics: Statistics | None


def launch(
    command: Sequence[str],
    workers: int,
    switch_address: str,
    out: Sink,
    err: Sink,
    *,
    prefix: bool,
    base: Mapping[str, str] = os.environ,
    machines: int = 1,
) -> Failure | None:
    """Run `command` as so many workers, with `base` and torchrun's environment; the switch may be "" if not needed.

    The workers pretend to be on so many `machines`, which share them out evenly.
    """
    with reserve_port() as reserved:
        port, run_id = reserved.getsockname()[1], new_run_id()
        environments = [
            worker_environment(rank, workers, port, run_id, switch_address, base, machines) for rank in range(workers)
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
    trace: Path | None = None,
    topology: Path | None = None,
    faults: Sequence[str] = (),
    fault_seed: int = 0,
    verbose: bool = False,
    machines: int = 1,
) -> Outcome:
    """Run `command` as so many workers on a switch of their own, or on those of `topology`.

    `say` hears what happens before they start.

    With `faults` on the links, connections begin at PSN 0, so that a fault can name a packet by its number.

    Raises `SwitchLostError` when the switch does not start, `ConfigurationError` when the command does not, or when
    `machines` do not get equally many workers, OSError when `trace` cannot be written.
    """
    if workers % machines:
        raise ConfigurationError(f"{workers} workers cannot be shared out evenly to {machines} machines")
    ensure_compiled(say)
    with _tracing(trace, " ".join(" ".join(command).split())[:TITLE_CHARACTERS_MAX], say) as (parts, base):
        log_level = "INFO" if verbose else "WARNING"
        switch = SwitchProcess(max(workers, 2), pcap, log_level, parts, topology, faults, fault_seed)
        if faults:
            base = {FIRST_PSN_VARIABLE: "0", **base}
        try:
            switch.wait_until_ready()
            failure = launch(command, workers, switch.address, out, err, prefix=prefix, base=base, machines=machines)
            is_of_interest = faults or not failure
            return Outcome(failure, observe(switch.address) if is_of_interest else None)
        finally:
            switch.close()


@contextlib.contextmanager
def _tracing(
    path: Path | None, title: str, say: Callable[[str], None]
) -> Iterator[tuple[Path | None, Mapping[str, str]]]:
    """A directory for the parts of a trace and the workers' environment; `path` is written at the end, however that is.

    Nothing of this if `path` is None.
    """
    if path is None:
        yield None, os.environ
        return
    path.touch()  # a path that cannot be written is an error before the run, not after it
    with tempfile.TemporaryDirectory(prefix="netreduce-trace-") as name:
        parts = Path(name)
        try:
            yield parts, {**os.environ, TRACE_VARIABLE: name}
        finally:
            assembled = assemble(parts, path, title)
            ending = " and ends before the run does: it is as long as a trace can be" if assembled.is_cut else ""
            say(f"{path} has {assembled.moments:,} moments{ending}; netreduce walk {path} plays it")
