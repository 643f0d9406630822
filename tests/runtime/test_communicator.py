import logging
import threading
import time

import numpy as np
import pytest
from tests.patience import PATIENCE_S, bound_s, descriptors, eventually
from tests.runtime.fabrics import on_all_ranks, served
from tests.runtime.ranks import switch

import netreduce
from netreduce.errors import (
    AdmissionError,
    CollectiveTimeoutError,
    ConfigurationError,
    MismatchError,
    NetReduceError,
    PeerLostError,
    SwitchLostError,
    UnsupportedError,
)
from netreduce.runtime.communicator import Communicator
from netreduce.runtime.member import LEFT_GRACE_S

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def address():
    with served() as address:
        yield address


def exact(rng, shape):
    """Integers as float32: their sums are exact in any order."""
    return rng.integers(-1000, 1000, shape).astype(np.float32)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 1000, 300_001])
def test_all_reduce_gives_every_rank_the_same_sum_in_place(address, rng, world_size, count):
    arrays = [exact(rng, count) for _ in range(world_size)]
    want = np.sum(arrays, axis=0)

    def job(world):
        mine = arrays[world.rank]
        assert world.all_reduce(mine) is mine
        return mine

    for got in on_all_ranks(address, world_size, job):
        np.testing.assert_array_equal(got, want)


def test_the_sum_was_made_in_the_switch(address, rng):
    def job(world):
        world.all_reduce(exact(rng, 100_000))
        return world.statistics()

    before, after = on_all_ranks(address, 2, job), on_all_ranks(address, 2, job)
    assert after[0]["engine"]["in_network_collectives"] == 1
    assert after[1]["switch"]["packets_spliced"] > before[0]["switch"]["packets_spliced"] > 0
    assert after[0]["nic"]["sent_pkts"] > 0


def test_strided_arrays_are_reduced_right_and_nothing_beside_them(address, rng):
    arrays = [exact(rng, (40, 30)) for _ in range(2)]
    want = [array.copy() for array in arrays]
    for array in want:
        array[:, ::3] = arrays[0][:, ::3] + arrays[1][:, ::3]

    def job(world):
        mine = arrays[world.rank]
        world.all_reduce(mine[:, ::3])
        return mine

    for got, expected in zip(on_all_ranks(address, 2, job), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_data_moves_as_mpi_users_expect(address):
    def job(world):
        r, p = world.rank, world.world_size
        results = {
            "broadcast": world.broadcast(np.full(3, r), root=2),
            "reduce": world.reduce(np.full(3, 10**r), root=1),
            "all_gather": world.all_gather(np.full(2, r)),
            "gather": world.gather(np.full(2, r), root=1),
            "reduce_scatter": world.reduce_scatter(np.arange(2 * p) * 10**r),
            "scatter": world.scatter(np.arange(p * 2).reshape(p, 2) if r == 0 else None, np.zeros(2, int)),
            "all_to_all": world.all_to_all(np.arange(p) + 10 * r),
        }
        world.send(np.full(4, r), (r + 1) % p, wait=False)
        results["recv"] = world.recv(np.zeros(4, int), (r - 1) % p)
        world.barrier()
        return {name: None if result is None else result.tolist() for name, result in results.items()}

    for rank, got in enumerate(on_all_ranks(address, 3, job)):
        assert got["broadcast"] == [2, 2, 2]
        assert got["reduce"] == ([111] * 3 if rank == 1 else [10**rank] * 3)
        assert got["all_gather"] == [[0, 0], [1, 1], [2, 2]]
        assert got["gather"] == ([[0, 0], [1, 1], [2, 2]] if rank == 1 else None)
        assert got["reduce_scatter"] == [111 * (2 * rank), 111 * (2 * rank + 1)]
        assert got["scatter"] == [2 * rank, 2 * rank + 1]
        assert got["all_to_all"] == [rank, 10 + rank, 20 + rank]
        assert got["recv"] == [(rank - 1) % 3] * 4


def test_many_calls_may_be_under_way_at_once(address, rng):
    counts = rng.integers(1, 20_000, 30)
    arrays = [[exact(rng, count) for count in counts] for _ in range(2)]
    want = [a + b for a, b in zip(*arrays, strict=True)]

    def job(world):
        handles = [world.all_reduce(array, wait=False) for array in arrays[world.rank]]
        return [handle.wait() for handle in handles]

    for got in on_all_ranks(address, 2, job):
        for one, expected in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, expected)


def test_a_group_reduces_among_its_own_ranks_only(address):
    def job(world):
        pair = world.group([2, 0])
        if pair is None:
            return None
        with pair:
            return pair.rank, pair.all_reduce(np.array([10.0**world.rank]))[0]

    assert on_all_ranks(address, 3, job) == [(1, 101.0), None, (0, 101.0)]


def test_what_cannot_be_reduced_is_refused_naming_what_can(address):
    def job(world):
        with pytest.raises(UnsupportedError, match="float32"):
            world.all_reduce(np.zeros(3, "datetime64[s]"))
        with pytest.raises(ConfigurationError, match="allowed are sum, product"):
            world.all_reduce(np.zeros(3), op="median")
        with pytest.raises(ConfigurationError, match="multiple of 2 ranks"):
            world.reduce_scatter(np.zeros(3))
        return world.all_reduce(np.ones(1))[0]

    assert on_all_ranks(address, 2, job) == [2.0, 2.0]


def test_ranks_that_disagree_all_get_an_error_that_names_both_sides(address):
    def job(world):
        with pytest.raises(MismatchError) as caught:
            world.all_reduce(np.zeros(100, np.float32 if world.rank else np.int32))
        return str(caught.value)

    for message in on_all_ranks(address, 3, job):
        assert "int32" in message
        assert "float32" in message


def test_a_rank_that_leaves_early_is_named_by_those_who_need_it(address):
    def job(world):
        if world.rank == 1:
            return None
        start = time.monotonic()
        with pytest.raises(PeerLostError, match=r"rank 1 left") as caught:
            world.all_reduce(np.zeros(10))
        assert time.monotonic() - start < LEFT_GRACE_S + bound_s()
        return str(caught.value)

    messages = on_all_ranks(address, 3, job)
    assert "all_reduce #0" in messages[0]
    assert "all_reduce #0" in messages[2]


def test_a_straggler_is_named_in_the_log_and_the_wait_ends_with_the_timeout(address, caplog):
    release = threading.Event()

    def job(rank):
        with Communicator.connect(address, rank, 2, timeout_s=5) as world:
            if rank == 1:
                release.wait(30)
                return None
            with pytest.raises(CollectiveTimeoutError, match="rank 1") as caught:
                world.all_reduce(np.zeros(10))
            release.set()
            return str(caught.value)

    threads = [threading.Thread(target=job, args=(rank,)) for rank in range(2)]
    with caplog.at_level(logging.WARNING, "netreduce"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert release.is_set()
    assert any("StragglerWarning: all_reduce #0: waiting for rank 1 for" in message for message in caplog.messages)


def test_ranks_that_do_not_come_are_named(address):
    with pytest.raises(CollectiveTimeoutError, match=r"ranks 1, 2 did not come"):
        Communicator.connect(address, 0, 3, group="lonely", timeout_s=4)


def test_ranks_with_different_ideas_of_the_group_are_refused(address):
    def job(rank):
        with pytest.raises((AdmissionError, CollectiveTimeoutError)):
            Communicator.connect(address, rank, 2 + rank, group="disagreement", timeout_s=1)

    threads = [threading.Thread(target=job, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_switch_that_ends_is_an_error_within_the_bound():
    with pytest.raises(SwitchLostError, match="no switch at"):
        Communicator.connect("local:netreduce-none", 0, 2)


def reduce_until_it_fails(world):
    while True:
        world.all_reduce(np.ones(1000, np.float32))


def test_the_same_processes_start_over_at_a_new_switch_when_theirs_has_died():
    for _ in range(2):
        both_have_the_sum = threading.Barrier(2)
        with switch(ports=2) as fabric:

            def job(world, fabric=fabric, both_have_the_sum=both_have_the_sum):
                np.testing.assert_array_equal(world.all_reduce(np.ones(1000, np.float32)), 2)
                both_have_the_sum.wait(PATIENCE_S)
                if world.rank == 0:
                    fabric._process.kill()
                with pytest.raises(SwitchLostError, match=fabric.address):
                    reduce_until_it_fails(world)

            on_all_ranks(fabric.address, 2, job)


def test_without_a_launcher_the_error_says_how_to_start(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "NETREDUCE_SWITCH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="netreduce run"):
        netreduce.Communicator.connect()
    with pytest.raises(ConfigurationError, match="NETREDUCE_SWITCH"):
        netreduce.Communicator.connect(rank=0, world_size=2)
    with pytest.raises(ConfigurationError, match="rank 2 of 2"):
        netreduce.Communicator.connect(rank=2, world_size=2)


def test_a_provider_that_does_not_do_is_refused_with_the_reason(address):
    with pytest.raises(ConfigurationError, match=r"provider rdma .* the switch is on this machine"):
        netreduce.Communicator.connect(address, 0, 2, provider="rdma")
    with pytest.raises(ConfigurationError, match="allowed are auto, embedded, rdma"):
        netreduce.Communicator.connect(address, 0, 2, provider="mlx5_0")


def test_a_closed_communicator_says_so(address):
    def job(world):
        world.close()
        with pytest.raises(NetReduceError, match="closed"):
            world.all_reduce(np.zeros(1))

    on_all_ranks(address, 2, job)


def test_nothing_is_left_of_groups_that_came_and_went():
    """The switch, in this same process, closes its ends a moment after the workers have closed theirs."""
    with served() as address:
        before, threads = descriptors(), threading.active_count()
        for _ in range(25):
            on_all_ranks(address, 2, lambda world: world.barrier())
        assert eventually(lambda: len(descriptors()) <= len(before)), (before, descriptors())
        assert eventually(lambda: threading.active_count() <= threads), threading.enumerate()


def test_an_idle_worker_uses_next_to_no_processor_time(address):
    def job(world):
        world.barrier()
        started, used = time.monotonic(), time.process_time()
        time.sleep(1.0)
        return (time.process_time() - used) / (time.monotonic() - started)

    assert max(on_all_ranks(address, 2, job)) < 0.4  # 0.005 as a rule; a thread that spins takes 1


def test_ranks_that_disagree_between_themselves_are_named_on_every_rank(address):
    def gather_and_wait(world):
        world.all_gather(np.zeros(999 if world.rank == 2 else 1000, np.float32))
        world.barrier()  # whoever has all it needs hears of it here

    def job(world):
        with pytest.raises(MismatchError) as caught:
            gather_and_wait(world)
        return str(caught.value)

    for text in on_all_ranks(address, 4, job):
        assert "rank 2 called all_gather of 3996 bytes float32" in text
        assert "called all_gather of 4000 bytes float32" in text
