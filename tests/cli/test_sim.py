"""`netreduce sim`: results as table, JSON, CSV and figure; mistakes in one line."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from netreduce.cli.main import app

SCENARIO = """
[cluster]
fabric = "single-switch"
machines = 4
[[job]]
name = "train"
scheme = "netreduce"
size = "1MB"
[[background]]
source = 1
sink = 0
size = "1MB"
"""


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["sim", *arguments])


def test_a_sweep_shows_a_row_with_its_reasons_for_every_point():
    result = invoke("sweep", "--ranks", "4..8", "--schemes", "ring,netreduce", "--processes", "1")
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if "100 MB" in line]
    assert [row.split()[:2] for row in rows] == [["ring", "4"], ["netreduce", "4"], ["ring", "8"], ["netreduce", "8"]]
    assert all("alpha" in row and "is busy" in row for row in rows)


def test_a_sweep_over_sizes_and_latencies_on_two_processes_is_the_same_as_on_one():
    arguments = ("sweep", "--ranks", "8", "--sizes", "1MB,10MB", "--step", "1us,10us", "--json", "-")
    one = json.loads(invoke(*arguments, "--processes", "1").stdout)
    two = json.loads(invoke(*arguments, "--processes", "2").stdout)
    assert one == two
    assert len(one) == 6 * 4
    assert {row["step"] for row in one} == {"1us", "10us"}
    assert all(row["time_s"] > row["alpha_s"] > 0 for row in one)


def test_csv_has_a_column_for_every_field():
    text = invoke("sweep", "--ranks", "4", "--schemes", "ring,tree", "--processes", "1", "--csv", "-").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert float(rows[0]["closed_s"]) == pytest.approx(float(rows[0]["time_s"]), rel=1e-6)
    assert rows[1]["closed_s"] == ""
    assert rows[0]["explain"].startswith("6 steps: alpha")


def test_a_point_that_the_switches_refuse_says_so(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('[cluster]\nfabric = "fat-tree"\nradix = 4\n')
    result = invoke("sweep", "--cluster", str(path), "--ranks", "16,32", "--schemes", "ring", "--processes", "1")
    assert result.exit_code == 0
    assert "refused" in result.stdout
    assert "holds up to 16 endpoints" in result.stdout


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_figure_is_drawn_and_the_same_twice(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / f"{name}.{suffix}" for name in ("a", "b")]
    for path in paths:
        result = invoke("sweep", "--ranks", "4..8", "--schemes", "ring", "--processes", "1", "--plot", str(path))
        assert result.exit_code == 0, result.stderr
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_described_scenario_runs(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    result = invoke("run", str(path))
    assert result.exit_code == 0
    assert "train" in result.stdout
    assert "background 0 ended after" in result.stdout
    assert "leaf0->host0 99%" in result.stdout
    [job] = json.loads(invoke("run", str(path), "--json", "-").stdout)["jobs"]
    assert job["ends_s"][0] > 1e6 / 12.5e9


def test_a_foreign_network_is_priced_and_its_flows_exported(tmp_path):
    topology, matrix = tmp_path / "switch.yml", tmp_path / "ring.cm"
    topology.write_text("topology: [ Switch ]\nnpus_count: [ 4 ]\nbandwidth: [ 12.5 ]\nlatency: [ 500 ]\n")
    result = invoke("network", str(topology), "--size", "1MB", "--cm", str(matrix))
    assert result.exit_code == 0
    assert "4 workers" in result.stdout
    assert "6 steps: alpha 6 us" in result.stdout
    assert matrix.read_text().startswith("Nodes 4\nConnections 24\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "--schemes", "quantum"), "no scheme 'quantum'; there are ring"),
        (("sweep", "--ranks", "many"), "write 64,128 or 32..8192"),
        (("sweep", "--ranks", "12", "--gpus", "8"), "12 ranks are not at least two workers on machines with 8 each"),
        (("sweep", "--port", "fast", "--processes", "1"), "'fast' is not a rate"),
        (("run", "nowhere.toml"), "cannot read nowhere.toml"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message):
    result = invoke(*arguments)
    assert message in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_a_sweep_can_be_handed_to_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    arguments = ("sweep", "--ranks", "4..8", "--schemes", "ring,tree", "--json", "-")
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        result = invoke(*arguments, "--dask", cluster.scheduler_address)
    assert json.loads(result.stdout) == json.loads(invoke(*arguments, "--processes", "1").stdout)


def test_dask_is_asked_for_by_name_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    result = invoke("sweep", "--ranks", "4", "--dask", "tcp://nowhere:1")
    assert result.exit_code == 1
    assert "pip install 'netreduce[dask]'" in result.stderr


TESTBED = """
[testbed]
machines = 3
delay = "1us"
[[run]]
algorithms = ["netreduce", "ring"]
sizes = ["4kB", "40kB"]
"""


def test_a_file_that_describes_a_testbed_runs_packets(tmp_path):
    path, figure, results = (tmp_path / name for name in ("testbed.toml", "time.svg", "results.json"))
    path.write_text(TESTBED)
    pytest.importorskip("matplotlib")
    result = invoke(str(path), "--plot", str(figure), "--json", str(results))
    assert result.exit_code == 0, result.stderr
    assert "3 worker to switch" in result.stdout
    assert "frame-hops in" in result.stdout
    rows = json.loads(results.read_text())
    assert [(row["way"], row["size_bytes"]) for row in rows] == [
        ("netreduce", 4000), ("ring", 4000), ("netreduce", 40000), ("ring", 40000)
    ]  # fmt: skip
    assert all(row["algbw"] == pytest.approx(row["size_bytes"] / row["time_s"]) for row in rows)
    assert all(row["busbw"] == pytest.approx(row["algbw"] * 4 / 3) for row in rows)
    assert all(row["frame_hops"] == sum(link["frames"] for link in row["links"]) for row in rows)
    assert "NetReduce" in figure.read_text()
    every = invoke("packets", str(path), "--links")
    assert "worker2:0>switch:2" in every.stdout


def test_a_file_that_describes_a_scenario_runs_flows(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    assert invoke(str(path)).stdout == invoke("run", str(path)).stdout


def test_a_mistake_in_a_testbed_is_told_in_one_line(tmp_path):
    path = tmp_path / "testbed.toml"
    path.write_text(TESTBED.replace("machines = 3", 'machines = 3\nport = "0Gbps"'))
    result = invoke(str(path))
    assert result.exit_code == 1
    assert result.stderr == f"netreduce: {path}: testbed: port: '0Gbps' must be above zero\n"
