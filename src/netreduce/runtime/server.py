"""The switch server: one thread moves bursts between carriers and the switch, and answers the control connections.

It never waits for anybody: see `lines.py` for frames. A connection that misbehaves is closed with a logged reason; the
others do not notice.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netreduce.errors import ConfigurationError
from netreduce.runtime.cable import Cable, CableClosedError, load, make_burst_buffer, peer_credentials
from netreduce.runtime.clock import Clock
from netreduce.runtime.control_channel import BadMessageError, ControlChannel
from netreduce.runtime.control_desk import ControlDesk
from netreduce.runtime.exchange import POLL_INTERVAL_PS
from netreduce.runtime.lines import Lines
from netreduce.runtime.live_faults import LiveFaults
from netreduce.runtime.observers import Observers
from netreduce.runtime.outside import OutsidePorts
from netreduce.runtime.poller import WRITABLE, Poller
from netreduce.runtime.reception import OBSERVER_PORT, Greeting, Reception, peer_name
from netreduce.runtime.rendezvous import GROUPS_PER_PORT, Outgoing
from netreduce.runtime.tracing import Recorder
from netreduce.units import PS_PER_MS, PS_PER_S
from netreduce.wire import control
from netreduce.wire.pcap import Direction, PcapWriter

if TYPE_CHECKING:
    from netreduce.control.switch_network import AnySwitch

logger = logging.getLogger("netreduce.switch")

CONNECTIONS_PER_PORT_MAX = 4
"""Bound on watched descriptors, as a multiple of the ports: cable, control, the worker's death, and one to spare."""
TICK_PS = 100 * PS_PER_MS
"""Interval of the housekeeping: mismatches, waiting ranks, groups that gather, silent connections."""
OWNER_GRACE_PS = PS_PER_S // 2
"""How long the server stays without owner and cables, for workers that are just about to connect."""


REMOTE_FIRST = 1 << 16
"""Workers that are not at a port of their own get numbers from here on."""


@dataclass
class _Worker:
    """A worker: at a cable's port, with a control connection once it has said hello; or on the switch's network."""

    number: int  # of its port; from `REMOTE_FIRST` on if it has none of its own
    mac: str
    ip: str
    name: str
    process: str  # which one it is, for messages
    pid: int = 0
    death_fd: int = -1  # pidfd of the worker's process: its forked children may keep the cable open after its death
    channel: ControlChannel | None = None


def _fields(event: str, worker: _Worker) -> dict[str, str]:
    """What a structured log says of a worker."""
    return {"event": event, "worker": worker.name, "ip": worker.ip, "mac": worker.mac}


class SwitchServer:
    """Serves `switch` on `listener` (of `cable.listen`) until `run` returns.

    `capture` sees every burst on a cable, `recorder` every frame that comes and every event of the switch; `faults`
    lie between the two and whoever is plugged in.
    """

    def __init__(
        self,
        switch: AnySwitch,
        listener: socket.socket,
        clock: Clock,
        capture: PcapWriter | None = None,
        recorder: Recorder | None = None,
        faults: LiveFaults | None = None,
        rings_per_worker: int = GROUPS_PER_PORT,
    ) -> None:
        self._switch = switch
        self._clock = clock
        load()
        if capture is not None:
            capture.write_burst(0, Direction.UNKNOWN, make_burst_buffer()[:0])  # nothing, but it loads what is compiled
        self._poller = Poller()
        self._lines = Lines(switch, self._poller, clock, self._line_lost, capture, recorder, faults)
        self.outside = OutsidePorts(switch, self._lines, self._poller, clock)
        self._receptions = [Reception(listener, self._poller, clock, self._admit, self._connections_max)]
        self._desk = ControlDesk(switch, rings_per_worker)
        self._faults = faults
        self._observers = Observers(switch, self._desk, self.outside, self._poller, self._statistics)
        self._workers: dict[int, _Worker] = {}
        self._hosts_named = 0
        self._remotes_named = 0
        self._next_tick_ps = 0
        self._owner_is_gone = False
        self._is_idle = True
        self._polled_ps = 0

    @property
    def _connections_max(self) -> int:
        return CONNECTIONS_PER_PORT_MAX * self._switch.port_count

    def listen_tcp(self, listener: socket.socket, token: str) -> None:
        """Also admit who knows `token` on `listener`, a TCP socket: workers on the switch's network, and observers."""
        self._receptions.append(
            Reception(listener, self._poller, self._clock, self._admit, self._connections_max, token)
        )

    # --- the loop

    def watch_owner(self, descriptor: int) -> None:
        """End, once no worker remains, after the other end of the socket `descriptor` has closed."""

        def hung_up(_mask: int) -> None:
            self._poller.unwatch(descriptor)
            self._owner_is_gone = True

        self._poller.watch(descriptor, hung_up)

    def drain_on(self, descriptor: int) -> None:
        """As `watch_owner`; and nobody is admitted any more from then on."""

        def asked(_mask: int) -> None:
            self._poller.unwatch(descriptor)
            self._owner_is_gone = True
            for reception in self._receptions:
                reception.close()
            logger.info("draining: %d workers are left", len(self._workers))

        self._poller.watch(descriptor, asked)

    def run(self) -> None:
        """Serve until the owner is gone and no worker has been there for a moment."""
        wanted_ps = self._clock.now_ps()
        while True:
            now_ps = self.turn()
            if self._workers or not self._owner_is_gone:
                wanted_ps = now_ps
            elif now_ps - wanted_ps > OWNER_GRACE_PS:
                return

    def turn(self, wait: bool = True) -> int:
        """One round of the loop: take what has come (or wait until something does), send what follows; the time."""
        if wait and self._lines.are_plain:
            self._lines.serve(self._next_tick_ps)
            self._poller.poll(0)
            now_ps = self._clock.now_ps()
        else:
            now_ps = self._look_around(wait)
        if now_ps >= self._next_tick_ps:
            self._next_tick_ps = now_ps + TICK_PS
            self._send_all(self._desk.tick(now_ps))
            self.outside.tick(now_ps)
            for reception in self._receptions:
                reception.tick(now_ps)
        return now_ps

    def _look_around(self, wait: bool) -> int:
        """A round for carriers of all kinds; the time."""
        self._pause(wait)
        now_ps = self._clock.now_ps()
        self._is_idle = not self._lines.take(now_ps)
        self._switch.advance(now_ps)
        self.outside.look_for_hops(now_ps)
        self._lines.transmit()
        return now_ps

    def _pause(self, wait: bool) -> None:
        """Sleep until something comes, or is due; while cables are busy, only look for other news now and then."""
        now_ps = self._clock.now_ps()
        if not wait or not self._is_idle or not self._lines.rest():
            if not wait or now_ps - self._polled_ps > POLL_INTERVAL_PS:
                self._polled_ps = now_ps
                self._poller.poll(0)
            return
        due_ps = min(self._next_tick_ps, self._switch.next_timer_ps(), self._lines.next_ps())
        self._poller.poll(max(0, due_ps - now_ps) / PS_PER_S, self._lines.gather_s())

    def close(self) -> None:
        """Hang up on everybody. Nobody is told of the others, as if they were lost."""
        for worker in list(self._workers.values()):
            self._hang_up(worker, "the switch ends")
        self._observers.close()
        self.outside.close()
        self._lines.close()
        for reception in self._receptions:
            reception.close()
        self._poller.close()

    # --- workers that come and go

    def _admit(self, channel: ControlChannel, message: Greeting) -> None:
        if isinstance(message, control.Attach):
            self._plug(channel, message)
        elif isinstance(message, control.Present):
            self._present(channel, message)
        elif message.port == OBSERVER_PORT:
            self._observers.admit(channel)
        else:
            self._hello(channel, message)

    def _plug(self, channel: ControlChannel, message: control.Attach) -> None:
        """Give a new cable a port and addresses."""
        number = self._lines.free_port(message.port)
        if number is None:
            channel.send(control.Refused("", f"all {self._switch.port_count} ports of the switch are taken"))
            raise BadMessageError("no free port")
        pid = peer_credentials(channel.connection).pid
        ip, mac = self._name_host()
        self._switch.attach(number, mac, ip)
        channel.send(control.Attached(number, mac, ip, self._clock.epoch_ns))
        self._lines.plug(number, Cable.offer(channel.connection), message.worker)
        death_fd = os.pidfd_open(pid) if pid else -1
        worker = _Worker(number, mac, ip, message.worker, f"process {pid}", pid, death_fd)
        self._workers[number] = worker
        if pid:
            self._poller.watch(death_fd, lambda _mask: self._death_event(worker))
        logger.info(
            "port %d: %s (process %d) is %s", number, message.worker, pid, ip, extra=_fields("attached", worker)
        )

    def _name_host(self) -> tuple[str, str]:
        """A fresh IP address in 10.78.0.0/16 and a locally administered MAC address that go together."""
        self._hosts_named += 1
        high, low = divmod(self._hosts_named % 0xFFFE + 1, 256)
        return f"10.78.{high}.{low}", f"02:4e:52:00:{high:02x}:{low:02x}"

    def _present(self, channel: ControlChannel, message: control.Present) -> None:
        """Let a worker in whose NIC is on the switch's network."""
        try:
            port = self.outside.attach(message.mac, message.ip)
        except ConfigurationError as error:
            raise BadMessageError(f"{message.worker} at {message.ip}: {error}") from error
        number = REMOTE_FIRST + self._remotes_named
        self._remotes_named += 1
        host = peer_name(channel.connection)
        worker = _Worker(number, message.mac, message.ip, message.worker, f"its process at {host}", channel=channel)
        self._workers[number] = worker
        self._poller.watch(channel.fileno(), lambda mask: self._control_event(worker, channel, mask))
        gateway = self.outside.gateway(port)
        channel.send(control.Attached(port, message.mac, message.ip, self._clock.epoch_ns, gateway))
        logger.info(
            "port %d: %s at %s is %s", port, message.worker, host, message.ip, extra=_fields("attached", worker)
        )

    def _death_event(self, worker: _Worker) -> None:
        if worker.death_fd >= 0 and select.select([worker.death_fd], [], [], 0)[0]:
            self._dismiss(worker, "the process ended")

    def _line_lost(self, number: int, reason: str) -> None:
        """A port's carrier has failed, and is unplugged."""
        worker = self._workers.get(number)
        if worker is None:
            self.outside.lost(number, reason)
        else:
            self._dismiss(worker, reason)

    def _dismiss(self, worker: _Worker, reason: str) -> None:
        """A worker is gone; whoever still needs it is told."""
        if worker.number in self._workers:
            self._hang_up(worker, reason)
            self._send_all(self._desk.lost(worker.number, f"{worker.process} is gone: {reason}"))

    def _hang_up(self, worker: _Worker, reason: str) -> None:
        del self._workers[worker.number]
        logger.info("%s (%s) is gone: %s", worker.name, worker.ip, reason, extra=_fields("gone", worker))
        if worker.number >= REMOTE_FIRST:
            self.outside.let_go(worker.ip)
        elif worker.number in self._lines:
            self._lines.unplug(worker.number)
        if worker.channel is not None:
            self._poller.unwatch(worker.channel.fileno())
            worker.channel.close()
        if worker.death_fd >= 0:
            self._poller.unwatch(worker.death_fd)
            os.close(worker.death_fd)
            worker.death_fd = -1

    # --- control

    def _hello(self, channel: ControlChannel, message: control.Hello) -> None:
        worker = self._workers.get(message.port)
        if worker is None or worker.channel is not None or worker.pid != peer_credentials(channel.connection).pid:
            raise BadMessageError(f"port {message.port} is not this process's, or has its control connection already")
        worker.channel = channel
        self._poller.watch(channel.fileno(), lambda mask: self._control_event(worker, channel, mask))
        channel.send(control.Ok())

    def _control_event(self, worker: _Worker, channel: ControlChannel, mask: int) -> None:
        try:
            if mask & WRITABLE and channel.flush():
                self._poller.await_room(channel.fileno(), False)
            if mask & ~WRITABLE:
                while worker.number in self._workers and (message := channel.receive()) is not None:
                    addresses, now_ps = (worker.ip, worker.mac), self._clock.now_ps()
                    self._send_all(self._desk.answer(worker.number, addresses, message, now_ps))
        except (CableClosedError, BadMessageError) as error:
            self._dismiss(worker, str(error))

    def _send_all(self, outgoing: Outgoing) -> None:
        for number, message in outgoing:
            worker = self._workers.get(number)
            if worker is None or worker.channel is None:
                continue
            try:
                worker.channel.send(message)
                self._poller.await_room(worker.channel.fileno(), not worker.channel.flush())
            except CableClosedError as error:
                self._dismiss(worker, str(error))

    def _statistics(self) -> control.Statistics:
        statistics = self._desk.statistics()
        if self._faults is not None:
            statistics.faults = self._faults.struck()
        statistics.ports = {str(number): self._lines.counters(number) for number in self._lines.numbers()}
        return statistics
