"""What each benchmarked collective moves: buffers, inputs whose results are exact in any order, and their check.

Inputs are small integers that a hash draws from rank and index. So sums are exact in every dtype and every order, and
an element in the wrong place is noticed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import ml_dtypes
import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.runtime.communicator import Communicator

CHUNK = 1 << 20
"""Elements that are drawn at once, so that a check needs little memory of its own."""
LARGEST_MAX = 3
_RANK_STEP = 0x9E3779B1


def largest_value(dtype: np.dtype, world_size: int) -> int:
    """The largest input whose sum over all ranks is exact in `dtype`. `ConfigurationError` if there is none."""
    if dtype.kind == "b":
        return 1
    if dtype.kind in "iu":
        exact = int(np.iinfo(dtype).max)
    else:
        mantissa_bits = int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]
        exact = 2 << mantissa_bits  # all integers up to there are numbers of the format
    if exact < world_size:
        raise ConfigurationError(f"a sum of {world_size} workers is not exact in {dtype}: use fewer, or a wider dtype")
    return min(LARGEST_MAX, exact // world_size)


def values(op: str, rank: int, world_size: int, start: int, count: int, largest: int = LARGEST_MAX) -> np.ndarray:
    """Elements `start` to `start + count` of a rank's input, uint8[count] from 0 to `largest`."""
    index = np.arange(start, start + count, dtype=np.uint32)
    if op != "product":
        return (_mixed(index + np.uint32(rank * _RANK_STEP & 0xFFFFFFFF)) % np.uint32(largest + 1)).astype(np.uint8)
    # One rank, drawn by a hash, gives 2 or 3, all others 1: the product stays small.
    drawn = _mixed(index)
    factor = np.where(drawn % np.uint32(world_size) == rank, 2 + (drawn >> np.uint32(16) & np.uint32(1)), 1)
    return factor.astype(np.uint8)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Well-mixed 32 bits of each number (the finalizer of MurmurHash3, by Austin Appleby, public domain)."""
    bits = bits ^ bits >> np.uint32(16)
    bits = bits * np.uint32(0x85EBCA6B)
    bits = bits ^ bits >> np.uint32(13)
    bits = bits * np.uint32(0xC2B2AE35)
    return bits ^ bits >> np.uint32(16)


def result(op: str, world_size: int, start: int, count: int, largest: int = LARGEST_MAX) -> np.ndarray:
    """The reduction of all ranks' `values`, float64[count]."""
    combine = {"sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    total = values(op, 0, world_size, start, count, largest)
    for rank in range(1, world_size):
        total = combine(total, values(op, rank, world_size, start, count, largest))
    return total / (world_size if op == "avg" else 1)


class Case(ABC):
    """One collective at one size: buffers `send` and `receive` of one rank, of `dtype`.

    `count` is what nccl-tests calls the count, `size_bytes` the larger buffer's size.
    """

    def __init__(
        self, world: Communicator, size_bytes: int, dtype: np.dtype, op: str, root: int, algorithm: str
    ) -> None:
        self.world, self.dtype, self.op, self.root, self.algorithm = world, dtype, op, root, algorithm
        self.largest = largest_value(dtype, world.world_size)
        self.count = self.elements(size_bytes // dtype.itemsize)
        self.send = np.zeros(self.send_count, dtype)
        self.receive = np.zeros(self.receive_count, dtype)
        self.size_bytes = max(self.send.nbytes, self.receive.nbytes)

    def elements(self, count: int) -> int:
        """`count` from how many elements the larger buffer should have."""
        return count

    @property
    def send_count(self) -> int:
        """Elements of `send`."""
        return self.count

    @property
    def receive_count(self) -> int:
        """Elements of `receive`."""
        return self.count

    @abstractmethod
    def prepare(self, in_place: bool) -> None:
        """Put the inputs where they belong, and junk where results will be."""

    @abstractmethod
    def call(self, in_place: bool) -> None:
        """Run the collective to its end."""

    @abstractmethod
    def wrong(self, in_place: bool) -> int:
        """Elements of this rank's result that are not right."""

    def fill(self, array: np.ndarray, rank: int) -> None:
        """Rank `rank`'s input."""
        for start in range(0, array.size, CHUNK):
            part = array[start : start + CHUNK]
            part[:] = values(self.op, rank, self.world.world_size, start, part.size, self.largest)

    def count_wrong(self, array: np.ndarray, first: int, rank: int | None = None) -> int:
        """Elements that differ from the result from element `first` on; or from `rank`'s input."""
        wrong, size = 0, self.world.world_size
        for start in range(0, array.size, CHUNK):
            part = array[start : start + CHUNK]
            if rank is None:
                expected = result(self.op, size, first + start, part.size, self.largest)
            else:
                expected = values(self.op, rank, size, first + start, part.size, self.largest)
            wrong += int(np.count_nonzero(part != expected.astype(self.dtype)))
        return wrong


class AllReduce(Case):
    """All ranks' arrays into every rank's."""

    def prepare(self, in_place: bool) -> None:
        self.receive.fill(1)
        self.fill(self.receive if in_place else self.send, self.world.rank)

    def call(self, in_place: bool) -> None:
        if in_place:
            self.world.all_reduce(self.receive, self.op, algorithm=self.algorithm)
        else:
            self.world.all_reduce(self.send, self.op, out=self.receive, algorithm=self.algorithm)

    def wrong(self, in_place: bool) -> int:
        return self.count_wrong(self.receive, 0)


class ReduceScatter(Case):
    """Block r of all ranks' arrays into rank r's."""

    def elements(self, count: int) -> int:
        return count // self.world.world_size

    @property
    def send_count(self) -> int:
        return self.count * self.world.world_size

    def _own(self, in_place: bool) -> np.ndarray:
        rank = self.world.rank
        return self.send[rank * self.count : (rank + 1) * self.count] if in_place else self.receive

    def prepare(self, in_place: bool) -> None:
        self.receive.fill(1)
        self.fill(self.send, self.world.rank)

    def call(self, in_place: bool) -> None:
        self.world.reduce_scatter(self.send, self.op, out=self._own(in_place), algorithm=self.algorithm)

    def wrong(self, in_place: bool) -> int:
        return self.count_wrong(self._own(in_place), self.world.rank * self.count)


class AllGather(Case):
    """Every rank's array into block r of every rank's."""

    def elements(self, count: int) -> int:
        return count // self.world.world_size

    @property
    def receive_count(self) -> int:
        return self.count * self.world.world_size

    def _block(self, rank: int) -> np.ndarray:
        return self.receive[rank * self.count : (rank + 1) * self.count]

    def prepare(self, in_place: bool) -> None:
        self.receive.fill(1)
        self.fill(self._block(self.world.rank) if in_place else self.send, self.world.rank)

    def call(self, in_place: bool) -> None:
        source = self._block(self.world.rank) if in_place else self.send
        self.world.all_gather(source, out=self.receive)

    def wrong(self, in_place: bool) -> int:
        return sum(self.count_wrong(self._block(rank), 0, rank) for rank in range(self.world.world_size))


class Broadcast(Case):
    """The root's array into every rank's."""

    def prepare(self, in_place: bool) -> None:
        self.receive.fill(1)
        if self.world.rank == self.root:
            self.fill(self.receive if in_place else self.send, self.root)

    def call(self, in_place: bool) -> None:
        if not in_place and self.world.rank == self.root:
            self.receive[:] = self.send
        self.world.broadcast(self.receive, self.root)

    def wrong(self, in_place: bool) -> int:
        return self.count_wrong(self.receive, 0, self.root)


CASES: dict[str, type[Case]] = {
    "all_reduce": AllReduce,
    "reduce_scatter": ReduceScatter,
    "all_gather": AllGather,
    "broadcast": Broadcast,
}
