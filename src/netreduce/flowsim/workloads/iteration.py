"""One training iteration over a network: DDP's buckets and FSDP's shards, overlapped with the backward pass.

Communication runs on one stream, in order, as NCCL's does for one process group; it starts when its data are ready
and the stream is free. Computing is not slowed down by it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from netreduce.flowsim.workloads.models import Layer, Model

MIB = 1 << 20
FIRST_BUCKET_BYTES = MIB
BUCKET_BYTES = 25 * MIB
"""PyTorch's defaults: the first bucket is small, so that communication starts early (bucket_cap_mb = 25)."""

FORWARD_PART = 1 / 3
"""Of the computing time: the backward pass costs twice the forward one (a product per input and one per weight)."""

Seconds = Callable[[int], float]
"""Time of a collective on so many bytes."""


@dataclass(frozen=True)
class Bucket:
    """Bytes that are reduced together, and which part of the backward pass is over when they are ready."""

    size_bytes: int
    ready: float


@dataclass(frozen=True)
class Iteration:
    """Seconds of an iteration. exposed_s is the communication that computing does not hide."""

    compute_s: float
    communication_s: float
    total_s: float

    @property
    def exposed_s(self) -> float:
        return self.total_s - self.compute_s

    @property
    def share(self) -> float:
        """Communication's part of an iteration without any overlap, as the paper counts it."""
        return self.communication_s / (self.communication_s + self.compute_s)


def buckets(model: Model, first_bytes: int = FIRST_BUCKET_BYTES, cap_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """DDP's buckets in the order in which they get ready: parameters backwards; a full bucket is closed."""
    flops = sum(layer.flops for layer in model.layers)
    found: list[Bucket] = []
    size, done, limit = 0, 0.0, first_bytes
    for layer in reversed(model.layers):
        done += layer.flops
        for elements in reversed(layer.tensors):
            size += elements * model.item_bytes
            if size >= limit:
                found.append(Bucket(size, done / flops))
                size, limit = 0, cap_bytes
    if size:
        found.append(Bucket(size, 1.0))
    return found


def ddp(model: Model, compute_s: float, all_reduce: Seconds, *, overlap: bool = True) -> Iteration:
    """An iteration of distributed data parallel training."""
    forward_s = compute_s * FORWARD_PART
    backward_s = compute_s - forward_s
    free_s = communication_s = 0.0
    for bucket in buckets(model):
        time_s = all_reduce(bucket.size_bytes)
        communication_s += time_s
        ready_s = forward_s + backward_s * (bucket.ready if overlap else 1.0)
        free_s = max(free_s, ready_s) + time_s
    return Iteration(compute_s, communication_s, max(free_s, compute_s))


def units(model: Model) -> list[tuple[int, float]]:
    """What FSDP gathers at once, in forward order: (bytes, part of the FLOPs)."""
    flops = sum(layer.flops for layer in model.layers)

    def unit_of(layer: Layer) -> str:
        return layer.unit

    return [
        (sum(layer.parameters for layer in group) * model.item_bytes, sum(layer.flops for layer in group) / flops)
        for group in ([*layers] for _, layers in itertools.groupby(model.layers, unit_of))
    ]


def fsdp(model: Model, compute_s: float, all_gather: Seconds, reduce_scatter: Seconds) -> Iteration:
    """An iteration of fully sharded training: gather before each unit, both ways; scatter gradients after each.

    The next unit is gathered while one is computed, as FSDP prefetches; the last unit stays gathered for the backward
    pass.
    """
    timeline = _Timeline()
    shards = units(model)
    forward_s = compute_s * FORWARD_PART
    gathered_s = timeline.communicate(0.0, all_gather(shards[0][0]))
    for number, (_, part) in enumerate(shards):
        started_s = timeline.begin(gathered_s)
        if number + 1 < len(shards):
            gathered_s = timeline.communicate(started_s, all_gather(shards[number + 1][0]))
        timeline.compute(forward_s * part)
    gathered_s = timeline.computed_s
    for number, (size, part) in reversed(list(enumerate(shards))):
        started_s = timeline.begin(gathered_s)
        if number:
            gathered_s = timeline.communicate(started_s, all_gather(shards[number - 1][0]))
        timeline.compute((compute_s - forward_s) * part)
        timeline.communicate(timeline.computed_s, reduce_scatter(size))
    return Iteration(compute_s, timeline.communication_s, max(timeline.computed_s, timeline.free_s))


class _Timeline:
    """A computing stream and a communication stream."""

    def __init__(self) -> None:
        self.computed_s = self.free_s = self.communication_s = 0.0

    def begin(self, ready_s: float) -> float:
        """Computing goes on when its data are there."""
        self.computed_s = max(self.computed_s, ready_s)
        return self.computed_s

    def compute(self, time_s: float) -> None:
        self.computed_s += time_s

    def communicate(self, ready_s: float, time_s: float) -> float:
        """Returns when this collective is over."""
        self.free_s = max(self.free_s, ready_s) + time_s
        self.communication_s += time_s
        return self.free_s
