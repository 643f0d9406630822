"""The control plane over the switches of a topology: addresses, rings, quotas, and what the switches notice.

Workers know nothing of it: a ring is registered by its endpoints, as with one switch. It goes to the tree that its
number prefers; where a switch of that has no room, it moves to another one; if there is none, it is refused with the
reasons of all.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx

from netreduce.control.placement import Placement, parts, place
from netreduce.control.topology import SwitchEntry, Topology
from netreduce.errors import AdmissionError
from netreduce.switch import RingSpec, Switch, SwitchLimits
from netreduce.wire.control import Mismatch, Waiting


def make_switches(topology: Topology, limits: SwitchLimits, gap_policy: str) -> dict[str, Switch]:
    """A switch for each entry, with as many ports as it has neighbours; `limits` where the entry says nothing."""
    return {
        entry.name: Switch(
            entry.name, len(topology.ports[entry.name]), limits=_limits(entry, limits), gap_policy=gap_policy
        )
        for entry in topology.switches
    }


def _limits(entry: SwitchEntry, limits: SwitchLimits) -> SwitchLimits:
    return limits._replace(
        memory_bytes=entry.memory_bytes or limits.memory_bytes,
        ring_memory_bytes=entry.ring_memory_bytes or limits.ring_memory_bytes,
        rings=entry.rings_max or limits.rings,
    )


class ControlPlane:
    """Rules over the `switches` of a topology, which it sets up: trunks, and one tree of them that carries floods."""

    def __init__(self, topology: Topology, switches: Mapping[str, Switch]) -> None:
        self.topology = topology
        self.switches = switches
        self.placements: dict[int, Placement] = {}
        self._host_of: dict[str, tuple[str, str]] = {}  # host and MAC address by IP address
        tree = networkx.minimum_spanning_edges(topology.graph.to_undirected(), data=False)
        flooding = set(map(frozenset, tree))
        for cable in topology.cables:
            floods = frozenset(cable.ends) in flooding
            for name, peer in (cable.ends, cable.ends[::-1]):
                switches[name].set_trunk(topology.port(name, peer), floods=floods)

    def attach(self, host: str, mac: str, ip: str) -> None:
        """Let a host own an address: its switch at its port, and all others know the way there."""
        number = next(i for i, entry in enumerate(self.topology.hosts) if entry.name == host)
        leaf = self.topology.hosts[number].switch
        self.switches[leaf].attach(self.topology.port(leaf, host), mac, ip)
        self._host_of[ip] = (host, mac)
        graph = self.topology.graph
        above = {leaf, *networkx.descendants(graph, leaf)}
        for name, switch in self.switches.items():
            ways = [lower for lower in graph.predecessors(name) if lower in above] if name in above else []
            ways = ways or [
                upper for upper in graph.successors(name) if above & {upper, *networkx.descendants(graph, upper)}
            ]
            if name != leaf and ways:
                switch.set_way(mac, self.topology.port(name, ways[number % len(ways)]))

    def detach(self, host: str) -> None:
        """Unplug a host: its port is down, and its addresses are free."""
        leaf = next(entry.switch for entry in self.topology.hosts if entry.name == host)
        self.switches[leaf].detach(self.topology.port(leaf, host))
        for ip, (owner, mac) in list(self._host_of.items()):
            if owner == host:
                del self._host_of[ip]
                for name, switch in self.switches.items():
                    if name != leaf:
                        switch.forget_way(mac)

    def register_ring(self, spec: RingSpec) -> Placement:
        """Place a ring and register its parts. AdmissionError says why it cannot be."""
        if spec.ring_id in self.placements:
            raise AdmissionError(f"ring {spec.ring_id} is registered already")
        for rank, endpoint in enumerate(spec.endpoints):
            if endpoint.ip not in self._host_of:
                raise AdmissionError(
                    f"ring {spec.ring_id}: address {endpoint.ip} of rank {rank} is not attached to any port"
                )
        hosts = [self._host_of[endpoint.ip][0] for endpoint in spec.endpoints]
        refusals: dict[str, str] = {}
        while True:
            try:
                placement = place(self.topology, spec.ring_id, hosts, refusals)
            except AdmissionError as error:
                raise AdmissionError("; ".join([*map(": ".join, refusals.items()), str(error)])) from None
            refusal = self._try(placement, spec, hosts)
            if refusal is None:
                self.placements[spec.ring_id] = placement
                return placement
            refusals |= refusal

    def _try(self, placement: Placement, spec: RingSpec, hosts: list[str]) -> dict[str, str] | None:
        """Register all parts, or none; the switch that has no room, and its reason."""
        done: list[Switch] = []
        for name, part in parts(self.topology, placement, spec, hosts).items():
            try:
                self.switches[name].register_part(part)
            except AdmissionError as error:
                for switch in done:
                    switch.unregister_ring(spec.ring_id)
                return {name: str(error)}
            done.append(self.switches[name])
        return None

    def unregister_ring(self, ring_id: int) -> None:
        """Forget a ring at all its switches. AdmissionError if it is not registered."""
        if ring_id not in self.placements:
            raise AdmissionError(f"ring {ring_id} is not registered")
        for name in self.placements.pop(ring_id).above:
            self.switches[name].unregister_ring(ring_id)

    def notices(self) -> list[Mismatch]:
        """Rings that failed since the last call because two ranks disagree; each once, and failed at all switches."""
        found: dict[int, Mismatch] = {}
        for switch in self.switches.values():
            for notice in switch.notices():
                found.setdefault(notice.ring_id, notice)
        for ring_id in found:
            for name in self.placements[ring_id].above:
                self.switches[name].fail_ring(ring_id)
        return list(found.values())

    def waiting(self, now_ps: int, longer_than_ps: int) -> list[Waiting]:
        """Messages that wait for some ranks for longer than that, and for which, oldest first; one entry a message.

        A spine misses racks, not ranks; which ranks of a rack, its own switch knows, unless none of them has sent.
        """
        found: dict[tuple[int, int], Waiting] = {}
        for ring_id, placement in self.placements.items():
            waits: dict[str, dict[int, Waiting]] = {name: {} for name in placement.above}
            for name, at in waits.items():
                everything = self.switches[name].waiting(now_ps, longer_than_ps)
                at |= {waiting.message_id: waiting for waiting in everything if waiting.ring_id == ring_id}
            for message_id in {message_id for at in waits.values() for message_id in at}:
                missing = self._missing(placement, placement.root, message_id, waits)
                seconds = max(at[message_id].waiting_s for at in waits.values() if message_id in at)
                found[ring_id, message_id] = Waiting(ring_id, message_id, tuple(sorted(missing)), seconds)
        return sorted(found.values(), key=lambda waiting: -waiting.waiting_s)

    def _missing(
        self, placement: Placement, switch: str, message_id: int, waits: Mapping[str, Mapping[int, Waiting]]
    ) -> frozenset[int]:
        """Ranks below `switch` that it waits for. One that says nothing of a message has not seen anything of it."""
        here, below = waits[switch].get(message_id), placement.below(switch)
        if not below:
            return frozenset(here.missing_ranks) if here else placement.ranks[switch]
        late = [name for name in below if here is None or placement.ranks[name] & set(here.missing_ranks)]
        return frozenset().union(*(self._missing(placement, name, message_id, waits) for name in late))
