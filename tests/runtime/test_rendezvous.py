import pytest

from netreduce.errors import AdmissionError
from netreduce.runtime.rendezvous import GATHERING_NOTICE_S, GROUPS_PER_PORT, Rendezvous
from netreduce.wire.control import (
    BETWEEN_PEERS,
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
    PeerLost,
    Ready,
    Refused,
    Stuck,
    Waiting,
    Withdraw,
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
    assert refusal == Refused("world", "rank 2 was lost while the group was gathering: killed", lost_rank=2)
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
    for number in range(GROUPS_PER_PORT):
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


def test_a_rank_that_gave_up_waiting_is_out_of_the_book_and_may_come_again():
    book = Book()
    book.join(0, 3)
    book.join(1, 3)
    assert book.rendezvous.withdraw(10, Withdraw("world")) == []
    assert book.join(2, 3) == []
    assert [type(message) for _, message in book.join(0, 3)] == [Joined] * 3


def test_a_rank_that_gave_up_before_all_were_ready_is_lost_to_the_others():
    book = Book()
    ring_id = book.complete()
    book.rendezvous.ready(10, Ready(ring_id))
    news = book.rendezvous.withdraw(11, Withdraw("world"))
    assert [(port, message.ring_id, message.rank) for port, message in news] == [(10, ring_id, 1), (12, ring_id, 1)]
    assert all("gave up" in message.reason for _, message in news)


def test_to_withdraw_from_a_ring_that_runs_changes_nothing():
    book = Book()
    ring_id = book.complete()
    for port in (10, 11, 12):
        book.rendezvous.ready(port, Ready(ring_id))
    assert book.rendezvous.withdraw(11, Withdraw("world")) == []
    assert book.rendezvous.leave(11, Leave(ring_id)) == [(10, Left(ring_id, 1)), (12, Left(ring_id, 1))]


def test_who_is_not_ready_is_named_to_those_who_are():
    book = Book()
    ring_id = book.complete()
    book.rendezvous.ready(10, Ready(ring_id))
    assert book.rendezvous.gathering_notices(GATHERING_NOTICE_S / 2) == []
    notice = Gathering("world", (1, 2), GATHERING_NOTICE_S)
    assert book.rendezvous.gathering_notices(GATHERING_NOTICE_S) == [(10, notice)]
    assert book.rendezvous.gathering_notices(1.5 * GATHERING_NOTICE_S) == []


def test_failed_connections_are_news_to_the_others_and_the_rank_still_leaves():
    book = Book()
    ring_id = book.complete()
    news = book.rendezvous.failed(11, Failed(ring_id, "no answer"))
    assert news == [(port, PeerLost(ring_id, 1, "no answer")) for port in (10, 12)]
    assert book.rendezvous.leave(11, Leave(ring_id)) == [(10, Left(ring_id, 1)), (12, Left(ring_id, 1))]
    assert list(book.rings) == [ring_id]


def stuck(ring_id, waits_for, sequence=3, call="all_gather float32"):
    return Stuck(ring_id, sequence, call, waits_for, 2.0)


def test_ranks_that_wait_in_a_chain_are_all_told_who_is_at_its_end():
    """Rank 0 waits for 2 and 2 for 1, which waits for nobody: it has not called."""
    book = Book()
    ring_id = book.complete()
    book.rendezvous.stuck(10, stuck(ring_id, (2,)), 10.0)
    book.rendezvous.stuck(12, stuck(ring_id, (1,)), 10.1)
    assert book.rendezvous.waiting_notices(10.2) == []  # others may be about to report
    notices = book.rendezvous.waiting_notices(10.5)
    assert notices == [(port, Waiting(ring_id, BETWEEN_PEERS, (1,), 2.0)) for port in (10, 12)]
    assert book.rendezvous.waiting_notices(10.6) == []  # once per report


def test_ranks_that_wait_for_each_other_are_told_for_whom():
    book = Book()
    ring_id = book.complete(2)
    book.rendezvous.stuck(10, stuck(ring_id, (1,), sequence=-1), 10.0)
    book.rendezvous.stuck(11, stuck(ring_id, (0,), sequence=-1), 10.0)
    told = {port: message.missing_ranks for port, message in book.rendezvous.waiting_notices(11.0)}
    assert told == {10: (1,), 11: (0,)}


def test_ranks_that_wait_in_different_calls_of_the_same_number_disagree():
    book = Book()
    ring_id = book.complete()
    assert book.rendezvous.stuck(10, stuck(ring_id, (), call="all_reduce float32 sum"), 10.0) == []
    assert book.rendezvous.stuck(12, stuck(ring_id, (0,), sequence=4, call="barrier int64"), 10.0) == []
    news = book.rendezvous.stuck(11, stuck(ring_id, (0,)), 10.0)
    assert [port for port, _ in news] == [10, 11, 12]
    mismatch = news[0][1]
    assert (mismatch.rank_a, mismatch.description_a) == (0, "all_reduce float32 sum as #3")
    assert (mismatch.rank_b, mismatch.description_b) == (1, "all_gather float32")
    assert book.rendezvous.stuck(11, stuck(ring_id, (0,)), 12.0) == []  # once


def test_an_old_report_is_of_a_wait_that_is_over():
    book = Book()
    ring_id = book.complete()
    book.rendezvous.stuck(10, stuck(ring_id, (1,)), 10.0)
    book.rendezvous.stuck(12, stuck(ring_id, (0,)), 30.0)
    assert [message.missing_ranks for _, message in book.rendezvous.waiting_notices(30.5)] == [(0,)]
