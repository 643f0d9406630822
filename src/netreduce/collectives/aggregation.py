"""The in-network path: data leaves for the successor in messages, and comes back from the predecessor as the sum.

Each message is one SEND of two scatter-gather elements, an INA header and a slice of the user's own memory; the switch
puts the combination of all ranks into it on its way, and one receive of two elements scatters header and result, the
latter straight to where it belongs. Messages of all collectives stream in the order of the calls through one window.

Short aggregations are *staged*: they pass through the path's own registered memory. A copy costs less than registering
memory, and the result is all that has to be waited for: what may have to be sent again is not the caller's any more.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from netreduce.collectives.provider import CQ, PD
from netreduce.collectives.queue_pairs import connect_queue_pair, make_queue_pair
from netreduce.collectives.window import MessageWindow
from netreduce.errors import NetReduceError
from netreduce.nic.verbs import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_SEND_SIGNALED,
    IBV_WR_SEND,
    SGE,
    WC,
    RecvWR,
    SendWR,
)
from netreduce.wire.control import Endpoint, Geometry
from netreduce.wire.ina import INA_BYTES, DataType, InaFlag, ReduceOp, pack_ina

STAGED_BYTES_MAX = 16 * 1024
"""Longest memory of which aggregations are staged."""
_PLACE_BYTES = INA_BYTES + STAGED_BYTES_MAX
"""Room for one message's header and, if it is staged, its data."""

_FLAGS = {
    (first, last, averages): InaFlag(first * InaFlag.START | last * InaFlag.END | averages * InaFlag.AVERAGE)
    for first, last, averages in itertools.product((False, True), repeat=3)
}
"""By whether a message is its aggregation's first, its last, and of an average. A table, since combining flags takes
microseconds."""


Piece: TypeAlias = tuple[int, int] | memoryview
"""The caller's memory: address and lkey, or the bytes, which need not be registered then."""


@dataclass(slots=True)
class Aggregation:
    """One span for the switch: `source` and `target` are `Piece`; without a target the result is discarded.

    It is staged if they are bytes, `STAGED_BYTES_MAX` at most.
    `divide(offset, length)` is called with the bytes of each finished message, `done()` after the last one.
    """

    source: Piece
    target: Piece | None
    length_bytes: int
    element_bytes: int
    dtype: DataType
    op: ReduceOp
    averages: bool
    divide: Callable[[int, int], None] | None
    done: Callable[[], None]
    posted_bytes: int = 0
    finished_bytes: int = 0

    @property
    def is_staged(self) -> bool:
        """Whether the network has nothing to do with the caller's memory."""
        return isinstance(self.source, memoryview)


@dataclass(slots=True)
class Turn:
    """A collective's place in the order of aggregations, which is the same on all ranks.

    Later turns start to send when an earlier one is `closed` (adds nothing more) and all of it has been posted.
    """

    waiting: deque[Aggregation] = field(default_factory=deque)
    closed: bool = False


@dataclass(slots=True)
class _Message:
    aggregation: Aggregation
    offset: int
    length_bytes: int
    expected_header: bytes


class Staging(NamedTuple):
    """The memory through which staged messages pass: message k has place k modulo `places` in both halves."""

    given: int  # address of the first place of messages to send
    taken: int  # ... and of messages received
    place_bytes: int
    places: int
    key: int


class AggregationPath:
    """The two ring queue pairs of one rank and what streams over them. `connect` comes before the first message."""

    def __init__(
        self, pd: PD, cq: CQ, rank: int, world_size: int, geometry: Geometry, first_psn: int, ack_timeout: int
    ) -> None:
        depth = geometry.message_window
        self.successor_qp = make_queue_pair(pd, cq, send_depth=depth, receive_depth=1, sges=2)
        self.predecessor_qp = make_queue_pair(pd, cq, send_depth=1, receive_depth=depth, sges=2)
        self.first_psn = first_psn
        self.messages = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self._rank = rank
        self._predecessor_rank = (rank - 1) % world_size
        self._geometry = geometry
        self._ack_timeout = ack_timeout
        self._ring_id = 0
        self._window = MessageWindow(depth)
        self._turns: deque[Turn] = deque()
        self._messages: list[_Message | None] = [None] * depth
        self._memory = np.zeros(2 * depth * _PLACE_BYTES + geometry.message_data_bytes, np.uint8)
        self._mr = pd.verbs.MR(pd, self._memory.nbytes, IBV_ACCESS_LOCAL_WRITE, address=self._memory.ctypes.data)
        # Places of messages to send, of messages received, and room for one message that nobody wants.
        self._address, self._received_at = int(self._memory.ctypes.data), depth * _PLACE_BYTES
        self._bytes = self._memory.data
        self._staged = [self._make_staged(place) for place in range(depth)]
        self._discard = self._address + 2 * self._received_at, self._mr.lkey
        self._is_ahead = False

    def _make_staged(self, place: int) -> tuple[SGE, RecvWR, SGE, SendWR]:
        """What is posted for each staged message at `place`: of work requests, only number and length differ."""
        given = SGE(self._address + place * _PLACE_BYTES, 0, self._mr.lkey)
        taken = SGE(given.addr + self._received_at, 0, self._mr.lkey)
        return taken, RecvWR(0, 1, [taken]), given, SendWR(0, IBV_WR_SEND, 1, 0, [given], IBV_SEND_SIGNALED)

    def connect(self, ring_id: int, endpoints: tuple[Endpoint, ...]) -> None:
        """Bring both queue pairs to RTS: the one to the successor, and the one from the predecessor."""
        self._ring_id = ring_id
        successor = endpoints[(self._rank + 1) % len(endpoints)]
        predecessor = endpoints[self._predecessor_rank]
        mtu, timeout = self._geometry.path_mtu, self._ack_timeout
        connect_queue_pair(
            self.successor_qp,
            ip=successor.ip,
            qpn=successor.predecessor_qpn,
            send_psn=self.first_psn,
            receive_psn=0,
            path_mtu=mtu,
            ack_timeout=timeout,
        )
        connect_queue_pair(
            self.predecessor_qp,
            ip=predecessor.ip,
            qpn=predecessor.successor_qpn,
            send_psn=0,
            receive_psn=predecessor.first_psn,
            path_mtu=mtu,
            ack_timeout=timeout,
        )

    def take_turn(self) -> Turn:
        """A place behind all turns so far."""
        turn = Turn()
        self._turns.append(turn)
        return turn

    @property
    def is_full(self) -> bool:
        """Whether the next message has to wait for the window."""
        return not self._window.may_post

    def pump(self) -> bool:
        """Post messages as far as the window allows; whether there was one."""
        before = self._window.posted
        while self._window.may_post and (aggregation := self._next_aggregation()) is not None:
            self._post(aggregation)
        return self._window.posted > before

    def _next_aggregation(self) -> Aggregation | None:
        """The aggregation whose next message is due, if any."""
        while self._turns:
            turn = self._turns[0]
            while turn.waiting:
                if turn.waiting[0].posted_bytes < turn.waiting[0].length_bytes:
                    return turn.waiting[0]
                turn.waiting.popleft()
            if not turn.closed:
                return None
            self._turns.popleft()
        return None

    def _post(self, aggregation: Aggregation) -> None:
        number = self._window.post()
        place = number % self._window.size
        at = place * _PLACE_BYTES
        offset = aggregation.posted_bytes
        whole = self._geometry.message_data_bytes // aggregation.element_bytes * aggregation.element_bytes
        length = min(whole, aggregation.length_bytes - offset)
        aggregation.posted_bytes += length
        is_last = aggregation.posted_bytes == aggregation.length_bytes
        flags = _FLAGS[offset == 0, is_last, aggregation.averages]
        header, expected = self.headers(number, length, aggregation.dtype, aggregation.op, flags)
        self._messages[place] = _Message(aggregation, offset, length, expected)
        self.messages += 1
        self.bytes_sent += length
        if self._is_ahead:
            self._is_ahead = False
            return
        self._bytes[at : at + INA_BYTES] = header
        source, target = aggregation.source, aggregation.target
        if isinstance(source, memoryview):
            self._bytes[at + INA_BYTES : at + INA_BYTES + length] = source[offset : offset + length]
            taken, receive, given, send = self._staged[place]
            taken.length = given.length = INA_BYTES + length
            receive.wr_id = send.wr_id = number
        else:
            assert not isinstance(target, memoryview)
            address, lkey = target or self._discard
            result = SGE(address + (offset if target else 0), length, lkey)
            data = SGE(source[0] + offset, length, source[1])
            header_out = SGE(self._address + at, INA_BYTES, self._mr.lkey)
            header_in = SGE(header_out.addr + self._received_at, INA_BYTES, self._mr.lkey)
            receive = RecvWR(number, 2, [header_in, result])
            send = SendWR(number, IBV_WR_SEND, 2, 0, [header_out, data], IBV_SEND_SIGNALED)
        # The receive first: once the last rank has sent, the result may come at any time.
        self.predecessor_qp.post_recv(receive)
        self.successor_qp.post_send(send)

    def headers(self, number: int, length: int, dtype: DataType, op: ReduceOp, flags: InaFlag) -> tuple[bytes, bytes]:
        """The INA headers of message `number`, and of its result."""
        message_id = MessageWindow.message_id(number)
        header = pack_ina(self._ring_id, self._rank, message_id, length, dtype, op, flags)
        return header, header[:2] + self._predecessor_rank.to_bytes(2, "big") + header[4:]

    # Short calls (runtime/short_collectives.py) post staged messages themselves, and take their completions.

    @property
    def staging(self) -> Staging:
        """Where staged messages lie."""
        given = self._address, self._address + self._received_at
        return Staging(*given, _PLACE_BYTES, self._window.size, self._mr.lkey)

    @property
    def oldest_unacknowledged(self) -> int:
        """The first message that the successor has not acknowledged, if it was sent."""
        return self._window.acknowledged

    def next_short(self) -> int:
        """The number of the message that a short call may post now; -1 if it may not, since others are under way.

        The window keeps room for one more, so that nobody waits for acknowledgements.
        """
        window = self._window
        is_quiet = not self._turns and window.received == window.posted
        return window.posted if is_quiet and window.in_flight < window.size - 1 else -1

    def note_short(self, acknowledged: int, length: int) -> None:
        """A short call has sent a message of `length` data bytes, and has its result; see `note_acknowledged`."""
        self._window.post()
        self._window.receive()
        self.messages += 1
        self.bytes_sent += length
        self.bytes_received += length
        self.note_acknowledged(acknowledged)

    def note_acknowledged(self, acknowledged: int) -> None:
        """Acknowledgements up to message `acknowledged` (that one excluded) were taken from the completion queue."""
        self._window.acknowledged = acknowledged
        self._complete()

    def note_ahead(self) -> None:
        """The next message is with the NIC already: a short call has posted it, and could not wait for its end."""
        self._is_ahead = True

    def received(self, completion: WC) -> None:
        """Take the completion of a receive: a result has arrived, and it is the expected one."""
        number = self._window.receive()
        assert number == completion.wr_id, (number, completion.wr_id)
        place = number % self._window.size
        message = self._messages[place]
        assert message is not None
        at = self._received_at + place * _PLACE_BYTES
        header = bytes(self._bytes[at : at + INA_BYTES])
        if header != message.expected_header or completion.byte_len != INA_BYTES + message.length_bytes:
            raise NetReduceError(
                f"ring {self._ring_id}: rank {self._predecessor_rank} sent rank {self._rank} an INA header of "
                f"{header.hex()} with {completion.byte_len - INA_BYTES} bytes as message {number}; "
                f"{message.expected_header.hex()} with {message.length_bytes} bytes was due"
            )
        self.bytes_received += message.length_bytes
        aggregation = message.aggregation
        if isinstance(aggregation.target, memoryview):
            place, end = message.offset, message.offset + message.length_bytes
            aggregation.target[place:end] = self._bytes[at + INA_BYTES : at + INA_BYTES + message.length_bytes]
        if aggregation.is_staged:
            self._finish(message)
        self._complete()

    def acknowledged(self, completion: WC) -> None:
        """Take the completion of a send: the successor has the message."""
        number = self._window.acknowledge()
        assert number == completion.wr_id, (number, completion.wr_id)
        self._complete()

    def _complete(self) -> None:
        """Free the places of messages that are both received and acknowledged."""
        for number in self._window.complete():
            place = number % self._window.size
            message = self._messages[place]
            self._messages[place] = None
            if message is not None and not message.aggregation.is_staged:  # None: a short call's
                self._finish(message)

    def _finish(self, message: _Message) -> None:
        """The result of `message` is where it belongs."""
        aggregation = message.aggregation
        if aggregation.divide is not None:
            aggregation.divide(message.offset, message.length_bytes)
        aggregation.finished_bytes += message.length_bytes
        if aggregation.finished_bytes == aggregation.length_bytes:
            aggregation.done()

    def close(self) -> None:
        """Destroy the queue pairs and release the header memory."""
        self.successor_qp.close()
        self.predecessor_qp.close()
        self._mr.close()
