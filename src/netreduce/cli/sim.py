"""`netreduce sim`: what all-reduce schemes cost on clusters of any size, by flow-level simulation; and packets."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from netreduce.cli.common import errors_in_one_line, progress_bar, table, write
from netreduce.cli.sim_packets import packets
from netreduce.errors import ConfigurationError

if TYPE_CHECKING:
    from netreduce.flowsim.description import Description
    from netreduce.flowsim.scenario import Outcome
    from netreduce.flowsim.sweep import Point, Result


class FileFirst(TyperGroup):
    """Takes a .toml file where a command's name stands: what it describes decides which command runs it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0].endswith(".toml"):
            from netreduce.testbed.description import is_testbed

            args = ["packets" if is_testbed(Path(args[0])) else "run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=FileFirst,
    help="Simulate all-reduces: flows on clusters of any size, or packets on testbeds. "
    "`netreduce sim FILE.toml` runs what the file describes.",
    no_args_is_help=True,
)
app.command()(packets)

SIX_SCHEMES = "ring,tree,halving,hierarchical,netreduce,parallel"
POINTS_MAX = 100_000


@app.command()
def sweep(
    schemes: Annotated[str, typer.Option(help="Schemes, or 'all'.")] = SIX_SCHEMES,
    ranks: Annotated[str, typer.Option(help="Numbers of workers: 64,128 or 32..8192 (doubling).")] = "32..1024",
    sizes: Annotated[str, typer.Option(help="Bytes per worker: 100MB or 1MB,100MB.")] = "100MB",
    gpus: Annotated[int | None, typer.Option(min=1, help="Workers per machine.")] = None,
    inside: Annotated[str, typer.Option(help="Bandwidth inside machines: 100GB/s or several.")] = "",
    port: Annotated[str, typer.Option(help="Bandwidth of a machine's network port.")] = "",
    latency: Annotated[str, typer.Option(help="Latency of a link.")] = "",
    step: Annotated[str, typer.Option(help="Software latency of a step: 1us or several.")] = "",
    cluster: Annotated[Path | None, typer.Option(help="Take everything else from this description.")] = None,
    processes: Annotated[int, typer.Option(min=0, help="Processes; 0 is one per core.")] = 0,
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, for more machines.")] = None,
    to_json: Annotated[Path | None, typer.Option("--json", help="Write results here; - is standard output.")] = None,
    to_csv: Annotated[Path | None, typer.Option("--csv", help="Write results here; - is standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw time against what varies, as .svg or .png.")] = None,
) -> None:
    """Price schemes over ranges of cluster sizes, buffer sizes, latencies and bandwidths.

    Each result has a line that explains it. Ctrl-C ends the sweep and shows what there is.
    """
    with errors_in_one_line():
        todo = _points(schemes, ranks, sizes, gpus, inside, port, latency, step, cluster)
        if plot:
            from netreduce.cli.plots import pyplot

            pyplot()
        found = _solved(todo, processes, dask)
        order = {point: number for number, point in enumerate(todo)}
        found.sort(key=lambda result: order[result.point])
        rows = [result.row() for result in found]
        if to_json:
            write(to_json, json.dumps(rows, indent=1) + "\n")
        if to_csv:
            write(to_csv, _csv(rows))
        if Path("-") not in (to_json, to_csv):
            _show_sweep(found)
        if plot:
            from netreduce.cli.plots import sweep_figure

            sweep_figure(rows, plot)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A description of cluster, jobs and background traffic (TOML).")],
    to_json: Annotated[Path | None, typer.Option("--json", help="Write results here; - is standard output.")] = None,
) -> None:
    """Run the jobs of a description together: they share links, aggregators and switch memory."""
    with errors_in_one_line():
        from netreduce.flowsim import description, scenario

        described = description.load(file)
        if not described.job:
            raise ConfigurationError(f"{file} describes no job: add [[job]] with a scheme and a size")
        cluster = description.cluster_of(described)
        jobs = description.jobs_of(described, cluster)
        background = description.background_of(described, cluster)
        with progress_bar() as progress:
            task = progress.add_task("all-reduces", total=sum(job.repeats for job in jobs))
            outcome = scenario.simulate(
                cluster, jobs, background, description.settings_of(described), lambda: progress.advance(task)
            )
        if to_json:
            from dataclasses import asdict

            write(to_json, json.dumps(asdict(outcome), indent=1) + "\n")
        if to_json != Path("-"):
            _show_outcome(cluster.title, outcome)


@app.command()
def network(
    file: Annotated[Path, typer.Argument(help="ASTRA-sim network .yml, htsim .topo or SimAI topology.")],
    schemes: Annotated[str, typer.Option(help="Schemes, or 'all'.")] = "ring,tree,halving,netreduce,sharp",
    size: Annotated[str, typer.Option(help="Bytes per worker.")] = "100MB",
    step: Annotated[str, typer.Option(help="Software latency of a step.")] = "0s",
    connections: Annotated[
        Path | None, typer.Option("--cm", help="Write the first scheme's flows here, for htsim to replay.")
    ] = None,
) -> None:
    """Price schemes on a network described for another simulator."""
    with errors_in_one_line():
        from netreduce import quantities
        from netreduce.flowsim.cluster import Cluster
        from netreduce.flowsim.formats import astra, htsim, simai
        from netreduce.flowsim.pricing import Pricer
        from netreduce.flowsim.schemes import SCHEMES, scheme_named
        from netreduce.flowsim.traffic import Settings

        readers = {".yml": astra.read, ".yaml": astra.read, ".topo": htsim.read}
        cluster = Cluster(readers.get(file.suffix, simai.read)(file))
        settings = Settings(step_s=quantities.duration(step))
        names = list(SCHEMES) if schemes == "all" else schemes.split(",")
        pricers = [Pricer(scheme_named(name), cluster, settings) for name in names]
        typer.echo(f"{cluster.worker_count} workers, {len(cluster.links)} links: {cluster.fabric.title}")
        for pricer in pricers:
            price = pricer.price(quantities.size(size))
            typer.echo(f"{price.scheme:>12}  {quantities.show_time(price.time_s):>9}  {price.explain()}")
        if connections:
            connections.write_text(htsim.connection_matrix(pricers[0], quantities.size(size)))


def _points(
    schemes: str,
    ranks: str,
    sizes: str,
    gpus: int | None,
    inside: str,
    port: str,
    latency: str,
    step: str,
    cluster: Path | None,
) -> list[Point]:
    from msgspec.structs import replace

    from netreduce import quantities
    from netreduce.flowsim import description, sweep
    from netreduce.flowsim.schemes import SCHEMES

    base: Description = description.load(cluster) if cluster else description.Description()
    if base.cluster.fabric == "graph":
        raise ConfigurationError("a sweep grows the cluster; a graph has the size it has: use `netreduce sim run`")
    changes: dict[str, Any] = {"gpus": gpus, "port": port, "latency": latency}
    fields = replace(base.cluster, **{name: value for name, value in changes.items() if value})
    todo = sweep.points(
        list(SCHEMES) if schemes == "all" else schemes.split(","),
        _counts(ranks),
        [quantities.size(text) for text in sizes.split(",")],
        replace(base, cluster=fields),
        step.split(",") if step else (),
        inside.split(",") if inside else (),
    )
    if len(todo) > POINTS_MAX:
        raise ConfigurationError(f"{len(todo)} points are more than {POINTS_MAX}")
    return todo


def _counts(text: str) -> list[int]:
    """ "64,128" or "32..8192" (doubling)."""
    try:
        if ".." not in text:
            return [int(part) for part in text.split(",")]
        count, last = (int(part) for part in text.split(".."))
    except ValueError:
        raise ConfigurationError(f"ranks {text!r}: write 64,128 or 32..8192") from None
    found = []
    while 0 < count <= last:
        found.append(count)
        count *= 2
    return found


def _solved(todo: Sequence[Point], processes: int, dask: str | None) -> list[Result]:
    from netreduce.cli.executors import executor_for
    from netreduce.flowsim import sweep

    found: list[Result] = []
    total = sum(point.effort for point in todo)
    with (
        executor_for(processes, dask, len(todo)) as executor,
        progress_bar() as progress,
    ):
        task = progress.add_task("pricing", total=total)
        try:
            for result in sweep.run(todo, executor):
                found.append(result)
                label = f"{result.point.scheme} x {result.point.ranks}"
                progress.update(task, advance=result.point.effort, description=label)
        except KeyboardInterrupt:
            if executor is not None:
                executor.shutdown(wait=False, cancel_futures=True)
            typer.echo(f"netreduce: ended after {len(found)} of {len(todo)} points", err=True)
    return found


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    import io

    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _show_sweep(found: Sequence[Result]) -> None:
    from rich.console import Console

    from netreduce.quantities import show_size, show_time

    rows = table(["scheme", "workers", "size", "time", "closed form", "algbw GB/s", "busbw GB/s", "why"])
    for result in found:
        price, point = result.price, result.point
        cells = [point.scheme, str(point.ranks), show_size(point.size_bytes)]
        if price is None:
            rows.add_row(*cells, "refused", "", "", "", result.refusal)
            continue
        closed = show_time(result.closed_s) if result.closed_s else "-"
        bandwidths = (f"{price.algbw / 1e9:.4g}", f"{price.busbw / 1e9:.4g}")
        rows.add_row(*cells, show_time(price.time_s), closed, *bandwidths, price.explain())
    Console(width=None if sys.stdout.isatty() else 240).print(rows)


def _show_outcome(title: str, outcome: Outcome) -> None:
    from rich.console import Console

    from netreduce.quantities import show_size, show_time

    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(title)
    rows = table(["job", "scheme", "workers", "size", "all-reduces", "first", "mean", "slowest", "why"])
    for job in outcome.jobs:
        times = job.times_s
        cells = (show_time(times[0]), show_time(sum(times) / len(times)), show_time(max(times)))
        notes = "; ".join(job.notes)
        rows.add_row(job.name, job.scheme, str(job.ranks), show_size(job.size_bytes), str(len(times)), *cells, notes)
    console.print(rows)
    for number, end_s in enumerate(outcome.background_ends_s):
        console.print(f"background {number} ended after {show_time(end_s)}")
    busiest = ", ".join(f"{name} {part:.0%}" for name, part in outcome.busiest)
    console.print(f"busiest links: {busiest}")
