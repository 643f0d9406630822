"""Connections that are no worker's: they ask for counters and rings, and register rings for endpoints of others.

An endpoint need not know of the switch: any RoCE queue pairs that form a ring and put INA headers in front of their
messages can be summed. An operator, or a program on their behalf, registers them here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from netreduce.errors import AdmissionError, ConfigurationError
from netreduce.runtime.cable import CableClosedError
from netreduce.runtime.control_channel import BadMessageError, ControlChannel
from netreduce.runtime.control_desk import ControlDesk
from netreduce.runtime.outside import OutsidePorts
from netreduce.runtime.poller import WRITABLE, Poller
from netreduce.switch import RingSpec
from netreduce.wire import control

if TYPE_CHECKING:
    from netreduce.control.switch_network import AnySwitch

logger = logging.getLogger("netreduce.switch")


class Observers:
    """The observers of a switch. Rings that they register outlive them."""

    def __init__(
        self,
        switch: AnySwitch,
        desk: ControlDesk,
        outside: OutsidePorts,
        poller: Poller,
        statistics: Callable[[], control.Statistics],
    ) -> None:
        self._switch = switch
        self._rendezvous = desk.rendezvous
        self._outside = outside
        self._poller = poller
        self._statistics = statistics
        self._channels: set[ControlChannel] = set()
        self._registered: dict[int, control.Register] = {}

    def admit(self, channel: ControlChannel) -> None:
        """Answer `channel` from now on."""
        self._channels.add(channel)
        self._poller.watch(channel.fileno(), lambda mask: self._event(channel, mask))
        self._answer(channel, control.Ok())

    def _event(self, channel: ControlChannel, mask: int) -> None:
        try:
            if mask & WRITABLE and channel.flush():
                self._poller.await_room(channel.fileno(), False)
            while mask & ~WRITABLE and channel in self._channels and (message := channel.receive()) is not None:
                self._answer(channel, self._reply(message))
        except (CableClosedError, BadMessageError) as error:
            logger.debug("observer gone: %s", error)
            self._drop(channel)

    def _answer(self, channel: ControlChannel, message: control.Message) -> None:
        channel.send(message)
        self._poller.await_room(channel.fileno(), not channel.flush())

    def _drop(self, channel: ControlChannel) -> None:
        self._channels.discard(channel)
        self._poller.unwatch(channel.fileno())
        channel.close()

    def _reply(self, message: control.Message) -> control.Message:
        if isinstance(message, control.StatisticsRequest):
            return self._statistics()
        if isinstance(message, control.RingsRequest):
            return self._rings()
        try:
            if isinstance(message, control.Register):
                return self._register(message)
            if isinstance(message, control.Unregister):
                return self._unregister(message.ring_id)
        except (AdmissionError, ConfigurationError) as error:
            return control.Refused("", str(error))
        raise BadMessageError(f"an observer may not send {type(message).__name__}")

    def _rings(self) -> control.Rings:
        states = []
        for ring_id, spec in sorted(self._switch.rings().items()):
            endpoints = tuple(
                control.Endpoint(e.rank, e.ip, e.mac, e.successor_qpn, e.predecessor_qpn, e.first_psn)
                for e in spec.endpoints
            )
            group, counters = self._rendezvous.group_of(ring_id), self._switch.ring_counters(ring_id)
            states.append(control.RingState(ring_id, group, spec.geometry, endpoints, counters))
        return control.Rings(tuple(states))

    def _register(self, request: control.Register) -> control.Message:
        """Attach the endpoints' addresses and register their ring; nothing stays behind when it is refused."""
        with contextlib.ExitStack() as undo:
            ring_id = self._rendezvous.reserve(request.ring_id)
            undo.callback(self._rendezvous.free, ring_id)
            for endpoint in request.endpoints:
                self._outside.attach(endpoint.mac, endpoint.ip)
                undo.callback(self._outside.let_go, endpoint.ip)
            self._switch.register_ring(RingSpec(ring_id, request.endpoints, request.geometry))
            undo.pop_all()
        self._registered[ring_id] = request
        logger.info("ring %d of %d endpoints is registered", ring_id, len(request.endpoints))
        return control.Registered(ring_id)

    def _unregister(self, ring_id: int) -> control.Message:
        request = self._registered.pop(ring_id, None)
        if request is None:
            raise AdmissionError(f"ring {ring_id} was not registered by an observer")
        self._switch.unregister_ring(ring_id)
        self._rendezvous.free(ring_id)
        for endpoint in request.endpoints:
            self._outside.let_go(endpoint.ip)
        logger.info("ring %d is unregistered", ring_id)
        return control.Ok()

    def close(self) -> None:
        """Hang up on all."""
        for channel in list(self._channels):
            self._drop(channel)
