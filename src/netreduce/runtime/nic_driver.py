"""The embedded NIC of a worker: bursts between its cable and the NIC, whose time is the progress thread's."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable

from netreduce.nic import Nic, verbs
from netreduce.runtime.cable import Cable, Outlet, make_burst_buffer
from netreduce.runtime.clock import Clock
from netreduce.runtime.driver import Attachment, roce_words
from netreduce.runtime.plug import Plug, plug_in
from netreduce.runtime.tracing import worker_recorder
from netreduce.runtime.warmup import ensure_compiled
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

    def take(self, now_ps: int) -> tuple[int, bool]:
        """Take a few bursts from the cable."""
        moved = False
        for _ in range(BURSTS_PER_ROUND):
            burst = self._cable.receive(self._buffer)
            if burst is None:
                break
            if self._recorder is None:
                self._nic.receive(0, burst, now_ps)
            else:
                now_ps = self._recorder.receive(self._nic, 0, burst)
            moved = True
        return now_ps, moved

    def advance(self, now_ps: int) -> None:
        """Let the NIC's time pass."""
        self._nic.advance(now_ps)

    def give(self, now_ps: int) -> bool:
        """Put what the NIC has to send onto the cable."""
        self._nic.advance(now_ps)
        if self._outlet.is_empty or self._cable_is_full:
            return False
        self._cable_is_full = not self._outlet.send()
        return self._nic.is_held_up

    def be_patient(self, is_patient: bool) -> None:
        """Then acknowledgements alone wake nobody, if the carrier is a cable. They come before the NIC's timer."""
        if isinstance(self._cable, Cable):
            self._cable.is_patient = is_patient

    def due_ps(self, now_ps: int, moved_ps: int, busy: bool) -> int:
        """The NIC's next timer."""
        return self._nic.next_timer_ps()

    def watch(self, inbox: select.epoll) -> None:
        """The carrier."""
        self._inbox = inbox
        inbox.register(self._cable, select.EPOLLIN)

    def rest(self) -> bool:
        """The carrier tells of a burst, and of room when it was full."""
        if not isinstance(self._cable, Cable):
            self._inbox.modify(self._cable, select.EPOLLIN | (select.EPOLLOUT if self._cable_is_full else 0))
        self._cable_is_full = False  # or so: the next round finds out
        return self._cable.rest()

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
        self._cable.close()
        if self._recorder is not None:
            self._recorder.close()
