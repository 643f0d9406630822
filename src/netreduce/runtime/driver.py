"""What a worker drives: the embedded NIC on a cable, or an RDMA device, which drives itself."""

from __future__ import annotations

import logging
import select
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from netreduce.collectives.provider import Context
from netreduce.runtime.clock import Clock
from netreduce.runtime.control_channel import ControlChannel
from netreduce.runtime.provider import choose
from netreduce.wire.control import Endpoint

if TYPE_CHECKING:  # what the embedded NIC needs may not be installed
    from netreduce.runtime.nic_driver import NicRound

logger = logging.getLogger("netreduce")


class Driver(Protocol):
    """One worker's way to the network. All but `counters` is for one thread at a time."""

    path_mtu: int
    round: NicRound | None
    """The rounds of an embedded NIC on a cable that nobody records; else None."""

    @property
    def context(self) -> Context:
        """The NIC, for engines."""

    def take(self, now_ps: int) -> tuple[int, bool, bool]:
        """Let the NIC have what has arrived, and act.

        Returns the time after it, whether anything had, and whether it is worth to look again before a sleep.
        """

    def give(self, now_ps: int) -> bool:
        """Let the NIC act, and send what it has to send; whether more waits for the room that this has made."""

    def be_patient(self, is_patient: bool) -> None:
        """Whether nobody here waits for acknowledgements, nor anybody for those that leave here."""

    def watch(self, inbox: select.epoll) -> None:
        """Register with `inbox` what ends a sleep, once."""

    def rest(self, now_ps: int, moved_ps: int, busy: bool) -> int:
        """Before a sleep, which what is registered will end: when to go on if nothing is heard.

        At once if something waits already. The engines moved last at `moved_ps` and are `busy` or not.
        """

    def wake(self) -> None:
        """What it has registered has ended the sleep."""

    def learn(self, endpoints: Iterable[Endpoint]) -> None:
        """Hear where the ranks of a group are."""

    def counters(self) -> dict[str, int]:
        """What the NIC has counted, by name."""

    def close(self) -> None:
        """Let go of it."""


class Attachment(NamedTuple):
    """A driver, the control connection to the switch, the clock of the driver's times, and how it speaks, in words."""

    driver: Driver
    channel: ControlChannel
    clock: Clock
    words: str = ""  # empty at a local cable


def roce_words(ip: str, interface: str, path_mtu: int) -> str:
    """Where a worker's packets leave this host."""
    return f"speaks RoCE as {ip} on interface {interface}, path MTU {path_mtu}"


def attach(address: str, worker: str, provider: str) -> Attachment:
    """Attach `worker` (a name for messages) to the switch at `address`.

    `SwitchLostError` when there is none; `ConfigurationError` when the network or the RDMA device does not do.
    """
    choice = choose(address, provider)
    # late: what the other provider needs may not be installed
    if choice.port is not None and choice.gid is not None:
        from netreduce.runtime.rdma_driver import attach_rdma

        logger.info("%s uses RDMA device %s: %s", worker, choice.port, choice.reason)
        return attach_rdma(address, worker, choice.port, choice.gid)
    from netreduce.runtime.nic_driver import attach_nic

    logger.info("%s uses the embedded NIC: %s", worker, choice.reason)
    return attach_nic(address, worker)
