"""The ranks of one machine meet: for each pair a Unix connection, and memory in both directions that both map.

The memory has no name and the sockets live in Linux's abstract namespace, so that nothing is left behind, however a
process ends. That a mate has died is not found out here: its control connection to the switch ends, too, and the switch
tells everybody.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from netreduce.collectives.shared import SHARED_BYTES, SharedConnection
from netreduce.errors import CollectiveTimeoutError, ConfigurationError, NetReduceError
from netreduce.runtime.cable import CableClosedError, accept, connect, hang_up, listen, new_address, peer_credentials
from netreduce.runtime.control_channel import BadMessageError, ControlChannel, decoded
from netreduce.runtime.shared_memory import allocate, map_memory
from netreduce.wire import control

MACHINE_VARIABLE = "NETREDUCE_MACHINE"
"""Environment variable that names this process's machine, instead of what the kernel tells."""
MACHINE_NAME_MAX = 100
MEET_TIMEOUT_S = 60.0
"""How long mates may take to come to each other's doors: they all know of them at the same time."""
CHECK_INTERVAL_S = 0.2
WORDS_PER_ROUND = 64
"""Words taken from one mate before others get their turn."""


def machine_name() -> str:
    """What all processes of this machine, and no others, say: NETREDUCE_MACHINE, or the kernel's boot and network.

    Processes in different network namespaces of one kernel cannot connect, so they count as different machines.
    """
    name = os.environ.get(MACHINE_VARIABLE, "")
    if len(name) > MACHINE_NAME_MAX:
        raise ConfigurationError(
            f"{MACHINE_VARIABLE} has {len(name)} characters, at most {MACHINE_NAME_MAX} are allowed"
        )
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return name or f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


class Door:
    """Where the mates of a rank connect. It is open before they are told its address."""

    def __init__(self) -> None:
        self.address = new_address()
        self.listener = listen(self.address)

    def close(self) -> None:
        """No more mates."""
        self.listener.close()


class WordChannel(ControlChannel):
    """A connection between mates."""

    BYTES_MAX = 1024


class Mates:
    """This rank's connections to the other ranks of its machine.

    `shared` by rank. `listen(hear)` says what to do with their words, `progress` takes them.
    """

    def __init__(self, rank: int) -> None:
        self.shared: dict[int, SharedConnection] = {}
        self._rank = rank
        self._channels: dict[int, WordChannel] = {}
        self._inbox: select.epoll | None = None
        self._hear: Callable[[int, control.Message], None] = lambda _mate, _word: None

    def add(self, mate: int, connection: socket.socket, outgoing: np.ndarray, incoming: np.ndarray) -> None:
        """A mate has come."""
        self._channels[mate] = WordChannel(connection)
        self.shared[mate] = SharedConnection(self._rank, mate, outgoing, incoming, partial(self._say, mate))

    def listen(self, hear: Callable[[int, control.Message], None], inbox: select.epoll) -> None:
        """From now on give words to ``hear(mate, word)``, in `progress`; `inbox` is told when there are some."""
        self._hear, self._inbox = hear, inbox
        for channel in self._channels.values():
            inbox.register(channel, select.EPOLLIN)

    def progress(self) -> bool:
        """Take what mates have said; whether there was anything. Raises `BadMessageError` for what is no word."""
        heard = False
        for mate, channel in list(self._channels.items()):
            try:
                channel.flush()
                for _ in range(WORDS_PER_ROUND):
                    word = channel.receive()
                    if word is None:
                        break
                    heard = True
                    self._hear(mate, word)
            except CableClosedError:
                self._drop(mate)
        return heard

    def _say(self, mate: int, word: control.Message) -> None:
        if mate in self._channels:
            try:
                self._channels[mate].send(word)
            except CableClosedError:
                self._drop(mate)

    def _drop(self, mate: int) -> None:
        """The mate has gone; the switch says why."""
        channel = self._channels.pop(mate)
        if self._inbox is not None:
            self._inbox.unregister(channel)
        channel.close()

    def close(self) -> None:
        """Hang up on all and give the memory back; their engine has ended."""
        for mate in list(self._channels):
            self._drop(mate)
        for shared in self.shared.values():
            shared.close()


def meet(door: Door, ring_id: int, rank: int, doors: Mapping[int, str], check: Callable[[], None]) -> Mates:
    """Connect with the mates of group `ring_id`, whose `doors` are given by rank: lower ranks knock at higher ones'.

    `check` is called now and then, and raises what ends the waiting. Raises `CollectiveTimeoutError` when mates do not
    come, `NetReduceError` when they cannot be reached.
    """
    mates, deadline = Mates(rank), time.monotonic() + MEET_TIMEOUT_S
    knocking: dict[int, tuple[socket.socket, np.ndarray]] = {}
    try:
        for mate in doors:
            if mate > rank:
                connection = _knock(mate, doors[mate])
                knocking[mate] = connection, _introduce(connection, ring_id, rank)
        awaited = {mate for mate in doors if mate < rank}
        while awaited:
            _wait(door.listener, deadline, check, sorted(awaited))
            entering = accept(door.listener)
            if entering is not None and (guest := _guest(entering, ring_id, awaited, deadline, check)) is not None:
                mate, incoming = guest
                mates.add(mate, entering, _introduce(entering, ring_id, rank), incoming)
                awaited.remove(mate)
        for mate, (connection, outgoing) in knocking.items():
            _wait(connection, deadline, check, [mate])
            mates.add(mate, connection, outgoing, _take(connection, ring_id, {mate})[1])
    except BaseException:
        mates.close()
        for connection, _ in knocking.values():
            hang_up(connection)
        raise
    return mates


def _knock(mate: int, address: str) -> socket.socket:
    try:
        return connect(address)
    except NetReduceError as error:
        raise NetReduceError(f"rank {mate} says it is on this machine, but cannot be reached: {error}") from error


def _introduce(connection: socket.socket, ring_id: int, rank: int) -> np.ndarray:
    """Say who speaks, and offer memory; the memory."""
    descriptor = allocate("netreduce-mate", SHARED_BYTES)
    try:
        socket.send_fds(connection, [control.encode(control.Mate(ring_id, rank))], [descriptor])
    except OSError as error:
        os.close(descriptor)
        raise NetReduceError(f"a rank of this machine hung up: {error.strerror}") from error
    return np.frombuffer(map_memory(descriptor, SHARED_BYTES), np.uint8)


def _guest(
    connection: socket.socket, ring_id: int, awaited: set[int], deadline: float, check: Callable[[], None]
) -> tuple[int, np.ndarray] | None:
    """Who has come in, and the memory that it fills; None for somebody who has no business here."""
    try:
        if peer_credentials(connection).uid != os.getuid():
            raise BadMessageError("another user")
        _wait(connection, deadline, check, sorted(awaited))
        return _take(connection, ring_id, awaited)
    except BadMessageError:
        hang_up(connection)
        return None
    except BaseException:
        hang_up(connection)
        raise


def _take(connection: socket.socket, ring_id: int, awaited: set[int]) -> tuple[int, np.ndarray]:
    """The introduction of one of the awaited ranks."""
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, WordChannel.BYTES_MAX, 1)
    except OSError as error:
        raise BadMessageError(f"a rank of this machine hung up: {error.strerror}") from error
    with contextlib.ExitStack() as stack:
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        word = decoded(data)
        known = isinstance(word, control.Mate) and word.ring_id == ring_id and word.rank in awaited
        if not known or len(descriptors) != 1:
            raise BadMessageError(f"{type(word).__name__} instead of the introduction of a rank of this machine")
        stack.pop_all()
    assert isinstance(word, control.Mate)
    return word.rank, np.frombuffer(map_memory(descriptors[0], SHARED_BYTES), np.uint8)


def _wait(waited: socket.socket, deadline: float, check: Callable[[], None], ranks: list[int]) -> None:
    """Until `waited` is readable."""
    poll = select.poll()
    poll.register(waited, select.POLLIN)
    while not poll.poll(CHECK_INTERVAL_S * 1000):
        check()
        if time.monotonic() > deadline:
            raise CollectiveTimeoutError(f"ranks {ranks} of this machine did not come within {MEET_TIMEOUT_S:g} s")
