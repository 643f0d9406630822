"""DistributedDataParallel with a gradient of 100 MB on shaped links: gloo, then NetReduce, on the same hosts.

Hosts are network namespaces behind links of one rate (see shaped_links.py); all train one model from one seed. Besides
an iteration it times the computation alone (`no_sync`) and the communication alone (DDP's own buckets, all at once),
and so tells how much of the communication backward hides. Needs root, iproute2 and scikit-learn, and matplotlib for a
figure. Usage::

    python benchmarks/training.py [--hosts 4] [--mtu 9000] [--rate 500M] [--steps 25] [--json FILE] [--figure FILE.svg]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.namespaces import Network, host_ip  # noqa: E402 (a script of this folder, run from anywhere)
from benchmarks.shaped_links import PATH_MTUS, machine, rate, rate_text  # noqa: E402

MARK = "TRAINING "
WIDTH = 3460
"""Of the hidden layers: 25 million parameters, a gradient of 100 MB."""
BATCH_PER_RANK = 32
LEARNING_RATE = 0.01
WARM_UP = 2
"""DDP sorts its buckets anew after the first iteration."""
ALONE = 5
LIMIT_S = 600
BACKENDS = ("gloo", "netreduce")


# --- one rank


class Training:
    """A classifier of handwritten digits, wide enough for its gradient to weigh."""

    def __init__(self) -> None:
        import torch
        from sklearn.datasets import load_digits
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        torch.set_num_threads(1)
        torch.manual_seed(0)
        digits = load_digits()
        self._pixels = torch.from_numpy(digits.data).float() / 16
        self._labels = torch.from_numpy(digits.target).long()
        layers = [nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
        self.model = DistributedDataParallel(nn.Sequential(*layers, nn.ReLU(), nn.Linear(WIDTH, 10)))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        self._buckets: list[Any] | None = None
        self.gradient_bytes = 4 * sum(parameter.numel() for parameter in self.model.parameters())

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[Any, Any]]:
        """This rank's share of each batch, epoch after epoch, in orders that depend on the epoch alone."""
        import torch

        epoch = 0
        while True:
            order = torch.randperm(len(self._labels), generator=torch.Generator().manual_seed(epoch))
            for batch in order.split(BATCH_PER_RANK * world_size):
                yield self._pixels[batch[rank::world_size]], self._labels[batch[rank::world_size]]
            epoch += 1

    def step(self, batch: tuple[Any, Any]) -> float:
        """One iteration; its loss."""
        from torch.nn.functional import cross_entropy

        loss = cross_entropy(self.model(batch[0]), batch[1])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def communicate(self) -> None:
        """The all-reduces of one iteration, without its computation."""
        import torch.distributed as dist

        if self._buckets is None:  # once, as DDP does: fresh memory would be part of the communication each time
            self._buckets = [bucket.buffer() for bucket in self.model.reducer._get_zeros_like_grad_buckets()]
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in self._buckets]:
            work.wait()


def timed(count: int, call: Callable[[], object]) -> list[float]:
    """Seconds of each of `count` calls, which all ranks begin together."""
    import torch.distributed as dist

    seconds = []
    for _ in range(count):
        dist.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def run_rank(backend: str, steps: int) -> None:
    """Train, and print what it took and the losses, averaged over ranks, as rank 0."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    training = Training()
    batches = training.batches(rank, world_size)
    losses = [training.step(next(batches)) for _ in range(WARM_UP)]
    dist.barrier()
    start, ends = time.perf_counter(), []
    for _ in range(steps):
        losses.append(training.step(next(batches)))
        ends.append(time.perf_counter() - start)
    communication = timed(ALONE, training.communicate)
    with training.model.no_sync():  # the last use of the model: ranks part here
        computation = timed(ALONE, lambda: training.step(next(batches)))
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean)
    dist.barrier()
    if rank == 0:
        result = {
            "gradient_bytes": training.gradient_bytes,
            "iteration_s": ends[-1] / steps,
            "communication_s": statistics.median(communication),
            "computation_s": statistics.median(computation),
            "losses": (mean / world_size).tolist(),
            "ends_s": ends,
        }
        print(MARK + json.dumps(result), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # what a library does at its end is not measured, and gloo sometimes aborts there


# --- all of them


def measure(hosts: int, mtu: int, rate_bps: int, steps: int) -> dict[str, dict[str, Any]]:
    """Both backends' results on one network."""
    results = {}
    network = Network(hosts, "kernel", mtu, rate_bps)
    try:
        for backend in BACKENDS:
            print(f"{backend} trains ...", file=sys.stderr, flush=True)
            command = [sys.executable, str(Path(__file__).resolve()), "--rank-of", backend, "--steps", str(steps)]
            variables = {"MASTER_ADDR": host_ip(0), "MASTER_PORT": "29600", "GLOO_SOCKET_IFNAME": "eth0"}
            with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
                if backend == "netreduce":
                    network.hand_over()
                    stack.enter_context(network.switching(Path(directory), PATH_MTUS[mtu]))
                output = "".join(network.on_all_hosts(command, LIMIT_S, **variables))
            results[backend] = json.loads(output.partition(MARK)[2].partition("\n")[0])
    finally:
        network.close()
    return results


def hidden_share(result: dict[str, Any]) -> float:
    """The part of the communication that an iteration does not wait for."""
    return (result["computation_s"] + result["communication_s"] - result["iteration_s"]) / result["communication_s"]


def report(results: dict[str, dict[str, Any]], title: str) -> None:
    """The table."""
    print(f"{title}, a gradient of {results['gloo']['gradient_bytes'] / 1e6:.0f} MB")
    print("| backend | iteration, s | computation alone, s | communication alone, s | of it hidden by backward |")
    print("|---|--:|--:|--:|--:|")
    for backend, result in results.items():
        print(
            f"| {backend} | {result['iteration_s']:.3f} | {result['computation_s']:.3f} "
            f"| {result['communication_s']:.3f} | {hidden_share(result):.0%} |"
        )
    gloo, ours = results["gloo"], results["netreduce"]
    differences = [abs(a - b) / abs(a) for a, b in zip(gloo["losses"], ours["losses"], strict=True)]
    print(f"NetReduce: {gloo['iteration_s'] / ours['iteration_s']:.2f} x as fast an iteration,")
    print(f"{gloo['communication_s'] / ours['communication_s']:.2f} x as fast a communication alone;")
    print(f"largest difference of losses {max(differences):.2e} of their value, after {len(differences)} iterations")


def draw(results: dict[str, dict[str, Any]], title: str, path: Path) -> None:
    """Losses by iteration, where both lie on top of each other, and by time."""
    from netreduce.cli.plots import pyplot, save

    figure, (by_step, by_time) = pyplot().subplots(1, 2, figsize=(10, 4), sharey=True)
    for (backend, result), style in zip(results.items(), ("-", "--"), strict=True):
        losses = result["losses"][-len(result["ends_s"]) :]
        by_step.plot(range(1, len(losses) + 1), losses, style, label=backend)
        by_time.plot(result["ends_s"], losses, style, label=backend)
    by_step.set(xlabel="iteration", ylabel="training loss", title=title)
    by_time.set(xlabel="seconds", title="the same, by time")
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
        axes.legend()
    save(figure, path)


def main() -> None:
    """As a rank, or of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--mtu", type=int, default=9000, choices=sorted(PATH_MTUS))
    parser.add_argument("--rate", type=rate, default=rate("500M"), help="of every link (default 500M)")
    parser.add_argument("--steps", type=int, default=25, help="iterations to time")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    parser.add_argument("--figure", type=Path, help="draw the losses there (SVG or PNG)")
    parser.add_argument("--rank-of", choices=BACKENDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        run_rank(options.rank_of, options.steps)
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: sudo ...")
    results = measure(options.hosts, options.mtu, options.rate, options.steps)
    title = f"{options.hosts} hosts, MTU {options.mtu}, {rate_text(options.rate)}"
    report(results, title)
    if options.figure:
        draw(results, title, options.figure)
    if options.json:
        options.json.write_text(json.dumps({"command": sys.argv, "machine": machine(), "results": results}) + "\n")


if __name__ == "__main__":
    main()
