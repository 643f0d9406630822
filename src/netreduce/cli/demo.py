"""`netreduce demo`: one training job over the splicing switch and over gloo, and what the network did meanwhile."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from netreduce.cli.common import errors_in_one_line, say
from netreduce.cli.run import RANKS_MAX, report, signals_raise
from netreduce.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from netreduce.wire.control import Statistics

LOSS_DIFFERENCE_MAX = 0.002
"""Largest relative difference of a loss from gloo's; the paper reports 0.2 % (NetReduce, ASPLOS 2023, section 6)."""
EPOCH = re.compile(r"\[0\] (epoch (\d+)/.*)")
"""A line of rank 0's progress."""


class Training(NamedTuple):
    """What one job has learnt: the loss of every step, the final accuracy, and the switch's counters if it used one."""

    losses: list[float]
    accuracy: float
    statistics: Statistics | None


def demo(
    workers: Annotated[int, typer.Option("--workers", "-n", min=2, max=RANKS_MAX, help="How many workers.")] = 4,
    epochs: Annotated[int, typer.Option(min=1, help="How often all the data is seen.")] = 20,
) -> None:
    """Train a digit classifier with DistributedDataParallel over the splicing switch, and compare with gloo.

    Ends with exit code 1 if the losses differ by more than 0.2 %, or if nothing was reduced in the network.
    """
    from netreduce.runtime.launcher import Interrupted

    try:
        with errors_in_one_line():
            script = find_script()
            say(f"{workers} workers train a classifier of handwritten digits with DistributedDataParallel")
            with signals_raise():
                ours, theirs = (train(script, workers, epochs, backend) for backend in ("netreduce", "gloo"))
    except Interrupted as interruption:
        say(f"ended by {interruption.signal_number.name}")
        raise typer.Exit(128 + interruption.signal_number) from None
    raise typer.Exit(0 if conclude(ours, theirs, workers) else 1)


def find_script() -> Path:
    """The training script: among the examples of a checkout, or where the wheel has put it."""
    for module, package in (("torch", "torch"), ("sklearn", "scikit-learn")):
        if importlib.util.find_spec(module) is None:
            raise ConfigurationError(f"the demo needs {package}: pip install {package}")
    candidates = (
        Path(__file__).parents[3] / "examples" / "train_digits.py",
        Path(sys.prefix) / "share" / "netreduce" / "train_digits.py",
    )
    for path in candidates:
        if path.exists():
            return path
    raise ConfigurationError(
        f"the demo's training script is missing: neither of {', '.join(map(str, candidates))} exists"
    )


def train(script: Path, workers: int, epochs: int, backend: str) -> Training:
    """Run the job over `backend` and show how far it is. Ends the program with the worker's code if one fails."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from netreduce.runtime.job import Outcome, launch, run_job

    console = Console()
    columns = (TextColumn(f"{backend:>9}"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Refreshed by hand: a thread must not run while workers are forked.
    progress = Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal)
    task = progress.add_task("starting", total=epochs)

    def show(lines: bytes) -> None:
        for line in lines.decode(errors="replace").splitlines():
            match = EPOCH.match(line)
            if match and console.is_terminal:
                progress.update(task, completed=int(match[2]), description=match[1], refresh=True)
            else:
                console.print(f"{backend:>9}  {match[1] if match else line}", highlight=False, markup=False)

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, str(script), "--backend", backend, "--epochs", str(epochs), "--result", str(result)]
        with progress:
            progress.refresh()
            if backend == "netreduce":
                outcome = run_job(command, workers, show, show, say=say)
            else:
                outcome = Outcome(launch(command, workers, "", show, show, prefix=True), None)
        if outcome.failure and backend == "gloo" and result.exists():
            # gloo's threads sometimes abort a process that is ending; the training, which is all we ask of it, is done.
            say("a gloo worker ended badly after its training; its results are there")
        elif outcome.failure:
            raise typer.Exit(report(outcome.failure))
        return Training(**json.loads(result.read_text()), statistics=outcome.statistics)


def conclude(ours: Training, theirs: Training, workers: int) -> bool:
    """Print the figures; whether they are as they should be."""
    from rich.console import Console

    assert ours.statistics is not None
    difference = max(abs(a - b) / b for a, b in zip(ours.losses, theirs.losses, strict=True))
    is_active = ours.statistics.counters.get("packets_spliced", 0) > 0
    console = Console()
    console.print()
    console.print(figures(ours, theirs, difference, workers))
    console.print(
        "In-network reduction was ACTIVE: the switch summed the gradients."
        if is_active
        else "In-network reduction was NOT active: nothing was summed in the switch.",
        style="bold green" if is_active else "bold red",
    )
    return is_active and difference <= LOSS_DIFFERENCE_MAX


def figures(ours: Training, theirs: Training, difference: float, workers: int) -> Table:
    """The table of the end."""
    from rich.table import Table

    from netreduce.runtime.observer import icrc_failures, retransmissions

    assert ours.statistics is not None
    counters = ours.statistics.counters
    sent, ring = (ours.statistics.workers.get(name, 0) / workers for name in ("in_network_bytes_sent", "ring_bytes"))
    table = Table(show_header=False, box=None, padding=(0, 2))
    rows = {
        "final accuracy": f"{ours.accuracy:.1%} (gloo: {theirs.accuracy:.1%})",
        "loss curve": f"at most {difference:.5%} from gloo's (bound {LOSS_DIFFERENCE_MAX:.1%})",
        "messages spliced": f"{counters.get('messages_aggregated', 0):,}",
        "packets spliced": f"{counters.get('packets_spliced', 0):,}",
        "each worker sent": f"{sent:,.0f} payload bytes",
        "a ring would have sent": f"{ring:,.0f}, 2(P-1)/P = {2 * (workers - 1) / workers:.2f} times as much",
        "ICRC failures": f"{icrc_failures(ours.statistics):,}",
        "retransmissions": f"{retransmissions(ours.statistics):,}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table
