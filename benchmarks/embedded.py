"""The embedded default (local cables, one switch process) against gloo on loopback, in turn, with what both cost.

Each run starts fresh workers under ``netreduce run``; netreduce and gloo take turns, and the ratios are taken pair by
pair. CPU seconds are those of the operating system, of the workers' processes and of the switch's, for each GB (1e9
bytes) that was all-reduced. It also tells what a waiting worker costs, and how long connecting and the first collective
take after the imports. One machine's cores carry everything: measure on an idle one. Usage::

    python benchmarks/embedded.py [--workers 4] [--bytes 67108864 1024] [--pairs 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BACKENDS = ("netreduce", "gloo")
WARM_UP = 5
SECONDS_A_RUN = 3.0
"""How long a run measures, about; at least `ITERATIONS_MIN` calls."""
ITERATIONS_MIN = 5
WAIT_S = 2.0
MARK = "EMBEDDED "
Figures = dict[str, float]


class NetReduceWorld:
    """The Communicator."""

    def __init__(self) -> None:
        import netreduce

        start = time.perf_counter()
        self.world = netreduce.Communicator.connect()
        self.world.all_reduce(np.zeros(1, np.float32))
        self.first_s = time.perf_counter() - start
        self.rank = self.world.rank

    def all_reduce(self, array: np.ndarray) -> None:
        self.world.all_reduce(array)

    def gather(self, values: np.ndarray) -> np.ndarray:
        return self.world.all_gather(values)

    def close(self) -> None:
        self.world.close()


class GlooWorld:
    """PyTorch's gloo on loopback."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self.torch, self.dist = torch, dist
        start = time.perf_counter()
        dist.init_process_group("gloo")
        dist.all_reduce(torch.zeros(1))
        self.first_s = time.perf_counter() - start
        self.rank = dist.get_rank()

    def all_reduce(self, array: np.ndarray) -> None:
        self.dist.all_reduce(self.torch.from_numpy(array))

    def gather(self, values: np.ndarray) -> np.ndarray:
        given = self.torch.from_numpy(values)
        taken = [self.torch.empty_like(given) for _ in range(self.dist.get_world_size())]
        self.dist.all_gather(taken, given)
        return np.stack([tensor.numpy() for tensor in taken])

    def close(self) -> None:
        self.dist.destroy_process_group()


def process_cpu_s(pid: int) -> float:
    """User and system seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def switch_pid() -> int:
    """The switch that our launcher has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if b"netreduce.runtime.switch_process" in words and parent == os.getppid():
                return int(entry.name)
    raise RuntimeError("no switch process found: start this under `netreduce run`")


def timed(world: Any, array: np.ndarray, switch: Callable[[], float]) -> Figures:
    """Median seconds of a call, and CPU seconds of a worker (mean) and of the switch for a call."""
    for _ in range(WARM_UP):
        world.all_reduce(array)
    start = time.perf_counter()
    world.all_reduce(array)
    longest_s = float(world.gather(np.array([time.perf_counter() - start])).max())
    count = max(ITERATIONS_MIN, int(SECONDS_A_RUN / longest_s))
    spent = []
    own_s, switch_s = time.process_time(), switch()
    for _ in range(count):
        start = time.perf_counter()
        world.all_reduce(array)
        spent.append(time.perf_counter() - start)
    own_s, switch_s = time.process_time() - own_s, switch() - switch_s
    workers = world.gather(np.array([own_s, statistics.median(spent)])).mean(axis=0)
    return {"seconds": float(workers[1]), "worker_cpu_s": float(workers[0]) / count, "switch_cpu_s": switch_s / count}


def waiting_share(world: Any) -> float:
    """CPU seconds a second of a worker that waits for another one."""
    if world.rank == 0:
        time.sleep(WAIT_S)
    start, wall = time.process_time(), time.perf_counter()
    world.all_reduce(np.zeros(1, np.float32))
    share = (time.process_time() - start) / (time.perf_counter() - wall)
    return float(world.gather(np.array([share]))[1, 0])


def work(backend: str, sizes: list[int]) -> None:
    """One worker's part of a run; rank 0 prints the figures."""
    world = NetReduceWorld() if backend == "netreduce" else GlooWorld()
    pid = switch_pid() if world.rank == 0 else os.getpid()
    found: dict[str, Any] = {"first_s": world.first_s, "waiting_share": waiting_share(world)}
    for size in sizes:
        found[str(size)] = timed(world, np.zeros(size // 4, np.float32), lambda: process_cpu_s(pid))
    if world.rank == 0:
        print(MARK + json.dumps(found), flush=True)
    world.close()


def run(backend: str, workers: int, sizes: list[int]) -> dict[str, Any]:
    """A run of fresh processes; its figures."""
    command = [sys.executable, "-m", "netreduce", "run", "--workers", str(workers), "--no-prefix", "--"]
    command += [sys.executable, __file__, "--as-worker", backend, "--bytes", *map(str, sizes)]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return dict(json.loads(line.removeprefix(MARK)))
    raise SystemExit(f"the run with {backend} failed:\n{done.stderr}")


def median(runs: list[dict[str, Any]], pick: Callable[[dict[str, Any]], float]) -> float:
    return statistics.median(pick(figures) for figures in runs)


def summary(pairs: list[dict[str, dict[str, Any]]], size: int, workers: int) -> Figures:
    """One size: medians over the runs, and the median of the pairs' ratios."""
    key, row, gb = str(size), {}, size / 1e9
    for backend in BACKENDS:
        runs = [pair[backend] for pair in pairs]
        worker = median(runs, lambda figures: figures[key]["worker_cpu_s"]) / gb
        switch = median(runs, lambda figures: figures[key]["switch_cpu_s"]) / gb if backend == "netreduce" else 0.0
        row[f"{backend}_us"] = median(runs, lambda figures: figures[key]["seconds"]) * 1e6
        row[f"{backend}_gbps"] = 8 * gb / row[f"{backend}_us"] * 1e6
        row[f"{backend}_cpu_s_per_gb_worker"] = worker
        row[f"{backend}_cpu_s_per_gb_switch"] = switch
        row[f"{backend}_cpu_s_per_gb_all"] = worker * workers + switch
    row["algbw_ratio"] = statistics.median(
        pair["gloo"][key]["seconds"] / pair["netreduce"][key]["seconds"] for pair in pairs
    )
    return row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bytes", type=int, nargs="+", default=[64 << 20, 1 << 10])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as-worker", choices=BACKENDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_worker:
        work(options.as_worker, options.bytes)
        return
    pairs = []
    for number in range(options.pairs):
        print(f"pair {number + 1} of {options.pairs} ...", file=sys.stderr, flush=True)
        pairs.append({backend: run(backend, options.workers, options.bytes) for backend in BACKENDS})
    report: dict[str, Any] = {str(size): summary(pairs, size, options.workers) for size in options.bytes}
    own = [pair["netreduce"] for pair in pairs]
    report["waiting_worker_share_of_a_core"] = median(own, lambda figures: figures["waiting_share"])
    report["connect_and_first_s"] = median(own, lambda figures: figures["first_s"])
    for name, value in report.items():
        if isinstance(value, dict):
            print(f"{int(name):,} bytes")
            print("\n".join(f"{key:>36}  {figure:,.3f}" for key, figure in value.items()))
        else:
            print(f"{name:>36}  {value:.3f}")
    if options.json:
        options.json.write_text(json.dumps({"workers": options.workers, "report": report, "pairs": pairs}, indent=1))


if __name__ == "__main__":
    main()
