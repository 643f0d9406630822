"""Short all-reduces in one compiled call: which ones they are, that nobody can tell, and how they end otherwise."""

import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from tests.patience import PATIENCE_S, bound_s
from tests.runtime.bursts import frames_of
from tests.runtime.fabrics import on_all_ranks, served
from tests.runtime.ranks import switch

from netreduce.collectives.aggregation import STAGED_BYTES_MAX
from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.collectives.engine import Engine
from netreduce.collectives.reductions import Reduction
from netreduce.errors import MismatchError, NetReduceError, PeerLostError, UnsupportedError
from netreduce.nic import Nic
from netreduce.nic.verbs import Context
from netreduce.runtime.cable import Cable, make_burst_buffer
from netreduce.runtime.communicator import Communicator
from netreduce.runtime.nic_driver import NicRound
from netreduce.runtime.short_call import WAIT_PS
from netreduce.runtime.short_collectives import ShortCollectives
from netreduce.units import PS_PER_S
from netreduce.wire.build import build_burst
from netreduce.wire.control import Geometry

pytestmark = pytest.mark.live

WAIT_S = WAIT_PS / PS_PER_S


@pytest.fixture(scope="module")
def address():
    with served() as address:
        yield address


@pytest.fixture
def short(monkeypatch):
    """Whether each all-reduce was a short one, of all ranks."""
    seen, ask = [], ShortCollectives.all_reduce

    def spy(self, *arguments):
        seen.append(ask(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(ShortCollectives, "all_reduce", spy)
    return seen


@pytest.fixture
def unfinished(monkeypatch):
    """How many short calls had to go on the usual way, of all ranks."""
    seen, go_on = [], ShortCollectives._go_on

    def spy(self, *arguments):
        seen.append(self)
        go_on(self, *arguments)

    monkeypatch.setattr(ShortCollectives, "_go_on", spy)
    return seen


ORDINARY = {
    "a vector": (np.float32, (256,), "sum"),
    "a number": (np.float64, (), "sum"),
    "three dimensions": (np.int32, (3, 5, 7), "min"),
    "the longest": (np.float32, (STAGED_BYTES_MAX // 4,), "sum"),
    "several packets of no whole number": (np.uint8, (9001,), "max"),
    "half precision": (ml_dtypes.bfloat16, (77,), "sum"),
    "truth": (np.bool_, (33,), "or"),
    "complex numbers": (np.complex64, (33,), "sum"),
}
NUMPY = {"sum": np.add, "min": np.minimum, "max": np.maximum, "or": np.logical_or, "product": np.multiply}


@pytest.mark.parametrize("out_of_place", [False, True])
@pytest.mark.parametrize("what", ORDINARY)
def test_short_contiguous_arrays_are_reduced_by_short_calls(address, rng, short, what, out_of_place):
    dtype, shape, op = ORDINARY[what]
    arrays = [rng.integers(0, 20, shape).astype(dtype) for _ in range(3)]
    arrays = [np.asarray(array) for array in arrays]
    want = NUMPY[op].reduce(arrays)

    def job(world):
        mine, got = arrays[world.rank].copy(), []
        for _ in range(10):
            given = mine.copy()
            out = np.empty_like(mine) if out_of_place else None
            result = world.all_reduce(given, op, out=out)
            assert result is (out if out_of_place else given)
            assert not out_of_place or (given == mine).all()
            got.append(result)
        return got

    for results in on_all_ranks(address, 3, job):
        for got in results:
            np.testing.assert_array_equal(got, want)
    assert short.count(True) > 15  # where acknowledgements are late, a call waits for them the usual way


USUAL = {
    "strided": lambda world: world.all_reduce(np.ones((40, 3), np.float32)[:, 1]),
    "too long": lambda world: world.all_reduce(np.ones(STAGED_BYTES_MAX // 4 + 1, np.float32)),
    "an average": lambda world: world.all_reduce(np.ones(100, np.float32), "avg") * world.world_size,
    "by the hosts": lambda world: world.all_reduce(np.ones(100, np.float32), algorithm="ring"),
    "an operation of hosts": lambda world: world.all_reduce(np.ones(100, np.int32), "and") * world.world_size,
    "into strided memory": lambda world: world.all_reduce(
        np.ones(9, np.float32), out=np.ones((9, 2), np.float32)[:, 0]
    ),
    "nothing": lambda world: world.all_reduce(np.ones(0, np.float32)),
}


@pytest.mark.parametrize("what", USUAL)
def test_all_others_go_the_usual_way(address, short, what):
    for got in on_all_ranks(address, 2, USUAL[what]):
        assert (got == 2).all()
    assert short == [False] * 2


def test_what_cannot_be_done_is_refused_in_the_usual_words(address, short):
    def job(world):
        frozen = np.ones(10, np.float32)
        frozen.flags.writeable = False
        errors, seconds = [], np.ones(10, "datetime64[s]")
        for array, out in ((frozen, None), (seconds, None), (np.ones(10), np.ones(11)), ([1], None)):
            with pytest.raises((NetReduceError, UnsupportedError)) as caught:
                world.all_reduce(array, out=out)
            errors.append(str(caught.value))
        return errors

    for errors in on_all_ranks(address, 2, job):
        assert all(words in error for words, error in zip(("read", "datetime64", "11", "list"), errors, strict=True))
    assert not any(short)


def test_short_calls_count_as_all_others(address, short):
    def job(world):
        for count in (1, 100, 4096):
            for _ in range(7):
                world.all_reduce(np.ones(count, np.float32))
        return world.statistics()["engine"]

    counts = on_all_ranks(address, 2, job)
    assert short.count(True) > 21
    short.clear()
    assert counts == on_all_ranks(address, 2, job, tuning=Tuning(staged_bytes=0))
    assert short == [False] * 42
    assert counts[0]["in_network_collectives"] == counts[0]["messages"] == 21
    assert counts[0]["in_network_bytes_sent"] == counts[0]["in_network_bytes_received"] == 7 * 4 * (1 + 100 + 4096)


def reduce_short(world, rng):
    array = np.full(rng.randrange(1, 4000), world.rank + 1.0, np.float32)
    assert (world.all_reduce(array) == sum(range(1, world.world_size + 1))).all()


def reduce_long(world, rng):
    array = np.full(rng.randrange(5000, 400_000), world.rank + 1, np.int32)
    assert (world.all_reduce(array) == sum(range(1, world.world_size + 1))).all()


def reduce_beside_others(world, rng):
    long, short = np.ones(rng.randrange(1, 300_000), np.float64), np.ones(rng.randrange(1, 900), np.int64)
    handles = [world.all_reduce(long, wait=False), world.all_reduce(np.ones(9, np.int8), wait=False)]
    assert (world.all_reduce(short) == world.world_size).all()
    assert all((handle.wait() == world.world_size).all() for handle in handles)


def move_between_hosts(world, rng):
    root, array = rng.randrange(world.world_size), np.full(rng.randrange(1, 9000), world.rank, np.int32)
    assert (world.broadcast(array, root) == root).all()


def meet(world, rng):
    world.barrier()
    time.sleep(rng.choice((0, 0, 0.001)))


@pytest.mark.parametrize("seed", range(6))
def test_short_calls_mix_with_everything_else(address, short, seed):
    print("seed", seed)

    def job(world):
        rng = random.Random(seed)
        steps = [reduce_short] * 6 + [reduce_long, reduce_beside_others, move_between_hosts, meet]
        part = world.group(range(world.world_size))
        for _ in range(120):
            rng.choice(steps)(rng.choice((world, part)), rng)
        part.close()

    on_all_ranks(address, 3, job)
    assert short.count(True) > 100


def test_two_threads_of_a_rank_reduce_in_two_groups_at_once(address):
    def job(world):
        groups = [world.group(range(world.world_size)) for _ in range(2)]

        def reduce(group):
            for number in range(300):
                array = np.full(200, world.rank + number, np.int32)
                np.testing.assert_array_equal(group.all_reduce(array), np.full(200, 2 * number + 1, np.int32))
            return True

        ended = []
        threads = [threading.Thread(target=lambda g=group: ended.append(reduce(g))) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        for group in groups:
            group.close()
        return ended

    assert on_all_ranks(address, 2, job) == [[True, True]] * 2


def test_a_late_rank_is_waited_for_the_usual_way(address, unfinished):
    def job(world):
        for number in range(3):
            if world.rank == number:
                time.sleep(5 * WAIT_S)
            assert (world.all_reduce(np.ones(50, np.float32)) == 3).all()
        return world.statistics()["engine"]["messages"]

    assert on_all_ranks(address, 3, job) == [3] * 3
    assert len(unfinished) >= 3


def test_news_of_the_switch_end_the_wait_at_once(address):
    def job(world):
        world.barrier()
        if world.rank == 0:
            time.sleep(WAIT_S / 4)
            world.close(in_good_order=False)
            return 0.0
        start = time.monotonic()
        with pytest.raises(PeerLostError, match=r"all_reduce #1: rank 0 was lost"):
            world.all_reduce(np.ones(50, np.float32))
        return time.monotonic() - start

    assert max(on_all_ranks(address, 3, job)) < bound_s()


def test_ranks_that_disagree_hear_who_sent_what(address):
    def job(world):
        for _ in range(2):
            world.all_reduce(np.ones(50, np.float32))
        with pytest.raises(MismatchError, match=r"#2: ranks disagree(?=.* float32 sum).* int32 sum") as caught:
            world.all_reduce(np.ones(50, (np.float32, np.int32)[world.rank]))
        with pytest.raises(MismatchError, match="all_reduce #3 was called after that"):
            world.all_reduce(np.ones(50, np.float32))
        return str(caught.value)

    errors = on_all_ranks(address, 2, job)
    assert errors[0] == errors[1]
    assert "rank 0 sent float32" in errors[0]


def go_on_for_ever(world):
    while True:
        world.all_reduce(np.ones(50, np.float32))


def test_a_switch_that_ends_is_an_error_of_the_call_under_way():
    with switch() as process:

        def job(world):
            for _ in range(100):
                world.all_reduce(np.ones(50, np.float32))
            if world.rank == 0:
                process._process.kill()
            with pytest.raises(NetReduceError, match=r"(?=.*all_reduce #\d+).*the switch at \S+ is gone"):
                go_on_for_ever(world)

        on_all_ranks(process.address, 2, job)


def test_a_message_that_finds_the_cable_full_leaves_once_when_there_is_room():
    nics = [Nic(f"nic {rank}", f"02:00:00:00:00:0{rank}", f"10.0.0.{rank + 1}") for rank in range(2)]
    engines = [Engine(Context(nic), rank, 2, Geometry()) for rank, nic in enumerate(nics)]
    nics[0].neighbours[nics[1].ip] = nics[1].mac
    engines[0].connect(1, tuple(engine.endpoint() for engine in engines))
    far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    switch_end, cable = Cable.offer(far), Cable.take(near, PATIENCE_S)
    with closing(switch_end), closing(cable), select.epoll() as inbox, select.epoll() as watch:
        watch.register(inbox, select.EPOLLIN)
        inbox.register(cable, select.EPOLLIN)
        begun, nic_round = [], NicRound(nics[0], cable)
        member = SimpleNamespace(
            engine=engines[0], is_busy=False, begin=lambda function, _: begun.append(function(engines[0]))
        )
        progress = SimpleNamespace(
            take_turn=lambda: True, drive=lambda command, _: command(), inbox=inbox, watch=watch.fileno()
        )
        short = ShortCollectives(member, [member], nic_round, progress, 0)
        for size in (4000, 64):
            while cable.send_burst(build_burst([np.zeros(size, np.uint8)])):
                pass
        assert short.all_reduce(np.ones(50, np.float32), Reduction.SUM, Algorithm.AUTO, None)
        assert [operation.call for operation in begun] == ["all_reduce float32 sum"]
        assert nic_round.is_full
        buffer, frames = make_burst_buffer(), []
        for now_ps in range(1, 5000):
            if (burst := switch_end.receive(buffer)) is not None:
                frames += frames_of(burst)
            nic_round.rest(now_ps)  # after which it may try again
            nic_round.give(now_ps)
    assert [frame[-204:-4] for frame in frames if len(frame) == 274] == [np.ones(50, np.float32).tobytes()]


class InterruptedError(Exception):
    pass


@pytest.mark.parametrize("after_s", [WAIT_S / 4, 4 * WAIT_S])
def test_an_interrupt_ends_the_wait_and_the_call_goes_on(address, after_s):
    def interrupt(_number, _frame):
        raise InterruptedError

    def other():
        with Communicator.connect(address, 1, 2, timeout_s=PATIENCE_S) as world:
            world.barrier()
            arrived.wait(PATIENCE_S)
            for number in range(3):
                assert (world.all_reduce(np.full(50, number, np.float32)) == 2 * number).all()

    arrived, thread = threading.Event(), threading.Thread(target=other)
    previous = signal.signal(signal.SIGALRM, interrupt)
    thread.start()
    try:
        with Communicator.connect(address, 0, 2, timeout_s=PATIENCE_S) as world:
            world.barrier()
            array = np.full(50, 0, np.float32)
            signal.setitimer(signal.ITIMER_REAL, after_s)
            with pytest.raises(InterruptedError):
                world.all_reduce(array)
            arrived.set()
            for number in (1, 2):
                assert (world.all_reduce(np.full(50, number, np.float32)) == 2 * number).all()
            assert (array == 0).all()
    finally:
        signal.signal(signal.SIGALRM, previous)
        arrived.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


PLAIN = """
import numpy as np
import netreduce
from netreduce.runtime.short_collectives import ShortCollectives

ask, seen = ShortCollectives.all_reduce, []
ShortCollectives.all_reduce = lambda *arguments: seen.append(ask(*arguments)) or seen[-1]
with netreduce.Communicator.connect() as world:
    for count in range(1, 200, 10):
        array = np.full(count, world.rank + 1, np.int16 if count % 3 else np.float32)
        assert (world.all_reduce(array) == 3).all()
    assert seen.count(True) > 1, seen
print("RIGHT")
"""


def test_without_the_compiler_the_same_lines_do_the_same():
    command = [sys.executable, "-m", "netreduce", "run", "--workers", "2", "--", sys.executable, "-c", PLAIN]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("RIGHT") == 2
