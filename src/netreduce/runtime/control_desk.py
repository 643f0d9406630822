"""The switch's control plane without its sockets: what a worker's request leads to, and what workers must be told.

Groups and rings are kept by `Rendezvous`; this adds what needs the switch itself: registration, the messages that wait,
the disagreements, and the counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netreduce.errors import AdmissionError
from netreduce.runtime.control_channel import BadMessageError
from netreduce.runtime.rendezvous import GROUPS_PER_PORT, Outgoing, Rendezvous
from netreduce.switch import RingSpec
from netreduce.units import PS_PER_S
from netreduce.wire import control
from netreduce.wire.control import COUNT_MAX

if TYPE_CHECKING:
    from netreduce.control.switch_network import AnySwitch

WAITING_NOTICE_PS = 2 * PS_PER_S
"""How long a message may wait for a rank before its ring is told; then once per interval."""
_MB = 1_000_000
WORKER_COUNTERS_MAX = 1024
"""Names of counters that are kept from the reports of workers."""


class ControlDesk:
    """Answers for `switch`. Messages to send are returned with the port that each goes to.

    A worker may be in `rings_per_worker` rings at a time.
    """

    def __init__(self, switch: AnySwitch, rings_per_worker: int = GROUPS_PER_PORT) -> None:
        self._switch = switch
        self.rendezvous = Rendezvous(self._register_ring, self._unregister_ring, rings_per_worker)
        self._waiting_told_ps: dict[int, int] = {}  # by ring id
        self._worker_counters: dict[str, int] = {}

    def _register_ring(self, ring_id: int, endpoints: tuple[control.Endpoint, ...], geometry: control.Geometry) -> None:
        spec = RingSpec(ring_id, endpoints, geometry)
        self._check_quotas(spec)
        self._switch.register_ring(spec)

    def _check_quotas(self, spec: RingSpec) -> None:
        """AdmissionError if a rank would hold more than its worker's share: what others need is not taken from them.

        A share is an equal one among the workers that are there. As a rule a switch has more ports than workers, and an
        equal part for each port would leave no room for a worker's second group.
        """
        quota = self._switch.memory_bytes // max(1, self._switch.attached_count)
        rings = self._switch.rings().values()
        for endpoint in spec.endpoints:
            held = sum(ring.rank_bytes for ring in rings if any(other.ip == endpoint.ip for other in ring.endpoints))
            if held + spec.rank_bytes > quota:
                raise AdmissionError(
                    f"rank {endpoint.rank} would hold {(held + spec.rank_bytes) / _MB:.1f} MB of aggregator memory, a "
                    f"worker's share is {quota / _MB:.1f} MB: lower message_window ({spec.geometry.message_window}) or "
                    f"message_packets ({spec.geometry.message_packets}), or give the switch more memory"
                )

    def _unregister_ring(self, ring_id: int) -> None:
        self._switch.unregister_ring(ring_id)
        self._waiting_told_ps.pop(ring_id, None)

    def answer(self, port: int, addresses: tuple[str, str], message: control.Message, now_ps: int) -> Outgoing:
        """What the request of the worker at `port`, whose IP and MAC are `addresses`, leads to.

        Raises `BadMessageError` when a worker may not say such a thing.
        """
        if isinstance(message, control.Join):
            if (message.endpoint.ip, message.endpoint.mac) != addresses:
                raise BadMessageError(f"{addresses[0]} joins as {message.endpoint.ip}")
            return self.rendezvous.join(port, message, now_ps / PS_PER_S)
        if isinstance(message, control.Ready):
            return self.rendezvous.ready(port, message)
        if isinstance(message, control.Leave):
            return self.rendezvous.leave(port, message)
        if isinstance(message, control.Mismatch):
            return self.rendezvous.disagree(port, message)
        if isinstance(message, control.Withdraw):
            return self.rendezvous.withdraw(port, message)
        if isinstance(message, control.Failed):
            return self.rendezvous.failed(port, message)
        if isinstance(message, control.Stuck):
            return self.rendezvous.stuck(port, message, now_ps / PS_PER_S)
        if isinstance(message, control.Report):
            self._add_report(message)
            return []
        if isinstance(message, control.StatisticsRequest):
            return [(port, self.statistics())]
        raise BadMessageError(f"a worker may not send {type(message).__name__}")

    def _add_report(self, report: control.Report) -> None:
        for name, value in report.counters.items():
            if name in self._worker_counters or len(self._worker_counters) < WORKER_COUNTERS_MAX:
                self._worker_counters[name] = min(self._worker_counters.get(name, 0) + value, COUNT_MAX)

    def lost(self, port: int, reason: str) -> Outgoing:
        """The worker at `port` is gone; those who still need it are told."""
        return self.rendezvous.lost(port, reason)

    def tick(self, now_ps: int) -> Outgoing:
        """Disagreements at once, and once per interval who waits for whom."""
        outgoing: Outgoing = []
        for notice in self._switch.notices():
            outgoing += self.rendezvous.to_members(notice.ring_id, notice)
        for waiting in self._switch.waiting(now_ps, WAITING_NOTICE_PS):
            told_ps = self._waiting_told_ps.get(waiting.ring_id)
            if told_ps is None or now_ps - told_ps >= WAITING_NOTICE_PS:
                self._waiting_told_ps[waiting.ring_id] = now_ps
                outgoing += self.rendezvous.to_members(waiting.ring_id, waiting)
        now_s = now_ps / PS_PER_S
        return outgoing + self.rendezvous.gathering_notices(now_s) + self.rendezvous.waiting_notices(now_s)

    def statistics(self) -> control.Statistics:
        """All counters, as operators ask for them, but for those of single ports."""
        return control.Statistics(
            counters=self._switch.counters(),
            workers=dict(self._worker_counters),
            rings={str(ring): self._switch.ring_counters(ring) for ring in self._switch.rings()},
            ports={},
        )
