"""The benchmark's table, its inputs and checks, and a run with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from netreduce.cli.bench_cases import largest_value, result, values
from netreduce.cli.bench_report import (
    Report,
    Row,
    Timing,
    bus_factor,
    footer,
    header,
    parse_size,
    row_line,
    short,
    sizes,
)
from netreduce.cli.main import app
from netreduce.collectives.reductions import DTYPES, Reduction, plan_reduction
from netreduce.errors import ConfigurationError, UnsupportedError
from netreduce.runtime.warmup import ensure_compiled

TIMING = Timing(mean_s=0.001234, min_s=0.001, median_s=0.0012, p99_s=0.002, algbw=0.85, busbw=1.275, wrong=0)
ROW = Row(1048576, 262144, "float32", "sum", -1, out_of_place=TIMING, in_place=TIMING)


def test_the_table_has_the_columns_of_nccl_tests() -> None:
    places, titles, units = header().splitlines()
    assert titles.split() == ["#", "size", "count", "type", "redop", "root", *["time", "algbw", "busbw", "#wrong"] * 2]
    assert units.split() == ["#", "(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2]
    line = row_line(ROW)
    cells = ["1234.0", "0.85", "1.27", "0"]  # 1.275 is a hair less in binary
    assert line.split() == ["1048576", "262144", "float32", "sum", "-1", *cells * 2]
    # Every column ends where its title ends, as nccl-tests' own do.
    for column, cell in (
        ("size", "1048576"),
        ("count", "262144"),
        ("root", "-1"),
        ("time", "1234.0"),
        ("busbw", "1.27"),
    ):
        assert titles.index(column) + len(column) == line.index(f" {cell} ") + len(cell) + 1
    assert places.index("out-of-place") < places.index("in-place")


def test_the_footer_says_whether_all_was_right_and_whether_the_network_added() -> None:
    statistics = {"engine": {"in_network_active": True, "in_network_bytes_sent": 1000, "ring_bytes": 1500.0}}
    good = Report("all_reduce", 4, "auto", True, [ROW], mean_busbw=1.275, statistics=statistics)
    assert "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.275\n" in footer(good)
    assert "ACTIVE, rank 0 sent 1,000 payload bytes where a ring would have sent 1,500" in footer(good)
    assert "3 FAILED" in footer(Report("all_reduce", 4, "auto", True, wrong=3, statistics=statistics))
    assert "not used" in footer(Report("all_reduce", 4, "ring"))


@pytest.mark.parametrize(("text", "size"), [("8", 8), ("1K", 1024), ("64m", 64 << 20), ("1G", 1 << 30)])
def test_sizes_are_written_as_nccl_tests_takes_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "0", "-1", "1.5M", "1T", "1KB"])
def test_other_sizes_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="such as 64K"):
        parse_size(text)


def test_sizes_grow_by_a_factor_and_end_in_time() -> None:
    assert sizes(1024, 70_000, 4) == [1024, 4096, 16384, 65536]
    assert sizes(8, 8, 1) == [8]
    with pytest.raises(ConfigurationError, match="must not be larger"):
        sizes(2, 1, 2)


def test_bus_bandwidth_is_what_hosts_alone_would_need() -> None:
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == bus_factor("reduce_scatter", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1


@given(st.floats(0, 1e8), st.sampled_from([6, 7]))
def test_numbers_fit_their_column(value: float, width: int) -> None:
    text = short(value, width)
    assert len(text) < width or "." not in text
    assert float(text) == pytest.approx(value, abs=0.5)


@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "avg"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_exact_in_every_dtype_whatever_the_order(op: str, dtype: np.dtype) -> None:
    reduction = Reduction.AVERAGE if op == "avg" else Reduction[op.upper()]
    try:
        combine = plan_reduction(dtype, reduction, 5).combine
    except UnsupportedError:
        pytest.skip(f"{op} is not defined on {dtype}")
    largest = largest_value(dtype, 5)
    inputs = [values(op, rank, 5, 1000, 4096, largest).astype(dtype) for rank in range(5)]
    expected = result(op, 5, 1000, 4096, largest)
    if op == "avg":
        expected = np.round(expected * 5)
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        total = inputs[order[0]]
        for rank in order[1:]:
            total = combine(total, inputs[rank])
        assert np.array_equal(total, expected.astype(dtype))


def test_a_sum_that_cannot_be_exact_is_refused() -> None:
    assert largest_value(np.dtype(np.float32), 64) == 3
    assert largest_value(np.dtype(np.int8), 64) == 1
    with pytest.raises(ConfigurationError, match="9 workers is not exact in float8_e5m2"):
        largest_value(np.dtype(ml_dtypes.float8_e5m2), 9)


def test_inputs_differ_between_ranks_and_neighbours() -> None:
    a, b = values("sum", 0, 4, 0, 10_000), values("sum", 1, 4, 0, 10_000)
    assert 0.6 < np.mean(a != b) < 0.9
    assert 0.6 < np.mean(a[1:] != a[:-1]) < 0.9
    assert np.array_equal(values("sum", 2, 4, 100, 50), values("sum", 2, 4, 0, 150)[100:])


@pytest.fixture(scope="module")
def compiled() -> None:
    ensure_compiled()  # here, so that no run of a benchmark has to wait for it


@pytest.mark.live
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_gather", "reduce_scatter"])
def test_a_benchmark_with_real_processes_finds_nothing_wrong(collective: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("netreduce")), "bench", collective, "--workers", "2"]
    command += ["-b", "1K", "-e", "64K", "-f", "64", "--iters", "2", "--json", str(tmp_path / "bench.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert [row["size_bytes"] for row in report["rows"]] == [1024, 65536]
    for row in report["rows"]:
        assert row["in_place"]["wrong"] == row["out_of_place"]["wrong"] == 0
        assert row["in_place"]["mean_s"] > 0
    assert "# Out of bounds values : 0 OK" in done.stdout


@pytest.mark.live
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "options",
    [
        ["ring", "--channels", "3", "--qps-per-connection", "2", "--split-data-on-qps"],
        ["tree"],
        ["halving"],
        ["central"],
    ],
    ids=" ".join,
)
def test_every_algorithm_can_be_measured(options: list[str]) -> None:
    command = [str(Path(sys.executable).with_name("netreduce")), "bench", "--workers", "3", "-b", "1K", "-e", "64K"]
    command += ["-f", "64", "--iters", "1", "--warmup", "0", "--algorithm", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert "# In-network reduction : not used" in done.stdout


@pytest.mark.live
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
def test_parallel_netreduce_can_be_measured_on_pretended_machines() -> None:
    command = [
        str(Path(sys.executable).with_name("netreduce")),
        "bench",
        "--workers",
        "4",
        "--machines",
        "2",
        "-b",
        "64K",
    ]
    command += ["-e", "64K", "--iters", "1", "--warmup", "0", "--algorithm", "parallel"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# 4 ranks on 2 machines of 2 workers: Parallel NetReduce" in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert "# In-network reduction : ACTIVE" in done.stdout


@pytest.mark.parametrize("machines", ["1", "4"])
@pytest.mark.parametrize("algorithm", ["leaders", "hierarchical", "parallel"])
def test_algorithms_for_machines_need_several_with_several_workers(algorithm: str, machines: str) -> None:
    answer = CliRunner().invoke(app, ["bench", "--algorithm", algorithm, "--machines", machines, "--workers", "4"])
    assert answer.exit_code == 1
    assert f"the algorithm {algorithm} needs several machines with several workers each" in answer.stderr


def test_a_dtype_that_cannot_be_reduced_is_refused_in_one_line() -> None:
    answer = CliRunner().invoke(app, ["bench", "--dtype", "int32", "--op", "avg"])
    assert answer.exit_code == 1
    assert answer.stderr.startswith("netreduce: AVERAGE of int32 is not supported")
    assert len(answer.stderr.splitlines()) == 1


def test_more_queue_pairs_than_possible_are_refused_in_one_line() -> None:
    answer = CliRunner().invoke(app, ["bench", "--qps-per-connection", "9"])
    assert answer.exit_code == 1
    assert answer.stderr == "netreduce: 9 queue pairs per connection, 1 to 8 are possible\n"
