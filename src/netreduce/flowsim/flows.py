"""Batches of fluid flows: what crosses which link how often, with how many bytes.

A *flow* has one rate and crosses links, each `use` times. A point-to-point transfer crosses each link of its route
once. A *coupled* flow is the union of many connections that advance at one rate, as the connections do that an
aggregating switch splices: it crosses each member's links, and a link that carries three members has `use` 3. Bytes
are payload bytes; the header tax is part of `use` (a link that carries 1,106 wire bytes for 1,024 payload bytes has
use 1.08).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Flows:
    """A batch of `count` flows; the crossings of all flows are concatenated in the order of the flows.

    starts: int64[count + 1], crossings of flow i are starts[i]:starts[i + 1]; every flow has at least one.
    links: int64[crossings], link index. No flow names a link twice (add up its uses instead).
    uses: float64[crossings], link bytes per byte of the flow.
    size_bytes: float64[count].
    latency_s: float64[count], time between the start and the first byte; no link is occupied during it.
    weight: float64[count], share of a bottleneck relative to others (a connection is 1).
    bound: float64[count], highest rate in bytes a second, such as window / round-trip time; inf where there is none.
    """

    starts: Ints
    links: Ints
    uses: Floats
    size_bytes: Floats
    latency_s: Floats
    weight: Floats
    bound: Floats

    def __post_init__(self) -> None:
        assert self.starts[0] == 0
        assert self.starts[-1] == len(self.links) == len(self.uses)
        assert np.all(np.diff(self.starts) > 0), "a flow without links has no rate"
        assert np.all(self.size_bytes >= 0)
        assert np.all(self.weight > 0)
        assert np.all(self.bound > 0)

    def __len__(self) -> int:
        return len(self.size_bytes)

    def owners(self) -> Ints:
        """The flow of each crossing: int64[crossings]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def take(self, index: Ints) -> Flows:
        """The flows at `index` (int64[n]), in that order."""
        lengths = np.diff(self.starts)[index]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        where = np.repeat(self.starts[:-1][index] - starts[:-1], lengths) + np.arange(starts[-1])
        return Flows(
            starts,
            self.links[where],
            self.uses[where],
            self.size_bytes[index],
            self.latency_s[index],
            self.weight[index],
            self.bound[index],
        )


def _filled(value: Floats | float, count: int) -> Floats:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.float64), (count,)))


def routed(
    routes: Ints,
    size_bytes: Floats | float,
    latency_s: Floats | float = 0.0,
    *,
    use: Floats | float = 1.0,
    weight: Floats | float = 1.0,
    bound: Floats | float = np.inf,
) -> Flows:
    """Point-to-point flows over `routes`, int64[flows, hops] of link indices padded with -1."""
    count = len(routes)
    present = routes >= 0
    starts = np.concatenate(([0], np.cumsum(present.sum(axis=1))))
    links = routes[present]
    return Flows(
        starts,
        links,
        np.repeat(_filled(use, count), present.sum(axis=1)),
        _filled(size_bytes, count),
        _filled(latency_s, count),
        _filled(weight, count),
        _filled(bound, count),
    )


def coupled(
    links: Ints,
    size_bytes: float,
    latency_s: float = 0.0,
    *,
    uses: Floats | float = 1.0,
    weight: float = 1.0,
    bound: float = np.inf,
) -> Flows:
    """One flow over all `links` (repeats allowed: their uses add up) at one common rate."""
    distinct, member = np.unique(links, return_inverse=True)
    total = np.bincount(member, _filled(uses, len(links)), len(distinct)).astype(np.float64)
    return Flows(
        np.array([0, len(distinct)]),
        distinct,
        total,
        _filled(size_bytes, 1),
        _filled(latency_s, 1),
        _filled(weight, 1),
        _filled(bound, 1),
    )


def concatenated(batches: list[Flows]) -> Flows:
    """All flows of `batches`, in order."""
    if len(batches) == 1:
        return batches[0]
    offsets = np.cumsum([0] + [len(batch.links) for batch in batches])
    starts = [batch.starts[:-1] + offset for batch, offset in zip(batches, offsets, strict=False)]
    return Flows(
        np.concatenate([*starts, [offsets[-1]]]),
        np.concatenate([batch.links for batch in batches]),
        np.concatenate([batch.uses for batch in batches]),
        np.concatenate([batch.size_bytes for batch in batches]),
        np.concatenate([batch.latency_s for batch in batches]),
        np.concatenate([batch.weight for batch in batches]),
        np.concatenate([batch.bound for batch in batches]),
    )
