"""The embedded NIC of a worker: bursts between its cable and the NIC, whose time is the progress thread's."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable

import numpy as np

from netreduce.nic import Nic, verbs
from netreduce.runtime import nic_round
from netreduce.runtime.cable import BadBurstError, Cable, Outlet, make_burst_buffer
from netreduce.runtime.carrier import Generous
from netreduce.runtime.clock import Clock
from netreduce.runtime.driver import Attachment, roce_words
from netreduce.runtime.plug import Plug, plug_in
from netreduce.runtime.tracing import worker_recorder
from netreduce.runtime.warmup import ensure_compiled
from netreduce.wire.burst_pipe import Put
from netreduce.wire.control import Endpoint

BURSTS_PER_ROUND = 4
"""Bursts taken before the NIC and the engines answer: what has piled up is acknowledged together."""


def attach_nic(address: str, worker: str) -> Attachment:
    """A `NicDriver` at the switch at `address`."""
    ensure_compiled()
    plug = plug_in(address, worker)
    clock = Clock(plug.attached.epoch_ns)
    words = roce_words(plug.attached.ip, plug.interface, plug.path_mtu) if plug.interface else ""
    return Attachment(NicDriver(plug, worker, clock), plug.channel, clock, words)


class NicDriver:
    """A `Driver` of an embedded NIC that takes the plug's addresses."""

    def __init__(self, plug: Plug, worker: str, clock: Clock) -> None:
        self.path_mtu = plug.path_mtu
        attached = plug.attached
        self._gateway = attached.gateway
        self._cable = plug.cable
        self._recorder = worker_recorder(attached.port, worker, attached.ip, clock.now_ps)
        self._nic = Nic(worker, attached.mac, attached.ip, events=self._recorder.log if self._recorder else None)
        self.context = verbs.Context(self._nic)
        self._outlet = Outlet(self._cable, self._nic.egress(0))
        self._buffer = make_burst_buffer()
        self._cable_is_full = False
        self._gives_all = isinstance(self._cable, Generous)
        self.round: NicRound | None = None
        if isinstance(self._cable, Cable) and self._recorder is None:
            self.round = NicRound(self._nic, self._cable)

    def take(self, now_ps: int) -> tuple[int, bool, bool]:
        """Take a few bursts from the cable."""
        if self.round is not None:
            moved = self.round.take(now_ps)
            return now_ps, moved, moved
        moved = False
        for _ in range(1 if self._gives_all else BURSTS_PER_ROUND):
            burst = self._cable.receive(self._buffer)
            if burst is None:
                break
            if self._recorder is None:
                self._nic.receive(0, burst, now_ps)
            else:
                now_ps = self._recorder.receive(self._nic, 0, burst)
            moved = True
        self._nic.advance(now_ps)
        return now_ps, moved, moved and not self._gives_all

    def give(self, now_ps: int) -> bool:
        """Put what the NIC has to send onto the cable."""
        if self.round is not None:
            return self.round.give(now_ps)
        self._nic.advance(now_ps)
        if self._outlet.is_empty or self._cable_is_full:
            return False
        self._cable_is_full = not self._outlet.send()
        return self._nic.is_held_up

    def be_patient(self, is_patient: bool) -> None:
        """Then acknowledgements alone wake nobody, if the carrier is a cable. They come before the NIC's timer."""
        if isinstance(self._cable, Cable):
            self._cable.is_patient = is_patient

    def watch(self, inbox: select.epoll) -> None:
        """The carrier."""
        self._inbox = inbox
        inbox.register(self._cable, select.EPOLLIN)

    def rest(self, now_ps: int, moved_ps: int, busy: bool) -> int:
        """The NIC's next timer. The carrier tells of a burst, and of room when it was full."""
        if self.round is not None:
            return self.round.rest(now_ps)
        if not isinstance(self._cable, Cable):
            self._inbox.modify(self._cable, select.EPOLLIN | (select.EPOLLOUT if self._cable_is_full else 0))
        self._cable_is_full = False  # or so: the next round finds out
        return self._nic.next_timer_ps() if self._cable.rest() else now_ps

    def wake(self) -> None:
        """The carrier's descriptor is readable."""
        self._cable.wake()
        if pause_s := self._cable.gather_s():
            time.sleep(pause_s)

    def learn(self, endpoints: Iterable[Endpoint]) -> None:
        """Their MAC addresses; or that of a switch that routes."""
        for endpoint in endpoints:
            self._nic.neighbours[endpoint.ip] = self._gateway or endpoint.mac

    def counters(self) -> dict[str, int]:
        """The NIC's own."""
        return self._nic.counters()

    def close(self) -> None:
        """Unplug the cable."""
        self.round = None
        self._cable.close()
        if self._recorder is not None:
            self._recorder.close()


class NicRound:
    """The rounds of `nic` on a `cable` that nobody records, in compiled calls (nic_round.py)."""

    def __init__(self, nic: Nic, cable: Cable) -> None:
        self.tables, self.pipes, self.bell = nic.tables, cable.pipes, cable.fileno()
        self.is_full = False
        self._cable = cable
        self._data_in, self._state_in, self._data_out, self._state_out = cable.pipes
        self._place = np.zeros(2, np.int64)
        self._nic = nic
        self._compiled = nic_round.load(nic.tables)

    def take(self, now_ps: int) -> bool:
        """As `NicDriver.take`; whether anything had come."""
        said = self._compiled.take(self.tables, self._data_in, self._state_in, self._place, BURSTS_PER_ROUND, now_ps)
        if said & nic_round.NONSENSE:
            raise BadBurstError.of(int(self._place[1]))
        if said & nic_round.RINGS:
            self._cable.ring()
        return said != 0

    def give(self, now_ps: int) -> bool:
        """As `NicDriver.give`."""
        is_full, is_patient = self.is_full, self._cable.is_patient
        put = self._compiled.give(self.tables, self._data_out, self._state_out, is_full, is_patient, now_ps)
        if put & Put.DONE_WAKE:
            self._cable.ring()
        if put & Put.NO_ROOM:
            self.is_full = True
        return self._nic.is_held_up and not self.is_full

    def rest(self, now_ps: int) -> int:
        """As `NicDriver.rest`."""
        self.is_full = False  # or so: the next round finds out
        return self._compiled.rest(self.tables, self._state_in, self._cable.sleep, now_ps)

    def go_on(self, *, is_full: bool, rings: bool) -> None:
        """Take over from a round that others have made: whether the cable is full, and its other end must be woken."""
        self.is_full |= is_full
        if rings:
            self._cable.ring()
