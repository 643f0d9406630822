"""Plugging in: from a switch's address to a cable with a port, addresses and a control connection."""

from __future__ import annotations

import os
from typing import NamedTuple, TypeVar

import msgspec

from netreduce.errors import SwitchLostError
from netreduce.runtime.address import is_remote, open_channel, token_from_environment
from netreduce.runtime.cable import Cable, CableClosedError, connect
from netreduce.runtime.carrier import Carrier
from netreduce.runtime.clock import Clock
from netreduce.runtime.control_channel import ControlChannel
from netreduce.wire import control
from netreduce.wire.control import COUNT_MAX

ATTACH_TIMEOUT_S = 120.0
"""How long the switch may take to answer a new worker: it may still be compiling."""

Answer = TypeVar("Answer", bound=control.Message)


class Plug(NamedTuple):
    """A carrier of frames, its control connection, what the switch said, the largest path MTU, and the interface."""

    cable: Carrier
    channel: ControlChannel
    attached: control.Attached
    path_mtu: int = 4096
    interface: str = ""


def ask(channel: ControlChannel, request: control.Message, kind: type[Answer], address: str) -> Answer:
    """Send `request`; the switch's answer, which must be of `kind`."""
    try:
        channel.send(request)
        answer = channel.receive_within(ATTACH_TIMEOUT_S)
    except CableClosedError as error:
        raise SwitchLostError(f"the switch at {address} hung up while this worker attached") from error
    if isinstance(answer, control.Refused):
        raise SwitchLostError(f"the switch at {address} refused this worker: {answer.reason}")
    if not isinstance(answer, kind):
        raise SwitchLostError(f"the switch at {address} gave no answer within {ATTACH_TIMEOUT_S:g} s")
    return answer


def plug_in(address: str, worker: str) -> Plug:
    """Attach to the switch at `address` as `worker` (a name for messages); `SwitchLostError` when it cannot be.

    To a switch over TCP, frames go by the host's own interface; `ConfigurationError` when that does not do.
    """
    if is_remote(address):
        return _plug_in_remote(address, worker)
    opened: list[ControlChannel] = []
    try:
        for _ in range(2):
            opened.append(ControlChannel(connect(address)))
        greeting, channel = opened
        attached = ask(greeting, control.Attach(worker, port=_liked_port()), control.Attached, address)
        ask(channel, control.Hello(attached.port, worker, os.getpid()), control.Ok, address)
        cable = Cable.take(greeting.connection, ATTACH_TIMEOUT_S)  # last: it loads what is compiled
    except CableClosedError as error:
        for connection in opened:
            connection.close()
        raise SwitchLostError(f"the switch at {address} hung up while this worker attached") from error
    except BaseException:
        for connection in opened:
            connection.close()
        raise
    return Plug(cable, channel, attached)


def present(address: str, worker: str, mac: str, ip: str) -> tuple[ControlChannel, control.Attached]:
    """Present `worker`, whose NIC has these addresses on the switch's network; the control connection, the answer."""
    channel = open_channel(address)
    try:
        return channel, ask(
            channel, control.Present(worker, mac, ip, token_from_environment()), control.Attached, address
        )
    except BaseException:
        channel.close()
        raise


def _liked_port() -> int:
    """The port of the switch that goes with this worker's number: in a topology, its place."""
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() and int(number) < COUNT_MAX else -1


def _plug_in_remote(address: str, worker: str) -> Plug:
    from netreduce.runtime.host_interface import HostCarrier, HostInterface  # late: local workers need no netlink

    interface = HostInterface.towards(address)
    clock = Clock()
    carrier = HostCarrier(interface, clock.now_ps)
    try:
        channel, attached = present(address, worker, interface.mac, interface.ip)
    except BaseException:
        carrier.close()
        raise
    own_time = msgspec.structs.replace(attached, epoch_ns=clock.epoch_ns)
    return Plug(carrier, channel, own_time, interface.path_mtu, interface.name)
