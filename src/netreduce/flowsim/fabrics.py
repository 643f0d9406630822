"""Fabrics: what lies between the machines' network ports ("endpoints"), with D-mod-K routing and aggregation trees.

D-mod-K spreads destinations evenly over the ways up (Zahavi, 2010): destination d takes way d mod K, so that traffic
that is a shift of ranks, as in a ring, meets no other flow on its way. A way over a failed link is replaced by the
next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.flowsim.flows import Ints
from netreduce.flowsim.links import Change, LinkBuilder, Links, changed


@dataclass(frozen=True)
class AggregationTree:
    """Where an in-network ring's data flow: up to the switch that completes the sum, and down to everybody.

    up, down: int64[n] link indices. up_members, down_members: int64[n], the ring's connections behind each link, so
    that an aggregator at every switch puts each byte on a link once, and one at the root alone puts it there
    `members` times. latency_s: from a worker to the root and back to the farthest worker. ports: for each aggregating
    switch, the ring's connections that it joins.
    """

    up: Ints
    up_members: Ints
    down: Ints
    down_members: Ints
    host_links: int
    latency_s: float
    levels: int
    ports: dict[str, int]


class Fabric(ABC):
    """Links between `endpoint_count` endpoints."""

    links: Links
    endpoint_count: int
    title: str

    @abstractmethod
    def routes(self, source: Ints, sink: Ints) -> Ints:
        """Routes between different endpoints: int64[flows, hops], padded with -1 between the first and the last hop."""

    @abstractmethod
    def tree(self, endpoints: Ints, number: int) -> AggregationTree:
        """The tree of ring `number`, whose connections end at `endpoints` (int64[members], repeats allowed)."""

    def change(self, changes: Sequence[Change]) -> None:
        """Apply what the user says of links."""
        self.links = changed(self.links, changes)

    def usable(self, links: Ints) -> np.ndarray:
        """Whether each link has capacity; -1 counts as usable."""
        return np.asarray((links < 0) | (self.links.capacity[links] > 0))


class LeafSpine(Fabric):
    """Endpoints under leaves, leaves under spines; without spines one leaf is a single switch."""

    def __init__(
        self,
        leaf_of: Ints,
        spine_count: int,
        *,
        capacity: float,
        uplink_capacity: float | None = None,
        latency_s: float = 1e-6,
        title: str = "leaf-spine",
    ) -> None:
        """leaf_of: int64[endpoints]. Capacities in bytes a second; an uplink has the endpoint's unless told
        otherwise.
        """
        self.leaf_of = np.asarray(leaf_of, np.int64)
        self.endpoint_count, self.spine_count, self.title = len(leaf_of), spine_count, title
        self.leaf_count = int(self.leaf_of.max()) + 1
        self._place = np.argsort(np.argsort(self.leaf_of, kind="stable"))  # endpoints counted leaf by leaf
        if self.leaf_count > 1 and spine_count < 1:
            raise ConfigurationError(f"{self.leaf_count} leaves need at least one spine to reach each other")
        builder, between = LinkBuilder(), uplink_capacity or capacity
        leaves, spines = range(self.leaf_count), range(spine_count if self.leaf_count > 1 else 0)
        ports = [(f"host{i}", f"leaf{leaf}") for i, leaf in enumerate(self.leaf_of.tolist())]
        self._up = builder.add((f"{host}->{leaf}" for host, leaf in ports), capacity, latency_s)
        self._down = builder.add((f"{leaf}->{host}" for host, leaf in ports), capacity, latency_s)
        self._rise = builder.add((f"leaf{i}->spine{s}" for i in leaves for s in spines), between, latency_s)
        self._fall = builder.add((f"spine{s}->leaf{i}" for i in leaves for s in spines), between, latency_s)
        self.links = builder.build()

    def rise(self, leaf: Ints, spine: Ints) -> Ints:
        return self._rise + leaf * self.spine_count + spine

    def fall(self, spine: Ints, leaf: Ints) -> Ints:
        return self._fall + leaf * self.spine_count + spine

    def routes(self, source: Ints, sink: Ints) -> Ints:
        here, there = self.leaf_of[source], self.leaf_of[sink]
        hops = np.full((len(source), 4), -1, np.int64)
        hops[:, 0], hops[:, 3] = self._up + source, self._down + sink
        away = np.flatnonzero(here != there)
        if len(away):
            spine = self._spines(here[away], there[away], sink[away])
            hops[away, 1], hops[away, 2] = self.rise(here[away], spine), self.fall(spine, there[away])
        return hops

    def _spines(self, here: Ints, there: Ints, sink: Ints) -> Ints:
        """D mod K, and the next spine where that way has failed."""
        spine = self._place[sink] % self.spine_count
        for _ in range(self.spine_count):
            dead = ~(self.usable(self.rise(here, spine)) & self.usable(self.fall(spine, there)))
            if not dead.any():
                break
            spine = np.where(dead, (spine + 1) % self.spine_count, spine)
        return spine

    def tree(self, endpoints: Ints, number: int) -> AggregationTree:
        hosts, per_host = np.unique(endpoints, return_counts=True)
        leaves, per_leaf = np.unique(self.leaf_of[endpoints], return_counts=True)
        up, down = [self._up + hosts], [self._down + hosts]
        members = [per_host]
        names = [f"leaf{leaf}" for leaf in leaves.tolist()]
        ports = dict(zip(names, per_leaf.tolist(), strict=True))
        if len(leaves) > 1:
            spine = self._common_spine(leaves, number)
            up.append(self.rise(leaves, np.full_like(leaves, spine)))
            down.append(self.fall(np.full_like(leaves, spine), leaves))
            members.append(per_leaf)
            ports[f"spine{spine}"] = len(leaves)
        return _tree(self.links, up, down, members, ports)

    def _common_spine(self, leaves: Ints, number: int) -> int:
        for attempt in range(self.spine_count):
            spine = np.full_like(leaves, (number + attempt) % self.spine_count)
            if np.all(self.usable(self.rise(leaves, spine)) & self.usable(self.fall(spine, leaves))):
                return int(spine[0])
        raise ConfigurationError(f"ring {number} spans {len(leaves)} leaves, but no spine reaches all of them")


def single_switch(endpoint_count: int, *, capacity: float, latency_s: float = 1e-6) -> LeafSpine:
    """All endpoints on one switch."""
    leaf_of = np.zeros(endpoint_count, np.int64)
    return LeafSpine(leaf_of, 0, capacity=capacity, latency_s=latency_s, title="single switch")


def leaf_spine(
    endpoint_count: int,
    per_leaf: int,
    spine_count: int,
    *,
    capacity: float,
    uplink_capacity: float | None = None,
    latency_s: float = 1e-6,
) -> LeafSpine:
    """`per_leaf` endpoints under each leaf; per_leaf / spine_count is the oversubscription at equal capacities."""
    leaf_of = np.arange(endpoint_count) // per_leaf
    return LeafSpine(leaf_of, spine_count, capacity=capacity, uplink_capacity=uplink_capacity, latency_s=latency_s)


def rail_optimised(
    machine_count: int,
    rail_count: int,
    machines_per_leaf: int,
    spine_count: int,
    *,
    capacity: float,
    latency_s: float = 1e-6,
) -> LeafSpine:
    """Port w of every machine goes to a leaf of rail w, so that equal workers meet without crossing a spine."""
    machine, rail = np.divmod(np.arange(machine_count * rail_count), rail_count)
    leaf_of = machine // machines_per_leaf * rail_count + rail
    return LeafSpine(leaf_of, spine_count, capacity=capacity, latency_s=latency_s, title="rail-optimised")


class FatTree(Fabric):
    """A three-level fat tree of k-port switches: k pods of k/2 edges and k/2 aggregation switches, (k/2)^2 cores.

    Al-Fares, Loukissas and Vahdat, SIGCOMM 2008. Endpoints fill it from the left.
    """

    def __init__(self, endpoint_count: int, radix: int, *, capacity: float, latency_s: float = 1e-6) -> None:
        half = radix // 2
        if radix % 2 or not 0 < endpoint_count <= radix * half * half:
            raise ConfigurationError(f"a fat tree of {radix}-port switches holds up to {radix * half * half} endpoints")
        self.endpoint_count, self.half, self.title = endpoint_count, half, f"fat tree k={radix}"
        edges = -(-endpoint_count // half)
        pods = -(-edges // half)
        builder = LinkBuilder()
        ports = [(f"host{i}", f"edge{i // half}") for i in range(endpoint_count)]
        lower = [(f"edge{e}", f"agg{e // half * half + a}") for e in range(edges) for a in range(half)]
        middle = [(p * half + a, a) for p in range(pods) for a in range(half)]
        upper = [(f"agg{agg}", f"core{a * half + c}") for agg, a in middle for c in range(half)]
        levels = (ports, lower, upper)
        self._up = [builder.add((f"{x}->{y}" for x, y in level), capacity, latency_s) for level in levels]
        self._down = [builder.add((f"{y}->{x}" for x, y in level), capacity, latency_s) for level in levels]
        self.links = builder.build()

    def _ways(self, edge: Ints, way: Ints, core: Ints) -> tuple[Ints, Ints]:
        """Offsets in the lower and upper level of links: edge to its `way`-th aggregation switch, that to `core`."""
        return edge * self.half + way, (edge // self.half * self.half + way) * self.half + core

    def routes(self, source: Ints, sink: Ints) -> Ints:
        here, there = source // self.half, sink // self.half
        hops = np.full((len(source), 6), -1, np.int64)
        hops[:, 0], hops[:, 5] = self._up[0] + source, self._down[0] + sink
        away = here != there
        far = here // self.half != there // self.half
        choice = sink % (self.half * self.half)
        for _ in range(self.half * self.half):
            way, core = choice % self.half, choice // self.half
            lower, upper = self._ways(here, way, core)
            lower_down, upper_down = self._ways(there, way, core)
            hops[away, 1], hops[away, 4] = (self._up[1] + lower)[away], (self._down[1] + lower_down)[away]
            hops[far, 2], hops[far, 3] = (self._up[2] + upper)[far], (self._down[2] + upper_down)[far]
            dead = ~self.usable(hops[:, 1:5]).all(axis=1)
            if not dead.any():
                break
            choice = np.where(dead, (choice + 1) % (self.half * self.half), choice)
        return hops

    def tree(self, endpoints: Ints, number: int) -> AggregationTree:
        edges = len(np.unique(endpoints // self.half))
        for attempt in range(self.half * self.half):
            choice = (number + attempt) % (self.half * self.half)
            tree = self._tree_by(endpoints, choice % self.half, choice // self.half)
            if self.usable(tree.up[tree.host_links :]).all() and self.usable(tree.down[tree.host_links :]).all():
                return tree
        raise ConfigurationError(f"ring {number} spans {edges} edge switches, but no core reaches all of them")

    def _tree_by(self, endpoints: Ints, way: int, core: int) -> AggregationTree:
        hosts, per_host = np.unique(endpoints, return_counts=True)
        edges, per_edge = np.unique(endpoints // self.half, return_counts=True)
        pods, first, per_pod = np.unique(edges // self.half, return_index=True, return_counts=True)
        up, down, members = [self._up[0] + hosts], [self._down[0] + hosts], [per_host]
        ports = {f"edge{edge}": int(count) for edge, count in zip(edges.tolist(), per_edge.tolist(), strict=True)}
        lower, upper = self._ways(edges, np.full_like(edges, way), np.full_like(edges, core))
        if len(edges) > 1:
            up.append(self._up[1] + lower)
            down.append(self._down[1] + lower)
            members.append(per_edge)
            ports.update({f"agg{p * self.half + way}": n for p, n in zip(pods.tolist(), per_pod.tolist(), strict=True)})
        if len(pods) > 1:
            up.append(self._up[2] + upper[first])
            down.append(self._down[2] + upper[first])
            members.append(np.add.reduceat(per_edge, first))
            ports[f"core{way * self.half + core}"] = len(pods)
        return _tree(self.links, up, down, members, ports)


def _tree(
    links: Links, up: list[Ints], down: list[Ints], members: list[Ints], ports: dict[str, int]
) -> AggregationTree:
    """Levels from the endpoints to the root; the latency is that of the slowest link of each level, both ways."""
    latency_s = sum(float(links.latency_s[level].max()) for level in [*up, *down])
    behind = np.concatenate(members)
    return AggregationTree(
        np.concatenate(up), behind, np.concatenate(down), behind, len(up[0]), latency_s, len(up), ports
    )
