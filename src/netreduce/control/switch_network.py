"""The switches of a topology as one node: the ports of hosts outside, and the cables between switches within.

A frame that enters at a host's port has crossed all switches when `receive` returns, and waits at the egress of another
host's port. So whatever drives a `Switch` drives a whole topology, in one process and without links between: rates and
delays of the topology do not matter here.
"""

from __future__ import annotations

import numpy as np

from netreduce.control.plane import ControlPlane, make_switches
from netreduce.control.topology import Topology
from netreduce.switch import RingSpec, Switch, SwitchLimits
from netreduce.units import NEVER_PS
from netreduce.wire.control import Mismatch, Waiting
from netreduce.wire.frames import FrameQueue, queue_burst_end, queue_release


class SwitchNetwork:
    """A `Switch` in all that hosts and their control plane see of it; port i is that of the topology's host i."""

    def __init__(
        self,
        topology: Topology,
        *,
        limits: SwitchLimits = SwitchLimits(),  # noqa: B008 (immutable)
        gap_policy: str = "hold",
    ) -> None:
        self.name = "switches"
        self.port_count = len(topology.hosts)
        self.switches = make_switches(topology, limits, gap_policy)
        self.plane = ControlPlane(topology, self.switches)
        leaves = {host.switch for host in topology.hosts}
        self.memory_bytes = sum(self.switches[leaf].memory_bytes for leaf in leaves)
        self._hosts = [host.name for host in topology.hosts]
        self._ports = [(self.switches[host.switch], topology.port(host.switch, host.name)) for host in topology.hosts]
        self._cables = [
            (self.switches[name].egress(topology.port(name, peer)), self.switches[peer], topology.port(peer, name))
            for cable in topology.cables
            for name, peer in (cable.ends, cable.ends[::-1])
        ]
        self._frames = [queue.state.view(np.ndarray)["frames"] for queue, _, _ in self._cables]
        self._retired_messages = 0

    # The node protocol.

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        """Take the frames of `burst` from host `port`, and let them cross."""
        switch, number = self._ports[port]
        switch.receive(number, burst, now_ps)
        while any(frames[0] for frames in self._frames):
            for queue, peer, peer_port in self._cables:
                _carry(queue, peer, peer_port, now_ps)

    def advance(self, now_ps: int) -> None:
        """Nothing is due: switches have no timers."""

    def next_timer_ps(self) -> int:
        """Never: switches have no timers."""
        return NEVER_PS

    def egress(self, port: int) -> FrameQueue:
        """The bounded queue of frames waiting to leave to host `port`."""
        switch, number = self._ports[port]
        return switch.egress(number)

    # The control plane.

    def attach(self, port: int, mac: str, ip: str) -> None:
        """Let host `port` own an address. ConfigurationError as from a switch."""
        self.plane.attach(self._hosts[port], mac, ip)

    def detach(self, port: int) -> None:
        """Unplug host `port`."""
        self.plane.detach(self._hosts[port])

    @property
    def attached_count(self) -> int:
        """How many ports have somebody attached."""
        leaves = {id(switch): switch for switch, _ in self._ports}
        return sum(switch.attached_count for switch in leaves.values())

    def bring_up(self, port: int) -> None:
        """Let frames out to host `port`."""
        switch, number = self._ports[port]
        switch.bring_up(number)

    def register_ring(self, spec: RingSpec) -> None:
        """Place a ring. AdmissionError says why it cannot be."""
        self.plane.register_ring(spec)

    def unregister_ring(self, ring_id: int) -> None:
        """Forget a ring. AdmissionError if it is not registered."""
        messages = self._messages(ring_id) if ring_id in self.plane.placements else 0
        self.plane.unregister_ring(ring_id)
        self._retired_messages += messages

    def rings(self) -> dict[int, RingSpec]:
        """The registered rings by id."""
        placements = self.plane.placements.items()
        return {ring_id: self.switches[placement.root].part(ring_id).spec for ring_id, placement in placements}

    def notices(self) -> list[Mismatch]:
        """Rings that failed since the last call because two ranks disagree; each once."""
        return self.plane.notices()

    def waiting(self, now_ps: int, longer_than_ps: int) -> list[Waiting]:
        """Messages that wait for ranks for longer than that, oldest first."""
        return self.plane.waiting(now_ps, longer_than_ps)

    def counters(self) -> dict[str, int]:
        """Totals of all switches; but messages are counted once, and of the queues the fullest."""
        counters = [switch.counters() for switch in self.switches.values()]
        totals = _sum(counters)
        totals["peak_queue_bytes"] = max(counts["peak_queue_bytes"] for counts in counters)
        totals["messages_aggregated"] = self._retired_messages + sum(map(self._messages, self.plane.placements))
        return totals

    def ring_counters(self, ring_id: int) -> dict[str, int]:
        """What all switches did for one ring; but messages are counted once. KeyError if it is not registered."""
        totals = _sum([self.switches[name].ring_counters(ring_id) for name in self.plane.placements[ring_id].above])
        return totals | {"messages_aggregated": self._messages(ring_id)}

    def port_counters(self, port: int) -> dict[str, int]:
        """Frames and bytes of host `port` in both directions, and its queue."""
        switch, number = self._ports[port]
        return switch.port_counters(number)

    def _messages(self, ring_id: int) -> int:
        """Messages of which all ranks have their part, where the whole ring meets."""
        return self.switches[self.plane.placements[ring_id].root].ring_counters(ring_id)["messages_aggregated"]


AnySwitch = Switch | SwitchNetwork


def _carry(queue: FrameQueue, peer: Switch, port: int, now_ps: int) -> None:
    data, state = queue.data, queue.state[0]
    while state.frames:
        end = int(queue_burst_end(data, state, data.size))  # may bring the head round the wrap
        start = int(state.head)
        queue_release(data, state, end)
        peer.receive(port, data[start:end], now_ps)


def _sum(counters: list[dict[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for counts in counters:
        for name, count in counts.items():
            totals[name] = totals.get(name, 0) + count
    return totals
