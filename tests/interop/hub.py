"""A switch server on a thread, with streams for a guest's NICs, links that lose frames by rules, and a capture.

One more stream is for the host's end of the guest's network, by which the guest reaches the control channel.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import numpy as np

from netreduce.fabric.faults import Faults
from netreduce.runtime.cable import accept, listen, new_address
from netreduce.runtime.carrier import Carrier
from netreduce.runtime.clock import Clock
from netreduce.runtime.observer import Observer
from netreduce.runtime.server import SwitchServer
from netreduce.runtime.stream import StreamCarrier, listen_at
from netreduce.switch import Switch
from netreduce.units import NEVER_PS
from netreduce.wire.pcap import PcapWriter

TOKEN = "0123456789abcdef0123"
CABLES = 4
"""Ports besides those of the guest."""


class LossyCarrier:
    """A carrier whose frames pass `up` on their way to the switch, and `down` on their way from it.

    Held-back frames are not its business: rules that drop, duplicate or corrupt are.
    """

    def __init__(self, inner: Carrier, up: Faults, down: Faults) -> None:
        self._inner, self._up, self._down = inner, up, down
        self._pending = np.zeros(0, np.uint8)
        self.fileno, self.counters, self.close = inner.fileno, inner.counters, inner.close
        self.rest, self.wake, self.gather_s = inner.rest, inner.wake, inner.gather_s

    def receive(self, buffer: np.ndarray) -> np.ndarray | None:
        burst = self._inner.receive(buffer)
        if burst is None or not self._up.active:
            return burst
        self._up.push(burst)
        return self._up.pop(NEVER_PS)

    def send_burst(self, burst: np.ndarray) -> bool:
        if not self._down.active:
            return self.flush() and self._inner.send_burst(burst)
        if not self.flush():
            return False
        self._down.push(burst)
        self._pending = self._down.pop(NEVER_PS)
        self.flush()
        return True

    def flush(self) -> bool:
        if self._pending.size and self._inner.send_burst(self._pending):
            self._pending = np.zeros(0, np.uint8)
        return not self._pending.size and self._inner.flush()


class Hub:
    """The switch with `guest_ports` streams at ``directory/nic<i>``. `observer` speaks to it."""

    def __init__(self, directory: Path, guest_ports: int, seed: int) -> None:
        self.sockets = [directory / f"nic{i}" for i in range(guest_ports)]
        self.host_socket = directory / "host"
        self._listeners = [listen_at(path) for path in [*self.sockets, self.host_socket]]
        self.up = [Faults(np.random.default_rng([seed, i, 0])) for i in range(guest_ports)]
        self.down = [Faults(np.random.default_rng([seed, i, 1])) for i in range(guest_ports)]
        self.address = new_address()
        self._clock = Clock()
        ports = guest_ports + 1 + CABLES
        names = [f"port{n}" for n in range(ports)]
        self.pcap = directory / "guest.pcapng"
        self._capture = PcapWriter(self.pcap, names, epoch_ns=self._clock.epoch_unix_ns())
        self.switch = Switch("switch", ports)
        self._server = SwitchServer(self.switch, listen(self.address), self._clock, self._capture)
        self._owner, end = socket.socketpair()
        self._server.watch_owner(end.fileno())
        self._end = end
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.control_port = listener.getsockname()[1]
        self._server.listen_tcp(listener, TOKEN)

    def start(self) -> None:
        """Wait until the guest's NICs are plugged in, then serve."""
        *guest, host = [self._accept(listener) for listener in self._listeners]
        for carrier, up, down in zip(guest, self.up, self.down, strict=True):
            self._server.outside.add("guest", LossyCarrier(carrier, up, down))
        self._server.outside.add("host", host)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        self.observer = Observer(self.address)

    def _accept(self, listener: socket.socket) -> Carrier:
        listener.settimeout(100)
        connection = accept(listener)
        assert connection is not None, "QEMU did not connect"
        listener.close()
        return StreamCarrier(connection, self._clock.now_ps)

    def close(self) -> None:
        """End the switch."""
        self.observer.close()
        self._owner.close()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._server.close()
        self._end.close()
        self._capture.close()
