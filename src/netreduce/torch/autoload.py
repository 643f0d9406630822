"""Registers the backend "netreduce" when torch is imported; torch finds `register` by the entry point `torch.backends`.

It runs inside every `import torch` of the environment, so it imports nothing but torch itself and never raises: the
compiler, NumPy and the runtime are loaded by `create` when a process group is first asked for.
"""

from __future__ import annotations

from typing import Any

BACKEND = "netreduce"


def register() -> None:
    """Make `torch.distributed.init_process_group("netreduce")` known; harmless without torch.distributed, and twice."""
    try:
        from torch import distributed
    except ImportError:
        return
    if not distributed.is_available() or BACKEND in distributed.Backend.backend_list:
        return
    distributed.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])


def create(options: Any, backend_options: Any) -> Any:
    """The process group of one rank; torch calls this for the default group and for each new one it is a member of.

    `options` is torch's ``_DistributedBackendOptions``: store, group_rank, group_size, timeout, group_id.
    `backend_options` is what the user gave as ``pg_options``: a mapping that may have ``switch``, ``provider`` and
    ``machine``.
    """
    from netreduce.torch.process_group import ProcessGroupNetReduce
    from netreduce.torch.rendezvous import connect, device_reducer, leave

    rank, world_size = options.group_rank, options.group_size
    given = dict(backend_options or {})
    provider, machine, switch = given.pop("provider", None), given.pop("machine", ""), given.pop("switch", "")
    if given:
        raise ValueError(f"pg_options has {', '.join(given)}: netreduce knows only 'switch', 'provider' and 'machine'")
    member = connect(options.store, options.group_id, rank, world_size, options.timeout, provider, machine, switch)
    devices = device_reducer(member, options.store)
    return ProcessGroupNetReduce(member, lambda: leave(member), rank, world_size, devices)
