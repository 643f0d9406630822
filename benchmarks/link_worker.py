"""One rank of benchmarks/shaped_links.py: times all-reduces by one of three libraries, and prints JSON lines.

Usage: ``python benchmarks/link_worker.py netreduce|gloo|mpi SIZE:COUNT...``, sizes in bytes of float32. Each line has
the seconds of each all-reduce on this rank, and the CPU seconds of this process during all of them. Sums are checked.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

WARM_UP = 1


class Library:
    """A way to all-reduce: in place, float32."""

    def __init__(self, rank: int, size: int, all_reduce: Callable[[np.ndarray], None], barrier: Callable[[], None]):
        self.rank, self.size, self.all_reduce, self.barrier = rank, size, all_reduce, barrier


@contextmanager
def _netreduce() -> Iterator[Library]:
    from netreduce import Communicator

    with Communicator.connect(timeout_s=120) as world:
        yield Library(world.rank, world.world_size, world.all_reduce, world.barrier)


@contextmanager
def _gloo() -> Iterator[Library]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    yield Library(
        dist.get_rank(), dist.get_world_size(), lambda array: dist.all_reduce(torch.from_numpy(array)), dist.barrier
    )
    dist.destroy_process_group()


@contextmanager
def _mpi() -> Iterator[Library]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    yield Library(world.Get_rank(), world.Get_size(), lambda array: world.Allreduce(MPI.IN_PLACE, array), world.Barrier)
    MPI.Finalize()


LIBRARIES = {"netreduce": _netreduce, "gloo": _gloo, "mpi": _mpi}


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(library: Library, size_bytes: int, count: int) -> dict[str, object]:
    """`count` all-reduces of `size_bytes`, after one to warm up."""
    mine = np.arange(size_bytes // 4, dtype=np.float32) % 1000 + library.rank
    wanted = library.size * (mine - library.rank) + sum(range(library.size))
    array, seconds, cpu = np.empty_like(mine), [], 0.0
    for run in range(WARM_UP + count):
        array[:] = mine
        library.barrier()
        cpu_before, start = cpu_seconds(), time.perf_counter()
        library.all_reduce(array)
        took, cpu_took = time.perf_counter() - start, cpu_seconds() - cpu_before
        if not np.array_equal(array, wanted):
            raise SystemExit(f"rank {library.rank}: a wrong sum of {size_bytes} bytes")
        if run >= WARM_UP:
            seconds.append(took)
            cpu += cpu_took
    return {"rank": library.rank, "size": size_bytes, "seconds": seconds, "cpu_seconds": cpu}


def main() -> None:
    """Measure all sizes."""
    name, *plan = sys.argv[1:]
    with LIBRARIES[name]() as library:
        for entry in plan:
            size_bytes, count = (int(part) for part in entry.split(":"))
            print(json.dumps(measure(library, size_bytes, count)), flush=True)
    os._exit(0)  # what a library does at its end is not measured, and gloo sometimes aborts there


if __name__ == "__main__":
    main()
