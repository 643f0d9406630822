"""`netreduce.Communicator`: collectives on NumPy arrays, for programs without PyTorch.

with netreduce.Communicator.connect() as world:       # under `netreduce run` or torchrun
    world.all_reduce(gradient)                        # in place: the sum over all ranks, added by the switch
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.collectives.engine import Engine
from netreduce.collectives.operation import Operation
from netreduce.collectives.reductions import Reduction
from netreduce.errors import ConfigurationError
from netreduce.runtime.groups import describe, enter
from netreduce.runtime.lending import Handle, Lent
from netreduce.runtime.member import Member
from netreduce.runtime.solo import Solo
from netreduce.runtime.worker import Worker
from netreduce.wire.control import RANKS_MAX, Geometry

DEFAULT_TIMEOUT_S = 300.0
_REDUCTIONS = {
    "sum": Reduction.SUM,
    "product": Reduction.PRODUCT,
    "min": Reduction.MIN,
    "max": Reduction.MAX,
    "avg": Reduction.AVERAGE,
    "and": Reduction.BITWISE_AND,
    "or": Reduction.BITWISE_OR,
    "xor": Reduction.BITWISE_XOR,
}


_ALGORITHMS = {way.value: way for way in Algorithm}


def _environment_number(name: str, given: int | None) -> int:
    if given is not None:
        return given
    text = os.environ.get(name)
    if text is None or not text.isdecimal():
        raise ConfigurationError(f"{name} is {text!r}: start under `netreduce run` or torchrun, or pass the number")
    return int(text)


def reduction_named(op: str) -> Reduction:
    """The reduction that a caller names, such as ``sum``; `ConfigurationError` names those there are."""
    if op not in _REDUCTIONS:
        raise ConfigurationError(f"op is {op!r}, allowed are {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[op]


def _algorithm(name: str) -> Algorithm:
    if name not in _ALGORITHMS:
        raise ConfigurationError(f"algorithm is {name!r}, allowed are {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[name]


class Communicator:
    """One rank of a group. Make one with `connect`; use it as a context manager, or call `close`.

    All ranks call the same collectives in the same order, with arrays of equal shape and dtype. Arrays may have any
    strides; contiguous ones travel without a copy. Every collective returns its result, or with ``wait=False`` a
    `Handle`. Thread-safe.
    """

    def __init__(self, member: Member | Solo, rank: int, ranks: tuple[int, ...], worker: Worker | None) -> None:
        self.rank = rank
        self.world_size = len(ranks)
        self._member = member
        self._worker = worker
        self._short = member.short
        self._owns_worker = False

    @classmethod
    def connect(
        cls,
        address: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        group: str = "world",
        provider: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        geometry: Geometry | None = None,
        tuning: Tuning = Tuning(),  # noqa: B008 (immutable)
        machine: str = "",
    ) -> Communicator:
        """Enter `group` at the switch and wait for its other ranks.

        `address`, `rank` and `world_size` come from NETREDUCE_SWITCH, RANK and WORLD_SIZE unless given. `provider` says
        whose NIC this rank uses: embedded, rdma (a device of the host) or auto; by default it is NETREDUCE_PROVIDER's.
        `timeout_s` bounds the wait here and every collective. `tuning` says how collectives between hosts are cut; all
        ranks need the same. A world of one rank needs no switch. `machine` names this process's machine; without it,
        NETREDUCE_MACHINE or the kernel does. Several machines with several ranks each reduce by Parallel NetReduce.

        Raises `ConfigurationError`, `SwitchLostError`, `AdmissionError`, `CollectiveTimeoutError`.
        """
        rank = _environment_number("RANK", rank)
        world_size = _environment_number("WORLD_SIZE", world_size)
        if not 1 <= world_size <= RANKS_MAX or not 0 <= rank < world_size:
            raise ConfigurationError(f"rank {rank} of {world_size}: want 0 <= rank < world_size <= {RANKS_MAX}")
        tuning.check(world_size)
        if world_size == 1:
            return cls(Solo(geometry or Geometry()), 0, (0,), None)
        address = address or os.environ.get("NETREDUCE_SWITCH")
        if not address:
            raise ConfigurationError("NETREDUCE_SWITCH is not set: start under `netreduce run`, or pass the address")
        worker = Worker(address, f"rank {rank}", provider)
        try:
            geometry = geometry or Geometry(path_mtu=worker.path_mtu)
            member = enter(worker, group, rank, world_size, geometry, timeout_s, tuning, machine)
        except BaseException:
            worker.close(in_good_order=False)
            raise
        communicator = cls(member, rank, tuple(range(world_size)), worker)
        communicator._owns_worker = True
        return communicator

    def _call(
        self,
        start: Callable[[Engine], Operation],
        result: Any,
        wait: bool,
        copies: Sequence[tuple[np.ndarray, np.ndarray]] = (),
    ) -> Any:
        """Start a collective; afterwards each `copies` pair (array, contiguous copy) is copied back."""

        def finish() -> None:
            for array, contiguous in copies:
                array[...] = contiguous

        if not wait:
            return Handle(self._member.start(start), result, finish)
        self._member.run(start)
        finish()
        return result

    # Reductions

    def all_reduce(
        self,
        array: np.ndarray,
        op: str = "sum",
        *,
        out: np.ndarray | None = None,
        algorithm: str = "auto",
        wait: bool = True,
    ) -> Any:
        """Combine `array` (any shape) of all ranks element by element, in place or into `out`; returns where.

        `op` is sum, product, min, max, avg, and, or, xor. `algorithm` is netreduce (through the switch), ring, tree,
        halving or central (between the hosts); for several machines with several ranks each also parallel (the switch
        adds each rank's share), leaders or hierarchical; or auto: through the switch if it can do it, or else the
        fastest by model. Raises `UnsupportedError` for a dtype or operation that is not supported, naming those there
        are.
        """
        reduction, way = reduction_named(op), _algorithm(algorithm)
        if wait and self._short is not None and self._short.all_reduce(array, reduction, way, out):
            return array if out is None else out
        lent = Lent(array)
        if out is None:
            return self._call(
                lambda engine: engine.all_reduce(lent.memory, reduction, algorithm=way), array, wait, lent.copies
            )
        taken = Lent(out)
        return self._call(
            lambda engine: engine.all_reduce(lent.memory, reduction, out=taken.memory, algorithm=way),
            out,
            wait,
            taken.copies,
        )

    def reduce(
        self, array: np.ndarray, root: int = 0, op: str = "sum", *, algorithm: str = "auto", wait: bool = True
    ) -> Any:
        """Combine `array` of all ranks in place at `root`; other ranks' arrays stay as they are. Returns `array`."""
        reduction, way, lent = reduction_named(op), _algorithm(algorithm), Lent(array)
        copies = lent.copies if self.rank == root else ()
        return self._call(
            lambda engine: engine.reduce(lent.memory, root, reduction, algorithm=way), array, wait, copies
        )

    def reduce_scatter(
        self,
        array: np.ndarray,
        op: str = "sum",
        *,
        out: np.ndarray | None = None,
        algorithm: str = "auto",
        wait: bool = True,
    ) -> Any:
        """Combine `array` (shape [world_size * n, ...]) of all ranks; returns this rank's block, shape [n, ...].

        The block is put into `out`, if that is given.
        """
        reduction, way, source = reduction_named(op), _algorithm(algorithm), np.ascontiguousarray(array)
        target = np.empty(self._block_shape(array), array.dtype) if out is None else out
        lent = Lent(target)
        return self._call(
            lambda engine: engine.reduce_scatter(source, lent.memory, reduction, algorithm=way),
            target,
            wait,
            lent.copies,
        )

    # Data movement

    def broadcast(self, array: np.ndarray, root: int = 0, *, wait: bool = True) -> Any:
        """Copy `root`'s `array` into the others', in place; returns it."""
        lent = Lent(array)
        return self._call(lambda engine: engine.broadcast(lent.memory, root), array, wait, lent.copies)

    def all_gather(self, array: np.ndarray, *, out: np.ndarray | None = None, wait: bool = True) -> Any:
        """The arrays of all ranks, stacked by rank: shape [world_size, *array.shape], or into `out` of that size."""
        source, target = np.ascontiguousarray(array), self._stack(array) if out is None else out
        lent = Lent(target)
        return self._call(lambda engine: engine.all_gather(source, lent.memory), target, wait, lent.copies)

    def gather(self, array: np.ndarray, root: int = 0, *, wait: bool = True) -> Any:
        """As `all_gather` at `root`; None elsewhere."""
        source, target = np.ascontiguousarray(array), self._stack(array) if self.rank == root else None
        return self._call(lambda engine: engine.gather(source, target, root), target, wait)

    def scatter(self, array: np.ndarray | None, target: np.ndarray, root: int = 0, *, wait: bool = True) -> Any:
        """Row r of `root`'s `array` (shape [world_size, *target.shape]; None elsewhere) into rank r's `target`."""
        lent = Lent(target)
        source = None if array is None else np.ascontiguousarray(array)
        return self._call(lambda engine: engine.scatter(source, lent.memory, root), target, wait, lent.copies)

    def all_to_all(self, array: np.ndarray, *, wait: bool = True) -> Any:
        """Row p of rank r's `array` (shape [world_size, ...]) becomes row r of rank p's result; returns the result."""
        self._block_shape(array)
        source = np.ascontiguousarray(array)
        target = np.empty_like(source)
        return self._call(lambda engine: engine.all_to_all(source, target), target, wait)

    def send(self, array: np.ndarray, peer: int, tag: int = 0, *, wait: bool = True) -> Any:
        """Send `array` to rank `peer`, which calls `recv` with the same `tag`; returns it once the peer has it."""
        source = np.ascontiguousarray(array)
        return self._call(lambda engine: engine.send(source, peer, tag), array, wait)

    def recv(self, array: np.ndarray, peer: int, tag: int = 0, *, wait: bool = True) -> Any:
        """Receive into `array` what rank `peer` sends under `tag`; returns it."""
        lent = Lent(array)
        return self._call(lambda engine: engine.receive(lent.memory, peer, tag), array, wait, lent.copies)

    def barrier(self, *, wait: bool = True) -> Any:
        """Done when all ranks have called it."""
        return self._call(lambda engine: engine.barrier(), None, wait)

    # The group

    def group(self, ranks: Sequence[int], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Communicator | None:
        """A communicator among `ranks` of this one, with a ring of its own; None for a rank that is not among them.

        All ranks of this communicator call it, with the same arguments. `close` the result when it is done with.
        """
        if sorted(set(ranks)) != sorted(ranks) or not all(0 <= rank < self.world_size for rank in ranks):
            raise ConfigurationError(f"ranks are {list(ranks)}: want distinct ranks below {self.world_size}")
        # The parent's root names the group, so that equal groups of different communicators do not meet.
        token = np.array([secrets.randbits(62)], np.int64)
        self.broadcast(token)
        if self.rank not in ranks:
            return None
        geometry = Geometry() if isinstance(self._member, Solo) else self._member.geometry
        rank = list(ranks).index(self.rank)
        if len(ranks) == 1 or self._worker is None:
            return Communicator(Solo(geometry), 0, (0,), None)
        assert isinstance(self._member, Member)
        machine = self._member.home.machine
        member = enter(self._worker, f"group {token[0]:x}", rank, len(ranks), geometry, timeout_s, machine=machine)
        return Communicator(member, rank, tuple(ranks), self._worker)

    def statistics(self) -> dict[str, dict[str, Any]]:
        """What happened so far, by name: ``engine`` (this group), ``nic`` (this process), ``switch`` (everybody)."""
        across = None if isinstance(self._member, Solo) else self._member.across
        engines = [member.engine for member in (self._member, across) if member is not None]
        counts = [asdict(engine.statistics()) for engine in engines if engine is not None]
        totals = {name: sum(count[name] for count in counts) for name in (counts[0] if counts else ())}
        totals["in_network_active"] = all(count["in_network_active"] for count in counts)
        if self._worker is None:
            return {"engine": totals, "nic": {}, "switch": {}}
        answer = self._worker.statistics()
        return {"engine": totals, "nic": dict(answer.workers), "switch": dict(answer.counters)}

    @property
    def scheme(self) -> str:
        """How reductions go, on how many machines, and whether a barrier has shown that the network adds."""
        return "1 rank: nothing to reduce" if isinstance(self._member, Solo) else describe(self._member)

    def close(self, *, in_good_order: bool = True) -> None:
        """Leave the group, and if `connect` made this communicator, unplug from the switch. Again does no harm.

        Not `in_good_order`, after a failure, the other ranks hear at once that this one is lost.
        """
        if self._worker is None or isinstance(self._member, Solo):
            return
        worker, self._worker = self._worker, None
        if self._owns_worker:
            worker.close(in_good_order=in_good_order)
        else:
            worker.leave(self._member)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_exception: object) -> None:
        self.close(in_good_order=exception_type is None)

    def _stack(self, array: np.ndarray) -> np.ndarray:
        return np.empty((self.world_size, *array.shape), array.dtype)

    def _block_shape(self, array: np.ndarray) -> tuple[int, ...]:
        if array.ndim == 0 or array.shape[0] % self.world_size:
            raise ConfigurationError(
                f"array has shape {array.shape}: its first dimension must be a multiple of {self.world_size} ranks"
            )
        return (array.shape[0] // self.world_size, *array.shape[1:])
