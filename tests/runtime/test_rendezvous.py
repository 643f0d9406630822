import pytest

from netreduce.errors import AdmissionError
from netreduce.runtime.rendezvous import GATHERING_NOTICE_S, GROUPS_PER_PORT_MAX, Rendezvous
from netreduce.wire.control import (
    Closed,
    Endpoint,
    Gathering,
    Geometry,
    Go,
    Join,
    Joined,
    Leave,
    Left,
    PeerLost,
    Ready,
    Refused,
)


class Book:
    """A rendezvous whose rings are only noted down."""

    def __init__(self) -> None:
        self.rings: dict[int, tuple[Endpoint, ...]] = {}
        self.rendezvous = Rendezvous(self._register, self.rings.pop)

    def _register(self, ring_id, endpoints, geometry):
        if geometry.message_packets == 1024:
            raise AdmissionError("aggregator memory is full")
        self.rings[ring_id] = endpoints

    def join(self, rank, world_size=2, port=None, group="world", now_s=0.0, **fields):
        geometry = Geometry(message_packets=fields.pop("message_packets", 64))
        endpoint = Endpoint(rank, f"10.0.0.{rank}", "", 2 * rank, 2 * rank + 1, 0, **fields)
        return self.rendezvous.join(
            10 + rank if port is None else port, Join(group, world_size, endpoint, geometry), now_s
        )

    def complete(self, world_size=3):
        outgoing = [message for rank in range(world_size) for message in self.join(rank, world_size)]
        return outgoing[0][1].ring_id


def test_the_last_rank_to_come_completes_the_ring_and_all_hear_of_all_in_rank_order():
    book = Book()
    assert book.join(1) == []
    outgoing = book.join(0)
    assert [port for port, _ in outgoing] == [10, 11]
    (ring_id,) = book.rings
    assert all(isinstance(m, Joined) and m.ring_id == ring_id for _, m in outgoing)
    assert [endpoint.rank for endpoint in outgoing[0][1].endpoints] == [0, 1]


def test_sending_starts_when_the_last_rank_is_ready():
    book = Book()
    ring_id = book.complete()
    assert book.rendezvous.ready(10, Ready(ring_id)) == []
    assert book.rendezvous.ready(12, Ready(ring_id)) == []
    assert book.rendezvous.ready(11, Ready(ring_id)) == [(10, Go(ring_id)), (11, Go(ring_id)), (12, Go(ring_id))]


def test_a_ring_stays_registered_until_its_last_rank_has_left():
    book = Book()
    ring_id = book.complete()
    assert book.rendezvous.leave(11, Leave(ring_id)) == [(10, Left(ring_id, 1)), (12, Left(ring_id, 1))]
    assert book.rendezvous.leave(10, Leave(ring_id)) == [(12, Left(ring_id, 0))]
    assert ring_id in book.rings
    assert book.rendezvous.leave(12, Leave(ring_id)) == [(p, Closed(ring_id)) for p in (10, 11, 12)]
    assert not book.rings


def test_survivors_hear_of_a_lost_rank_and_nobody_starts_without_it():
    book = Book()
    ring_id = book.complete()
    book.rendezvous.ready(10, Ready(ring_id))
    news = book.rendezvous.lost(11, "killed")
    assert news == [(10, PeerLost(ring_id, 1, "killed")), (12, PeerLost(ring_id, 1, "killed"))]
    assert book.rendezvous.ready(12, Ready(ring_id)) == []
    book.rendezvous.leave(10, Leave(ring_id))
    assert book.rendezvous.leave(12, Leave(ring_id)) == [(10, Closed(ring_id)), (12, Closed(ring_id))]
    assert not book.rings


def test_a_rank_that_had_left_may_unplug_without_news():
    book = Book()
    ring_id = book.complete(2)
    book.rendezvous.leave(10, Leave(ring_id))
    assert book.rendezvous.lost(10, "unplugged") == []


def test_a_rank_lost_while_the_group_gathers_ends_the_wait_of_the_others():
    book = Book()
    book.join(0, 3)
    book.join(2, 3)
    ((port, refusal),) = book.rendezvous.lost(12, "killed")
    assert port == 10
    assert refusal == Refused("world", "rank 2 was lost while the group was gathering: killed")
    assert book.join(0, 3) == []  # the next attempt starts afresh


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rank": 2}, "rank 2 does not exist"),
        ({"rank": 1, "world_size": 3}, "has 3 ranks, others say 2"),
        ({"rank": 1, "message_packets": 7}, "message_packets=7"),
        ({"rank": 0, "port": 99}, "rank 0 has already joined, from port 10"),
        ({"rank": 1, "port": 10}, "already joined with another rank"),
        ({"rank": 1, "peer_qpns": ((1,), (2,), (3,))}, "names 3 peers in a group of 2"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused_and_the_others_go_on(fields, reason):
    book = Book()
    book.join(0)
    ((_, refusal),) = book.join(**fields)
    assert isinstance(refusal, Refused)
    assert reason in refusal.reason
    assert len(book.join(1)) == 2


def test_a_ring_that_does_not_fit_is_refused_to_all_ranks():
    book = Book()
    book.join(0, message_packets=1024)
    outgoing = book.join(1, message_packets=1024)
    assert outgoing == [(port, Refused("world", "aggregator memory is full")) for port in (10, 11)]


def test_those_who_wait_are_told_who_is_missing_once_per_interval():
    book = Book()
    book.join(1, 3, now_s=0.0)
    assert book.rendezvous.gathering_notices(GATHERING_NOTICE_S / 2) == []
    assert book.rendezvous.gathering_notices(GATHERING_NOTICE_S) == [
        (11, Gathering("world", (0, 2), GATHERING_NOTICE_S))
    ]
    assert book.rendezvous.gathering_notices(GATHERING_NOTICE_S) == []


def test_memberships_of_one_worker_are_bounded():
    book = Book()
    for number in range(GROUPS_PER_PORT_MAX):
        assert book.join(0, group=f"group {number}") == []
    ((_, refusal),) = book.join(0, group="one too many")
    assert "the most allowed" in refusal.reason


def test_requests_of_strangers_change_nothing():
    book = Book()
    ring_id = book.complete(2)
    assert book.rendezvous.ready(99, Ready(ring_id)) == []
    assert book.rendezvous.leave(99, Leave(ring_id)) == []
    assert book.rendezvous.leave(10, Leave(ring_id + 1)) == []
    assert book.rendezvous.lost(99, "") == []
