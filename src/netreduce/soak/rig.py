"""The rig: NICs and switches in the simulator, with any number of rings across them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from netreduce.control.topology import Topology, star_topology
from netreduce.fabric import EcnMarking
from netreduce.nic import NicLimits
from netreduce.soak.network import Network
from netreduce.soak.program import Reliability, Ring
from netreduce.switch import SwitchLimits
from netreduce.units import GBPS
from netreduce.wire.control import Geometry


@dataclass(frozen=True)
class RigSettings:
    """What a rig is built from: a topology, or `world_size` hosts around a switch on links of this rate and delay."""

    world_size: int = 4
    seed: int = 0
    quantum_ps: int = 0
    rate_bps: int = 100 * GBPS
    delay_ps: int = 500_000
    topology: Topology | None = None
    ecn: EcnMarking | None = None
    gap_policy: str = "pass"
    nic_limits: NicLimits = field(default_factory=NicLimits)
    switch_limits: SwitchLimits = field(default_factory=SwitchLimits)


class Rig(Network):
    """Hosts with one NIC each, `worker0` and so on if they stand around one switch, and any number of rings."""

    def __init__(self, settings: RigSettings = RigSettings()) -> None:
        self.settings = settings
        super().__init__(
            settings.topology
            or star_topology(settings.world_size, rate_bps=settings.rate_bps, delay_ps=settings.delay_ps),
            seed=settings.seed,
            quantum_ps=settings.quantum_ps,
            ecn=settings.ecn,
            gap_policy=settings.gap_policy,
            nic_limits=settings.nic_limits,
            switch_limits=settings.switch_limits,
        )
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
        """A ring over `hosts` (default: all, in order). Without `splice` switches only forward its frames."""
        nics = [self.nics[host] for host in (range(len(self.nics)) if hosts is None else hosts)]
        self._ring_ids += 1
        ring = Ring(self._ring_ids, nics, geometry, first_psns or [0] * len(nics), reliability)
        ring.spliced = splice
        if splice:
            self.plane.register_ring(ring.spec())
        for rank in ring.ranks:
            self.simulator.run_on(rank.nic, rank.progress)
        self.rings.append(ring)
        return ring

    def close(self, ring: Ring) -> None:
        """Take a ring down: its queue pairs are destroyed, and the switch forgets it."""
        if ring.spliced:
            self.plane.unregister_ring(ring.ring_id)
        for rank in ring.ranks:
            rank.close()
        self.rings.remove(ring)
