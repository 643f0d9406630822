"""htsim's fat-tree files (.topo), and its connection matrices (.cm) as an export of simulated flows.

A .topo file gives Nodes, Tiers and Podsize, then for each tier Downlink_speed_Gbps, Radix_Down, Radix_Up (but for the
last one), Downlink_Latency_ns and optionally Bundle and Switch_Latency_ns. Names are case-insensitive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from netreduce.errors import ConfigurationError
from netreduce.flowsim.formats.lines import Lines
from netreduce.flowsim.graph import Edge, Graph
from netreduce.flowsim.pricing import Pricer

TIERS = (2, 3)
IGNORED = ("queue_up", "queue_down", "oversubscribed")


@dataclass
class _Tier:
    fields: dict[str, float] = field(default_factory=dict)

    def count(self, name: str, default: int = 0) -> int:
        return int(self.fields.get(name, default))

    @property
    def rate(self) -> float:
        """Bytes a second of a downlink, all cables of its bundle together."""
        return self.fields["downlink_speed_gbps"] * 1e9 / 8 * self.fields.get("bundle", 1)

    @property
    def latency_s(self) -> float:
        """Of a downlink and the switch above it."""
        return (self.fields.get("downlink_latency_ns", 0.0) + self.fields.get("switch_latency_ns", 0.0)) * 1e-9


def read(path: Path) -> Graph:
    """The described fat tree. Raises ConfigurationError that names the line."""
    lines = Lines(path)
    top, tiers = _fields(lines)
    for number, tier in enumerate(tiers):
        needed = ["downlink_speed_gbps", "radix_down"] + (["radix_up"] if number + 1 < len(tiers) else [])
        for name in needed:
            if name not in tier.fields:
                lines.fail(f"tier {number} has no {name}")
    if len(tiers) != top.get("tiers") or len(tiers) not in TIERS:
        lines.fail(f"{len(tiers)} tiers are described, Tiers says {top.get('tiers')}; 2 and 3 are understood")
    nodes = top.get("nodes", 0)
    tors, rest = divmod(nodes, tiers[0].count("radix_down"))
    if nodes < 2 or rest:
        lines.fail(f"{nodes} Nodes do not fill switches of {tiers[0].count('radix_down')} downlinks")
    edges = [
        edge
        for host in range(nodes)
        for edge in _cable(f"host{host}", f"tor{host // tiers[0].count('radix_down')}", tiers[0])
    ]
    pods = [range(tors)] if len(tiers) == 2 else _pods(lines, top, tiers, tors)
    per_pod = len(pods[0]) * tiers[0].count("radix_up") // tiers[1].count("radix_down")
    for number, pod in enumerate(pods):
        for tor in pod:
            edges += [e for a in range(per_pod) for e in _cable(f"tor{tor}", f"agg{number * per_pod + a}", tiers[1])]
    if len(tiers) == 3:
        up = tiers[1].count("radix_up")
        for agg in range(per_pod * len(pods)):
            first = agg % per_pod * up
            edges += [e for c in range(first, first + up) for e in _cable(f"agg{agg}", f"core{c}", tiers[2])]
    return Graph([f"host{host}" for host in range(nodes)], edges, f"htsim {path.name}")


def _fields(lines: Lines) -> tuple[dict[str, int], list[_Tier]]:
    top: dict[str, int] = {}
    tiers: list[_Tier] = []
    for words in lines:
        name = words[0].lower()
        if len(words) != 2:
            lines.fail("must be a name and a number")
        if name == "tier":
            if lines.integer(words[1], "tier") != len(tiers):
                lines.fail(f"tier {words[1]} comes after {len(tiers)} tiers: they are numbered from 0")
            tiers.append(_Tier())
        elif name in ("nodes", "tiers", "podsize"):
            top[name] = lines.integer(words[1], words[0], 1)
        elif not tiers:
            lines.fail(f"{words[0]} before the first Tier")
        elif name not in IGNORED:
            value = lines.number_of(words[1], words[0], or_zero=name.endswith("latency_ns"))
            tiers[-1].fields[name] = value
    return top, tiers


def _pods(lines: Lines, top: dict[str, int], tiers: list[_Tier], tors: int) -> list[range]:
    size, rest = divmod(top.get("podsize", 0), tiers[0].count("radix_down"))
    if not size or rest or tors % size:
        lines.fail(f"Podsize {top.get('podsize')} does not divide the nodes into pods of whole switches")
    return [range(first, first + size) for first in range(0, tors, size)]


def _cable(below: str, above: str, tier: _Tier) -> list[Edge]:
    return [(below, above, tier.rate, tier.latency_s), (above, below, tier.rate, tier.latency_s)]


CONNECTIONS_MAX = 1_000_000


def connection_matrix(pricer: Pricer, size_bytes: int) -> str:
    """An all-reduce as a .cm file: each transfer starts when its superstep does in our simulation.

    Starts are in picoseconds, as htsim's newer front ends read them. Raises ConfigurationError for schemes that
    aggregate in the network, which htsim cannot replay, and for too many transfers.
    """
    traffic = pricer.traffic
    if traffic.scheme.aggregator is not None:
        raise ConfigurationError(f"htsim knows no in-network aggregation, so it cannot replay {traffic.scheme.title}")
    rows: list[str] = []
    start_s = 0.0
    for transfers, time_s in pricer.steps(size_bytes):
        for source, sink, size in transfers:
            rows.append(f"{source}->{sink} id {len(rows) + 1} start {round(start_s * 1e12)} size {size}")
        if len(rows) > CONNECTIONS_MAX:
            raise ConfigurationError(f"more than {CONNECTIONS_MAX} transfers: export fewer ranks")
        start_s += time_s
    return "\n".join([f"Nodes {traffic.cluster.worker_count}", f"Connections {len(rows)}", *rows]) + "\n"
