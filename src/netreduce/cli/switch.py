"""`netreduce switch`, `netreduce rings`, `netreduce stats`: a switch on real networks, and what to ask it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from netreduce.cli.common import errors_in_one_line, say
from netreduce.cli.run import Faults, FaultSeed, checked_faults

Address = Annotated[
    str,
    typer.Argument(envvar="NETREDUCE_SWITCH", help="local:NAME, or HOST:PORT with the token in NETREDUCE_TOKEN."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def switch(
    config: Annotated[Path, typer.Option("--config", "-c", help="A TOML file; see docs/real-networks.md.")],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log workers and rings as they come and go.")
    ] = False,
    fault: Faults = None,
    fault_seed: FaultSeed = None,
) -> None:
    """Run a switch on this machine's network interfaces, until SIGTERM."""
    from netreduce.runtime.logs import log_to_stderr
    from netreduce.runtime.switch_config import load_config
    from netreduce.runtime.warmup import ensure_compiled

    level = logging.INFO if verbose else logging.WARNING
    with errors_in_one_line():
        settings = load_config(config)
        log_to_stderr(level, settings.log)
        faults, seed = checked_faults(fault, fault_seed)
        ensure_compiled(say)
        from netreduce.runtime.daemon import serve

        ready = f"switch {settings.name} is ready at"
        serve(settings, lambda address: say(f"{ready} {address}"), faults=faults, fault_seed=seed)
    say("switch has ended")


def rings(address: Address, as_json: AsJson = False) -> None:
    """List the rings of a running switch: members, geometry, what was summed."""
    from netreduce.runtime.observer import Observer

    with errors_in_one_line(), Observer(address) as observer:
        found = observer.rings()
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    for ring in found:
        shape, counters = ring.geometry, ring.counters
        typer.echo(
            f"ring {ring.ring_id} {ring.group or '(registered by an operator)'}: {len(ring.endpoints)} ranks, "
            f"window {shape.message_window} x {shape.message_packets} packets of {shape.path_mtu} bytes, "
            f"{counters['messages_aggregated']:,} messages, {counters['packets_spliced']:,} packets spliced"
        )
        for endpoint in ring.endpoints:
            typer.echo(
                f"  rank {endpoint.rank}: {endpoint.ip} {endpoint.mac}, "
                f"sends from QPN {endpoint.successor_qpn:#x}, receives at {endpoint.predecessor_qpn:#x}"
            )
    if not found:
        typer.echo("no rings")


def stats(address: Address, as_json: AsJson = False) -> None:
    """Print the counters of a running switch, of its ports and rings."""
    from netreduce.runtime.observer import observe

    with errors_in_one_line():
        statistics = observe(address)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(statistics), indent=2))
        return
    for text, count in statistics.faults.items():
        typer.echo(f"fault {text!r} struck {count:,} times")
    sections = [("switch", statistics.counters), ("workers that have left", statistics.workers)]
    sections += [(f"port {number}", counters) for number, counters in statistics.ports.items()]
    sections += [(f"ring {number}", counters) for number, counters in statistics.rings.items()]
    for title, counters in sections:
        typer.echo(title)
        for name, count in counters.items():
            if count:
                typer.echo(f"  {name:32} {count:>16,}")
