"""What all rigs are built on: hosts with a NIC each, the switches of a topology and their control plane, on links."""

from __future__ import annotations

from netreduce.control.plane import ControlPlane, make_switches
from netreduce.control.topology import Topology
from netreduce.fabric import EcnMarking, Link, Simulator
from netreduce.nic import Nic, NicLimits
from netreduce.switch import Switch, SwitchLimits


class Network:
    """The nodes of a topology in virtual time. `limits` of switches hold where the topology says nothing.

    nics[i] is the NIC of host i, links[i] its cable, on which `up` is towards the switch; cables[lower, upper] joins
    two switches, and `up` is towards the upper one.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int = 0,
        quantum_ps: int = 0,
        ecn: EcnMarking | None = None,
        gap_policy: str = "hold",
        nic_limits: NicLimits = NicLimits(),  # noqa: B008 (immutable)
        switch_limits: SwitchLimits = SwitchLimits(),  # noqa: B008 (immutable)
    ) -> None:
        self.topology = topology
        self.simulator = Simulator(seed, quantum_ps=quantum_ps)
        self.nics = [Nic(host.name, *_addresses(i), limits=nic_limits) for i, host in enumerate(topology.hosts)]
        self.switches = make_switches(topology, switch_limits, gap_policy)
        self.plane = ControlPlane(topology, self.switches)
        self.links: list[Link] = []
        for nic, host in zip(self.nics, topology.hosts, strict=True):
            end = self.switches[host.switch], topology.port(host.switch, host.name)
            rate_bps, delay_ps = host.rate_bps, host.delay_ps
            self.links.append(self.simulator.connect(nic, 0, *end, rate_bps=rate_bps, delay_ps=delay_ps, ecn=ecn))
            self.plane.attach(host.name, nic.mac, nic.ip)
            nic.neighbours.update({other.ip: other.mac for other in self.nics})
        self.cables: dict[tuple[str, str], Link] = {}
        for cable in topology.cables:
            lower, upper = sorted(cable.ends, key=topology.levels.__getitem__)
            low = self.switches[lower], topology.port(lower, upper)
            high = self.switches[upper], topology.port(upper, lower)
            rate_bps, delay_ps = cable.rate_bps, cable.delay_ps
            link = self.simulator.connect(*low, *high, rate_bps=rate_bps, delay_ps=delay_ps, ecn=ecn)
            self.cables[lower, upper] = link

    @property
    def switch(self) -> Switch:
        """The switch, where there is only one."""
        (switch,) = self.switches.values()
        return switch


def _addresses(number: int) -> tuple[str, str]:
    """MAC and IP address of a host, which counts from 0."""
    last = number + 1
    return f"02:4e:52:00:{number >> 8:02x}:{number & 255:02x}", f"10.78.{last >> 8}.{last & 255}"
