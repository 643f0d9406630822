"""`netreduce sim packets`: all-reduces on testbeds in virtual time, packet by packet, with this package's own NICs,
engines and switches.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netreduce.cli.common import errors_in_one_line, progress_bar, table, write

if TYPE_CHECKING:
    from netreduce.testbed.description import Plan
    from netreduce.testbed.experiment import LinkUse, Report, Result
    from netreduce.testbed.hardware import Case


@dataclass(frozen=True)
class Ran:
    """One all-reduce that ran, in which entry of the file, and the seconds of CPU time that it took."""

    entry: int
    result: Result
    cpu_s: float

    def row(self) -> dict[str, Any]:
        """All of it for JSON."""
        import msgspec

        hops_per_s = round(self.result.frame_hops / self.cpu_s)
        return {"run": self.entry, "cpu_s": self.cpu_s, "frame_hops_per_s": hops_per_s} | msgspec.to_builtins(
            self.result
        )


def packets(
    file: Annotated[Path, typer.Argument(help="A description of a testbed and what to run on it (TOML).")],
    links: Annotated[bool, typer.Option("--links", help="Show every link, not the busiest of each kind.")] = False,
    to_json: Annotated[Path | None, typer.Option("--json", help="Write results here; - is standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw time against what varies, as .svg or .png.")] = None,
) -> None:
    """Run all-reduces on a testbed of real schedules, NICs and switches, frame by frame, in virtual time.

    Every element of every result is checked. Ctrl-C ends it and shows what there is.
    """
    with errors_in_one_line():
        from netreduce.testbed import description

        plan = description.load(file)
        if plot:
            from netreduce.cli.plots import pyplot

            pyplot()
        ran = _run(plan)
        if to_json:
            write(to_json, json.dumps([one.row() for one in ran], indent=1) + "\n")
        if to_json != Path("-"):
            _show(plan.title, ran, links)
        if plot:
            from netreduce.cli.plots import testbed_figure

            entries = range(len(plan.runs))
            testbed_figure([[_point(one.result) for one in ran if one.entry == entry] for entry in entries], plot)


def _run(plan: Plan) -> list[Ran]:
    from netreduce.runtime.warmup import ensure_compiled
    from netreduce.testbed.expected import wire_bytes

    ensure_compiled(lambda line: typer.echo(line, err=True))
    todo = [(entry, case) for entry, cases in enumerate(plan.runs) for case in cases]
    ran: list[Ran] = []
    with progress_bar(counted=False) as progress:
        task = progress.add_task("", total=sum(wire_bytes(case) for _, case in todo))
        try:
            for entry, case in todo:
                progress.update(task, description=_label(case))
                effort, before = wire_bytes(case), progress.tasks[0].completed
                ran.append(_run_one(entry, case, partial(_report, progress, task, before, effort)))
                progress.update(task, completed=before + effort)
        except KeyboardInterrupt:
            typer.echo(f"netreduce: ended after {len(ran)} of {len(todo)} all-reduces", err=True)
    return ran


def _report(progress: Any, task: Any, before: float, effort: float, share: float) -> None:
    progress.update(task, completed=before + share * effort)


def _run_one(entry: int, case: Case, report: Report) -> Ran:
    from netreduce.testbed.experiment import Experiment

    experiment = Experiment(case)
    begun_s = time.process_time()
    result = experiment.run(report)
    cpu_s = time.process_time() - begun_s
    del experiment
    gc.collect()  # nodes, lines and programs know each other: their tables and arrays would pile up
    return Ran(entry, result, cpu_s)


def _label(case: Case) -> str:
    from netreduce.quantities import show_size

    return f"{case.way} x {case.hardware.workers}, {show_size(case.size_bytes)}"


def _point(result: Result) -> dict[str, Any]:
    """A result as `plots` takes it."""
    from netreduce.testbed.hardware import WAYS

    return {
        "scheme": WAYS[result.way].title,
        "ranks": result.workers,
        "size_bytes": result.size_bytes,
        "step": "",
        "inside": result.inside_bps / 8,
        "time_s": result.time_s,
        "closed_s": result.closed_form_s,
    }


def _show(title: str, ran: Sequence[Ran], every_link: bool) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(title)
    console.print(_times(ran))
    console.print(_link_table(ran, every_link))
    hops, cpu_s = sum(one.result.frame_hops for one in ran), sum(one.cpu_s for one in ran)
    if cpu_s:
        console.print(f"{hops:,} frame-hops in {cpu_s:.1f} s on one core: {hops / cpu_s:,.0f} a second")


def _times(ran: Sequence[Ran]) -> Any:
    from netreduce.quantities import show_size, show_time

    headings = ["scheme", "workers", "inside GB/s", "size", "time", "closed form", "algbw GB/s", "busbw GB/s"]
    rows = table([*headings, "frame-hops", "a second", "lost", "sent again"])
    for one in ran:
        result = one.result
        inside = f"{result.inside_bps / 8e9:g}" if result.gpus > 1 else "-"
        closed = show_time(result.closed_form_s) if result.closed_form_s else "-"
        cells = [
            result.way,
            str(result.workers),
            inside,
            show_size(result.size_bytes),
            show_time(result.time_s),
            closed,
        ]
        cells += [f"{result.algbw / 1e9:.4g}", f"{result.busbw / 1e9:.4g}"]
        cells += [f"{result.frame_hops:,}", f"{result.frame_hops / one.cpu_s:,.0f}"]
        rows.add_row(*cells, str(result.dropped_frames), str(result.resent_packets))
    return rows


def _link_table(ran: Sequence[Ran], every_link: bool) -> Any:
    """Bytes and utilisation of each link, or of the busiest of each kind."""
    from netreduce.quantities import show_size

    rows = table(["links", "scheme", "size", "Gb/s", "frames", "bytes", "utilisation", "deepest queue"])
    for one in ran:
        result = one.result
        for title, link in _shown(result.links, every_link):
            cells = [f"{link.rate_bps / 1e9:g}", f"{link.frames:,}", f"{link.bytes:,}", f"{link.utilisation:.1%}"]
            rows.add_row(title, result.way, show_size(result.size_bytes), *cells, show_size(link.peak_queue_bytes))
    return rows


def _shown(links: Sequence[LinkUse], every_link: bool) -> list[tuple[str, LinkUse]]:
    if every_link:
        return [(link.name, link) for link in links]
    kinds: dict[str, list[LinkUse]] = {}
    for link in links:
        kinds.setdefault(link.kind, []).append(link)
    busiest = {kind: max(alike, key=lambda link: link.bytes) for kind, alike in kinds.items()}
    return [(f"{len(kinds[kind])} {kind}", link) for kind, link in busiest.items()]
