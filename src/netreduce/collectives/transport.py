"""Point-to-point transport over RC queue pairs between two ranks, as NCCL's InfiniBand transport does it.

The receiver posts an empty receive work request, then RDMA WRITEs a clear-to-send slot into a FIFO in the sender's
memory. The sender finds the fresh slot and RDMA WRITEs the data to the address it names; the last work request carries
an immediate, which consumes the receive work request and names the slot. Clear-to-send writes are not inline, and one
in each pass round the FIFO is signaled, so that the send queue can be retired.

With several queue pairs per connection (NCCL_IB_QPS_PER_CONNECTION) clear-to-send slots keep to the first one. Data
takes turns, a transfer each, or is split over all of them (NCCL_IB_SPLIT_DATA_ON_QPS): then each queue pair carries an
immediate of its own, and a transfer is complete when all its parts are there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from netreduce.collectives.data_stream import DataStream, Part
from netreduce.collectives.fingerprint import describe
from netreduce.collectives.provider import PD, QP
from netreduce.collectives.send_queue import SendQueue
from netreduce.collectives.slots import (
    FIFO_SLOTS,
    INDEX_MASK,
    REFUSAL_PLACE,
    REFUSED,
    SLOT_BYTES,
    SlotMemory,
    write_slot,
)
from netreduce.errors import MismatchError, NetReduceError
from netreduce.nic.verbs import (
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    WC,
    RecvWR,
)

COLLECTIVE_TAG = 1 << 31
"""Tags from here on belong to collectives; below are the user's."""
USER_SLOTS = 128
"""Slots that receives of the user may hold; the rest is left to collectives, so that these can always go on."""
SEND_QUEUE_DEPTH = 2 * FIFO_SLOTS
"""Clear-to-send writes stay in the queue until the next signaled one, up to 256 later; data writes come on top."""
SPLIT_BYTES = 128
"""Transfers are split over queue pairs at multiples of this, as NCCL does."""


@dataclass(slots=True)
class Transfer:
    """One send or receive of `size_bytes` of registered memory at `address`; `key` is its lkey or rkey."""

    address: int
    size_bytes: int
    key: int
    tag: int
    fingerprint: int
    done: Callable[[], None]
    index: int = 0  # of the clear-to-send slot that announced it
    parts_left: int = 1  # one for each queue pair that carries some of it


class ReceiveSide:
    """Receives from one peer: announces them by clear-to-send slots and takes their completions."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection
        self._announced = 0
        self._places: list[Transfer | None] = [None] * FIFO_SLOTS
        self._waiting: deque[Transfer] = deque()
        self._waiting_user: deque[Transfer] = deque()
        self._user_count = 0
        self.bytes_received = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the peer owes data."""
        return bool(self._waiting or self._waiting_user) or any(place is not None for place in self._places)

    def add(self, transfer: Transfer) -> None:
        """Ask the peer for `transfer`, now or as soon as a slot is free."""
        (self._waiting if transfer.tag >= COLLECTIVE_TAG else self._waiting_user).append(transfer)
        self.announce()

    def announce(self) -> None:
        """Write clear-to-send slots for waiting receives, as far as there is room."""
        while self._waiting and self._has_room():
            self._clear_to_send(self._waiting.popleft())
        while self._waiting_user and self._user_count < USER_SLOTS and self._has_room():
            self._user_count += 1
            self._clear_to_send(self._waiting_user.popleft())

    def _has_room(self) -> bool:
        return self._places[self._announced % FIFO_SLOTS] is None and self._connection.slot_queue.has_room

    def _clear_to_send(self, transfer: Transfer) -> None:
        place = self._announced % FIFO_SLOTS
        self._announced += 1
        transfer.index = self._announced
        self._places[place] = transfer
        shares = self._connection.shares(transfer.index, transfer.size_bytes)
        transfer.parts_left = len(shares)
        for share in shares:
            self._connection.qps[share.queue_pair].post_recv(RecvWR(wr_id=place, num_sge=0, sg=[]))
        self._connection.write_slot(place, transfer, signaled=place == 0)

    def complete(self, immediate: int) -> None:
        """The peer has answered the request that `immediate` names: with a part of the data, or with a refusal."""
        place = (immediate & INDEX_MASK) - 1 & FIFO_SLOTS - 1
        transfer = self._places[place]
        if transfer is None or transfer.index & INDEX_MASK != immediate & INDEX_MASK:
            peer, rank = self._connection.peer, self._connection.rank
            raise NetReduceError(f"rank {peer} answered request {immediate & INDEX_MASK}, which rank {rank} never made")
        if immediate & REFUSED:
            raise self._connection.mismatch(transfer, self._connection.slots.inbox[REFUSAL_PLACE])
        transfer.parts_left -= 1
        if transfer.parts_left:
            return
        self._places[place] = None
        if transfer.tag < COLLECTIVE_TAG:
            self._user_count -= 1
        self.bytes_received += transfer.size_bytes
        transfer.done()
        self.announce()


class SendSide:
    """Sends to one peer: matches them with the peer's clear-to-send slots by tag and writes the data."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection
        self._slots_read = 0
        self._offers: defaultdict[int, deque[np.void]] = defaultdict(deque)
        self._sends: defaultdict[int, deque[Transfer]] = defaultdict(deque)
        self._unmatched = 0
        self.bytes_sent = 0

    def add(self, transfer: Transfer) -> None:
        """Send `transfer` as soon as the peer has asked for its tag."""
        self._sends[transfer.tag].append(transfer)
        self._unmatched += 1
        self._connection.awaiting[self._connection.peer] = self._connection
        self.poll_slots()
        self._match(transfer.tag)

    @property
    def is_waiting(self) -> bool:
        """Whether the peer has not asked yet for something that it is to get."""
        return self._unmatched > 0

    def poll_slots(self) -> bool:
        """Read fresh clear-to-send slots; whether there was one."""
        slots, found = self._connection.slots, False
        while slots.is_fresh(self._slots_read + 1):
            slot = slots.inbox[self._slots_read % FIFO_SLOTS].copy()
            self._slots_read += 1
            tag = int(slot["tag"])
            self._offers[tag].append(slot)
            self._match(tag)
            found = True
        return found

    def _match(self, tag: int) -> None:
        sends, offers = self._sends[tag], self._offers[tag]
        while sends and offers:
            transfer, slot = sends.popleft(), offers.popleft()
            self._unmatched -= 1
            if slot["size_bytes"] == transfer.size_bytes and slot["rkeys"][1] == transfer.fingerprint:
                self._write(transfer, slot)
            else:
                self._connection.refuse(transfer, slot)
        if not sends:
            del self._sends[tag]
        if not offers:
            del self._offers[tag]
        if not self._unmatched:
            self._connection.awaiting.pop(self._connection.peer, None)

    def _write(self, transfer: Transfer, slot: np.void) -> None:
        address, rkey, index = int(slot["address"]), int(slot["rkeys"][0]), int(slot["index"])
        shares = self._connection.shares(index, transfer.size_bytes)
        transfer.parts_left = len(shares)
        for share in shares:
            local = transfer.address + share.offset, transfer.key
            remote = address + share.offset, rkey
            part = Part(local, remote, share.size_bytes, index & INDEX_MASK, partial(self._part_sent, transfer))
            self._connection.streams[share.queue_pair].add(part)

    def _part_sent(self, transfer: Transfer) -> None:
        transfer.parts_left -= 1
        if not transfer.parts_left:
            self.bytes_sent += transfer.size_bytes
            transfer.done()


class Share(NamedTuple):
    """`size_bytes` of a transfer from byte `offset` on, which queue pair number `queue_pair` carries."""

    queue_pair: int
    offset: int
    size_bytes: int


class PeerConnection:
    """This rank's end of the connection to `peer`, over `qps`. `connect` comes before the first transfer.

    With `splits`, each transfer is split over all queue pairs; else it takes one of them, in turn. While sends wait for
    the peer's clear to send, the connection is in `awaiting`, by peer: only these need to look at their slots.
    """

    def __init__(
        self,
        pd: PD,
        qps: Sequence[QP],
        rank: int,
        peer: int,
        awaiting: dict[int, PeerConnection],
        *,
        splits: bool = False,
    ) -> None:
        self.qps = qps
        self.awaiting = awaiting
        self.rank = rank
        self.peer = peer
        self.slots = SlotMemory(pd)
        self.streams = [DataStream(SendQueue(qp, SEND_QUEUE_DEPTH)) for qp in qps]
        self.slot_queue = self.streams[0].queue
        self._streams = {qp.qp_num: stream for qp, stream in zip(qps, self.streams, strict=True)}
        self._splits = splits
        self.receives = ReceiveSide(self)
        self.sends = SendSide(self)
        self._fifo = 0, 0  # address and rkey of the peer's inbox

    @property
    def is_waiting(self) -> bool:
        """Whether the peer owes data, or has not asked yet for what it is to get."""
        return self.sends.is_waiting or self.receives.is_waiting

    def connect(self, fifo_address: int, fifo_rkey: int) -> None:
        """Where the peer takes clear-to-send slots; the queue pairs are at RTS."""
        self._fifo = fifo_address, fifo_rkey

    def shares(self, index: int, size_bytes: int) -> list[Share]:
        """Which queue pairs carry what of the transfer that slot `index` (from 1) announced; both ends know it."""
        count = len(self.qps)
        if not self._splits:
            return [Share((index - 1) % count, 0, size_bytes)]
        longest = -(-size_bytes // (count * SPLIT_BYTES)) * SPLIT_BYTES
        cuts = [min(number * longest, size_bytes) for number in range(count + 1)]
        return [Share(number, cuts[number], cuts[number + 1] - cuts[number]) for number in range(count)]

    def complete(self, completion: WC) -> None:
        """Take a successful completion of one of this connection's queue pairs. Raises `MismatchError`."""
        if completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM:
            self.receives.complete(int(completion.imm_data))
            return
        stream = self._streams[completion.qp_num]
        stream.queue.complete(completion.wr_id)
        self.receives.announce()
        stream.pump()

    def write_slot(self, place: int, transfer: Transfer, *, signaled: bool) -> None:
        """RDMA WRITE a slot that announces `transfer` to the peer."""
        self._fill_slot(place, transfer)
        self.slot_queue.write(IBV_WR_RDMA_WRITE, *self._ways(place), signaled=signaled)

    def refuse(self, transfer: Transfer, slot: np.void) -> None:
        """Tell the peer what this rank would have sent, instead of sending it; the error follows when it knows."""

        def raise_mismatch() -> None:
            raise self.mismatch(transfer, slot)

        self._fill_slot(REFUSAL_PLACE, transfer)
        index = int(slot["index"])
        queue = self.streams[self.shares(index, 0)[0].queue_pair].queue  # there the peer has posted a receive
        ways, immediate = self._ways(REFUSAL_PLACE), REFUSED | index & INDEX_MASK
        queue.write(IBV_WR_RDMA_WRITE_WITH_IMM, *ways, immediate=immediate, done=raise_mismatch)

    def mismatch(self, own: Transfer, other: np.void) -> MismatchError:
        """The error that names both sides; `other` is the peer's slot."""
        ours = describe(own.fingerprint, own.size_bytes)
        theirs = describe(int(other["rkeys"][1]), int(other["size_bytes"]))
        return MismatchError.between((self.rank, ours), (self.peer, theirs))

    def close(self) -> None:
        """Destroy the queue pairs and release the FIFO memory."""
        for qp in self.qps:
            qp.close()
        self.slots.close()

    def _fill_slot(self, place: int, transfer: Transfer) -> None:
        write_slot(
            self.slots.outbox,
            place,
            transfer.address,
            transfer.size_bytes,
            transfer.key,
            transfer.fingerprint,
            transfer.tag,
            transfer.index,
        )

    def _ways(self, place: int) -> tuple[tuple[int, int, int], tuple[int, int]]:
        """From where to where the slot at `place` is written."""
        address, lkey = self.slots.outgoing(place)
        return (address, SLOT_BYTES, lkey), (self._fifo[0] + place * SLOT_BYTES, self._fifo[1])
