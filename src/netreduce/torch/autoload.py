"""Registers the backend "netreduce" when torch is imported; torch finds `register` by the entry point `torch.backends`.

It runs inside every `import torch` of the environment, so it imports nothing but torch itself and never raises: the
compiler, NumPy and the runtime are loaded by `create` when a process group is first asked for.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BACKEND = "netreduce"


def register() -> None:
    """Make `torch.distributed.init_process_group("netreduce")` known; harmless without torch.distributed, and twice."""
    try:
        from torch import distributed
    except ImportError:
        return
    if not distributed.is_available() or BACKEND in distributed.Backend.backend_list:
        return
    distributed.Backend.register_backend(BACKEND, create, devices=["cpu"])


def create(store: Store, rank: int, world_size: int, timeout: timedelta) -> Any:
    """The process group of `rank` among `world_size`; torch calls this for the default group and for each new one."""
    from netreduce.torch.process_group import ProcessGroupNetReduce
    from netreduce.torch.rendezvous import connect

    return ProcessGroupNetReduce(connect(store, rank, world_size, timeout), rank, world_size, timeout)
