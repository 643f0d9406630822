"""One worker of `netreduce bench`: times a collective at each size; rank 0 prints the table as it grows.

Run as ``python -m netreduce.cli.bench_worker SETTINGS``, where SETTINGS is `Settings` as JSON.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from netreduce.cli.bench_cases import CASES, Case
from netreduce.cli.bench_report import Report, Row, Timing, bus_factor, footer, header, row_line
from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.reductions import DTYPES, plan_reduction
from netreduce.runtime.communicator import Communicator, reduction_named

REDUCING = ("all_reduce", "reduce_scatter")
IN_NETWORK = ("auto", "netreduce", "parallel")


class Settings(msgspec.Struct, frozen=True):
    """What to measure."""

    collective: str
    sizes: list[int]
    dtype: str
    op: str
    root: int
    algorithm: str
    channels: int
    qps_per_connection: int
    split_data_on_qps: bool
    iterations: int
    warmup: int
    check: bool
    json_path: str = ""


class Bencher:
    """Measures on one rank of `world`."""

    def __init__(self, world: Communicator, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.dtype = next(dtype for dtype in DTYPES if dtype.name == settings.dtype)

    def run(self) -> Report:
        """All sizes; rank 0 prints."""
        settings, world = self.settings, self.world
        report = Report(settings.collective, world.world_size, settings.algorithm, self._is_in_network())
        world.barrier()  # also proves that the switch adds
        self._say(f"# netreduce bench {settings.collective}: {world.world_size} workers, {settings.algorithm}")
        self._say(f"# {world.scheme}")
        self._say(header())
        for size_bytes in settings.sizes:
            row = self._measure(size_bytes)
            report.rows.append(row)
            self._say(row_line(row))
        timings = [timing for row in report.rows for timing in (row.out_of_place, row.in_place)]
        report.mean_busbw = sum(timing.busbw for timing in timings) / len(timings)
        report.wrong = sum(max(timing.wrong, 0) for timing in timings)
        report.statistics = world.statistics()
        self._say(footer(report))
        return report

    def _is_in_network(self) -> bool:
        settings, size = self.settings, self.world.world_size
        if settings.collective not in REDUCING or settings.algorithm not in IN_NETWORK or size == 1:
            return False
        return plan_reduction(self.dtype, reduction_named(settings.op), size).switch is not None

    def _measure(self, size_bytes: int) -> Row:
        settings = self.settings
        case = CASES[settings.collective](
            self.world, size_bytes, self.dtype, settings.op, settings.root, settings.algorithm
        )
        return Row(
            size_bytes=case.size_bytes,
            count=case.count,
            dtype=settings.dtype,
            op=settings.op if settings.collective in REDUCING else "none",
            root=settings.root if settings.collective == "broadcast" else -1,
            out_of_place=self._time(case, in_place=False),
            in_place=self._time(case, in_place=True),
        )

    def _time(self, case: Case, *, in_place: bool) -> Timing:
        case.prepare(in_place)
        for _ in range(self.settings.warmup):
            case.call(in_place)
        self.world.barrier()
        spent = np.empty(self.settings.iterations)
        for i in range(self.settings.iterations):
            start = time.perf_counter()
            case.call(in_place)
            spent[i] = time.perf_counter() - start
        spent = self.world.all_gather(spent).mean(axis=0)  # of each iteration, over the ranks
        wrong = -1
        if self.settings.check:
            case.prepare(in_place)
            case.call(in_place)
            wrong = int(self.world.all_reduce(np.array([case.wrong(in_place)]))[0])
        mean_s = float(spent.mean())
        algbw = case.size_bytes / mean_s / 1e9
        return Timing(
            mean_s=mean_s,
            min_s=float(spent.min()),
            median_s=float(np.median(spent)),
            p99_s=float(np.quantile(spent, 0.99)),
            algbw=algbw,
            busbw=algbw * bus_factor(self.settings.collective, self.world.world_size),
            wrong=wrong,
        )

    def _say(self, text: str) -> None:
        if self.world.rank == 0:
            print(text, flush=True)


def main(settings: Settings) -> int:
    """The exit code: 1 if a result was wrong."""
    order = tuple(range(int(os.environ["WORLD_SIZE"])))
    tuning = Tuning(
        channels=(order,) * settings.channels,
        qps_per_connection=settings.qps_per_connection,
        split_data_on_qps=settings.split_data_on_qps,
    )
    with Communicator.connect(tuning=tuning) as world:
        report = Bencher(world, settings).run()
        if world.rank == 0 and settings.json_path:
            Path(settings.json_path).write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1].encode(), type=Settings)))
