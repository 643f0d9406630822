"""`netreduce bench`: how fast a collective is here, in the table that nccl-tests prints, with every element checked."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from netreduce.cli.common import errors_in_one_line
from netreduce.cli.run import RANKS_MAX, Machines, run_workers
from netreduce.errors import ConfigurationError


class Collective(str, Enum):
    """What can be measured."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


class Algorithm(str, Enum):
    """How reductions are carried out: by the switch, or between hosts, of which central is the naive way.

    The last three are for machines with several workers each; leaders is Tencent's.
    """

    AUTO = "auto"
    NETREDUCE = "netreduce"
    RING = "ring"
    TREE = "tree"
    HALVING = "halving"
    CENTRAL = "central"
    LEADERS = "leaders"
    HIERARCHICAL = "hierarchical"
    PARALLEL = "parallel"


class Op(str, Enum):
    """Reductions whose results can be checked exactly."""

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


def bench(
    collective: Annotated[Collective, typer.Argument(help="What to measure.")] = Collective.ALL_REDUCE,
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, max=RANKS_MAX, help="How many workers.")] = 4,
    machines: Machines = 1,
    smallest: Annotated[str, typer.Option("--min-bytes", "-b", help="Smallest size, such as 1K.")] = "1K",
    largest: Annotated[str, typer.Option("--max-bytes", "-e", help="Largest size.")] = "64M",
    factor: Annotated[int, typer.Option("--step-factor", "-f", min=1, help="From size to size; 1: only one.")] = 4,
    iterations: Annotated[int, typer.Option("--iters", min=1, max=100_000, help="Timed calls per size.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, max=100_000, help="Calls before these.")] = 2,
    dtype: Annotated[str, typer.Option(help="Element type, such as float32, bfloat16, int64.")] = "float32",
    op: Annotated[Op, typer.Option(help="Reduction.")] = Op.SUM,
    root: Annotated[int, typer.Option(min=0, max=RANKS_MAX - 1, help="Root of a broadcast.")] = 0,
    algorithm: Annotated[Algorithm, typer.Option(help="Through the switch, or how else.")] = Algorithm.AUTO,
    channels: Annotated[int, typer.Option(min=0, max=16, help="Rings of a ring all-reduce; 0: as the size needs.")] = 0,
    qps: Annotated[
        int, typer.Option("--qps-per-connection", min=1, help="Queue pairs between two workers, as NCCL's.")
    ] = 1,
    split: Annotated[
        bool, typer.Option("--split-data-on-qps", help="Split each transfer over them, instead of taking turns.")
    ] = False,
    check: Annotated[bool, typer.Option(help="Check every element of a result at each size.")] = True,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the results there, too.")] = None,
    pcap: Annotated[Path | None, typer.Option(help="Record what crosses the switch in this file.")] = None,
) -> None:
    """Measure a collective between real processes through a real switch.

    Prints the table of nccl-tests: time per call, algorithm bandwidth (size / time), bus bandwidth (what it would take
    of each link if hosts did it alone), wrong elements. Inputs are such that every result is exact.
    """
    from netreduce.cli.bench_report import parse_size, sizes
    from netreduce.collectives.algorithms import Tuning

    with errors_in_one_line():
        Tuning(qps_per_connection=qps).check(workers)
        _check_machines(algorithm, workers, machines)
        if root >= workers:
            raise ConfigurationError(f"root is {root}, 0 to {workers - 1} are possible")
        settings = {
            "collective": collective.value,
            "sizes": sizes(parse_size(smallest), parse_size(largest), factor),
            "dtype": _checked_dtype(dtype, op.value, workers),
            "op": op.value,
            "root": root,
            "algorithm": algorithm.value,
            "channels": channels,
            "qps_per_connection": qps,
            "split_data_on_qps": split,
            "iterations": iterations,
            "warmup": warmup,
            "check": check,
            "json_path": str(json_path.resolve()) if json_path else "",
        }
        import msgspec

        command = [sys.executable, "-m", "netreduce.cli.bench_worker", msgspec.json.encode(settings).decode()]
        raise typer.Exit(run_workers(command, workers, pcap=pcap, prefix=False, verbose=False, machines=machines))


def _check_machines(algorithm: Algorithm, workers: int, machines: int) -> None:
    from netreduce.collectives.algorithms import FOR_MACHINES

    if algorithm.value in FOR_MACHINES and not 1 < machines < workers:
        raise ConfigurationError(
            f"the algorithm {algorithm.value} needs several machines with several workers each: "
            "such as --machines 2 --workers 4"
        )


def _checked_dtype(name: str, op: str, workers: int) -> str:
    """`name`, if it is a dtype that can be reduced by `op`."""
    from netreduce.cli.bench_cases import largest_value
    from netreduce.collectives.reductions import DTYPES, plan_reduction
    from netreduce.runtime.communicator import reduction_named

    for dtype in DTYPES:
        if dtype.name == name:
            plan_reduction(dtype, reduction_named(op), workers)
            largest_value(dtype, workers)
            return name
    raise ConfigurationError(f"dtype is {name!r}, allowed are {', '.join(dtype.name for dtype in DTYPES)}")
