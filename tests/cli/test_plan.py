"""`netreduce plan`: one screen, one page, figures as JSON; mistakes in one line."""

import json

import pytest
from tests.flowsim.plan.traces import text, two_steps
from typer.testing import CliRunner

from netreduce.cli.main import app

SIZES = [1 << shift for shift in range(10, 29, 3)]


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments])


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(text(two_steps()))
    return path


@pytest.fixture
def log(tmp_path):
    """Of 16 ranks on 4 machines: 2 us a step and 10 GB/s a port."""
    rows = [(size, (30 * 2e-6 + 2 * 15 / 16 * size / 10e9) * 1e6) for size in SIZES]
    devices = "".join(f"#  Rank {r:2} Group  0 Pid 1 on node{r // 4} device {r % 4} [00] A100\n" for r in range(16))
    table = "".join(f"{size} {size // 4} float sum -1 {time:.3f} 0.1 0.1 0\n" for size, time in rows)
    path = tmp_path / "log.txt"
    path.write_text(devices + "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n" + table)
    return path


def test_a_model_is_planned_for_a_cluster_of_options(tmp_path):
    page = tmp_path / "report.html"
    result = invoke("--model", "alexnet", "--ranks", "6", "--port", "100Gbps", "--html", str(page))
    assert result.exit_code == 0
    assert "Yes: NetReduce would make an iteration" in result.stdout
    assert "takes a switch with 6 ports and 4.18 MB" in result.stdout
    assert "flat ring" in page.read_text()


def test_a_trace_is_planned_for_the_ranks_that_it_names(trace):
    result = invoke(str(trace), "--json", "-")
    plan = json.loads(result.stdout)
    assert plan["cluster"].startswith("16 x 1 workers")
    assert plan["base_s"] == pytest.approx(9e-3)


def test_a_benchmark_calibrates_latency_and_bandwidth(trace, log):
    result = invoke(str(trace), "--nccl-tests", str(log), "--inside", "100GB/s")
    assert result.exit_code == 0, result.stderr
    assert "4 x 4 workers" in result.stdout
    assert "nccl-tests: 7 sizes fit 2 us a step and 10 GB/s a port" in result.stdout


def test_a_described_cluster_is_taken_as_it_is(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('[cluster]\nmachines = 4\ngpus = 8\nport = "200Gbps"\ninside = "300GB/s"\n')
    result = invoke("--model", "gpt2", "--cluster", str(path))
    assert "4 x 8 workers" in result.stdout
    assert "Parallel NetReduce" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a trace or --model"),
        (("--model", "lenet", "--ranks", "4"), "no model 'lenet'"),
        (("nowhere.json",), "cannot read nowhere.json"),
        (("--model", "gpt2", "--ranks", "6", "--gpus", "4"), "6 ranks do not fill machines of 4"),
        (("--model", "gpt2", "--ranks", "4", "--port", "fast"), "'fast' is not a rate"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
