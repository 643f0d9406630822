"""`netreduce switch`: a switch on real networks, until SIGTERM.

Everything that needs privileges is opened first; then they are dropped. A helper keeps the interfaces' offloads off,
and puts them back however the switch ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from netreduce.errors import ConfigurationError
from netreduce.fabric.spelling import parse_fault
from netreduce.runtime.address import host_and_port
from netreduce.runtime.cable import ADDRESS_SCHEME, listen
from netreduce.runtime.clock import Clock
from netreduce.runtime.exercise import exercise
from netreduce.runtime.interface import InterfaceCarrier, interface_mac
from netreduce.runtime.live_faults import LiveFaults
from netreduce.runtime.offloads import require_mtu
from netreduce.runtime.packet_filters import ip_to
from netreduce.runtime.privileges import become
from netreduce.runtime.router import require_arm
from netreduce.runtime.server import SwitchServer
from netreduce.runtime.stream import listen_at
from netreduce.runtime.switch_config import SwitchConfig
from netreduce.switch import Switch
from netreduce.wire.pcap import PcapWriter

logger = logging.getLogger("netreduce.switch")

OFFLOADS_TIMEOUT_S = 10


class _DrainedEnough(Exception):
    """Workers that would not leave have been waited for long enough."""


def serve(
    config: SwitchConfig, ready: Callable[[str], None], *, faults: Sequence[str] = (), fault_seed: int = 0
) -> None:
    """Run the switch until SIGTERM or SIGINT, and `drain_s` longer for its workers. `ready` is told its address.

    `faults`, spelled as `fabric.spelling` says, lie on the links of its workers and ports.

    `ConfigurationError` when a port cannot be opened.
    """
    exercise()  # loads all that is compiled, from where the dropped privileges might not reach
    clock = Clock()
    port_count = len(config.port) + config.cables
    switch = Switch(config.name, port_count, limits=config.limits())
    with contextlib.ExitStack() as stack:
        capture = None
        if config.pcap:
            names = [port.interface or port.stream for port in config.port]
            names += [f"cable{n}" for n in range(config.cables)]
            capture = stack.enter_context(PcapWriter(Path(config.pcap), names, epoch_ns=clock.epoch_unix_ns()))
        interfaces = [port.interface for port in config.port if port.interface]
        stack.enter_context(_offloads_off(interfaces))
        address = ADDRESS_SCHEME + config.name
        spelled = LiveFaults(fault_seed, map(parse_fault, faults)) if faults else None
        listener, quota = _named_listener(address), config.rings_per_worker
        server = SwitchServer(switch, listener, clock, capture, faults=spelled, rings_per_worker=quota)
        stack.callback(server.close)
        for port in config.port:
            if port.interface:
                _open_interface(server, port.interface, config, clock)
            else:
                server.outside.add_stream(port.stream, listen_at(Path(port.stream)))
        if config.listen:
            server.listen_tcp(_tcp_listener(config.listen), config.token())
        become(config.run_as())
        logger.info("running as user %d, without privileges", os.getuid(), extra={"event": "ready"})
        stack.enter_context(_draining_on_signals(server, config.drain_s))
        ready(" and ".join([address, config.listen] if config.listen else [address]))
        with contextlib.suppress(_DrainedEnough):
            server.run()


def _open_interface(server: SwitchServer, name: str, config: SwitchConfig, clock: Clock) -> None:
    require_mtu(name, config.path_mtu)
    if config.mode == "route":
        require_arm(name)
        server.outside.add_arm(name, InterfaceCarrier(name, clock.now_ps, ip_to(interface_mac(name))))
    else:
        server.outside.add(name, InterfaceCarrier(name, clock.now_ps))


def _named_listener(address: str) -> socket.socket:
    try:
        return listen(address)
    except OSError as error:
        raise ConfigurationError(f"name: a switch is running at {address} already: {error.strerror}") from error


def _tcp_listener(address: str) -> socket.socket:
    host, port = host_and_port(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(f"listen: cannot listen at {address}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


@contextlib.contextmanager
def _offloads_off(interfaces: list[str]) -> Iterator[None]:
    """Within it, the interfaces hand out frames as they are on the wire."""
    if not interfaces:
        yield
        return
    command = [sys.executable, "-m", "netreduce.runtime.offloads", *interfaces]
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert helper.stdin is not None
    assert helper.stdout is not None
    try:
        if helper.stdout.readline().strip() != b"off":
            raise ConfigurationError("the interfaces' offloads cannot be asked for; the reason is above")
        yield
    finally:
        helper.stdin.close()
        helper.wait(OFFLOADS_TIMEOUT_S)
        helper.stdout.close()


@contextlib.contextmanager
def _draining_on_signals(server: SwitchServer, drain_s: float) -> Iterator[None]:
    """SIGTERM and SIGINT let the server end once its workers have; after `drain_s`, or a second signal, at once."""
    ours, servers = socket.socketpair()
    server.drain_on(servers.fileno())
    asked = False

    def end(_number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            raise _DrainedEnough
        asked = True
        signal.setitimer(signal.ITIMER_REAL, drain_s)
        ours.close()

    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    previous = {number: signal.signal(number, end) for number in handled}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)
        ours.close()
        servers.close()
