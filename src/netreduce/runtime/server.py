"""The switch server: one thread moves bursts between cables and the switch, and answers the control connections.

It never waits for a worker: what a full cable refuses stays in that port's bounded egress queue, and what does not
fit there is dropped and counted by the switch. A connection that misbehaves is closed with a logged reason; the
others do not notice.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from dataclasses import dataclass

from netreduce.runtime.cable import (
    BadBurstError,
    Cable,
    CableClosedError,
    Outlet,
    load,
    make_burst_buffer,
    peer_credentials,
)
from netreduce.runtime.clock import Clock
from netreduce.runtime.control_channel import BadMessageError, ControlChannel
from netreduce.runtime.control_desk import ControlDesk
from netreduce.runtime.poller import WRITABLE, Poller
from netreduce.runtime.reception import Reception
from netreduce.runtime.rendezvous import Outgoing
from netreduce.runtime.tracing import Recorder
from netreduce.switch import Switch
from netreduce.units import PS_PER_MS, PS_PER_S
from netreduce.wire import control
from netreduce.wire.pcap import Direction, PcapWriter

logger = logging.getLogger("netreduce.switch")

CONNECTIONS_PER_PORT_MAX = 4
"""Bound on watched descriptors, as a multiple of the ports: cable, control, the worker's death, and one to spare."""
BURSTS_PER_ROUND = 4
"""Bursts taken from one cable before the others have their turn and everything that has come of it is sent."""
TICK_PS = 100 * PS_PER_MS
"""Interval of the housekeeping: mismatches, waiting ranks, groups that gather, silent connections."""
OWNER_GRACE_PS = PS_PER_S // 2
"""How long the server stays without owner and cables, for workers that are just about to connect."""
OBSERVER_PORT = -1


@dataclass
class _Port:
    """A worker that is plugged in: its cable, and its control connection once it has said hello."""

    number: int
    cable: Cable
    outlet: Outlet
    mac: str
    ip: str
    pid: int
    worker: str
    death_fd: int  # pidfd of the worker's process: its forked children may keep the cable open after its death
    channel: ControlChannel | None = None
    cable_is_full: bool = False


class SwitchServer:
    """Serves `switch` on `listener` (of `cable.listen`) until `run` returns.

    `capture` sees every burst on a cable, `recorder` every frame that comes and every event of the switch.
    """

    def __init__(
        self,
        switch: Switch,
        listener: socket.socket,
        clock: Clock,
        capture: PcapWriter | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._switch = switch
        self._clock = clock
        self._capture = capture
        self._recorder = recorder
        self._buffer = make_burst_buffer()
        load()
        if capture is not None:
            capture.write_burst(0, Direction.UNKNOWN, self._buffer[:0])  # nothing, but it loads what is compiled
        self._poller = Poller()
        connections_max = CONNECTIONS_PER_PORT_MAX * switch.port_count
        self._reception = Reception(listener, self._poller, clock, self._admit, connections_max)
        self._desk = ControlDesk(switch)
        self._ports: dict[int, _Port] = {}
        self._observers: set[ControlChannel] = set()
        self._hosts_named = 0
        self._next_tick_ps = 0
        self._owner_is_gone = False
        for number in range(switch.port_count):
            switch.detach(number)  # nothing is plugged in yet: nothing is to be flooded there

    # --- the loop

    def watch_owner(self, descriptor: int) -> None:
        """End, once no cable remains, after the other end of the socket `descriptor` has closed."""

        def hung_up(_mask: int) -> None:
            self._poller.unwatch(descriptor)
            self._owner_is_gone = True

        self._poller.watch(descriptor, hung_up)

    def run(self) -> None:
        """Serve until the owner is gone and no cable has been plugged in for a moment."""
        wanted_ps = self._clock.now_ps()
        while True:
            due_ps = min(self._next_tick_ps, self._switch.next_timer_ps())
            self._poller.poll(max(0, due_ps - self._clock.now_ps()) / PS_PER_S)
            now_ps = self._clock.now_ps()
            self._switch.advance(now_ps)
            for port in list(self._ports.values()):
                if not (port.cable_is_full or port.outlet.is_empty):
                    self._transmit(port)
            if now_ps >= self._next_tick_ps:
                self._next_tick_ps = now_ps + TICK_PS
                self._send_all(self._desk.tick(now_ps))
                self._reception.tick(now_ps)
            if self._ports or not self._owner_is_gone:
                wanted_ps = now_ps
            elif now_ps - wanted_ps > OWNER_GRACE_PS:
                return

    def close(self) -> None:
        """Hang up on everybody."""
        for port in list(self._ports.values()):
            self._unplug(port, "the switch ends")
        for channel in self._observers:
            channel.close()
        self._reception.close()
        self._poller.close()

    # --- cables

    def _admit(self, channel: ControlChannel, message: control.Attach | control.Hello) -> None:
        if isinstance(message, control.Attach):
            self._plug(channel, message)
        elif message.port == OBSERVER_PORT:
            self._observers.add(channel)
            self._poller.watch(channel.fileno(), lambda _mask: self._observer_event(channel))
            channel.send(control.Ok())
        else:
            self._hello(channel, message)

    def _plug(self, channel: ControlChannel, message: control.Attach) -> None:
        """Give a new cable a port and addresses."""
        number = next((n for n in range(self._switch.port_count) if n not in self._ports), None)
        if number is None:
            channel.send(control.Refused("", f"all {self._switch.port_count} ports of the switch are taken"))
            raise BadMessageError("no free port")
        pid = peer_credentials(channel.connection).pid
        ip, mac = self._name_host()
        self._switch.attach(number, mac, ip)
        channel.send(control.Attached(number, mac, ip, self._clock.epoch_ns))
        capture = self._capture
        tap = None if capture is None else lambda burst: capture.write_burst(number, Direction.OUTBOUND, burst)
        death_fd = os.pidfd_open(pid) if pid else -1
        cable = Cable(channel.connection)
        outlet = Outlet(cable, self._switch.egress(number), tap)
        port = _Port(number, cable, outlet, mac, ip, pid, message.worker, death_fd)
        self._ports[number] = port
        self._poller.watch(cable.fileno(), lambda mask: self._cable_event(port, mask))
        if pid:
            self._poller.watch(death_fd, lambda _mask: self._death_event(port))
        logger.info("port %d: %s (process %d) is %s", number, message.worker, pid, ip)

    def _name_host(self) -> tuple[str, str]:
        """A fresh IP address in 10.78.0.0/16 and a locally administered MAC address that go together."""
        self._hosts_named += 1
        high, low = divmod(self._hosts_named % 0xFFFE + 1, 256)
        return f"10.78.{high}.{low}", f"02:4e:52:00:{high:02x}:{low:02x}"

    def _cable_event(self, port: _Port, mask: int) -> None:
        if mask & WRITABLE:
            self._transmit(port)
        if not mask & ~WRITABLE or port.number not in self._ports:
            return
        now_ps = self._clock.now_ps()
        try:
            for _ in range(BURSTS_PER_ROUND):
                size = port.cable.receive(self._buffer)
                if not size:
                    return
                burst = self._buffer[:size]
                if self._capture is not None:
                    self._capture.write_burst(port.number, Direction.INBOUND, burst)
                if self._recorder is None:
                    self._switch.receive(port.number, burst, now_ps)
                else:
                    self._recorder.receive(self._switch, port.number, burst, now_ps)
        except (CableClosedError, BadBurstError) as error:
            self._unplug(port, str(error))

    def _transmit(self, port: _Port) -> None:
        """Send what waits for `port`; when its cable is full, the poller says when to go on."""
        try:
            is_full = not port.outlet.send()
        except CableClosedError as error:
            self._unplug(port, str(error))
            return
        if is_full != port.cable_is_full:
            port.cable_is_full = is_full
            self._poller.await_room(port.cable.fileno(), is_full)

    def _death_event(self, port: _Port) -> None:
        if port.death_fd >= 0 and select.select([port.death_fd], [], [], 0)[0]:
            self._unplug(port, "the process ended")

    def _unplug(self, port: _Port, reason: str) -> None:
        """A worker is gone; whoever still needs it is told."""
        if self._ports.pop(port.number, None) is None:
            return
        logger.info("port %d: %s is gone: %s", port.number, port.worker, reason)
        for end in (port.cable, port.channel):
            if end is not None:
                self._poller.unwatch(end.fileno())
                end.close()
        if port.death_fd >= 0:
            self._poller.unwatch(port.death_fd)
            os.close(port.death_fd)
            port.death_fd = -1
        self._switch.detach(port.number)
        self._send_all(self._desk.lost(port.number, f"process {port.pid} is gone: {reason}"))

    # --- control

    def _hello(self, channel: ControlChannel, message: control.Hello) -> None:
        port = self._ports.get(message.port)
        if port is None or port.channel is not None or port.pid != peer_credentials(channel.connection).pid:
            raise BadMessageError(f"port {message.port} is not this process's, or has its control connection already")
        port.channel = channel
        self._poller.watch(channel.fileno(), lambda mask: self._control_event(port, channel, mask))
        channel.send(control.Ok())

    def _control_event(self, port: _Port, channel: ControlChannel, mask: int) -> None:
        try:
            if mask & WRITABLE and channel.flush():
                self._poller.await_room(channel.fileno(), False)
            if mask & ~WRITABLE:
                message = channel.receive()
                if message is not None:
                    addresses, now_ps = (port.ip, port.mac), self._clock.now_ps()
                    self._send_all(self._desk.answer(port.number, addresses, message, now_ps))
        except (CableClosedError, BadMessageError) as error:
            self._unplug(port, str(error))

    def _observer_event(self, channel: ControlChannel) -> None:
        try:
            message = channel.receive()
            if isinstance(message, control.StatisticsRequest):
                channel.send(self._desk.statistics(self._ports))
            elif message is not None:
                raise BadMessageError(f"an observer may not send {type(message).__name__}")
        except (CableClosedError, BadMessageError) as error:
            logger.debug("observer gone: %s", error)
            self._observers.discard(channel)
            self._poller.unwatch(channel.fileno())
            channel.close()

    def _send_all(self, outgoing: Outgoing) -> None:
        for number, message in outgoing:
            port = self._ports.get(number)
            if port is None or port.channel is None:
                continue
            try:
                port.channel.send(message)
                self._poller.await_room(port.channel.fileno(), not port.channel.flush())
            except CableClosedError as error:
                self._unplug(port, str(error))
