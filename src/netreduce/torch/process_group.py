"""The process group that `torch.distributed` calls, over one membership of the runtime.

torch has renamed some collectives: up to 2.12 it calls ``_allgather_base``, ``allgather_into_tensor_coalesced``,
``_reduce_scatter_base``, ``reduce_scatter_tensor_coalesced`` and ``alltoall_base``, later ``all_gather_single``,
``all_gather_single_coalesced``, ``reduce_scatter_single``, ``reduce_scatter_single_coalesced`` and
``all_to_all_single``. Both are here. The methods are called from Python and, where DDP's reducer or functional
collectives do it, from C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from operator import methodcaller
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.distributed import (
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroup,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from netreduce.collectives.algorithms import Algorithm
from netreduce.collectives.reductions import Reduction
from netreduce.errors import UnsupportedError
from netreduce.runtime.short_collectives import ShortCollectives
from netreduce.torch.devices import DeviceReducer
from netreduce.torch.tensors import ScaledReduction, Staged, reduction, stage_all
from netreduce.torch.work import WorkNetReduce

Step = tuple[Callable[[Any], Any], list[Staged]]
"""A call on the engine, made by the progress thread, and the tensors that get its results."""


class Membership(Protocol):
    """What a process group needs of `netreduce.runtime`: a `member.Member`, or `solo.Solo`."""

    short: ShortCollectives | None

    def start(self, function: Callable[[Any], Any]) -> Future[Any]:
        """Begin the operation ``function(engine)``; the future resolves when it is done."""


class ProcessGroupNetReduce(ProcessGroup):
    """Collectives of one group of ranks; `membership` carries them out, `leave` ends it.

    Tensors in device memory go by way of host memory; all-reduces of them by `devices`, if that is given.

    Every method checks its tensors at the call (`UnsupportedError`, `ValueError`), starts, and returns a `Work`. All
    ranks must call the same collectives in the same order; if they do not, each of them gets a `MismatchError`. That
    holds for callbacks of futures, too, which run on threads of their own: a communication hook whose callbacks start
    collectives (PowerSGD) needs a model in one bucket, or the order differs between ranks.
    """

    def __init__(
        self,
        membership: Membership,
        leave: Callable[[], None],
        rank: int,
        world_size: int,
        devices: DeviceReducer | None = None,
    ) -> None:
        # torch's stubs know only the constructor with a store, which does not make an object with Python methods.
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        self._membership = membership
        self._leave = leave
        self._devices = devices
        self._group_name = ""
        self._group_desc = ""

    # --- all ranks get the same

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> WorkNetReduce:
        """Reduce each tensor over all ranks, in place."""
        opts = opts or AllreduceOptions()
        if self._devices is not None and all(tensor.is_cuda for tensor in tensors):
            futures = [self._devices.all_reduce(tensor, self._reduction(tensor, opts)) for tensor in tensors]
            return WorkNetReduce("all_reduce", futures, list(tensors), [])
        steps: list[Step] = []
        for tensor in tensors:
            op, factor = self._reduction(tensor, opts)
            staged = Staged(tensor, factor=factor)
            if len(tensors) == 1 and not getattr(opts, "asyncOp", True) and self._is_done_at_once(staged, op):
                return WorkNetReduce("all_reduce", [], list(tensors), [])
            steps.append((methodcaller("all_reduce", staged.array, op), [staged]))
        return self._launch("all_reduce", steps, tensors)

    def _is_done_at_once(self, staged: Staged, op: Reduction) -> bool:
        """Run an all-reduce that its caller waits for as a short call, if that can be."""
        short = self._membership.short
        return short is not None and not staged.is_copy and short.all_reduce(staged.array, op, Algorithm.AUTO, None)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> WorkNetReduce:
        """Give every rank the root's values, in place."""
        root = (opts or BroadcastOptions()).rootRank
        is_root = self.rank() == root
        staged = [Staged(tensor, read=is_root, written=not is_root) for tensor in tensors]
        steps: list[Step] = [
            (methodcaller("broadcast", lent.array, root), [] if is_root else [lent]) for lent in staged
        ]
        return self._launch("broadcast", steps, tensors)

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> WorkNetReduce:
        """Put rank r's ``inputs[i]`` into every rank's ``outputs[i][r]``."""
        steps = [self._gather_all(targets, source) for targets, source in zip(outputs, inputs, strict=True)]
        return self._launch("all_gather", steps, [tensor for targets in outputs for tensor in targets])

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> WorkNetReduce:
        """Put rank r's ``inputs[i]`` into every rank's ``outputs[r][i]``."""
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> WorkNetReduce:
        """Put all ranks' inputs, in rank order, into every rank's `output`."""
        return self._launch("all_gather", [self._gather_all([output], source)], [output])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> WorkNetReduce:
        """`all_gather_single` for several pairs."""
        steps = [self._gather_all([output], source) for output, source in zip(outputs, inputs, strict=True)]
        return self._launch("all_gather", steps, outputs)

    def _gather_all(self, outputs: Sequence[Tensor], source: Tensor) -> Step:
        target, given = stage_all(outputs, read=False), Staged(source, written=False)
        self._check_blocks("output", target, given.array.size)
        return methodcaller("all_gather", given.array, _arrays(target)), target

    def barrier(self, opts: Any = None) -> WorkNetReduce:
        """Complete when all ranks have called it."""
        return self._launch("barrier", [(methodcaller("barrier"), [])], [])

    # --- one rank gets or gives

    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> WorkNetReduce:
        """Reduce each tensor over all ranks, in place at the root; other ranks' tensors stay as they are."""
        opts = opts or ReduceOptions()
        is_root = self.rank() == opts.rootRank
        steps: list[Step] = []
        for tensor in tensors:
            op, factor = self._reduction(tensor, opts)
            staged = Staged(tensor, written=is_root, factor=factor)
            steps.append((methodcaller("reduce", staged.array, opts.rootRank, op), [staged] if is_root else []))
        return self._launch("reduce", steps, tensors)

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> WorkNetReduce:
        """Put every rank's ``inputs[0]`` into the root's ``outputs[0]``, one tensor per rank."""
        root = (opts or GatherOptions()).rootRank
        given, targets = Staged(inputs[0], written=False), outputs[0] if self.rank() == root else []
        staged = stage_all(targets, read=False)
        if targets:
            self._check_blocks("output", staged, given.array.size)
        call = methodcaller("gather", given.array, _arrays(staged) if targets else None, root)
        return self._launch("gather", [(call, staged)], targets)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None) -> WorkNetReduce:
        """Put the root's ``inputs[0][r]`` into rank r's ``outputs[0]``."""
        root = (opts or ScatterOptions()).rootRank
        target, given = Staged(outputs[0], read=False), None
        if self.rank() == root:
            staged = stage_all(inputs[0], written=False)
            self._check_blocks("input", staged, target.array.size)
            given = _arrays(staged)
        return self._launch("scatter", [(methodcaller("scatter", given, target.array, root), [target])], outputs)

    # --- each rank gets its part

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> WorkNetReduce:
        """Reduce ``inputs[i]``, one tensor per rank, and put the r-th into rank r's ``outputs[i]``."""
        pairs = zip(outputs, inputs, strict=True)
        return self._launch("reduce_scatter", [self._scatter_reduced(*pair, opts) for pair in pairs], outputs)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> WorkNetReduce:
        """Reduce `source` and put its r-th part into rank r's `output`."""
        return self._launch("reduce_scatter", [self._scatter_reduced(output, [source], opts)], [output])

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> WorkNetReduce:
        """`reduce_scatter_single` for several pairs."""
        return self.reduce_scatter(outputs, [[source] for source in inputs], opts)

    def _scatter_reduced(self, output: Tensor, sources: Sequence[Tensor], opts: Any) -> Step:
        op, factor = self._reduction(output, opts or ReduceScatterOptions())
        target, given = Staged(output, read=False), stage_all(sources, written=False, factor=factor)
        self._check_blocks("input", given, target.array.size)
        return methodcaller("reduce_scatter", _arrays(given), target.array, op), [target]

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> WorkNetReduce:
        """Put rank r's ``inputs[p]`` into rank p's ``outputs[r]``."""
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise ValueError(f"all_to_all needs {self.size()} outputs and inputs, not {len(outputs)} and {len(inputs)}")
        target, given = stage_all(outputs, read=False), stage_all(inputs, written=False)
        call = methodcaller("all_to_all", [lent.array for lent in given], [lent.array for lent in target])
        return self._launch("all_to_all", [(call, target)], outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> WorkNetReduce:
        """As `alltoall`, of parts along the first dimension; without splits they are equal."""
        return self.alltoall(self._split(output, output_splits), self._split(source, input_splits), opts)

    def _split(self, tensor: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        rows = tensor.shape[0] if tensor.dim() else 0
        if not sizes and rows % self.size():
            raise ValueError(f"a first dimension of {rows} cannot be split evenly among {self.size()} ranks")
        return torch.split(tensor, list(sizes) or [rows // self.size()] * self.size())

    # --- between two ranks

    def send(self, tensors: Sequence[Tensor], peer: int, tag: int) -> WorkNetReduce:
        """Send to rank `peer`, which receives with the same tag."""
        staged = stage_all(tensors, written=False)
        return self._launch("send", [(methodcaller("send", lent.array, peer, tag), []) for lent in staged], tensors)

    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int) -> WorkNetReduce:
        """Receive from rank `peer`."""
        staged = stage_all(tensors, read=False)
        steps: list[Step] = [(methodcaller("receive", lent.array, peer, tag), [lent]) for lent in staged]
        return self._launch("recv", steps, tensors)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> WorkNetReduce:
        """Refused: a receiver invites one sender at a time to write into its memory."""
        raise UnsupportedError("receiving from any rank is not supported: name the source, recv(tensor, src=...)")

    # --- torch's older names

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- the group itself

    def getBackendName(self) -> str:
        """The name given to `init_process_group`."""
        return "netreduce"

    def setGroupName(self, name: str) -> None:
        """torch finds groups by this name in functional collectives and FSDP2."""
        self._group_name = name

    def getGroupName(self) -> str:
        """The name that torch has given to this group."""
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        """What the group is for, in torch's logs."""
        self._group_desc = description

    def getGroupDesc(self) -> str:
        """What the group is for."""
        return self._group_desc

    def shutdown(self) -> None:
        """Leave the group; `destroy_process_group` calls it."""
        if self._devices is not None:
            self._devices.close()
        self._leave()

    abort = shutdown

    # --- common to all

    def _launch(self, name: str, steps: Sequence[Step], outputs: Sequence[Tensor]) -> WorkNetReduce:
        """Start all steps; they were checked before, so none starts if one is wrong."""
        futures = [self._membership.start(call) for call, _ in steps]
        stores = [staged.store for _, written in steps for staged in written if staged.is_copy]
        return WorkNetReduce(name, futures, list(outputs), stores)

    def _reduction(self, tensor: Tensor, opts: Any) -> ScaledReduction:
        return reduction(tensor.dtype, opts.reduceOp, self.size())

    def _check_blocks(self, what: str, blocks: Sequence[Staged], block_size: int) -> None:
        """One block of `block_size` elements for every rank, each in a tensor of its own or all in one."""
        sizes = [block.array.size for block in blocks]
        if sizes not in ([block_size] * self.size(), [block_size * self.size()]):
            raise ValueError(f"{what} has {sizes} elements, expected {self.size()} blocks of {block_size}")


def _arrays(blocks: Sequence[Staged]) -> np.ndarray | list[np.ndarray]:
    """As the engine takes blocks: one array for all ranks, or a list of one for each rank."""
    return blocks[0].array if len(blocks) == 1 else [block.array for block in blocks]
