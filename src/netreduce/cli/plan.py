"""`netreduce plan`: would in-network reduction help this job? From a trace, a benchmark log, or a model's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netreduce.cli.common import errors_in_one_line
from netreduce.errors import ConfigurationError

if TYPE_CHECKING:
    from netreduce.flowsim.description import Description
    from netreduce.flowsim.plan.calibration import Fit
    from netreduce.flowsim.plan.nccl_tests import Measured


def plan(
    trace: Annotated[Path | None, typer.Argument(help="A PyTorch profiler trace (.json or .json.gz).")] = None,
    model: Annotated[str | None, typer.Option(help="alexnet, vgg16, resnet50, bert-large, gpt2, llama3-8b.")] = None,
    nccl_tests: Annotated[
        Path | None, typer.Option(help="Log of all_reduce_perf (text, or -J JSON): latency and bandwidth come from it.")
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="Description of the cluster (TOML).")] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="Workers; default what the files say.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Workers per machine.")] = None,
    port: Annotated[str, typer.Option(help="Bandwidth of a machine's network port, such as 100Gbps.")] = "",
    inside: Annotated[str, typer.Option(help="Bandwidth inside a machine, such as 150GB/s.")] = "",
    compute: Annotated[str, typer.Option(help="Time of the model's iteration without a network, such as 30ms.")] = "",
    sharded: Annotated[bool, typer.Option("--fsdp", help="Train the model with FSDP instead of DDP.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report here.")] = None,
    to_json: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here; - is standard output.")
    ] = None,
) -> None:
    """Tell what ring, hierarchical and in-network all-reduce would make of a training iteration, and why."""
    with errors_in_one_line():
        from netreduce import quantities
        from netreduce.flowsim.description import Description, cluster_of, load, settings_of
        from netreduce.flowsim.plan import advice, kineto, report
        from netreduce.flowsim.plan import nccl_tests as benchmark
        from netreduce.flowsim.workloads.models import model_named

        if (trace is None) == (model is None):
            raise ConfigurationError("give either a trace or --model")
        profile = kineto.read(trace) if trace else None
        measured = benchmark.read(nccl_tests) if nccl_tests else None
        base = load(cluster) if cluster else Description()
        base = _sized(
            base, ranks, gpus, port, inside, profile.ranks if profile else 0, measured, described=bool(cluster)
        )
        given = []
        if measured:
            base, fit = _calibrated(base, measured)
            given.append(_told(fit, measured.ranks or base.cluster.machines * base.cluster.gpus))
        described, settings = cluster_of(base), settings_of(base)
        if profile:
            found = advice.plan_profile(profile, described, settings)
        else:
            compute_s = quantities.duration(compute) if compute else None
            found = advice.plan_model(model_named(model or ""), described, settings, compute_s, sharded=sharded)
        found = advice.with_assumptions(found, given)
        if html:
            html.write_text(report.html(found))
        if to_json:
            _write_json(found, to_json)
        if to_json != Path("-"):
            typer.echo(report.text(found), nl=False)


def _sized(
    base: Description,
    ranks: int | None,
    gpus: int | None,
    port: str,
    inside: str,
    profiled: int,
    measured: Measured | None,
    *,
    described: bool,
) -> Description:
    """The description with what options and files say: options first, then the description, then the files."""
    from msgspec.structs import replace

    changes: dict[str, Any] = {"gpus": gpus, "port": port, "inside": inside}
    if not described and not gpus and measured and measured.machines:
        changes["gpus"] = measured.ranks // measured.machines
    fields = replace(base.cluster, **{name: value for name, value in changes.items() if value})
    wanted = ranks or (0 if described else profiled or (measured.ranks if measured else 0))
    if wanted:
        if wanted % fields.gpus:
            raise ConfigurationError(f"{wanted} ranks do not fill machines of {fields.gpus}: say --gpus")
        fields = replace(fields, machines=wanted // fields.gpus)
    if fields.machines * fields.gpus < 2:
        raise ConfigurationError("how many workers? Say --ranks, or describe the cluster")
    return replace(base, cluster=fields)


def _calibrated(base: Description, measured: Measured) -> tuple[Description, Fit]:
    """The description with the latency of a step and the bandwidth of a port that the benchmark shows."""
    from msgspec.structs import replace

    from netreduce.flowsim.plan.calibration import fit

    found = fit(measured.samples)
    ranks = measured.ranks or base.cluster.machines * base.cluster.gpus
    # What was measured has headers and all latencies in it, so the links have none of their own.
    settings = replace(base.settings, payload=0, step=f"{found.step_s(ranks):.9g}s")
    rate = f"{found.capacity(ranks):.9g}B/s"
    fields = replace(base.cluster, port=rate, uplink=None, latency="0s", inside_latency="0s")
    return replace(base, settings=settings, cluster=fields), found


def _told(fit: Fit, ranks: int) -> str:
    from netreduce.quantities import show_time

    return (
        f"nccl-tests: {fit.samples} sizes fit {show_time(fit.step_s(ranks))} a step and {fit.capacity(ranks) / 1e9:.4g}"
        f" GB/s a port; left-out sizes are off by {fit.median_error:.1%} (median), {fit.worst_error:.0%} at most"
    )


def _write_json(plan: Any, path: Path) -> None:
    import sys
    from dataclasses import asdict

    text = json.dumps(asdict(plan), indent=1) + "\n"
    if path == Path("-"):
        sys.stdout.write(text)
    else:
        path.write_text(text)
