"""The command `netreduce soak`, as a user types it."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from netreduce.cli.soak import soak
from netreduce.soak import run as runs
from netreduce.soak.run import Outcome

app = typer.Typer()
app.command()(soak)


def test_a_run_prints_its_seed_each_drawn_value_and_how_it_ended() -> None:
    result = CliRunner().invoke(app, ["--seed", "5", "--runs", "2"])
    assert result.exit_code == 0, result.stdout
    assert "soak: seed 5\nseed 5: " in result.stdout
    assert "seed 6: " in result.stdout
    assert result.stdout.count("spliced: ") == result.stdout.count("forwarded: ") == 2
    assert "soak: 2 runs from seed 5, " in result.stdout
    assert CliRunner().invoke(app, ["--seed", "5", "--runs", "2"]).stdout == result.stdout


def test_no_time_means_no_run() -> None:
    result = CliRunner().invoke(app, ["--seconds", "0"])
    assert result.exit_code == 0
    assert "soak: 0 runs" in result.stdout


def test_a_violation_ends_with_tables_and_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Outcome(["sums: ring 1 rank 0 all-reduce 0"], 10, 10, 0, False, "the tables")
    monkeypatch.setattr(runs, "run", lambda drawn, splice: bad)
    result = CliRunner().invoke(app, ["--seed", "77", "--runs", "3"])
    assert result.exit_code == 1
    assert "sums: ring 1 rank 0 all-reduce 0\n\nthe tables\n" in result.stdout
    assert result.stdout.endswith("replay with: netreduce soak --seed 77 --runs 1\n")
