"""Where the parts of a ring meet: a tree of switches from the racks of its ranks up to one root, and its parts.

Each rack, and each pod of racks, must hold neighbours on the ring: then exactly one connection leaves it, and carries
its partial sum. Sums run rank by rank inside a rack, then rack by rack in the order of their lowest ranks, and so on
upwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Union

import networkx

from netreduce.control.topology import Topology
from netreduce.errors import AdmissionError
from netreduce.switch import RingPart, RingSpec

Order = tuple[Union[int, "Order"], ...]
"""Ranks as they are summed; what stands in brackets of its own is summed first."""


@dataclass(frozen=True)
class Placement:
    """A ring's tree: for each switch that takes part, the one above it, None for the root, and the ranks below it."""

    above: dict[str, str | None]
    ranks: dict[str, frozenset[int]]

    @property
    def root(self) -> str:
        """The switch where the whole ring meets."""
        return next(name for name, above in self.above.items() if above is None)

    def below(self, switch: str) -> list[str]:
        """The switches whose partial sums meet at `switch`, in the order in which they are added."""
        found = [name for name, above in self.above.items() if above == switch]
        return sorted(found, key=lambda name: min(self.ranks[name]))

    def order(self, switch: str | None = None) -> Order:
        """How the sums below `switch`, by default all, are nested."""
        name = switch or self.root
        below = self.below(name)
        return tuple(self.order(child) for child in below) if below else tuple(sorted(self.ranks[name]))


def place(topology: Topology, ring_id: int, hosts: Sequence[str], avoid: Collection[str] = ()) -> Placement:
    """The tree of a ring whose rank r is on ``hosts[r]``, without the switches to `avoid`.

    Rings take turns at switches of equal distance, by `ring_id`. Raises AdmissionError if there is no such tree.
    """
    leaf_of = {host.name: host.switch for host in topology.hosts}
    for rank, host in enumerate(hosts):
        if host not in leaf_of:
            raise AdmissionError(f"ring {ring_id}: host {host} of rank {rank} is not in the topology")
    leaves = list(dict.fromkeys(leaf_of[host] for host in hosts))
    graph = topology.graph.subgraph([name for name in topology.graph if name not in avoid])
    for root in _roots(topology, graph, ring_id, leaves):
        above = _grow(graph, ring_id, leaves, root)
        ranks: dict[str, set[int]] = {name: set() for name in above}
        for rank, host in enumerate(hosts):
            at: str | None = leaf_of[host]
            while at is not None:
                ranks[at].add(rank)
                at = above[at]
        placement = Placement(above, {name: frozenset(below) for name, below in ranks.items()})
        _check_neighbours(ring_id, placement, len(hosts))
        return placement
    if avoid:
        raise AdmissionError(f"ring {ring_id}: no other switches join its hosts")
    far = next((leaf for leaf in leaves[1:] if not _roots(topology, graph, ring_id, [leaves[0], leaf])), leaves[-1])
    host = next(host for host in hosts if leaf_of[host] == far)
    raise AdmissionError(
        f"ring {ring_id}: no switch is above {' and '.join(dict.fromkeys((leaves[0], far)))}, so host {host} "
        f"of rank {list(hosts).index(host)} is out of reach"
    )


def _roots(topology: Topology, graph: networkx.DiGraph, ring_id: int, leaves: Sequence[str]) -> list[str]:
    """Switches above all `leaves`, the lowest first; among equals the ring's number decides."""
    if any(leaf not in graph for leaf in leaves):
        return []
    common = set.intersection(*({leaf, *networkx.descendants(graph, leaf)} for leaf in leaves))
    levels = sorted({topology.levels[name] for name in common})
    return [name for level in levels for name in _in_turn(ring_id, [n for n in common if topology.levels[n] == level])]


def _in_turn(ring_id: int, names: Iterable[str]) -> list[str]:
    """Equals in the order in which a ring prefers them: successive rings begin with successive ones."""
    ordered = sorted(names)
    first = ring_id % len(ordered)
    return ordered[first:] + ordered[:first]


def _grow(graph: networkx.DiGraph, ring_id: int, leaves: Sequence[str], root: str) -> dict[str, str | None]:
    """Ways from all leaves up to the root, each of the others' switches before new ones, so that ranks meet early."""
    above: dict[str, str | None] = {root: None}

    def cost(lower: str, upper: str, _: object) -> float:
        return 1 if upper in above else 2 + _in_turn(ring_id, graph.successors(lower)).index(upper) / len(graph)

    for leaf in leaves:
        way = networkx.shortest_path(graph, leaf, root, weight=cost)
        for lower, upper in pairwise(way):
            if lower in above:
                break
            above[lower] = upper
    return above


def _check_neighbours(ring_id: int, placement: Placement, rank_count: int) -> None:
    for switch, ranks in placement.ranks.items():
        out = [rank for rank in sorted(ranks) if (rank + 1) % rank_count not in ranks]
        if len(out) > 1:
            raise AdmissionError(
                f"ring {ring_id}: ranks {', '.join(map(str, sorted(ranks)))} under {switch} are not neighbours on the "
                "ring: number the ranks rack by rack"
            )


def parts(topology: Topology, placement: Placement, spec: RingSpec, hosts: Sequence[str]) -> dict[str, RingPart]:
    """What each switch of the placement has to know, by its name."""
    return {switch: _part(topology, placement, spec, hosts, switch) for switch in placement.above}


def _part(topology: Topology, placement: Placement, spec: RingSpec, hosts: Sequence[str], switch: str) -> RingPart:
    count, mine, above = len(hosts), placement.ranks[switch], placement.above[switch]
    below = placement.below(switch)

    def leaving(ranks: frozenset[int]) -> int | None:
        return next((rank for rank in ranks if (rank + 1) % count not in ranks), None)

    def port(rank: int) -> int:
        """Towards a rank."""
        if rank not in mine:
            assert above is not None, "all ranks are below the root"
            return topology.port(switch, above)
        return topology.port(switch, next((name for name in below if rank in placement.ranks[name]), hosts[rank]))

    out = leaving(mine)
    children = [rank for name in below if (rank := leaving(placement.ranks[name])) is not None] or sorted(mine)
    entering = None if out is None else next(r for r in range(count) if r not in mine and (r + 1) % count in mine)
    connections = [*children, *([] if entering is None else [entering])]
    ends = {rank: (port(rank), port((rank + 1) % count)) for rank in connections}
    return RingPart(spec, tuple(children), ends, out, entering, pinned=len(topology.switches) > 1)
