"""Asking a switch for its counters without being plugged in, and the summary of a run in words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from netreduce.errors import AdmissionError, SwitchLostError
from netreduce.runtime.address import open_channel, token_from_environment
from netreduce.runtime.cable import CableClosedError
from netreduce.runtime.reception import OBSERVER_PORT
from netreduce.wire import control

ANSWER_TIMEOUT_S = 5.0

Answer = TypeVar("Answer", bound=control.Message)


class Observer:
    """A connection to the switch at `address` that is no worker's. Over TCP the switch wants its `token` to be known.

    `SwitchLostError` when the switch does not answer, or turns the observer away.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        self._address = address
        self._channel = open_channel(address)
        token = token_from_environment() if token is None else token
        try:
            self._ask(control.Hello(OBSERVER_PORT, "observer", os.getpid(), token), control.Ok)
        except BaseException:
            self.close()
            raise

    def _ask(self, request: control.Message, kind: type[Answer]) -> Answer:
        try:
            self._channel.send(request)
            answer = self._channel.receive_within(ANSWER_TIMEOUT_S)
        except CableClosedError as error:
            raise SwitchLostError(f"the switch at {self._address} hung up: {error}") from error
        if isinstance(answer, control.Refused):
            raise AdmissionError(f"the switch at {self._address} refused: {answer.reason}")
        if not isinstance(answer, kind):
            raise SwitchLostError(f"the switch at {self._address} did not answer within {ANSWER_TIMEOUT_S:g} s")
        return answer

    def statistics(self) -> control.Statistics:
        """The switch's counters."""
        return self._ask(control.StatisticsRequest(), control.Statistics)

    def rings(self) -> tuple[control.RingState, ...]:
        """The rings that there are."""
        return self._ask(control.RingsRequest(), control.Rings).rings

    def register(self, endpoints: Sequence[control.Endpoint], geometry: control.Geometry, ring_id: int = 0) -> int:
        """Have the messages of `endpoints` summed, which need not know of it; the ring's id.

        `AdmissionError` when the switch refuses.
        """
        return self._ask(control.Register(tuple(endpoints), geometry, ring_id), control.Registered).ring_id

    def unregister(self, ring_id: int) -> None:
        """End a ring that was registered by an observer; `AdmissionError` for any other."""
        self._ask(control.Unregister(ring_id), control.Ok)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def observe(address: str) -> control.Statistics:
    """The counters of the switch at `address`; `SwitchLostError` when it does not answer."""
    with Observer(address) as observer:
        return observer.statistics()


def summary(statistics: control.Statistics) -> list[str]:
    """What the network did in a run, in lines for the user."""
    counters = statistics.counters
    if counters.get("packets_spliced", 0):
        messages, packets = counters["messages_aggregated"], counters["packets_spliced"]
        first = f"in-network reduction was ACTIVE: {messages:,} messages, {packets:,} packets spliced"
    else:
        first = "in-network reduction was NOT active: nothing was reduced in the switch"
    lines = [first]
    sent, ring = (statistics.workers.get(name, 0) for name in ("in_network_bytes_sent", "ring_bytes"))
    if sent:
        lines.append(f"payload sent by all workers: {sent / 1e6:,.1f} MB; round a ring it were {ring / 1e6:,.1f} MB")
    lines.append(f"ICRC failures: {icrc_failures(statistics):,}, retransmissions: {retransmissions(statistics):,}")
    return lines + [f"fault {text!r} struck {count:,} times" for text, count in statistics.faults.items()]


def icrc_failures(statistics: control.Statistics) -> int:
    """Frames whose ICRC was wrong, at the switch or at a NIC."""
    return statistics.counters.get("drop_bad_icrc", 0) + statistics.workers.get("drop_bad_icrc", 0)


def retransmissions(statistics: control.Statistics) -> int:
    """Packets that NICs sent again."""
    return statistics.workers.get("retransmitted_pkts", 0)
