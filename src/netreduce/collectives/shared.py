"""Transfers between two ranks of one machine: data through shared memory, a few words about it beside.

As between machines (`transport.py`), the receiver says first what it wants, and the sender compares: two sides that
disagree name both. The data goes through a ring of places in memory that both have mapped: the sender copies a piece
into the next place and says so, the receiver copies it out and says that the place is free. Whoever owns the
connection carries the words, in order, and brings those of the peer to `hear`; no word, no look at the memory, so it
needs no atomic operations.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from netreduce.collectives.fingerprint import describe
from netreduce.collectives.transport import COLLECTIVE_TAG, Transfer
from netreduce.errors import MismatchError, NetReduceError
from netreduce.units import KIB
from netreduce.wire.control import Declined, Filled, Freed, Message, Wanted

PLACE_BYTES = 256 * KIB
PLACES = 4
"""Pieces under way in one direction: one is being filled, one emptied, and two let both be late now and then."""
SHARED_BYTES = PLACES * PLACE_BYTES
WANTED_MAX = 64
"""Receives announced at once, of collectives and of the user each, so that words of both always find room."""


class SharedReceives:
    """Receives from one mate."""

    def __init__(self, connection: SharedConnection) -> None:
        self._connection = connection
        self._waiting: tuple[deque[Transfer], deque[Transfer]] = deque(), deque()  # of the user, of collectives
        self._wanted: tuple[dict[int, Transfer], dict[int, Transfer]] = {}, {}
        self._taken: dict[int, int] = {}  # bytes that have come, by index
        self._announced = 0
        self._filled = 0
        self.bytes_received = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the mate owes something."""
        return any(self._wanted)

    def add(self, transfer: Transfer) -> None:
        """Ask the mate for `transfer`, now or when fewer are outstanding."""
        kind = int(transfer.tag >= COLLECTIVE_TAG)
        self._waiting[kind].append(transfer)
        self._announce(kind)

    def _announce(self, kind: int) -> None:
        waiting, wanted = self._waiting[kind], self._wanted[kind]
        while waiting and len(wanted) < WANTED_MAX:
            transfer = waiting.popleft()
            self._announced += 1
            wanted[self._announced] = transfer
            transfer.index = self._announced
            word = Wanted(transfer.index, transfer.tag, transfer.fingerprint, transfer.size_bytes)
            self._connection.say(word)

    def filled(self, word: Filled) -> None:
        """The next place holds the next piece of a transfer."""
        kind, transfer = self._find(word.index)
        start = self._taken.get(word.index, 0)
        place = self._filled % PLACES * PLACE_BYTES
        if word.length > min(PLACE_BYTES, transfer.size_bytes - start):
            raise NetReduceError(f"rank {self._connection.peer} sent more than was asked for")
        ctypes.memmove(transfer.address + start, self._connection.incoming_address + place, word.length)
        self._filled += 1
        self.bytes_received += word.length
        self._connection.say(Freed())
        self._taken[word.index] = start + word.length
        if start + word.length == transfer.size_bytes:
            del self._taken[word.index], self._wanted[kind][word.index]
            transfer.done()
            self._announce(kind)

    def declined(self, word: Declined) -> None:
        """The mate would have sent something else."""
        _, transfer = self._find(word.index)
        raise self._connection.mismatch(transfer, word.fingerprint, word.size_bytes)

    def _find(self, index: int) -> tuple[int, Transfer]:
        for kind, wanted in enumerate(self._wanted):
            if index in wanted:
                return kind, wanted[index]
        peer, rank = self._connection.peer, self._connection.rank
        raise NetReduceError(f"rank {peer} answered request {index}, which rank {rank} never made")


class SharedSends:
    """Sends to one mate."""

    def __init__(self, connection: SharedConnection) -> None:
        self._connection = connection
        self._offers: defaultdict[int, deque[Wanted]] = defaultdict(deque)
        self._sends: defaultdict[int, deque[Transfer]] = defaultdict(deque)
        self._outgoing: deque[_Outgoing] = deque()
        self._in_places: deque[Transfer | None] = deque()  # by place in use: the transfer that ends there
        self._filled = 0
        self.bytes_sent = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the mate has not asked for something that is there, or not taken it."""
        return bool(self._sends or self._in_places)

    def add(self, transfer: Transfer) -> None:
        """Send `transfer` as soon as the mate has asked for its tag."""
        self._sends[transfer.tag].append(transfer)
        self._match(transfer.tag)

    def wanted(self, word: Wanted) -> None:
        """The mate asks."""
        self._offers[word.tag].append(word)
        self._match(word.tag)

    def freed(self) -> None:
        """The mate has emptied the oldest place."""
        if not self._in_places:
            raise NetReduceError(f"rank {self._connection.peer} freed a place that held nothing")
        transfer = self._in_places.popleft()
        self._pump()
        if transfer is not None:
            self.bytes_sent += transfer.size_bytes
            transfer.done()

    def _match(self, tag: int) -> None:
        sends, offers = self._sends[tag], self._offers[tag]
        while sends and offers:
            transfer, word = sends.popleft(), offers.popleft()
            if word.size_bytes != transfer.size_bytes or word.fingerprint != transfer.fingerprint:
                self._connection.say(Declined(word.index, transfer.fingerprint, transfer.size_bytes))
                raise self._connection.mismatch(transfer, word.fingerprint, word.size_bytes)
            self._outgoing.append(_Outgoing(transfer, word.index))
        if not sends:
            del self._sends[tag]
        if not offers:
            del self._offers[tag]
        self._pump()

    def _pump(self) -> None:
        """Fill free places."""
        while self._outgoing and len(self._in_places) < PLACES:
            outgoing = self._outgoing[0]
            transfer, start = outgoing.transfer, outgoing.filled_bytes
            length = min(PLACE_BYTES, transfer.size_bytes - start)
            place = self._filled % PLACES * PLACE_BYTES
            ctypes.memmove(self._connection.outgoing_address + place, transfer.address + start, length)
            self._filled += 1
            outgoing.filled_bytes += length
            last = outgoing.filled_bytes == transfer.size_bytes
            if last:
                self._outgoing.popleft()
            self._in_places.append(transfer if last else None)
            self._connection.say(Filled(outgoing.index, length))


@dataclass(slots=True)
class _Outgoing:
    """A send that has met its request."""

    transfer: Transfer
    index: int
    filled_bytes: int = 0


class SharedConnection:
    """This rank's end of the connection to its mate `peer`.

    `outgoing` and `incoming` are uint8 [SHARED_BYTES], mapped by both: what this rank fills is the peer's `incoming`.
    `say` brings a word to the peer's `hear`.
    """

    def __init__(
        self, rank: int, peer: int, outgoing: np.ndarray, incoming: np.ndarray, say: Callable[[Message], None]
    ) -> None:
        assert outgoing.nbytes == incoming.nbytes == SHARED_BYTES
        self.rank = rank
        self.peer = peer
        self.say = say
        self.outgoing_address, self.incoming_address = int(outgoing.ctypes.data), int(incoming.ctypes.data)
        self._memory: tuple[np.ndarray, ...] = outgoing, incoming
        self.receives = SharedReceives(self)
        self.sends = SharedSends(self)

    @property
    def is_waiting(self) -> bool:
        """Whether something waits for the peer."""
        return self.receives.is_waiting or self.sends.is_waiting

    def hear(self, word: Message) -> None:
        """Take a word of the peer. Raises `MismatchError`, `NetReduceError` for nonsense."""
        match word:
            case Filled():
                self.receives.filled(word)
            case Freed():
                self.sends.freed()
            case Wanted():
                self.sends.wanted(word)
            case Declined():
                self.receives.declined(word)
            case _:
                raise NetReduceError(f"rank {self.peer} said {type(word).__name__} to rank {self.rank}")

    def close(self) -> None:
        """Give the memory back; nothing is sent or heard any more."""
        self._memory = ()

    def mismatch(self, own: Transfer, fingerprint: int, size_bytes: int) -> MismatchError:
        """The error that names both sides."""
        ours = describe(own.fingerprint, own.size_bytes)
        return MismatchError.between((self.rank, ours), (self.peer, describe(fingerprint, size_bytes)))
