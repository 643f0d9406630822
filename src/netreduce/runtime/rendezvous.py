"""The switch's book of groups: who has joined, which ring they form, who is ready, who has left or died.

Sans-I/O: each call takes one message or mishap and returns the messages that must go out, by port. The server around
it owns the sockets, and the callbacks register rings with the switch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from netreduce.errors import AdmissionError
from netreduce.runtime.waits import Waits
from netreduce.wire.control import (
    Closed,
    Endpoint,
    Failed,
    Gathering,
    Geometry,
    Go,
    Join,
    Joined,
    Leave,
    Left,
    Message,
    Mismatch,
    PeerLost,
    Ready,
    Refused,
    Stuck,
    Withdraw,
)

Outgoing = list[tuple[int, Message]]
"""Messages to send, each with the port whose control connection it goes to."""

RING_ID_MAX = 0xFFFF
GROUPS_PER_PORT = 256
GATHERING_NOTICE_S = 2.0
"""How long a group may be incomplete before its members are told who is missing; then once per interval."""


@dataclass
class _Gathering:
    """A group that some ranks have not joined yet."""

    world_size: int
    geometry: Geometry
    since_s: float
    told_s: float
    members: dict[int, tuple[int, Endpoint]] = field(default_factory=dict)  # by rank: port and endpoint


@dataclass
class _Ring:
    """A registered ring. `ports` are in rank order; a rank is in at most one of `left` and `lost`."""

    ring_id: int
    group: str
    ports: tuple[int, ...]
    since_s: float
    told_s: float
    waits: Waits
    ready: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)

    def present(self) -> list[int]:
        """Ranks that are still members."""
        return [rank for rank in range(len(self.ports)) if rank not in self.left | self.lost]


class Rendezvous:
    """Groups of workers; `register(ring_id, endpoints, geometry)` may raise `AdmissionError`.

    One worker may be a member of `groups_per_port` groups at a time, complete or not.
    """

    def __init__(
        self,
        register: Callable[[int, tuple[Endpoint, ...], Geometry], None],
        unregister: Callable[[int], None],
        groups_per_port: int = GROUPS_PER_PORT,
    ) -> None:
        self._groups_per_port = groups_per_port
        self._register = register
        self._unregister = unregister
        self._gathering: dict[str, _Gathering] = {}
        self._rings: dict[int, _Ring] = {}
        self._reserved: set[int] = set()
        self._last_ring_id = 0

    def join(self, port: int, message: Join, now_s: float) -> Outgoing:
        """A rank enters a group; when it is the last one, the ring is registered and everybody is told."""
        group, endpoint = message.group, message.endpoint
        gathering = self._gathering.setdefault(
            group, _Gathering(message.world_size, message.geometry, now_s, told_s=now_s)
        )
        reason = self._objection(port, message, gathering)
        if reason:
            if not gathering.members:
                del self._gathering[group]
            return [(port, Refused(group, reason))]
        gathering.members[endpoint.rank] = (port, endpoint)
        if len(gathering.members) < gathering.world_size:
            return []
        del self._gathering[group]
        return self._complete(group, gathering, now_s)

    def _objection(self, port: int, message: Join, gathering: _Gathering) -> str:
        """Why `message` cannot be granted; empty when it can."""
        rank, world_size = message.endpoint.rank, message.world_size
        if rank >= world_size:
            return f"rank {rank} does not exist in a group of {world_size}"
        if world_size != gathering.world_size:
            return f"rank {rank} says the group has {world_size} ranks, others say {gathering.world_size}"
        if message.geometry != gathering.geometry:
            return f"rank {rank} wants {message.geometry}, others want {gathering.geometry}"
        if rank in gathering.members:
            return f"rank {rank} has already joined, from port {gathering.members[rank][0]}"
        if any(port == other for other, _ in gathering.members.values()):
            return f"the worker at port {port} has already joined with another rank"
        if self._memberships(port) >= self._groups_per_port:
            return f"this worker is already a member of {self._groups_per_port} groups, the most allowed"
        for table in (message.endpoint.peer_qpns, message.endpoint.peer_psns, message.endpoint.fifo_addresses,
                      message.endpoint.fifo_rkeys):  # fmt: skip
            if len(table) not in (0, world_size):
                return f"rank {rank} names {len(table)} peers in a group of {world_size}"
        return ""

    def _memberships(self, port: int) -> int:
        gathering = sum(port in (p for p, _ in g.members.values()) for g in self._gathering.values())
        return gathering + sum(port in ring.ports for ring in self._rings.values())

    def _complete(self, group: str, gathering: _Gathering, now_s: float) -> Outgoing:
        members = [gathering.members[rank] for rank in range(gathering.world_size)]
        endpoints = tuple(endpoint for _, endpoint in members)
        ports = tuple(port for port, _ in members)
        try:
            ring_id = self._free_ring_id()
            self._register(ring_id, endpoints, gathering.geometry)
        except AdmissionError as error:
            return [(port, Refused(group, str(error))) for port in ports]
        self._rings[ring_id] = _Ring(ring_id, group, ports, now_s, now_s, Waits(ring_id))
        return [(port, Joined(group, ring_id, endpoints)) for port in ports]

    def _free_ring_id(self) -> int:
        """Ids rotate, so that a late frame of a ring that is gone does not meet a new ring of the same id."""
        for _ in range(RING_ID_MAX):
            self._last_ring_id = self._last_ring_id % RING_ID_MAX + 1
            if self._last_ring_id not in self._rings and self._last_ring_id not in self._reserved:
                return self._last_ring_id
        raise AdmissionError(f"all {RING_ID_MAX} ring ids are taken")

    def reserve(self, ring_id: int) -> int:
        """Set a ring id aside for a ring that nobody joins: `ring_id`, or any for 0. AdmissionError if it is taken."""
        if ring_id in self._rings or ring_id in self._reserved:
            raise AdmissionError(f"ring {ring_id} exists already")
        self._reserved.add(ring_id or self._free_ring_id())
        return ring_id or self._last_ring_id

    def free(self, ring_id: int) -> None:
        """Undo `reserve`; KeyError if it was not reserved."""
        self._reserved.remove(ring_id)

    def group_of(self, ring_id: int) -> str:
        """The group whose ring it is; empty if nobody joined it."""
        return self._rings[ring_id].group if ring_id in self._rings else ""

    def _rank(self, port: int, ring_id: int) -> tuple[_Ring, int] | None:
        """The ring and the port's rank in it; None when the port is no present member."""
        ring = self._rings.get(ring_id)
        if ring is None:
            return None
        rank = next((rank for rank in ring.present() if ring.ports[rank] == port), None)
        return None if rank is None else (ring, rank)

    def ready(self, port: int, message: Ready) -> Outgoing:
        """A rank's queue pairs can receive; when all can, everybody may start."""
        found = self._rank(port, message.ring_id)
        if found is None:
            return []
        ring, rank = found
        ring.ready.add(rank)
        if len(ring.ready) < len(ring.ports) or ring.lost:
            return []
        return [(ring.ports[r], Go(ring.ring_id)) for r in ring.present()]

    def leave(self, port: int, message: Leave) -> Outgoing:
        """A rank is done with its ring; the others hear of it."""
        found = self._rank(port, message.ring_id)
        if found is None:
            return []
        ring, rank = found
        ring.left.add(rank)
        news: Outgoing = [(ring.ports[r], Left(ring.ring_id, rank)) for r in ring.present()]
        return news + self._close_if_empty(ring)

    def _close_if_empty(self, ring: _Ring) -> Outgoing:
        """Unregister a ring without members.

        Not earlier: without its registration the frames of a member would pass unsummed, as if they were results.
        """
        if ring.present():
            return []
        del self._rings[ring.ring_id]
        self._unregister(ring.ring_id)
        return [(ring.ports[rank], Closed(ring.ring_id)) for rank in sorted(ring.left)]

    def lost(self, port: int, reason: str) -> Outgoing:
        """The worker at `port` is gone: every group that it has not left hears of it."""
        news: Outgoing = []
        for group, gathering in list(self._gathering.items()):
            rank = next((rank for rank, (p, _) in gathering.members.items() if p == port), None)
            if rank is None:
                continue
            del self._gathering[group], gathering.members[rank]
            refusal = Refused(group, f"rank {rank} was lost while the group was gathering: {reason}", rank)
            news += [(p, refusal) for p, _ in gathering.members.values()]
        for ring_id in list(self._rings):
            found = self._rank(port, ring_id)
            if found is not None:
                news += self._lose(*found, reason)
        return news

    def _lose(self, ring: _Ring, rank: int, reason: str) -> Outgoing:
        ring.lost.add(rank)
        news: Outgoing = [(ring.ports[r], PeerLost(ring.ring_id, rank, reason)) for r in ring.present()]
        return news + self._close_if_empty(ring)

    def withdraw(self, port: int, message: Withdraw) -> Outgoing:
        """A rank no longer waits: it is out of the book, may come again, and others that are there already hear it."""
        gathering = self._gathering.get(message.group)
        if gathering is not None:
            gathering.members = {rank: member for rank, member in gathering.members.items() if member[0] != port}
            if not gathering.members:
                del self._gathering[message.group]
        news: Outgoing = []
        for ring in [ring for ring in self._rings.values() if ring.group == message.group]:
            found = self._rank(port, ring.ring_id)
            if found is not None and len(ring.ready) < len(ring.ports):
                late = ", ".join(f"rank {rank}" for rank in ring.present() if rank not in ring.ready)
                news += self._lose(*found, f"it gave up waiting for {late} to be ready")
        return news

    def failed(self, port: int, message: Failed) -> Outgoing:
        """A rank's connections have failed. It stays a member until it leaves; the others must not wait for it."""
        found = self._rank(port, message.ring_id)
        if found is None:
            return []
        ring, rank = found
        news = PeerLost(ring.ring_id, rank, message.reason)
        return [(ring.ports[r], news) for r in ring.present() if r != rank]

    def stuck(self, port: int, message: Stuck, now_s: float) -> Outgoing:
        """A rank waits; if another one does so in another call, all hear of it."""
        found = self._rank(port, message.ring_id)
        if found is None:
            return []
        ring, rank = found
        ring.waits.report(rank, message, now_s)
        mismatch = ring.waits.disagreement()
        return [] if mismatch is None else self.to_members(ring.ring_id, mismatch)

    def waiting_notices(self, now_s: float) -> Outgoing:
        """Tell those who wait between hosts for whom they wait."""
        return [
            (ring.ports[rank], notice)
            for ring in self._rings.values()
            for rank, notice in ring.waits.notices(now_s)
            if rank in ring.present()
        ]

    def disagree(self, port: int, message: Mismatch) -> Outgoing:
        """A rank has found that it and a peer disagree; the others hear of it."""
        found = self._rank(port, message.ring_id)
        return (
            [] if found is None else [(p, news) for p, news in self.to_members(message.ring_id, message) if p != port]
        )

    def to_members(self, ring_id: int, message: Message) -> Outgoing:
        """`message` for every present member of a ring."""
        ring = self._rings.get(ring_id)
        return [] if ring is None else [(ring.ports[rank], message) for rank in ring.present()]

    def gathering_notices(self, now_s: float) -> Outgoing:
        """Tell those who wait who is missing, once per interval."""
        news: Outgoing = []
        for group, gathering in self._gathering.items():
            if now_s - gathering.told_s < GATHERING_NOTICE_S:
                continue
            gathering.told_s = now_s
            missing = tuple(rank for rank in range(gathering.world_size) if rank not in gathering.members)
            notice = Gathering(group, missing, now_s - gathering.since_s)
            news += [(port, notice) for port, _ in gathering.members.values()]
        for ring in self._rings.values():
            if len(ring.ready) < len(ring.ports) and not ring.lost and now_s - ring.told_s >= GATHERING_NOTICE_S:
                ring.told_s = now_s
                missing = tuple(rank for rank in ring.present() if rank not in ring.ready)
                notice = Gathering(ring.group, missing, now_s - ring.since_s)
                news += [(ring.ports[rank], notice) for rank in sorted(ring.ready) if rank in ring.present()]
        return news
