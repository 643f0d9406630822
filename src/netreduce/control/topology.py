"""Topologies: hosts in racks, each under one switch, and cables between switches of different levels.

Level 1 are the switches with racks (leaves), level 2 those above them (spines), and so on. Sums go up and down a tree
and never sideways, so a cable joins two levels; several switches over the same lower ones are welcome: each ring takes
one of them as its root. All is checked when a `Topology` is made, so that one which exists can be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx

from netreduce.errors import ConfigurationError
from netreduce.units import GBPS, PS_PER_US

RATE_BPS = 100 * GBPS
DELAY_PS = PS_PER_US


@dataclass(frozen=True)
class SwitchEntry:
    """One switch. `level` 0: as far from the nearest rack as its cables say."""

    name: str
    level: int = 0
    memory_bytes: int | None = None  # aggregator memory; None, here and below: as switches have by default
    ring_memory_bytes: int | None = None  # most of it that one ring may take
    rings_max: int | None = None


@dataclass(frozen=True)
class HostEntry:
    """One host and its cable to the switch of its rack."""

    name: str
    switch: str
    rate_bps: int = RATE_BPS
    delay_ps: int = DELAY_PS


@dataclass(frozen=True)
class CableEntry:
    """A cable between two switches, of `rate_bps` each way."""

    ends: tuple[str, str]
    rate_bps: int = RATE_BPS
    delay_ps: int = DELAY_PS

    def __str__(self) -> str:
        return f"link {self.ends[0]}--{self.ends[1]}"


@dataclass(frozen=True)
class Topology:
    """Hosts, switches and cables. Raises ConfigurationError that names the entry and what is wrong with it."""

    hosts: tuple[HostEntry, ...]
    switches: tuple[SwitchEntry, ...]
    cables: tuple[CableEntry, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        self._check_names()
        self._check_rates()
        _ = self.levels

    @cached_property
    def levels(self) -> dict[str, int]:
        """The level of each switch, 1 for leaves."""
        graph = networkx.Graph(cable.ends for cable in self.cables)
        leaves = {host.switch for host in self.hosts}
        graph.add_nodes_from(leaves)
        distances: dict[str, int] = networkx.multi_source_dijkstra_path_length(graph, leaves)
        for switch in self.switches:
            if switch.name not in distances:
                raise ConfigurationError(
                    f"switch {switch.name}: no cable leads from it to a rack; connect it or drop it"
                )
        levels = {switch.name: switch.level or distances[switch.name] + 1 for switch in self.switches}
        for cable in self.cables:
            if levels[cable.ends[0]] == levels[cable.ends[1]]:
                raise ConfigurationError(
                    f"{cable}: both switches are of level {levels[cable.ends[0]]}, which closes a loop that no sum can "
                    "use: connect them through a switch above both"
                )
        return levels

    @cached_property
    def graph(self) -> networkx.DiGraph:
        """The switches, with an edge from the lower to the upper end of each cable."""
        graph = networkx.DiGraph()
        graph.add_nodes_from(switch.name for switch in self.switches)
        graph.add_edges_from(sorted(cable.ends, key=self.levels.__getitem__) for cable in self.cables)
        return graph

    @cached_property
    def ports(self) -> dict[str, tuple[str, ...]]:
        """Who is at each port of each switch, by name: its hosts first, then other switches, as they are listed."""
        ports: dict[str, list[str]] = {switch.name: [] for switch in self.switches}
        for host in self.hosts:
            ports[host.switch].append(host.name)
        for one, other in (cable.ends for cable in self.cables):
            ports[one].append(other)
            ports[other].append(one)
        return {name: tuple(peers) for name, peers in ports.items()}

    def port(self, switch: str, peer: str) -> int:
        """Port of `switch` to its neighbour `peer`, a host or a switch."""
        return self.ports[switch].index(peer)

    def _check_names(self) -> None:
        if not self.hosts or not self.switches:
            raise ConfigurationError("a topology needs at least one switch and one rack with a host")
        switches = _unique("switch", (switch.name for switch in self.switches))
        racks: dict[str, str] = {}
        for host in self.hosts:
            if host.name in racks:
                where = (
                    f"of {host.switch}"
                    if racks[host.name] == host.switch
                    else f"of {racks[host.name]} and {host.switch}"
                )
                raise ConfigurationError(f"host {host.name}: is in two racks, {where}; a host has one cable")
            if host.name in switches:
                raise ConfigurationError(f"host {host.name}: a switch has the same name")
            if host.switch not in switches:
                raise ConfigurationError(f"host {host.name}: its switch {host.switch!r} is not listed")
            racks[host.name] = host.switch
        pairs = Counter(frozenset(cable.ends) for cable in self.cables)
        for cable in self.cables:
            for end in cable.ends:
                if end not in switches:
                    raise ConfigurationError(f"{cable}: there is no switch {end!r}")
            if cable.ends[0] == cable.ends[1]:
                raise ConfigurationError(f"{cable}: joins a switch with itself, a loop that no sum can use")
            if pairs[frozenset(cable.ends)] > 1:
                raise ConfigurationError(
                    f"{cable}: is listed {pairs[frozenset(cable.ends)]} times, a loop that no sum can use: "
                    "list it once, with the rate of all"
                )

    def _check_rates(self) -> None:
        named = [(f"host {host.name}", host) for host in self.hosts] + [(str(cable), cable) for cable in self.cables]
        for name, entry in named:
            if entry.rate_bps <= 0:
                raise ConfigurationError(f"{name}: its rate is {entry.rate_bps} bit/s, more than 0 is needed")
            if entry.delay_ps < 0:
                raise ConfigurationError(f"{name}: its latency is negative")
        for switch in self.switches:
            for what, value in (
                ("memory", switch.memory_bytes),
                ("ring-memory", switch.ring_memory_bytes),
                ("rings", switch.rings_max),
            ):
                if value is not None and value <= 0:
                    raise ConfigurationError(f"switch {switch.name}: {what} is {value}, more than 0 is needed")


def _unique(kind: str, names: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(f"{kind} {name}: is listed twice")
        seen.add(name)
    return seen


def star_topology(host_count: int, *, rate_bps: int = RATE_BPS, delay_ps: int = DELAY_PS) -> Topology:
    """`worker0` and so on around one switch, named `switch`."""
    hosts = tuple(HostEntry(f"worker{i}", "switch", rate_bps, delay_ps) for i in range(host_count))
    return Topology(hosts, (SwitchEntry("switch"),), title="single switch")


def leaf_spine_topology(
    racks: Sequence[int], spine_count: int = 1, *, rate_bps: int = RATE_BPS, delay_ps: int = DELAY_PS
) -> Topology:
    """Racks of so many hosts under `leaf0` and so on, and every leaf under every one of `spine0` and so on."""
    return _clos([racks], spine_count, 0, rate_bps, delay_ps, "leaf-spine")


def three_level_topology(
    pods: Sequence[Sequence[int]],
    spine_count: int = 1,
    core_count: int = 1,
    *,
    rate_bps: int = RATE_BPS,
    delay_ps: int = DELAY_PS,
) -> Topology:
    """Pods of racks: `spine_count` spines over each pod's leaves, and `core_count` super-spines over all spines."""
    return _clos(pods, spine_count, core_count, rate_bps, delay_ps, "three levels")


def _clos(
    pods: Sequence[Sequence[int]], spine_count: int, core_count: int, rate_bps: int, delay_ps: int, title: str
) -> Topology:
    hosts: list[HostEntry] = []
    cables: list[CableEntry] = []
    leaves: list[str] = []
    spines: list[str] = []
    cores = [f"core{i}" for i in range(core_count)]
    for pod in pods:
        over = [f"spine{len(spines) + i}" for i in range(spine_count)]
        for size in pod:
            leaf = f"leaf{len(leaves)}"
            hosts += [HostEntry(f"worker{len(hosts) + i}", leaf, rate_bps, delay_ps) for i in range(size)]
            cables += [CableEntry((leaf, spine), rate_bps, delay_ps) for spine in over]
            leaves.append(leaf)
        cables += [CableEntry((spine, core), rate_bps, delay_ps) for spine in over for core in cores]
        spines += over
    return Topology(tuple(hosts), tuple(map(SwitchEntry, (*leaves, *spines, *cores))), tuple(cables), title)
