"""The rig: NICs around a switch in the simulator, with any number of rings across them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from netreduce.fabric import EcnMarking, Link, Simulator, star
from netreduce.nic import Nic, NicLimits
from netreduce.soak.program import Reliability, Ring
from netreduce.switch import Switch, SwitchLimits
from netreduce.units import GBPS
from netreduce.wire.control import Geometry


@dataclass(frozen=True)
class RigSettings:
    """What a rig is built from. Rates and delays are those of every link."""

    world_size: int = 4
    seed: int = 0
    quantum_ps: int = 0
    rate_bps: int = 100 * GBPS
    delay_ps: int = 500_000
    ecn: EcnMarking | None = None
    gap_policy: str = "pass"
    nic_limits: NicLimits = field(default_factory=NicLimits)
    switch_limits: SwitchLimits = field(default_factory=SwitchLimits)


class Rig:
    """P hosts `worker0` to `worker<P-1>` with one NIC each, a switch, and any number of rings across them."""

    def __init__(self, settings: RigSettings = RigSettings()) -> None:
        self.settings = settings
        self.simulator = Simulator(settings.seed, quantum_ps=settings.quantum_ps)
        self.nics = [
            Nic(f"worker{rank}", f"02:4e:52:00:00:{rank:02x}", f"10.78.0.{rank + 1}", limits=settings.nic_limits)
            for rank in range(settings.world_size)
        ]
        self.switch = Switch(
            "switch", settings.world_size, limits=settings.switch_limits, gap_policy=settings.gap_policy
        )
        self.links: list[Link] = star(
            self.simulator,
            self.nics,
            self.switch,
            rate_bps=settings.rate_bps,
            delay_ps=settings.delay_ps,
            ecn=settings.ecn,
        )
        for port, nic in enumerate(self.nics):
            self.switch.attach(port, nic.mac, nic.ip)
            nic.neighbours.update({other.ip: other.mac for other in self.nics})
        self.rings: list[Ring] = []
        self._ring_ids = 0

    def ring(
        self,
        geometry: Geometry,
        *,
        hosts: Sequence[int] | None = None,
        first_psns: Sequence[int] | None = None,
        reliability: Reliability = Reliability(),  # noqa: B008 (immutable)
        splice: bool = True,
    ) -> Ring:
        """A ring over `hosts` (default: all, in order). Without `splice` the switch only forwards its frames."""
        nics = [self.nics[host] for host in (range(len(self.nics)) if hosts is None else hosts)]
        self._ring_ids += 1
        ring = Ring(self._ring_ids, nics, geometry, first_psns or [0] * len(nics), reliability)
        ring.spliced = splice
        if splice:
            self.switch.register_ring(ring.spec())
        for rank in ring.ranks:
            self.simulator.run_on(rank.nic, rank.progress)
        self.rings.append(ring)
        return ring

    def close(self, ring: Ring) -> None:
        """Take a ring down: its queue pairs are destroyed, and the switch forgets it."""
        if ring.spliced:
            self.switch.unregister_ring(ring.ring_id)
        for rank in ring.ranks:
            rank.close()
        self.rings.remove(ring)
