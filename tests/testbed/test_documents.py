"""The documents: the guide's example names every field, and the tables hold what the simulator gives today."""

from __future__ import annotations

from pathlib import Path

import pytest

from netreduce.testbed import description
from netreduce.testbed.experiment import Experiment
from netreduce.testbed.hardware import WAYS, Case

ROOT = Path(__file__).parent.parent.parent


def cells_of(table: str) -> list[list[str]]:
    """The cells of a table of docs/reproduction.md, without its heading."""
    text = (ROOT / "docs" / "reproduction.md").read_text()
    lines = text.split(f"<!-- {table} -->\n")[1].split(f"<!-- /{table} -->")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def case_of(example: str, way: str, size_bytes: int) -> Case:
    """The one of that way and size in the last entry of an example that has it."""
    runs = description.load(ROOT / "examples" / f"{example}.toml").runs
    return [case for run in runs for case in run if (case.way, case.size_bytes) == (way, size_bytes)][-1]


def test_the_guides_example_can_be_read_and_names_every_field(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "testbed.md").read_text()
    example = guide.split("```toml\n")[1].split("```")[0]
    path = tmp_path / "testbed.toml"
    path.write_text(example)
    assert len(description.load(path).runs[0]) == 3 * 2 * 3 * 2
    for table in ("TestbedFields", "MiddleboxFields", "TransportFields", "SimulationFields", "RunFields"):
        for name in getattr(description, table).__struct_encode_fields__:
            assert f"{name} = " in example, name
    assert all(f"| `{way}` |" in guide for way in WAYS)


@pytest.mark.parametrize("way", ["plain", "netreduce"])
def test_round_trips_are_those_of_the_table(way: str) -> None:
    trip_us = Experiment(case_of("testbed-six-machines", way, 4)).run().time_s * 1e6
    row = cells_of("packets-six")[["plain", "netreduce"].index(way)]
    assert row[1] == f"{trip_us:.2f}"


def test_times_of_small_buffers_on_the_second_testbed_are_those_of_the_table() -> None:
    results = [
        Experiment(case_of("testbed-four-by-eight", way, 100_000)).run() for way in ("ring", "leaders", "parallel")
    ]
    shown = [f"{result.time_s * 1e3:.3g} ({(result.closed_form_s or 0) * 1e3:.3g})" for result in results]
    assert cells_of("packets-size")[0][1:4] == shown


def test_the_figures_are_committed() -> None:
    for name in ("testbed-six-machines", "testbed-four-by-eight"):
        assert (ROOT / "docs" / "figures" / f"{name}.svg").exists()
    assert (ROOT / "examples" / "testbed-rack-of-64.toml").exists()
