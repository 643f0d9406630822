"""All-reduce of tensors in device memory, by Parallel NetReduce: inside a machine by the devices' own process group.

The inner group (NCCL) reduces the tensor and scatters it, so that each worker holds its share; the shares go through
host memory and the switch, in the ring across machines; the inner group gathers them again. Whatever is lost or
late inside the machine is reported as everywhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ReduceOp, ReduceScatterOptions

from netreduce.collectives.reductions import Reduction
from netreduce.errors import CollectiveTimeoutError, NetReduceError, UnsupportedError
from netreduce.runtime.member import LEFT_GRACE_S, Member
from netreduce.torch.tensors import ScaledReduction, Staged

InnerGroup = Callable[[Store, int, int, timedelta], Any]
"""Makes a process group from a store, a rank, a size and a timeout: `ProcessGroupNCCL`, or any with its methods."""
POLL_S = 100e-6
"""Interval of asking devices whether they are done."""

_INNER_OPS: dict[Reduction, Any] = {
    Reduction.SUM: ReduceOp.SUM,
    Reduction.AVERAGE: ReduceOp.SUM,
    Reduction.PRODUCT: ReduceOp.PRODUCT,
    Reduction.MIN: ReduceOp.MIN,
    Reduction.MAX: ReduceOp.MAX,
}


class DeviceReducer:
    """All-reduces of device tensors for `member`, whose machines have several workers each.

    Calls are carried out one after the other, on a thread of their own, in their order, which is the same on all ranks.
    `join` enters a ring across machines of its own, so that calls on host tensors may overlap. Both groups are made
    with the first call.
    """

    def __init__(
        self,
        member: Member,
        join: Callable[[], Member],
        store: Store,
        inner_group: InnerGroup,
    ) -> None:
        assert member.machines is not None
        self._member = member
        self._join = join
        self._mates = member.machines.mates(member.rank)
        self._store = PrefixStore(f"netreduce/{member.name}/machine/{self._mates[0]}", store)
        self._inner_group = inner_group
        self._inner: Any = None
        self._across: Member | None = None
        self._thread = ThreadPoolExecutor(1, "netreduce-device")

    def all_reduce(self, tensor: Tensor, scaled: ScaledReduction) -> Future[None]:
        """Reduce `tensor` over all ranks, in place; what the caller's stream has to do before comes before."""
        if scaled.op not in _INNER_OPS:
            known = ", ".join(op.name for op in _INNER_OPS)
            raise UnsupportedError(f"{scaled.op.name} is not supported on {tensor.device}; there are {known}")
        event = None
        if tensor.is_cuda:
            event = torch.cuda.current_stream(tensor.device).record_event()
        return self._thread.submit(self._run, tensor.detach(), scaled, event)

    def close(self) -> None:
        """End; the ring across machines goes with the group."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._inner = None

    def _run(self, tensor: Tensor, scaled: ScaledReduction, event: Any) -> None:
        if self._member.error is not None:
            raise self._member.error
        try:
            if tensor.is_cuda:
                torch.cuda.set_device(tensor.device)
                torch.cuda.current_stream().wait_event(event)
            if self._across is None:
                self._across = self._join()
                place = self._mates.index(self._member.rank), len(self._mates)
                self._inner = self._inner_group(self._store, *place, timedelta(seconds=self._member.timeout_s))
            self._reduce(tensor, scaled, self._across)
            if tensor.is_cuda:
                torch.cuda.current_stream().synchronize()
        except NetReduceError:
            self._give_up(tensor)
            raise
        except RuntimeError as error:
            self._give_up(tensor)
            raise self._named(error) from error

    def _reduce(self, tensor: Tensor, scaled: ScaledReduction, across: Member) -> None:
        count = tensor.numel()
        share_count = -(-count // len(self._mates))
        padded = tensor.new_zeros(share_count * len(self._mates))
        padded[:count] = tensor.reshape(-1) if scaled.factor is None else tensor.reshape(-1) * scaled.factor
        share = padded.new_empty(share_count)
        options = ReduceScatterOptions()
        options.reduceOp = _INNER_OPS[scaled.op]
        self._await(tensor, self._inner._reduce_scatter_base(share, padded, options))
        staged = Staged(share)
        op = Reduction.SUM if scaled.op is Reduction.AVERAGE else scaled.op
        across.start(methodcaller("all_reduce", staged.array, op)).result()
        if staged.is_copy:
            staged.store()
        if scaled.op is Reduction.AVERAGE:
            share /= self._member.world_size
        self._await(tensor, self._inner._allgather_base(padded, share))
        tensor.copy_(padded[:count].view(tensor.shape))

    def _await(self, tensor: Tensor, work: Any) -> None:
        """Until the inner group has done its part. A kernel that waits for a lost device never ends by itself."""
        deadline = time.monotonic() + self._member.timeout_s
        while tensor.is_cuda and not work.is_completed():
            if self._member.error is not None:
                raise self._member.error
            if time.monotonic() > deadline:
                ranks = [rank for rank in self._mates if rank != self._member.rank]
                raise CollectiveTimeoutError(
                    f"all_reduce: ranks {ranks} of this machine were not done after {self._member.timeout_s:g} s"
                )
            time.sleep(POLL_S)
        work.wait()

    def _give_up(self, tensor: Tensor) -> None:
        """Leave the inner group, so that mates who wait in it need not do so for long."""
        inner, self._inner = self._inner, None
        if tensor.is_cuda and inner is not None:
            inner.abort()

    def _named(self, error: RuntimeError) -> BaseException:
        """What the group says of a failure inside the machine: the switch tells of a loss in a moment."""
        deadline = time.monotonic() + LEFT_GRACE_S
        while self._member.error is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return self._member.error or NetReduceError(f"the process group inside this machine failed: {error}")
