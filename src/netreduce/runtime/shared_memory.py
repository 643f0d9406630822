"""Memory that two processes map: without a name, so that nothing is left behind, and sealed, so that it stays.

A descriptor crosses a Unix connection (SCM_RIGHTS); whoever maps it needs the descriptor no longer.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from netreduce.errors import NetReduceError

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def allocate(name: str, size_bytes: int) -> int:
    """Fresh memory, shown as `name` in /proc; its descriptor. Nobody can shrink it, so that using it never fails."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def map_memory(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Map `size_bytes` of memory that `allocate` has made, here or elsewhere; closes `descriptor` in any case.

    Raises `NetReduceError` for memory that could shrink, or is smaller: touching it could end this process.
    """
    try:
        if os.fstat(descriptor).st_size < size_bytes or fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise NetReduceError(f"shared memory that is offered could shrink, or has less than {size_bytes} bytes")
        return mmap.mmap(descriptor, size_bytes)
    except OSError as error:
        raise NetReduceError(f"shared memory that is offered cannot be mapped: {error.strerror}") from error
    finally:
        os.close(descriptor)
