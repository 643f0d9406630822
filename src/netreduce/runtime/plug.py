"""Plugging in: from a switch's address to a cable with a port, addresses and a control connection."""

from __future__ import annotations

import os
from typing import NamedTuple, TypeVar

from netreduce.errors import SwitchLostError
from netreduce.runtime.cable import Cable, CableClosedError, connect
from netreduce.runtime.control_channel import ControlChannel
from netreduce.wire import control

ATTACH_TIMEOUT_S = 120.0
"""How long the switch may take to answer a new worker: it may still be compiling."""

Answer = TypeVar("Answer", bound=control.Message)


class Plug(NamedTuple):
    """A cable, its control connection, and what the switch said."""

    cable: Cable
    channel: ControlChannel
    attached: control.Attached


def _ask(channel: ControlChannel, request: control.Message, kind: type[Answer], address: str) -> Answer:
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
    """Attach to the switch at `address` as `worker` (a name for messages); `SwitchLostError` when it cannot be."""
    opened: list[ControlChannel] = []
    try:
        for _ in range(2):
            opened.append(ControlChannel(connect(address)))
        greeting, channel = opened
        attached = _ask(greeting, control.Attach(worker), control.Attached, address)
        _ask(channel, control.Hello(attached.port, worker, os.getpid()), control.Ok, address)
    except BaseException:
        for connection in opened:
            connection.close()
        raise
    return Plug(Cable(greeting.connection), channel, attached)
