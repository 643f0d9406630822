"""The switch's front door: who may connect, and whether a connection is a cable or a control connection.

On this machine the kernel vouches for the user at the other end; over TCP a token does. The first message says what the
connection is for. Connections that say nothing, too much or nonsense are closed with a logged reason.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Callable

from netreduce.runtime.cable import CableClosedError, accept, hang_up, peer_credentials
from netreduce.runtime.clock import Clock
from netreduce.runtime.control_channel import BadMessageError, ControlChannel, StreamChannel
from netreduce.runtime.poller import Poller
from netreduce.units import PS_PER_S
from netreduce.wire import control

logger = logging.getLogger("netreduce.switch")

OBSERVER_PORT = -1
GREETING_TIMEOUT_S = 5
"""How long a new connection may take to say what it is."""


Greeting = control.Attach | control.Hello | control.Present


class Reception:
    """Accepts from `listener`; hands each greeted connection to `admit(channel, message)`, which may refuse it.

    `admit` refuses by raising `BadMessageError`. At most `connections_max` descriptors are watched by `poller`. With a
    `token`, `listener` is one of TCP: workers with NICs of their own and observers come in by it, if they know it.
    """

    def __init__(
        self,
        listener: socket.socket,
        poller: Poller,
        clock: Clock,
        admit: Callable[[ControlChannel, Greeting], None],
        connections_max: int,
        token: str | None = None,
    ) -> None:
        self._listener = listener
        self._poller = poller
        self._clock = clock
        self._admit = admit
        self._connections_max = connections_max
        self._token = token
        self._deadlines_ps: dict[ControlChannel, int] = {}
        poller.watch(listener.fileno(), self._accept)

    def _accept(self, _mask: int) -> None:
        connection = accept(self._listener)
        if connection is None:
            return
        reason = self._objection(connection)
        if reason:
            logger.warning("refused a connection from %s: %s", peer_name(connection), reason)
            hang_up(connection)
            return
        channel = ControlChannel(connection) if self._token is None else StreamChannel(connection)
        self._deadlines_ps[channel] = self._clock.now_ps() + GREETING_TIMEOUT_S * PS_PER_S
        self._poller.watch(channel.fileno(), lambda _mask: self._greet(channel))

    def _objection(self, connection: socket.socket) -> str:
        if self._token is None and (uid := peer_credentials(connection).uid) not in (0, os.getuid()):
            return f"of user {uid}"
        if len(self._poller) >= self._connections_max:
            return f"{len(self._poller)} are open, the most allowed"
        return ""

    def _greet(self, channel: ControlChannel) -> None:
        try:
            message = channel.receive()
            if message is None:
                return
            greeting = self._checked(message)
        except (BadMessageError, CableClosedError) as error:
            self._turn_away(channel, error)
            return
        self._forget(channel)
        try:
            self._admit(channel, greeting)
        except (BadMessageError, CableClosedError) as error:
            self._turn_away(channel, error)

    def _checked(self, message: control.Message) -> Greeting:
        """`message` if it may open a connection here."""
        if self._token is None:
            if isinstance(message, control.Attach | control.Hello):
                return message
            raise BadMessageError(f"{type(message).__name__} before Attach or Hello")
        if not isinstance(message, control.Present | control.Hello):
            raise BadMessageError(f"{type(message).__name__} before Present or Hello")
        if not hmac.compare_digest(message.token.encode(), self._token.encode()):
            what = "wrong token" if message.token else "no token"
            raise BadMessageError(f"{what}: set NETREDUCE_TOKEN to the first line of the switch's token-file")
        if isinstance(message, control.Hello) and message.port != OBSERVER_PORT:
            raise BadMessageError("a cable's Hello over TCP")
        return message

    def _forget(self, channel: ControlChannel) -> None:
        if self._deadlines_ps.pop(channel, None) is not None:
            self._poller.unwatch(channel.fileno())

    def _turn_away(self, channel: ControlChannel, reason: object) -> None:
        logger.warning("closed a connection of %s: %s", peer_name(channel.connection), reason)
        if self._token is not None:
            with contextlib.suppress(CableClosedError):
                channel.send(control.Refused("", str(reason)))
        self._forget(channel)
        channel.close()

    def tick(self, now_ps: int) -> None:
        """Turn away those who have been silent for too long."""
        for channel, deadline_ps in list(self._deadlines_ps.items()):
            if now_ps > deadline_ps:
                self._turn_away(channel, f"silent for {GREETING_TIMEOUT_S} s")

    def close(self) -> None:
        """Close the door, and hang up on those who have not been admitted. It may be closed already."""
        for channel in list(self._deadlines_ps):
            self._forget(channel)
            channel.close()
        if self._listener.fileno() >= 0:
            self._poller.unwatch(self._listener.fileno())
            self._listener.close()


def peer_name(connection: socket.socket) -> str:
    """Who is at the other end, for messages."""
    if connection.family == socket.AF_UNIX:
        return f"process {peer_credentials(connection).pid}"
    with contextlib.suppress(OSError):
        host, port = connection.getpeername()[:2]
        return f"{host}:{port}"
    return "a host that is gone"
