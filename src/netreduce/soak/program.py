"""Rings of plain verbs programs that all-reduce through the switch.

The program of a rank is the smallest that keeps the rules of the protocol: messages of fixed size with an INA header,
a message window, results scattered where they belong. It uses verbs and nothing else of the NIC, and shares no code
with the engine of `collectives`, so that each can be checked against the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netreduce.nic import Nic, verbs
from netreduce.switch import RingSpec
from netreduce.wire.control import Endpoint, Geometry
from netreduce.wire.ina import INA_BYTES, MESSAGE_ID_MASK, NUMPY_DTYPES, DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.psn import PSN_MASK

MESSAGES_AHEAD = 2
"""Receives are posted for this many windows, so that a program that reads completions late costs no RNR NAK."""
COMPLETIONS_PER_POLL = 256
RECEIVED = 1 << 32
"""Bit of a work request id that tells receives from sends."""


@dataclass(frozen=True)
class Reliability:
    """Queue pair attributes that govern retransmission, in the units of verbs."""

    timeout: int = 10  # 4.096 us x 2^10 = 4.2 ms
    retry_cnt: int = 7
    rnr_retry: int = 7
    min_rnr_timer: int = 1  # 0.01 ms


class Ring:
    """One ring: its ranks in order, and the all-reduces that run on it."""

    def __init__(
        self,
        ring_id: int,
        nics: Sequence[Nic],
        geometry: Geometry,
        first_psns: Sequence[int],
        reliability: Reliability,
    ) -> None:
        self.ring_id = ring_id
        self.geometry = geometry
        self.spliced = False  # until the switch knows it
        self.ranks = [Rank(self, rank, nic, first_psns[rank] & PSN_MASK, reliability) for rank, nic in enumerate(nics)]
        for rank in self.ranks:
            rank.connect()

    def spec(self) -> RingSpec:
        """What the switch is told at registration."""
        return RingSpec(self.ring_id, tuple(rank.endpoint() for rank in self.ranks), self.geometry)

    def all_reduce(
        self,
        arrays: Sequence[np.ndarray],
        data_type: DataType = DataType.FLOAT32,
        op: ReduceOp = ReduceOp.SUM,
        *,
        results: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Queue one all-reduce of `arrays`, one per rank, of the dtype that `data_type` names and of equal length.

        The sums go to `results`, or in place if there are none.
        """
        for rank, array, result in zip(self.ranks, arrays, arrays if results is None else results, strict=True):
            rank.all_reduce(array, data_type, op, result)

    @property
    def done(self) -> bool:
        """Whether every rank has sent and received all that was queued, or failed."""
        return all(rank.done for rank in self.ranks)

    @property
    def settled(self) -> bool:
        """Whether the ring is done, or a rank failed, for which the others wait in vain."""
        return self.done or bool(self.errors)

    @property
    def errors(self) -> list[str]:
        """One line for each rank that failed."""
        return [f"rank {rank.rank}: {rank.error}" for rank in self.ranks if rank.error]


class _Message:
    """One message of one rank: what is sent, where the result goes, and how far it is."""

    __slots__ = ("acknowledged", "receive", "received", "send")

    def __init__(self, index: int, sent: list[verbs.SGE], received: list[verbs.SGE]) -> None:
        self.send = verbs.SendWR(index, verbs.IBV_WR_SEND, len(sent), 0, sent, verbs.IBV_SEND_SIGNALED)
        self.receive = verbs.RecvWR(index | RECEIVED, len(received), received)
        self.received = False
        self.acknowledged = False


class Rank:
    """The program of one rank: two queue pairs, a window, and the messages of all collectives so far."""

    def __init__(self, ring: Ring, rank: int, nic: Nic, first_psn: int, reliability: Reliability) -> None:
        self.ring = ring
        self.rank = rank
        self.nic = nic
        self.first_psn = first_psn
        self.reliability = reliability
        self.error = ""
        self.paused = False  # sends nothing
        self.withholding = False  # posts no receives
        self.messages: list[_Message] = []
        self.headers: list[np.ndarray] = []  # uint8[2, messages, 16] per collective: INA headers sent, received
        self.packets_posted = 0
        self.window = ring.geometry.message_window
        self.sent_count = 0
        self.received_count = 0
        self.receives_posted = 0
        self._context = verbs.Context(nic)
        self._pd = verbs.PD(self._context)
        self._cq = verbs.CQ(self._context, 4096)
        depth = 4 * ring.geometry.message_window
        self._arrays: list[np.ndarray] = []  # kept alive: the NIC reads and writes them in place
        cap = verbs.QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=2, max_recv_sge=2)
        self.successor_qp, self.predecessor_qp = (
            verbs.QP(self._pd, verbs.QPInitAttr(qp_type=verbs.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap))
            for _ in range(2)
        )

    def _register(self, array: np.ndarray) -> int:
        self._arrays.append(array)
        region = verbs.MR(self._pd, array.nbytes, verbs.IBV_ACCESS_LOCAL_WRITE, address=array.ctypes.data)
        return int(region.lkey)

    def endpoint(self) -> Endpoint:
        """This rank as its peers and the switch need to know it."""
        return Endpoint(
            rank=self.rank,
            ip=self.nic.ip,
            mac=self.nic.mac,
            successor_qpn=self.successor_qp.qp_num,
            predecessor_qpn=self.predecessor_qp.qp_num,
            first_psn=self.first_psn,
        )

    def connect(self) -> None:
        """Bring both queue pairs to RTS."""
        ranks = self.ring.ranks
        successor, predecessor = ranks[(self.rank + 1) % len(ranks)], ranks[self.rank - 1]
        self._bring_up(self.successor_qp, successor.nic.ip, successor.predecessor_qp.qp_num, self.first_psn, 0)
        self._bring_up(
            self.predecessor_qp, predecessor.nic.ip, predecessor.successor_qp.qp_num, 0, predecessor.first_psn
        )

    def _bring_up(self, qp: verbs.QP, peer_ip: str, peer_qpn: int, sq_psn: int, rq_psn: int) -> None:
        attr = verbs.QPAttr(port_num=1)
        attr.qp_access_flags = verbs.IBV_ACCESS_LOCAL_WRITE | verbs.IBV_ACCESS_REMOTE_WRITE
        qp.to_init(attr)
        attr.path_mtu = (self.ring.geometry.path_mtu // 256).bit_length()
        attr.dest_qp_num = peer_qpn
        attr.rq_psn = rq_psn
        attr.min_rnr_timer = self.reliability.min_rnr_timer
        attr.ah_attr = verbs.AHAttr(gr=verbs.GlobalRoute(dgid=verbs.GID(peer_ip)))
        qp.to_rtr(attr)
        attr.sq_psn = sq_psn
        attr.timeout = self.reliability.timeout
        attr.retry_cnt = self.reliability.retry_cnt
        attr.rnr_retry = self.reliability.rnr_retry
        qp.to_rts(attr)

    def all_reduce(self, array: np.ndarray, data_type: DataType, op: ReduceOp, result: np.ndarray) -> None:
        """Queue the messages of one all-reduce of `array` into `result` (both contiguous, maybe the same)."""
        assert array.flags.c_contiguous
        assert result.flags.c_contiguous
        assert result.nbytes == array.nbytes
        assert array.dtype == NUMPY_DTYPES[data_type]
        size = self.ring.geometry.message_data_bytes // array.itemsize * array.itemsize
        starts = range(0, max(array.nbytes, 1), size)
        headers = np.zeros((2, len(starts), INA_BYTES), np.uint8)  # sent, received
        self.headers.append(headers)
        keys = self._register(array), self._register(result)
        addresses = array.ctypes.data, result.ctypes.data
        header_key, header_address = self._register(headers), headers.ctypes.data
        for start in starts:
            index, place = len(self.messages), start // size
            flags = InaFlag.START if place == 0 else InaFlag(0)
            flags |= InaFlag.END if start == starts[-1] else InaFlag(0)
            length = min(size, array.nbytes - start)
            header = pack_ina(self.ring.ring_id, self.rank, index & MESSAGE_ID_MASK, length, data_type, op, flags)
            headers[0, place] = np.frombuffer(header, np.uint8)
            self.packets_posted += -(-(INA_BYTES + length) // self.ring.geometry.path_mtu)
            header_at = header_address + place * INA_BYTES
            pieces = [
                [
                    verbs.SGE(header_at + side * len(starts) * INA_BYTES, INA_BYTES, header_key),
                    verbs.SGE(addresses[side] + start, length, keys[side]),
                ]
                for side in range(2)
            ]
            self.messages.append(_Message(index, *pieces))

    def close(self) -> None:
        """Destroy the queue pairs and all else that this rank made."""
        self._context.close()

    @property
    def done(self) -> bool:
        """Whether all that was queued has been received and acknowledged, or the rank failed."""
        return bool(self.error) or all(m.received and m.acknowledged for m in self.messages[-self.window :])

    def progress(self, now_ps: int) -> bool:
        """Read completions, post what the window admits; whether anything was posted."""
        _, completions = (0, []) if self._context.closed else self._cq.poll(COMPLETIONS_PER_POLL)
        for completion in completions:
            if completion.status != verbs.IBV_WC_SUCCESS:
                self.error = self.error or verbs.wc_status_to_str(completion.status)
            elif completion.wr_id & RECEIVED:
                self.messages[completion.wr_id ^ RECEIVED].received = True
                self.received_count += 1
            else:
                self.messages[completion.wr_id].acknowledged = True
        if self.error or self._context.closed:
            return False
        before = self.receives_posted, self.sent_count
        ahead = min(len(self.messages), self.received_count + MESSAGES_AHEAD * self.ring.geometry.message_window)
        while not self.withholding and self.receives_posted < ahead:
            self.predecessor_qp.post_recv(self.messages[self.receives_posted].receive)
            self.receives_posted += 1
        while not self.paused and self.sent_count < len(self.messages) and self._admits(self.sent_count):
            self.successor_qp.post_send(self.messages[self.sent_count].send)
            self.sent_count += 1
        return before != (self.receives_posted, self.sent_count)

    def _admits(self, index: int) -> bool:
        if index < self.window:
            return True
        before = self.messages[index - self.window]
        return before.received and before.acknowledged
