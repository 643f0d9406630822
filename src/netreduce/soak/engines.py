"""Engines in virtual time: hosts with NICs and engines around one or several switches, on links of any rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.engine import Engine
from netreduce.collectives.operation import Operation
from netreduce.control.topology import Topology, star_topology
from netreduce.fabric import EcnMarking
from netreduce.nic import verbs
from netreduce.soak.network import Network
from netreduce.switch import RingSpec, SwitchLimits
from netreduce.units import GBPS, PS_PER_S, PS_PER_US
from netreduce.wire.control import Geometry

RING_ID = 1


@dataclass(frozen=True)
class EngineRigSettings:
    """What the rig is built from: a topology, or `world_size` hosts around a switch on links of this rate and delay.

    `ack_timeout` is the verbs attribute.
    """

    world_size: int = 4
    geometry: Geometry = Geometry()  # noqa: RUF009 (immutable)
    tuning: Tuning = Tuning()  # noqa: RUF009 (immutable)
    rate_bps: int = 100 * GBPS
    delay_ps: int = 1 * PS_PER_US
    topology: Topology | None = None
    ecn: EcnMarking | None = None
    switch_limits: SwitchLimits = SwitchLimits()  # noqa: RUF009 (immutable)
    ack_timeout: int = 8  # 4.096 us x 2^8 = 1 ms
    gap_policy: str = "pass"
    quantum_ps: int = 0
    seed: int = 0


class EngineRig(Network):
    """An engine on every host. Around one switch they are `worker0` and so on, at its ports 0 and so on."""

    def __init__(self, settings: EngineRigSettings) -> None:
        super().__init__(
            settings.topology
            or star_topology(settings.world_size, rate_bps=settings.rate_bps, delay_ps=settings.delay_ps),
            seed=settings.seed,
            quantum_ps=settings.quantum_ps,
            ecn=settings.ecn,
            gap_policy=settings.gap_policy,
            switch_limits=settings.switch_limits,
        )
        self.engines = [
            Engine(
                verbs.Context(nic),
                rank,
                len(self.nics),
                settings.geometry,
                tuning=settings.tuning,
                seed=settings.seed,
                ack_timeout=settings.ack_timeout,
            )
            for rank, nic in enumerate(self.nics)
        ]
        endpoints = tuple(engine.endpoint() for engine in self.engines)
        self.plane.register_ring(RingSpec(RING_ID, endpoints, settings.geometry))
        for nic, engine in zip(self.nics, self.engines, strict=True):
            engine.connect(RING_ID, endpoints)
            self.simulator.run_on(nic, engine.progress)

    def run(self, operations: Sequence[Operation], *, limit_ps: int = PS_PER_S) -> int:
        """Run until all operations are done; how long it took, in picoseconds. Raises the first error."""
        start_ps = self.simulator.now_ps
        self.simulator.run_until(lambda: all(operation.done for operation in operations), limit_ps=limit_ps)
        for operation in operations:
            if operation.error is not None:
                raise operation.error
        return self.simulator.now_ps - start_ps
