"""Where a sweep's points are solved: in this process, on every core, or on the workers of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from netreduce.errors import ConfigurationError


@contextmanager
def executor_for(processes: int, dask: str | None, tasks: int) -> Iterator[Executor | None]:
    """An executor, or None for this process. `processes` 0 means one per core; `dask` is a scheduler's address.

    Raises ConfigurationError when Dask is asked for and not installed or not there.
    """
    if dask:
        try:
            from distributed import Client
        except ImportError:
            raise ConfigurationError("Dask is not installed: pip install 'netreduce[dask]'") from None
        try:
            client = Client(dask, timeout="10s")
        except OSError as error:
            raise ConfigurationError(f"no Dask scheduler answers at {dask}: {error}") from error
        with client:
            yield client.get_executor()
        return
    processes = min(processes or os.cpu_count() or 1, tasks)
    if processes == 1:
        yield None
        return
    with ProcessPoolExecutor(processes) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
