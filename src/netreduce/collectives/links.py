"""All queue pairs of one rank in one group: two for the ring through the switch, one or more for each other rank."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec.structs import replace

from netreduce.collectives.aggregation import AggregationPath
from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.data_stream import WRITES_IN_FLIGHT
from netreduce.collectives.provider import CQ, QP, Context
from netreduce.collectives.queue_pairs import connect_queue_pair, make_queue_pair
from netreduce.collectives.slots import FIFO_SLOTS
from netreduce.collectives.transport import SEND_QUEUE_DEPTH, PeerConnection
from netreduce.errors import CompletionError, ConfigurationError
from netreduce.nic.verbs import (
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    WC,
    QPAttr,
    wc_status_to_str,
)
from netreduce.wire.control import Endpoint, Geometry
from netreduce.wire.psn import PSN_MASK

QUEUE_PAIRS_PER_CQ = 32
COMPLETIONS_PER_QUEUE_PAIR = FIFO_SLOTS + WRITES_IN_FLIGHT + 4
"""Receives, data writes, and the few clear-to-send writes and refusals that are signaled."""
POLL_MAX = 64
"""Completions taken at once, so that the NIC gets to work in between."""

_CAUSES: dict[int, str] = {
    IBV_WC_RETRY_EXC_ERR: "it acknowledged nothing in spite of all retries: it is dead, stopped or not reachable",
    IBV_WC_RNR_RETRY_EXC_ERR: "it had no receive posted in spite of all retries",
    IBV_WC_REM_ACCESS_ERR: "it refused access to its memory, as after it has given up the collective itself",
    IBV_WC_LOC_PROT_ERR: "this rank's memory was taken back while it was being sent",
    IBV_WC_WR_FLUSH_ERR: "the queue pair had failed before",
}


def rings_of(
    ring_id: int, endpoints: tuple[Endpoint, ...], tuning: Tuning
) -> Iterator[tuple[int, tuple[Endpoint, ...]]]:
    """The rings that the switch must know for a group: id and members, whose ranks count within the ring."""
    for number in range(tuning.machine_size):
        members = tuning.ring_members(number, len(endpoints))
        yield ring_id + number, tuple(replace(endpoints[rank], rank=place) for place, rank in enumerate(members))


class Links:
    """One rank's queue pairs; `endpoint` is what the other ranks and the switch must know of them."""

    def __init__(
        self,
        context: Context,
        rank: int,
        world_size: int,
        geometry: Geometry,
        tuning: Tuning,
        seed: int,
        ack_timeout: int,
        first_psn: int | None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._context = context
        self._geometry = geometry
        self._tuning = tuning
        self._ack_timeout = ack_timeout
        self.has_more = False  # whether `poll` took as many completions as it may
        psns = random.Random(seed * (1 << 16) + rank)
        self.pd = context.verbs.PD(context)
        self.ring_cq = context.verbs.CQ(context, 2 * geometry.message_window + 2)
        ring_psn = psns.randrange(PSN_MASK + 1) if first_psn is None else first_psn
        self._ring = tuning.ring_members(rank, world_size)
        self._ring_number = rank % tuning.machine_size
        self._place = self._ring.index(rank)
        places = len(self._ring)
        self.path = AggregationPath(self.pd, self.ring_cq, self._place, places, geometry, ring_psn, ack_timeout)
        others = [peer for peer in range(world_size) if peer != rank]
        qps = tuning.qps_per_connection
        peers_per_cq = QUEUE_PAIRS_PER_CQ // qps
        groups = [others[start : start + peers_per_cq] for start in range(0, len(others), peers_per_cq)]
        self._peer_cqs = [context.verbs.CQ(context, len(group) * qps * COMPLETIONS_PER_QUEUE_PAIR) for group in groups]
        self._awaiting: dict[int, PeerConnection] = {}
        self.peers = {
            peer: PeerConnection(
                self.pd, self._make_peer_qps(cq), rank, peer, self._awaiting, splits=tuning.split_data_on_qps
            )
            for cq, group in zip(self._peer_cqs, groups, strict=True)
            for peer in group
        }
        self._first_psns = {
            peer: psns.randrange(PSN_MASK + 1) if first_psn is None else first_psn for peer in self.peers
        }
        self._by_qpn = {qp.qp_num: connection for connection in self.peers.values() for qp in connection.qps}

    def _make_peer_qps(self, cq: CQ) -> list[QP]:
        return [
            make_queue_pair(self.pd, cq, send_depth=SEND_QUEUE_DEPTH, receive_depth=FIFO_SLOTS)
            for _ in range(self._tuning.qps_per_connection)
        ]

    @property
    def message_bytes(self) -> int:
        """Data bytes of a full message in the ring."""
        return self._geometry.message_data_bytes

    def endpoint(self) -> Endpoint:
        """Addresses, queue pair numbers and first PSNs of this rank."""
        ranks = range(self.world_size)
        peers = self.peers
        return Endpoint(
            rank=self.rank,
            ip=self._context.ip,
            mac=self._context.mac,
            successor_qpn=self.path.successor_qp.qp_num,
            predecessor_qpn=self.path.predecessor_qp.qp_num,
            first_psn=self.path.first_psn,
            peer_qpns=tuple(tuple(qp.qp_num for qp in peers[rank].qps) if rank in peers else () for rank in ranks),
            peer_psns=tuple(self._first_psns.get(rank, 0) for rank in ranks),
            fifo_addresses=tuple(int(peers[rank].slots.inbox.ctypes.data) if rank in peers else 0 for rank in ranks),
            fifo_rkeys=tuple(peers[rank].slots.inbox_mr.rkey if rank in peers else 0 for rank in ranks),
            splits_data=self._tuning.split_data_on_qps,
        )

    def connect(self, ring_id: int, endpoints: tuple[Endpoint, ...]) -> None:
        """Bring all queue pairs to RTS. Sending may start when all ranks have done so.

        Raises `ConfigurationError` if a rank's connections are made of other queue pairs than this one's.
        """
        self.path.connect(ring_id + self._ring_number, tuple(endpoints[member] for member in self._ring))
        for peer, connection in self.peers.items():
            endpoint = endpoints[peer]
            qpns = endpoint.peer_qpns[self.rank]
            self._check_alike(peer, len(qpns), endpoint.splits_data)
            for qp, qpn in zip(connection.qps, qpns, strict=True):
                connect_queue_pair(
                    qp,
                    ip=endpoint.ip,
                    qpn=qpn,
                    send_psn=self._first_psns[peer],
                    receive_psn=endpoint.peer_psns[self.rank],
                    path_mtu=self._geometry.path_mtu,
                    ack_timeout=self._ack_timeout,
                )
            connection.connect(endpoint.fifo_addresses[self.rank], endpoint.fifo_rkeys[self.rank])

    def _check_alike(self, peer: int, count: int, splits: bool) -> None:
        def words(count: int, splits: bool) -> str:
            return f"{count} queue pairs per connection, data {'split over them' if splits else 'in turn'}"

        ours = words(self._tuning.qps_per_connection, self._tuning.split_data_on_qps)
        theirs = words(count, splits)
        if ours != theirs:
            raise ConfigurationError(
                f"rank {self.rank} has {ours}; rank {peer} has {theirs}: all ranks need the same Tuning"
            )

    def poll(self) -> bool:
        """Take completions and clear-to-send slots; whether there was any.

        Raises `CompletionError` and `MismatchError`.
        """
        count, completions = self.ring_cq.poll(POLL_MAX)
        self.has_more = count == POLL_MAX
        for completion in completions:
            self._check(completion)
            if completion.qp_num == self.path.predecessor_qp.qp_num:
                self.path.received(completion)
            else:
                self.path.acknowledged(completion)
        for cq in self._peer_cqs:
            peer_count, completions = cq.poll(POLL_MAX)
            count += peer_count
            self.has_more |= peer_count == POLL_MAX
            for completion in completions:
                self._check(completion)
                self._by_qpn[completion.qp_num].complete(completion)
        for connection in tuple(self._awaiting.values()):
            count += connection.sends.poll_slots()
        return count > 0

    def _check(self, completion: WC) -> None:
        if completion.status == IBV_WC_SUCCESS:
            return
        status = wc_status_to_str(completion.status)
        if completion.qp_num in self._by_qpn:
            peer, what = self._by_qpn[completion.qp_num].peer, "point-to-point"
        elif completion.qp_num == self.path.successor_qp.qp_num:
            peer, what = self._ring[(self._place + 1) % len(self._ring)], "to the ring's successor"
        else:
            peer, what = self._ring[self._place - 1], "from the ring's predecessor"
        cause = _CAUSES.get(completion.status, "see the status's name")
        raise CompletionError(f"rank {self.rank}, connection {what}, rank {peer}: {status}: {cause}", status)

    def break_off(self) -> None:
        """Stop all traffic: every queue pair goes to the error state."""
        peer_qps = (qp for peer in self.peers.values() for qp in peer.qps)
        for qp in (self.path.successor_qp, self.path.predecessor_qp, *peer_qps):
            qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)

    def close(self) -> None:
        """Give everything back to the NIC."""
        self.path.close()
        for connection in self.peers.values():
            connection.close()
        for cq in (self.ring_cq, *self._peer_cqs):
            cq.close()
        self.pd.close()
