"""What commands share: lines to the user, errors in one line, a bar, tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from netreduce.errors import NetReduceError


def say(text: str) -> None:
    """A line to the user, apart from what goes to the standard output."""
    typer.echo(f"netreduce: {text}", err=True)


@contextmanager
def errors_in_one_line(*also: type[Exception]) -> Iterator[None]:
    """Shows an error of ours, or of the kinds in `also`, in one line and leaves with exit code 1."""
    kinds: tuple[type[Exception], ...] = (NetReduceError, *also)
    try:
        yield
    except kinds as error:
        say(str(error))
        raise typer.Exit(1) from error


def progress_bar(*, counted: bool = True) -> Any:
    """A bar with the time that is left, on the standard error stream; the share as counts or in per cent."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    share = MofNCompleteColumn() if counted else TaskProgressColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), share, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def write(path: Path, text: str) -> None:
    """Write `text` into a file, or to standard output for "-"."""
    if path == Path("-"):
        sys.stdout.write(text)
    else:
        path.write_text(text)


def table(headings: Iterable[str]) -> Any:
    """An empty table; columns of text stand left, of numbers right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rows = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        rows.add_column(heading, justify="left" if heading in ("scheme", "job", "why", "link", "links") else "right")
    return rows
