"""The switch's front door: who may connect, and whether a connection is a cable or a control connection.

The kernel vouches for the user at the other end; the first datagram says what the connection is for. Connections that
say nothing, too much or nonsense are closed with a logged reason.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable

from netreduce.runtime.cable import CableClosedError, accept, hang_up, peer_credentials
from netreduce.runtime.clock import Clock
from netreduce.runtime.control_channel import BadMessageError, ControlChannel
from netreduce.runtime.poller import Poller
from netreduce.units import PS_PER_S
from netreduce.wire import control

logger = logging.getLogger("netreduce.switch")

GREETING_TIMEOUT_S = 5
"""How long a new connection may take to say what it is."""


class Reception:
    """Accepts from `listener`; hands each greeted connection to `admit(channel, message)`, which may refuse it.

    `admit` refuses by raising `BadMessageError`. At most `connections_max` descriptors are watched by `poller`.
    """

    def __init__(
        self,
        listener: socket.socket,
        poller: Poller,
        clock: Clock,
        admit: Callable[[ControlChannel, control.Attach | control.Hello], None],
        connections_max: int,
    ) -> None:
        self._listener = listener
        self._poller = poller
        self._clock = clock
        self._admit = admit
        self._connections_max = connections_max
        self._deadlines_ps: dict[ControlChannel, int] = {}
        poller.watch(listener.fileno(), self._accept)

    def _accept(self, _mask: int) -> None:
        connection = accept(self._listener)
        if connection is None:
            return
        pid, uid = peer_credentials(connection)
        if uid != os.getuid() or len(self._poller) >= self._connections_max:
            reason = f"of user {uid}" if uid != os.getuid() else f"{len(self._poller)} are open, the most allowed"
            logger.warning("refused a connection from process %d: %s", pid, reason)
            hang_up(connection)
            return
        channel = ControlChannel(connection)
        self._deadlines_ps[channel] = self._clock.now_ps() + GREETING_TIMEOUT_S * PS_PER_S
        self._poller.watch(channel.fileno(), lambda _mask: self._greet(channel))

    def _greet(self, channel: ControlChannel) -> None:
        try:
            message = channel.receive()
            if message is None:
                return
            if not isinstance(message, control.Attach | control.Hello):
                raise BadMessageError(f"{type(message).__name__} before Attach or Hello")
        except (BadMessageError, CableClosedError) as error:
            self._turn_away(channel, error)
            return
        self._forget(channel)
        try:
            self._admit(channel, message)
        except (BadMessageError, CableClosedError) as error:
            self._turn_away(channel, error)

    def _forget(self, channel: ControlChannel) -> None:
        if self._deadlines_ps.pop(channel, None) is not None:
            self._poller.unwatch(channel.fileno())

    def _turn_away(self, channel: ControlChannel, reason: object) -> None:
        logger.warning("closed a connection of process %d: %s", peer_credentials(channel.connection).pid, reason)
        self._forget(channel)
        channel.close()

    def tick(self, now_ps: int) -> None:
        """Turn away those who have been silent for too long."""
        for channel, deadline_ps in list(self._deadlines_ps.items()):
            if now_ps > deadline_ps:
                self._turn_away(channel, f"silent for {GREETING_TIMEOUT_S} s")

    def close(self) -> None:
        """Close the door, and hang up on those who have not been admitted."""
        for channel in list(self._deadlines_ps):
            self._forget(channel)
            channel.close()
        self._poller.unwatch(self._listener.fileno())
        self._listener.close()
