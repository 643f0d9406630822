"""Engines in virtual time: P hosts with NICs and engines around one switch, on links of any rate, with marking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.engine import Engine
from netreduce.collectives.operation import Operation
from netreduce.fabric import EcnMarking, Simulator, star
from netreduce.nic import Nic, verbs
from netreduce.switch import RingSpec, Switch, SwitchLimits
from netreduce.units import GBPS, PS_PER_S, PS_PER_US
from netreduce.wire.control import Geometry

RING_ID = 1


@dataclass(frozen=True)
class EngineRigSettings:
    """What the rig is built from. Rates and delays are those of every link; `ack_timeout` is the verbs attribute."""

    world_size: int = 4
    geometry: Geometry = Geometry()  # noqa: RUF009 (immutable)
    tuning: Tuning = Tuning()  # noqa: RUF009 (immutable)
    rate_bps: int = 100 * GBPS
    delay_ps: int = 1 * PS_PER_US
    ecn: EcnMarking | None = None
    switch_limits: SwitchLimits = SwitchLimits()  # noqa: RUF009 (immutable)
    ack_timeout: int = 8  # 4.096 us x 2^8 = 1 ms
    gap_policy: str = "pass"
    quantum_ps: int = 0
    seed: int = 0


class EngineRig:
    """Hosts `worker0` to `worker<P-1>` at ports 0 to P-1 of `switch`; `links[port].down` is what leaves that port."""

    def __init__(self, settings: EngineRigSettings) -> None:
        self.simulator = Simulator(settings.seed, quantum_ps=settings.quantum_ps)
        ranks = range(settings.world_size)
        self.nics = [Nic(f"worker{rank}", f"02:4e:52:00:00:{rank:02x}", f"10.78.0.{rank + 1}") for rank in ranks]
        self.switch = Switch(
            "switch", settings.world_size, limits=settings.switch_limits, gap_policy=settings.gap_policy
        )
        self.links = star(
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
        self.engines = [
            Engine(
                verbs.Context(nic),
                rank,
                settings.world_size,
                settings.geometry,
                tuning=settings.tuning,
                seed=settings.seed,
                ack_timeout=settings.ack_timeout,
            )
            for rank, nic in enumerate(self.nics)
        ]
        endpoints = tuple(engine.endpoint() for engine in self.engines)
        self.switch.register_ring(RingSpec(RING_ID, endpoints, settings.geometry))
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
