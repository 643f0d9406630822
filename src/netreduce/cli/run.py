"""`netreduce run`: a switch and its workers on this machine, started and ended together."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netreduce.cli.common import errors_in_one_line, say
from netreduce.errors import ConfigurationError

if TYPE_CHECKING:
    from netreduce.runtime.launcher import Failure

RANKS_MAX = 64

Faults = Annotated[
    list[str] | None,
    typer.Option(help="A fault on a link, such as 'worker 1: drop psn=7' (see docs/faults.md). Repeat it for more."),
]
Machines = Annotated[
    int, typer.Option("--machines", "-m", min=1, max=RANKS_MAX, help="Pretend that they are on so many, evenly.")
]
FaultSeed = Annotated[int | None, typer.Option(min=0, help="Decides what faults do by chance.")]


def _write_out(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _write_err(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Within it, a signal that should end a run in good order raises `Interrupted`."""
    from netreduce.runtime.launcher import raise_interrupted

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, raise_interrupted) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def checked_faults(faults: list[str] | None, seed: int | None) -> tuple[list[str], int]:
    """The faults, which are all spelled well, and a seed, which the user is told. ConfigurationError for others."""
    if not faults:
        return [], 0
    from netreduce.fabric.spelling import parse_fault

    for text in faults:
        parse_fault(text)
    if seed is None:
        seed = secrets.randbits(32)
    say(f"faults on the links, their chance from seed {seed} (--fault-seed {seed} draws the same again)")
    return faults, seed


def run(
    command: Annotated[list[str], typer.Argument(help="The command of every worker, such as: -- python train.py")],
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-n", min=1, max=RANKS_MAX, help="How many workers: 2, or as many as hosts."),
    ] = None,
    machines: Machines = 1,
    pcap: Annotated[Path | None, typer.Option(help="Record what crosses the switch in this file.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Record every step of the run there, for `netreduce walk`.")
    ] = None,
    topology: Annotated[
        Path | None, typer.Option(help="Run over the switches of this file (docs/topology.md), a worker on each host.")
    ] = None,
    fault: Faults = None,
    fault_seed: FaultSeed = None,
    prefix: Annotated[bool, typer.Option(help="Mark each line of output with the rank that wrote it.")] = True,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the switch does.")] = False,
) -> None:
    """Start a switch and N workers, with the environment that torchrun sets.

    A failing worker and Ctrl-C end everything; the failing worker's own error is shown last, its exit code returned.
    With several workers on several machines, real or pretended, all-reduces go by Parallel NetReduce.
    """
    with errors_in_one_line(OSError):
        faults, seed = checked_faults(fault, fault_seed)
        count = workers or 2 if topology is None else _workers_on(topology, workers, trace)
        status = run_workers(
            command,
            count,
            pcap=pcap,
            trace=trace,
            topology=topology,
            faults=faults,
            fault_seed=seed,
            prefix=prefix,
            verbose=verbose,
            machines=machines,
        )
        raise typer.Exit(status)


def _workers_on(topology: Path, workers: int | None, trace: Path | None) -> int:
    """How many workers to run on the hosts of a topology. ConfigurationError if they have no place there."""
    from netreduce.control.description import load

    hosts = len(load(topology).hosts)
    if workers is not None and workers > hosts:
        raise ConfigurationError(f"{topology} has {hosts} hosts: leave out --workers {workers}, or add hosts")
    if trace is not None:
        raise ConfigurationError("--trace follows one switch: leave out --topology, or record frames with --pcap")
    return workers or hosts


def run_workers(
    command: list[str],
    workers: int,
    *,
    pcap: Path | None,
    trace: Path | None = None,
    topology: Path | None = None,
    faults: Sequence[str] = (),
    fault_seed: int = 0,
    prefix: bool,
    verbose: bool,
    machines: int = 1,
) -> int:
    """Run `command` as so many workers on a switch of their own, or of a topology; the exit code for the shell."""
    from netreduce.runtime.job import run_job
    from netreduce.runtime.launcher import Interrupted
    from netreduce.runtime.observer import summary

    with signals_raise():
        try:
            failure, statistics = run_job(
                command,
                workers,
                _write_out,
                _write_err,
                say=say,
                prefix=prefix,
                pcap=pcap,
                trace=trace,
                topology=topology,
                faults=faults,
                fault_seed=fault_seed,
                verbose=verbose,
                machines=machines,
            )
        except Interrupted as interruption:
            say(f"ended by {interruption.signal_number.name}")
            return 128 + interruption.signal_number
    for line in summary(statistics) if statistics else ():
        say(line)
    return report(failure) if failure else 0


def report(failure: Failure) -> int:
    """Repeat a failed worker's last words; the exit code that goes with it."""
    from netreduce.runtime.launcher import exit_text

    for line in failure.last_words:
        typer.echo(f"[{failure.rank}] {line}", err=True)
    say(f"worker {failure.rank} (process {failure.pid}) failed: {exit_text(failure.returncode)}")
    return failure.returncode if failure.returncode > 0 else 128 - failure.returncode
