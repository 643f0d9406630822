"""Point-to-point transport over one RC queue pair per pair of ranks, as NCCL's InfiniBand transport does it.

The receiver posts an empty receive work request, then RDMA WRITEs a clear-to-send slot into a FIFO in the sender's
memory. The sender finds the fresh slot and RDMA WRITEs the data to the address it names; the last work request carries
an immediate, which consumes the receive work request and names the slot. Clear-to-send writes are not inline, and one
in each pass round the FIFO is signaled, so that the send queue can be retired.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from netreduce.collectives.fingerprint import describe
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
    PD,
    QP,
    WC,
    RecvWR,
)
from netreduce.units import MIB

COLLECTIVE_TAG = 1 << 31
"""Tags from here on belong to collectives; below are the user's."""
USER_SLOTS = 128
"""Slots that receives of the user may hold; the rest is left to collectives, so that these can always go on."""
WRITE_BYTES_MAX = 1 * MIB
"""Data of one work request. Longer transfers are cut, so that both ends of the wire work at the same time."""
WRITES_IN_FLIGHT = 4
"""Data work requests posted at once: enough to fill the wire, and a clear-to-send waits behind no more than these."""
SEND_QUEUE_DEPTH = 2 * FIFO_SLOTS
"""Clear-to-send writes stay in the queue until the next signaled one, up to 256 later; data writes come on top."""


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
        return self._places[self._announced % FIFO_SLOTS] is None and self._connection.queue.has_room

    def _clear_to_send(self, transfer: Transfer) -> None:
        place = self._announced % FIFO_SLOTS
        self._announced += 1
        transfer.index = self._announced
        self._places[place] = transfer
        self._connection.qp.post_recv(RecvWR(wr_id=place, num_sge=0, sg=[]))
        self._connection.write_slot(place, transfer, signaled=place == 0)

    def complete(self, immediate: int) -> None:
        """The peer has answered the request that `immediate` names: with the data, or with a refusal."""
        place = (immediate & INDEX_MASK) - 1 & FIFO_SLOTS - 1
        transfer = self._places[place]
        if transfer is None or transfer.index & INDEX_MASK != immediate & INDEX_MASK:
            peer, rank = self._connection.peer, self._connection.rank
            raise NetReduceError(f"rank {peer} answered request {immediate & INDEX_MASK}, which rank {rank} never made")
        self._places[place] = None
        if transfer.tag < COLLECTIVE_TAG:
            self._user_count -= 1
        if immediate & REFUSED:
            raise self._connection.mismatch(transfer, self._connection.slots.inbox[REFUSAL_PLACE])
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
        self._outgoing: deque[_Outgoing] = deque()
        self._writes_in_flight = 0
        self.unmatched = 0
        self.bytes_sent = 0

    def add(self, transfer: Transfer) -> None:
        """Send `transfer` as soon as the peer has asked for its tag."""
        self._sends[transfer.tag].append(transfer)
        self.unmatched += 1
        self.poll_slots()
        self._match(transfer.tag)

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
            self.unmatched -= 1
            if slot["size_bytes"] == transfer.size_bytes and slot["rkeys"][1] == transfer.fingerprint:
                remote = int(slot["address"]), int(slot["rkeys"][0])
                self._outgoing.append(_Outgoing(transfer, remote, int(slot["index"]) & INDEX_MASK))
            else:
                self._connection.refuse(transfer, slot)
        if not sends:
            del self._sends[tag]
        if not offers:
            del self._offers[tag]
        self.pump()

    def pump(self) -> None:
        """Post data writes, as far as there is room."""
        while self._outgoing and self._writes_in_flight < WRITES_IN_FLIGHT and self._connection.queue.has_room:
            self._writes_in_flight += 1
            if self._write(self._outgoing[0]):
                self._outgoing.popleft()

    def _write(self, outgoing: _Outgoing) -> bool:
        """Post the next piece; whether it is the last one."""
        transfer, offset = outgoing.transfer, outgoing.posted_bytes
        length = min(WRITE_BYTES_MAX, transfer.size_bytes - offset)
        outgoing.posted_bytes += length
        last = outgoing.posted_bytes == transfer.size_bytes
        self._connection.queue.write(
            IBV_WR_RDMA_WRITE_WITH_IMM if last else IBV_WR_RDMA_WRITE,
            (transfer.address + offset, length, transfer.key),
            (outgoing.remote[0] + offset, outgoing.remote[1]),
            immediate=outgoing.index if last else 0,
            done=(lambda: self._sent(transfer)) if last else self._piece_sent,
        )
        return last

    def _piece_sent(self) -> None:
        self._writes_in_flight -= 1

    def _sent(self, transfer: Transfer) -> None:
        self._writes_in_flight -= 1
        self.bytes_sent += transfer.size_bytes
        transfer.done()


@dataclass(slots=True)
class _Outgoing:
    """A send that has met its slot: `remote` is (address, rkey)."""

    transfer: Transfer
    remote: tuple[int, int]
    index: int
    posted_bytes: int = 0


class PeerConnection:
    """This rank's end of the connection to `peer`, over `qp`. `connect` comes before the first transfer."""

    def __init__(self, pd: PD, qp: QP, rank: int, peer: int) -> None:
        self.qp = qp
        self.rank = rank
        self.peer = peer
        self.slots = SlotMemory(pd)
        self.queue = SendQueue(qp, SEND_QUEUE_DEPTH)
        self.receives = ReceiveSide(self)
        self.sends = SendSide(self)
        self._fifo = 0, 0  # address and rkey of the peer's inbox

    def connect(self, fifo_address: int, fifo_rkey: int) -> None:
        """Where the peer takes clear-to-send slots; the queue pair is at RTS."""
        self._fifo = fifo_address, fifo_rkey

    def complete(self, completion: WC) -> None:
        """Take a successful completion of this connection's queue pair. Raises `MismatchError`."""
        if completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM:
            self.receives.complete(int(completion.imm_data))
            return
        self.queue.complete(completion.wr_id)
        self.receives.announce()
        self.sends.pump()

    def write_slot(self, place: int, transfer: Transfer, *, signaled: bool) -> None:
        """RDMA WRITE a slot that announces `transfer` to the peer."""
        self._fill_slot(place, transfer)
        self._post_slot(IBV_WR_RDMA_WRITE, place, signaled=signaled)

    def refuse(self, transfer: Transfer, slot: np.void) -> None:
        """Tell the peer what this rank would have sent, instead of sending it; the error follows when it knows."""

        def raise_mismatch() -> None:
            raise self.mismatch(transfer, slot)

        self._fill_slot(REFUSAL_PLACE, transfer)
        immediate = REFUSED | int(slot["index"]) & INDEX_MASK
        self._post_slot(IBV_WR_RDMA_WRITE_WITH_IMM, REFUSAL_PLACE, immediate=immediate, done=raise_mismatch)

    def mismatch(self, own: Transfer, other: np.void) -> MismatchError:
        """The error that names both sides; `other` is the peer's slot."""
        ours = describe(own.fingerprint, own.size_bytes)
        theirs = describe(int(other["rkeys"][1]), int(other["size_bytes"]))
        return MismatchError.between((self.rank, ours), (self.peer, theirs))

    def close(self) -> None:
        """Destroy the queue pair and release the FIFO memory."""
        self.qp.close()
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

    def _post_slot(
        self,
        opcode: int,
        place: int,
        *,
        immediate: int = 0,
        signaled: bool = True,
        done: Callable[[], None] | None = None,
    ) -> None:
        address, lkey = self.slots.outgoing(place)
        remote = self._fifo[0] + place * SLOT_BYTES, self._fifo[1]
        self.queue.write(opcode, (address, SLOT_BYTES, lkey), remote, immediate=immediate, signaled=signaled, done=done)
