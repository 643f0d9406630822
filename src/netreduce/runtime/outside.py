"""Ports of the switch that lead outside: Linux interfaces, and streams that a guest's emulator connects to.

They keep their numbers for the switch's life. What is behind them is learned from the frames that come in; hosts that
take part in rings are then attached, so that nobody else can speak in their name.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING

from netreduce.errors import ConfigurationError
from netreduce.runtime.cable import accept
from netreduce.runtime.carrier import Carrier
from netreduce.runtime.clock import Clock
from netreduce.runtime.lines import Lines
from netreduce.runtime.poller import Poller
from netreduce.runtime.stream import StreamCarrier
from netreduce.switch import Switch

if TYPE_CHECKING:
    from netreduce.control.switch_network import AnySwitch
    from netreduce.runtime.router import Router

logger = logging.getLogger("netreduce.switch")


class OutsidePorts:
    """The outside ports of `switch`, whose carriers are in `lines`. The switches of a topology have none."""

    def __init__(self, switch: AnySwitch, lines: Lines, poller: Poller, clock: Clock) -> None:
        self._switch = switch if isinstance(switch, Switch) else None
        self._lines = lines
        self._poller = poller
        self._clock = clock
        self._names: dict[int, str] = {}
        self._listeners: dict[int, socket.socket] = {}
        self._users: Counter[str] = Counter()  # of attached addresses
        self._router: Router | None = None

    def add(self, name: str, carrier: Carrier) -> int:
        """Plug `carrier` into a free port; its number."""
        number = self._take_port(name)
        self._lines.plug(number, carrier, name)
        return number

    def add_arm(self, name: str, carrier: Carrier) -> int:
        """Plug in `carrier`, of interface `name`, as a port that routes; its number."""
        from netreduce.runtime.router import Router  # late: bridges need no netlink

        assert self._switch is not None, "only a single switch routes"
        if self._router is None:
            self._router = Router(self._switch)
        number = self.add(name, carrier)
        self._router.add(name, number)
        return number

    def gateway(self, number: int) -> str:
        """The MAC address to which hosts at port `number` send what it routes; empty where it bridges."""
        return self._router.gateway(number) if self._router is not None else ""

    def look_for_hops(self, now_ps: int) -> None:
        """Find next hops that packets have lacked."""
        if self._router is not None:
            self._router.look_for_wanted(now_ps)

    def tick(self, now_ps: int) -> None:
        """Keep next hops fresh."""
        if self._router is not None:
            self._router.tick(now_ps)

    def add_stream(self, name: str, listener: socket.socket) -> int:
        """Plug who connects to `listener` (of `stream.listen_at`), one at a time, into a free port; its number."""
        number = self._take_port(name)
        self._listeners[number] = listener
        self._poller.watch(listener.fileno(), lambda _mask: self._connected(number, listener))
        return number

    def _take_port(self, name: str) -> int:
        number = self._lines.free_port()
        if number is None:
            raise ConfigurationError(f"no port is left for {name}: all of the switch are taken")
        self._lines.set_aside(number)
        self._names[number] = name
        return number

    def _connected(self, number: int, listener: socket.socket) -> None:
        connection = accept(listener)
        if connection is None:
            return
        if number in self._lines:
            logger.warning("port %d: %s is in use, a second connection was refused", number, self._names[number])
            connection.close()
            return
        self._lines.plug(number, StreamCarrier(connection, self._clock.now_ps), self._names[number])
        logger.info("port %d: %s is connected", number, self._names[number])

    def attach(self, mac: str, ip: str) -> int:
        """Let a host own its addresses; its port. ConfigurationError if it was never heard, or others have them.

        Where the switch routes, the host is reached at the MAC address that the kernel knows.
        """
        port: int | None
        if self._switch is None:
            raise ConfigurationError(f"{ip}: a topology within one process has no hosts but its own workers")
        if self._router is None:
            port = self._switch.port_of(mac, self._clock.now_ps())
        else:
            port, mac, _ = self._router.pin(ip, self._clock.now_ps())
        if port is None:
            raise ConfigurationError(
                f"no frame from {mac} has reached the switch: connect the interface of {ip} to one of its ports"
            )
        if port not in self._names:
            raise ConfigurationError(f"{mac} is the address of a local worker")
        self._switch.attach(port, mac, ip)
        self._users[ip] += 1
        return port

    def let_go(self, ip: str) -> None:
        """Undo one `attach`."""
        self._users[ip] -= 1
        if self._users[ip] <= 0:
            del self._users[ip]
            if self._router is not None:
                self._router.let_go(ip)
            if self._switch is not None and self._switch.owns(ip):
                self._switch.let_go(ip, self._clock.now_ps())

    def lost(self, number: int, reason: str) -> None:
        """The carrier of a port has failed."""
        logger.warning("port %d: %s is disconnected: %s", number, self._names[number], reason)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners.values():
            self._poller.unwatch(listener.fileno())
            listener.close()
        if self._router is not None:
            self._router.close()
