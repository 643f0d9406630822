"""`python -m netreduce`, the same as the `netreduce` command."""

from netreduce.cli.main import app

app(prog_name="netreduce")
