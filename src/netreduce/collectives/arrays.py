"""Arrays of the caller as flat memory, without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netreduce.collectives.memory import Memory
from netreduce.collectives.schedule import Span
from netreduce.errors import ConfigurationError, UnsupportedError


def flat(array: np.ndarray, dtype: np.dtype, element: np.dtype, *, written: bool) -> Memory:
    """`array`'s memory as a one-dimensional array of `element`.

    Raises `ConfigurationError` if it is not of `dtype`, and `UnsupportedError` if it is not C-contiguous, or read-only
    and to be `written`.
    """
    if array.dtype != dtype:
        raise ConfigurationError(f"arrays of one call have dtypes {array.dtype} and {dtype}, one is needed")
    if not array.flags.c_contiguous:
        raise UnsupportedError(f"array of shape {array.shape} is not C-contiguous: use numpy.ascontiguousarray")
    if written and not array.flags.writeable:
        raise UnsupportedError(f"array of shape {array.shape} takes a result and is read-only: use a copy of it")
    return Memory(array.reshape(-1).view(element))


def blocks(
    name: str,
    arrays: np.ndarray | Sequence[np.ndarray],
    dtype: np.dtype,
    element: np.dtype,
    world_size: int,
    *,
    written: bool,
    counts: Sequence[int] | None = None,
) -> tuple[dict[str, Memory], list[Span]]:
    """One block per rank: given as one array, cut evenly or by `counts` elements, or as one array per rank.

    Returns the memory by buffer name, and the ranks' spans. Raises `ConfigurationError` if blocks and ranks do not fit,
    and what `flat` raises.
    """
    if not isinstance(arrays, np.ndarray):
        if len(arrays) != world_size:
            raise ConfigurationError(f"{len(arrays)} arrays were given, one for each of {world_size} ranks is needed")
        memories = {f"{name}{rank}": flat(array, dtype, element, written=written) for rank, array in enumerate(arrays)}
        return memories, [memory.whole(buffer) for buffer, memory in memories.items()]
    sizes = _even(arrays.size, world_size) if counts is None else [int(count) for count in counts]
    if len(sizes) != world_size or sum(sizes) != arrays.size or min(sizes) < 0:
        raise ConfigurationError(f"counts are {sizes}: {world_size} counts with sum {arrays.size} are needed")
    memory = flat(arrays, dtype, element, written=written)
    per_item = dtype.itemsize // element.itemsize  # a complex number is two floats
    spans, start = [], 0
    for size in sizes:
        spans.append(Span(name, start, size * per_item))
        start += size * per_item
    return {name: memory}, spans


def _even(size: int, world_size: int) -> list[int]:
    if size % world_size:
        raise ConfigurationError(f"array of {size} elements cannot be cut into {world_size} equal blocks")
    return [size // world_size] * world_size
