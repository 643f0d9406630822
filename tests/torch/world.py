"""Ranks that live as long as a test session: processes that run a function of the tests' whenever they are told to.

Importing torch and joining a group takes seconds, so that a test must not start ranks of its own without need.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 110  # a first run compiles
RUN_TIMEOUT_S = 60
GROUP_TIMEOUT_S = 40


class World:
    """`size` ranks of a process group; `run` calls a module-level function on all of them."""

    def __init__(self, size: int, folder: Path, machines: Sequence[str] = ()) -> None:
        """Rank r pretends to be on ``machines[r]``, if they are given."""
        context = multiprocessing.get_context("spawn")
        self.size = size
        self._connections: dict[int, Connection] = {}
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, str(folder / "store"), theirs, *machines[rank : rank + 1])
            )
            process.start()
            theirs.close()
            self._connections[rank] = ours
            self._processes.append(process)
        try:
            self._collect(START_TIMEOUT_S)
        except BaseException:
            for process in self._processes:
                process.kill()
            raise

    def run(self, function: Callable[..., Any], *arguments: Any, dying: int | None = None) -> list[Any]:
        """The results of ``function(*arguments)``, by rank. Fails with the first failing rank's traceback.

        Rank `dying` is expected to die of it, and takes part no more.
        """
        for connection in self._connections.values():
            connection.send((function, arguments))
        if dying is not None:
            connection = self._connections.pop(dying)
            with contextlib.suppress(EOFError, ConnectionError):
                assert not connection.poll(RUN_TIMEOUT_S) or not connection.recv(), f"rank {dying} lives"
        return self._collect(RUN_TIMEOUT_S)

    def close(self) -> None:
        """Leave the group and end."""
        for connection in self._connections.values():
            connection.send(None)
        for process in self._processes:
            process.join(10)
            process.kill()

    def _collect(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        results, failures = [], []
        for rank, connection in self._connections.items():
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                failures.append(f"rank {rank} gave no answer within {timeout_s} s")
                continue
            try:
                succeeded, result = connection.recv()
            except EOFError:
                succeeded, result = False, f"rank {rank} died"
            results.append(result)
            if not succeeded:
                failures.append(f"rank {rank}: {result}")
        assert not failures, "\n".join(failures)
        return results


def await_all(moment: str, ranks: Iterable[int]) -> None:
    """Return when all `ranks` are at this moment, by torch's store: who then dies takes no result from the others."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {dist.get_rank()} {moment}", "")
    store.wait([f"rank {rank} {moment}" for rank in ranks])


def _serve(rank: int, size: int, store: str, connection: Connection, machine: str = "") -> None:
    faulthandler.dump_traceback_later(START_TIMEOUT_S - 10)  # where it hangs, if it does
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "netreduce",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=GROUP_TIMEOUT_S),
        pg_options={"machine": machine} if machine else None,
    )
    faulthandler.cancel_dump_traceback_later()
    connection.send((True, None))
    while (request := _next(connection)) is not None:
        function, arguments = request
        try:
            connection.send((True, function(*arguments)))
        except Exception:
            connection.send((False, traceback.format_exc()))
    dist.destroy_process_group()


def _next(connection: Connection) -> Any:
    """What to run next; None at the end, also if the tests' process is gone."""
    try:
        return connection.recv()
    except EOFError:
        return None
