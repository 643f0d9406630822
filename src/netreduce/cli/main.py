"""The `netreduce` command. Nothing here loads the compiler before a command needs it, so that help is instant."""

from __future__ import annotations

import typer

from netreduce import __version__
from netreduce.cli.bench import bench
from netreduce.cli.demo import demo
from netreduce.cli.doctor import doctor
from netreduce.cli.plan import plan
from netreduce.cli.run import run
from netreduce.cli.show import show
from netreduce.cli.sim import app as sim
from netreduce.cli.soak import soak
from netreduce.cli.switch import rings, stats, switch
from netreduce.cli.walk import walk

app = typer.Typer(
    name="netreduce",
    help="In-network gradient aggregation beneath an untouched RoCE transport.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(bench)
app.command()(demo)
app.command()(doctor)
app.command()(show)
app.command()(plan)
app.command()(rings)
app.command()(stats)
app.command()(switch)
app.command()(walk)
app.command()(soak)
app.add_typer(sim, name="sim")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)
