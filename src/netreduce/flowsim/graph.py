"""A fabric given as a list of links, as files describe it: shortest ways, D-mod-K among equal ones, trees from a
root.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

import numpy as np

from netreduce.errors import ConfigurationError
from netreduce.flowsim.fabrics import AggregationTree, Fabric
from netreduce.flowsim.flows import Ints
from netreduce.flowsim.links import Change, LinkBuilder

Edge = tuple[str, str, float, float]
"""(from, to, capacity in bytes a second, latency in seconds), one direction."""

FAR = 1 << 30


class Graph(Fabric):
    """`hosts` are the endpoints in order; every other node of `edges` is a switch. Flows pass through switches only."""

    def __init__(self, hosts: Sequence[str], edges: Sequence[Edge], title: str = "graph") -> None:
        self.hosts, self.title, self.endpoint_count = list(hosts), title, len(hosts)
        if len(set(hosts)) < len(hosts) or len(hosts) < 2:
            raise ConfigurationError(f"{title}: needs at least two hosts, each named once")
        builder = LinkBuilder()
        self._ends: list[tuple[str, str]] = []
        seen = set()
        for source, sink, capacity, latency_s in edges:
            if (source, sink) in seen or source == sink:
                raise ConfigurationError(f"{title}: link {source}->{sink} is given twice or leads nowhere")
            seen.add((source, sink))
            builder.add([f"{source}->{sink}"], capacity, latency_s)
            self._ends.append((source, sink))
        self.links = builder.build()
        self._host_set = set(hosts)
        self._forget()
        for host in hosts:
            if not self._out[host]:
                raise ConfigurationError(f"{title}: host {host} has no link")

    def change(self, changes: Sequence[Change]) -> None:
        super().change(changes)
        self._forget()

    def _forget(self) -> None:
        """Neighbours over links with capacity; distances and routes are found anew."""
        self._out: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._into: dict[str, list[str]] = defaultdict(list)
        for link, (source, sink) in enumerate(self._ends):
            if self.links.capacity[link] > 0:
                self._out[source].append((sink, link))
                self._into[sink].append(source)
        self._distances: dict[str, dict[str, int]] = {}
        self._routes: dict[tuple[int, int], list[int]] = {}

    def distances(self, sink: str) -> dict[str, int]:
        """Hops from every node that reaches `sink` through switches."""
        if sink not in self._distances:
            hops, queue = {sink: 0}, deque([sink])
            while queue:
                node = queue.popleft()
                if node in self._host_set and node != sink:
                    continue
                for before in self._into[node]:
                    if before not in hops:
                        hops[before] = hops[node] + 1
                        queue.append(before)
            self._distances[sink] = hops
        return self._distances[sink]

    def _way(self, source: str, sink: str, choice: int) -> list[int]:
        """Links from `source` to `sink`; `choice` mod K picks among K equally short ways at each node."""
        hops = self.distances(sink)
        if source not in hops:
            raise ConfigurationError(f"{self.title}: no way from {source} to {sink}")
        links, node = [], source
        while node != sink:
            nearer = [
                (after, link)
                for after, link in self._out[node]
                if hops.get(after, FAR) == hops[node] - 1 and (after == sink or after not in self._host_set)
            ]
            node, link = nearer[choice % len(nearer)]
            links.append(link)
        return links

    def routes(self, source: Ints, sink: Ints) -> Ints:
        found = []
        for pair in zip(source.tolist(), sink.tolist(), strict=True):
            if pair not in self._routes:
                self._routes[pair] = self._way(self.hosts[pair[0]], self.hosts[pair[1]], pair[1])
            found.append(self._routes[pair])
        longest = max(map(len, found), default=1)
        routes = np.full((len(found), longest), -1, np.int64)
        for row, way in zip(routes, found, strict=True):
            row[: len(way) - 1] = way[:-1]
            row[-1] = way[-1]
        return routes

    def tree(self, endpoints: Ints, number: int) -> AggregationTree:
        hosts, per_host = np.unique(endpoints, return_counts=True)
        names = [self.hosts[host] for host in hosts.tolist()]
        root = self._root(names, number)
        # The next hop towards the root depends on the node only, hence a tree; results take the same way back.
        ways = [self._way(name, root, number) for name in names]
        back = [[self._back(link) for link in way] for way in ways]
        behind: Counter[int] = Counter()
        for way, count in zip(ways, per_host.tolist(), strict=True):
            behind.update(dict.fromkeys(way, count))
        first = [way[0] for way in ways]
        up = first + sorted(set(behind) - set(first))
        ports: Counter[str] = Counter()
        for link in up:
            source, switch = self._ends[link]
            ports[switch] += behind[link] if source in self._host_set else 1
        members = np.array([behind[link] for link in up])
        latency_s = sum(max(float(self.links.latency_s[way].sum()) for way in both) for both in (ways, back))
        return AggregationTree(
            np.array(up),
            members,
            np.array([self._back(link) for link in up]),
            members,
            len(names),
            latency_s,
            max(map(len, ways)),
            dict(ports),
        )

    def _back(self, link: int) -> int:
        """The link of the other direction."""
        source, sink = self._ends[link]
        for after, back in self._out[sink]:
            if after == source:
                return back
        raise ConfigurationError(f"{self.title}: an aggregation tree needs the link {sink}->{source}, too")

    def _root(self, names: list[str], number: int) -> str:
        """A switch that is nearest to its farthest member; ring `number` picks among equals."""
        reach: dict[str, int] = {}
        switches = [node for node in self._out if node not in self._host_set]
        distances = [self.distances(name) for name in names]
        for switch in switches:
            reach[switch] = max(hops.get(switch, FAR) for hops in distances)
        nearest = min(reach.values(), default=FAR)
        if nearest >= FAR:
            raise ConfigurationError(f"{self.title}: ring {number} spans hosts that no switch reaches all")
        equals = [switch for switch in switches if reach[switch] == nearest]
        return equals[number % len(equals)]
