"""Groups on several pretended machines: found by themselves, Parallel NetReduce prepared, failures named everywhere."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.patience import bound_s, descriptors, eventually
from tests.runtime.fabrics import on_all_ranks, served
from typer.testing import CliRunner

from netreduce.cli.main import app
from netreduce.errors import (
    CollectiveTimeoutError,
    ConfigurationError,
    MismatchError,
    NetReduceError,
    PeerLostError,
)
from netreduce.runtime import groups
from netreduce.runtime.cable import connect
from netreduce.runtime.embedded import SwitchProcess
from netreduce.runtime.mates import MACHINE_VARIABLE, Door, machine_name, meet
from netreduce.switch import Switch, SwitchLimits
from netreduce.wire import control

pytestmark = pytest.mark.live
NAMES = ["a", "a", "b", "b"]


@pytest.fixture(scope="module")
def address():
    with served() as address:
        yield address


def total_of(world, count=50_000):
    data = np.full(count, 10.0**world.rank, np.float32)
    return world.all_reduce(data)


def test_several_machines_with_several_workers_reduce_in_parallel(address):
    def job(world):
        total = total_of(world)
        return total, world.scheme, world.statistics()["engine"]

    for total, scheme, counts in on_all_ranks(address, 4, job, NAMES):
        assert np.all(total == 1111)
        assert scheme.startswith("4 ranks on 2 machines of 2 workers: Parallel NetReduce, 2 rings through the switch")
        assert scheme.endswith("in-network reduction is NOT PROVEN")  # no barrier of all ranks yet
        assert counts["shared_bytes_sent"] == 200_000
        assert counts["in_network_bytes_sent"] > 100_000  # this worker's half, and what was agreed on before
        assert counts["in_network_bytes_sent"] < 101_000
        assert counts["peer_bytes_sent"] == 0


def test_a_barrier_shows_that_the_network_adds_in_all_rings(address):
    def job(world):
        world.barrier()
        return world.scheme

    for scheme in on_all_ranks(address, 4, job, NAMES):
        assert scheme.endswith("in-network reduction is ACTIVE")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a", "a", "b"], "3 ranks on 2 machines of unequal size (2, 1 workers): NetReduce, one ring"),
        (["a", "b", "c"], "3 ranks on 3 machines of 1 worker: NetReduce, one ring"),
        ((), "3 ranks on one machine of 3 workers: NetReduce, one ring"),
    ],
)
def test_other_layouts_take_the_one_ring(address, names, text):
    def job(world):
        return total_of(world), world.scheme

    for total, scheme in on_all_ranks(address, 3, job, names):
        assert np.all(total == 111)
        assert scheme.startswith(text)


@pytest.mark.parametrize("algorithm", ["leaders", "hierarchical", "ring", "netreduce", "tree"])
def test_the_rivals_run_on_the_same_machines(address, algorithm, rng):
    data = rng.integers(-99, 99, (4, 30_000)).astype(np.float32)
    before = data.copy()
    on_all_ranks(address, 4, lambda world: world.all_reduce(data[world.rank], algorithm=algorithm), NAMES)
    assert np.array_equal(data, np.broadcast_to(before.sum(axis=0), data.shape))


def test_all_other_collectives_work_there_too(address):
    def job(world):
        rank = world.rank
        mates = world.group([0, 1])
        part = None if mates is None else mates.all_reduce(np.ones(10))[0]
        if mates is not None:
            mates.close()
        sent = np.full(1000, rank)
        other = np.zeros(1000, sent.dtype)
        waiting = world.recv(other, rank ^ 1, wait=False)
        world.send(sent, rank ^ 1)
        waiting.wait()
        scattered = world.reduce_scatter(np.ones((4, 5)))
        return part, other[0], scattered.sum(), world.all_gather(np.array([rank])).ravel().tolist()

    results = on_all_ranks(address, 4, job, NAMES)
    assert results == [(part, rank ^ 1, 20, [0, 1, 2, 3]) for rank, part in enumerate([2, 2, None, None])]


def failures(address, job, error, **options):
    """What each of four ranks raises, as text."""

    def one(world):
        with pytest.raises(error) as raised:
            job(world)
        return str(raised.value)

    return on_all_ranks(address, 4, one, NAMES, **options)


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_rank_that_disagrees_inside_its_machine_is_named_on_all_ranks(address, wrong):
    texts = failures(address, lambda world: total_of(world, 5000 - 8 * (world.rank == wrong)), MismatchError)
    for text in texts:
        assert f"rank {wrong}" in text
        assert f"rank {wrong ^ 1}" in text
        assert "all_reduce of" in text


def test_machines_that_disagree_are_named_on_all_ranks(address):
    texts = failures(address, lambda world: total_of(world, 5000 - 8 * (world.rank > 1)), MismatchError)
    for text in texts:
        assert {"rank 0", "rank 2"} <= set(names_in(text)) or {"rank 1", "rank 3"} <= set(names_in(text)), text


def names_in(text):
    return [f"rank {rank}" for rank in range(4) if f"rank {rank}" in text]


def test_a_rank_that_does_not_call_is_named_when_time_is_up(address, caplog):
    def job(world):
        if world.rank == 3:
            time.sleep(6)
            return "waited"
        with pytest.raises(CollectiveTimeoutError) as raised:
            total_of(world)
        return str(raised.value)

    with caplog.at_level(logging.WARNING, logger="netreduce"):
        texts = on_all_ranks(address, 4, job, NAMES, timeout_s=4)
    assert "rank 3 of this machine did not answer" in texts[2]
    assert "rank 3 had not sent" in texts[1]
    assert "waiting for rank 3 of this machine" in caplog.text
    assert "waiting for rank 3 for" in caplog.text
    assert "rank 1 has sent" in caplog.text


def test_if_one_rank_cannot_meet_its_mates_all_take_the_one_ring(address, monkeypatch, caplog):
    def refuse(door, ring_id, rank, doors, check):
        if rank == 2:
            raise NetReduceError("no way")
        return meet(door, ring_id, rank, doors, not_for_ever if rank == 3 else check)

    def not_for_ever():
        raise CollectiveTimeoutError("nobody came")

    monkeypatch.setattr(groups, "meet", refuse)
    with caplog.at_level(logging.WARNING, logger="netreduce"):
        results = on_all_ranks(address, 4, lambda world: (total_of(world), world.scheme), NAMES)
    for total, scheme in results:
        assert np.all(total == 1111)
        assert "NetReduce, one ring through the switch" in scheme
    assert "no Parallel NetReduce: no way" in caplog.text
    assert "no Parallel NetReduce: another rank could not prepare it" in caplog.text


def test_if_the_switch_has_no_room_for_more_rings_all_take_the_one(caplog):
    with (
        served(Switch("switch", 4, limits=SwitchLimits(rings=2))) as small,
        caplog.at_level(logging.WARNING, logger="netreduce"),
    ):
        results = on_all_ranks(small, 4, lambda world: (total_of(world), world.scheme), NAMES)
    for total, scheme in results:
        assert np.all(total == 1111)
        assert "NetReduce, one ring through the switch" in scheme
    assert "no Parallel NetReduce: group" in caplog.text


def test_nothing_is_left_open_behind(address):
    on_all_ranks(address, 4, total_of, NAMES)
    before = len(descriptors())
    for _ in range(2):
        on_all_ranks(address, 4, total_of, NAMES)
    assert eventually(lambda: len(descriptors()) <= before)


# Death, among real processes

DYING = 3
SCRIPT = f"""
import os, threading
import numpy as np
import netreduce
world = netreduce.Communicator.connect()
assert "Parallel" in world.scheme
if world.rank == {DYING}:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), 9)).start()
while True:
    world.all_reduce(np.ones(1_000_000, np.float32))
"""


def test_survivors_of_a_killed_worker_hear_who_it_was_and_nothing_is_left():
    shared = set(os.listdir("/dev/shm"))
    switch = SwitchProcess(4)
    switch.wait_until_ready()
    base = {**os.environ, "WORLD_SIZE": "4", "NETREDUCE_SWITCH": switch.address}
    environments = [{**base, "RANK": str(rank), MACHINE_VARIABLE: NAMES[rank]} for rank in range(4)]
    workers = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stderr=subprocess.PIPE, text=True)
        for environment in environments
    ]
    workers[DYING].communicate(timeout=60)
    for rank in (0, 1, 2):
        _, err = workers[rank].communicate(timeout=60)  # far below the group's own timeout
        last = err.strip().splitlines()[-1]
        assert "PeerLostError" in last
        assert f"rank {DYING} was lost" in last
    switch.close()
    assert eventually(lambda: set(os.listdir("/dev/shm")) <= shared)


def test_workers_that_do_not_fill_their_machines_are_refused_before_anything_starts():
    answer = CliRunner().invoke(app, ["run", "--workers", "3", "--machines", "2", "--", "true"])
    assert answer.exit_code == 1
    assert answer.stderr == "netreduce: 3 workers cannot be shared out evenly to 2 machines\n"


# Meeting


def pair(function):
    """`function(rank, doors)` of ranks 0 and 1, at the same time."""
    doors = [Door(), Door()]
    addresses = {rank: door.address for rank, door in enumerate(doors)}
    try:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda rank: function(doors[rank], rank, addresses), range(2)))
    finally:
        for door in doors:
            door.close()


def test_strangers_at_the_door_are_turned_away_and_mates_let_in():
    def job(door, rank, addresses):
        if rank == 0:
            for words in (b"nonsense", control.encode(control.Ok()), control.encode(control.Mate(8, 0))):
                stranger = connect(addresses[1])
                stranger.send(words)
                assert eventually(lambda stranger=stranger: stranger.recv(100) == b"")
                stranger.close()
        others = {mate: address for mate, address in addresses.items() if mate != rank}
        return meet(door, 7, rank, others, lambda: None)

    first, second = pair(job)
    assert list(first.shared) == [1]
    assert list(second.shared) == [0]
    first.close()
    second.close()


def test_a_mate_that_does_not_exist_is_an_error():
    door = Door()
    with pytest.raises(NetReduceError, match="rank 1 says it is on this machine, but cannot be reached"):
        meet(door, 7, 0, {1: "local:netreduce-nobody"}, lambda: None)
    door.close()


def test_waiting_for_mates_ends_with_the_group():
    def lost():
        raise PeerLostError("rank 0 was lost")

    door = Door()
    start = time.monotonic()
    with pytest.raises(PeerLostError):
        meet(door, 7, 1, {0: ""}, lost)
    assert time.monotonic() - start < bound_s()
    door.close()


def test_memory_that_could_shrink_is_refused():
    def job(door, rank, addresses):
        if rank == 0:
            stranger = connect(addresses[1])
            memory = os.memfd_create("test")
            os.truncate(memory, 1 << 20)
            socket.send_fds(stranger, [control.encode(control.Mate(7, 0))], [memory])
            os.close(memory)
            return stranger
        with pytest.raises(NetReduceError, match="could shrink"):
            meet(door, 7, 1, {0: addresses[0]}, lambda: None)
        return None

    pair(job)[0].close()


def test_a_machine_has_a_name_of_its_own_unless_it_is_given(monkeypatch):
    monkeypatch.delenv(MACHINE_VARIABLE, raising=False)
    assert machine_name() == machine_name() != ""
    monkeypatch.setenv(MACHINE_VARIABLE, "left")
    assert machine_name() == "left"
    monkeypatch.setenv(MACHINE_VARIABLE, "x" * 101)
    with pytest.raises(ConfigurationError, match="at most 100"):
        machine_name()
