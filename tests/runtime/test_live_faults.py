"""Faults on the cables of real processes: an all-reduce under each of them ends bitwise right, or fails by name."""

import re
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from tests.patience import eventually
from tests.runtime.fabrics import on_all_ranks, served

from netreduce.errors import CompletionError, NetReduceError, PeerLostError
from netreduce.fabric.spelling import parse_fault
from netreduce.runtime.live_faults import LiveFaults
from netreduce.runtime.observer import icrc_failures, observe
from netreduce.units import PS_PER_S

pytestmark = pytest.mark.live

RANKS = 3


@pytest.fixture
def first_psn_is_zero(monkeypatch):
    monkeypatch.setenv("NETREDUCE_FIRST_PSN", "0")


def reduced(address, rng, count=200_000):
    """An all-reduce through the switch on every rank; whether each got NumPy's sum in rank order, bit for bit."""
    arrays = [rng.standard_normal(count).astype(np.float32) for _ in range(RANKS)]
    want = arrays[0] + arrays[1] + arrays[2]
    all_done = threading.Barrier(RANKS)

    def job(world):
        result = world.all_reduce(arrays[world.rank].copy())
        all_done.wait(60)  # who leaves stays for a second, which is not enough for an ACK that is lost several times
        return result

    results = on_all_ranks(address, RANKS, job)
    return [np.array_equal(got.view(np.uint32), want.view(np.uint32)) for got in results] == [True] * RANKS


@pytest.mark.parametrize(
    "text",
    [
        "worker 1: drop psn=7",
        "worker 1 up: drop opcode=SEND_LAST nth=1",
        "worker 0 down: drop opcode=ACKNOWLEDGE times=2",
        "all: drop probability=0.02",
        "worker 1: duplicate every=5",
        "worker 1 down: duplicate copies=16 every=10 after=1ms",
        "worker 2: reorder by=3 every=50",
        "all: reorder probability=0.05",
        "worker 2: delay by=2ms every=20",
        "worker 0 up: corrupt every=25",
        "worker 0 down: truncate nth=4",
        "worker 1: partition from=1ms for=1s",
        "worker 1 up: stall for=0.7s nth=20",
        "worker 1 down: stall for=0.7s nth=20",
    ],
)
def test_under_each_fault_the_sums_are_bitwise_right_on_every_rank(text, seed, rng, first_psn_is_zero):
    with served(faults=LiveFaults(seed, [parse_fault(text)])) as address:
        assert reduced(address, rng)
        assert observe(address).faults[text] > 0


def test_what_the_icrc_catches_is_counted_and_sent_again(seed, rng):
    faults = LiveFaults(seed)
    faults.link(worker=0).up.corrupt(bit=60 * 8, every=10)  # in the transport headers or behind them
    with served(faults=faults) as address:
        assert reduced(address, rng)
        statistics = observe(address)
    assert faults.link(worker=0).up.counters["corrupt"] > 0
    assert icrc_failures(statistics) > 0


def test_rules_come_and_go_while_the_fabric_lives(seed, rng, first_psn_is_zero):
    faults = LiveFaults(seed)
    link = faults.link(worker=1)
    with served(faults=faults) as address:
        with link.drop(psn=7) as rule:
            assert reduced(address, rng)
        assert rule.struck == 1
        assert reduced(address, rng)
        assert rule.struck == 1
        stall = link.down.stall()
        started = time.monotonic()
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(reduced, address, rng, 1000)
            time.sleep(0.5)
            assert not running.done()
            stall.remove()
            assert running.result(60)
        assert time.monotonic() - started >= 0.5


def test_a_link_without_rules_is_the_cable_itself(seed):
    faults = LiveFaults(seed, [parse_fault("worker 1: drop")])
    cable = object()
    assert faults.between("rank 0", cable, int) is None
    assert faults.between("rank 1", cable, int) is not None


def test_a_stalled_line_costs_no_processor_time(seed):
    faults = LiveFaults(seed)
    faults.link(worker=0).stall_for(3 * PS_PER_S // 2, nth=10)

    def job(world):
        world.all_reduce(np.ones(100_000, np.float32))

    with served(faults=faults) as address:
        started, used = time.monotonic(), time.process_time()
        on_all_ranks(address, 2, job)
        elapsed = time.monotonic() - started
        assert elapsed > 1
        assert time.process_time() - used < 0.7 * elapsed


def test_a_partition_for_good_ends_by_name_on_every_rank(seed):
    """The control channel still works, so those who are not behind the partition hear of it from those who are."""
    faults = LiveFaults(seed)
    partition = faults.link(worker=1)

    def job(world):
        try:
            world.all_reduce(np.ones(1000, np.float32))
            if world.rank == 0:
                partition.partition()
            while True:
                world.all_reduce(np.ones(1000, np.float32))
        except NetReduceError as error:
            return error

    with served(faults=faults) as address:
        errors = on_all_ranks(address, RANKS, job)
    assert any(isinstance(error, CompletionError) for error in errors)
    for error in errors:
        assert isinstance(error, CompletionError | PeerLostError), error
        assert "IBV_WC_RETRY_EXC_ERR" in str(error)
        assert re.search(r"group 'world' \(ring \d+\): all_reduce #\d+: ", str(error)), error


def netreduce_run(code, *options):
    command = [sys.executable, "-m", "netreduce", "run", "-n", "3", *options, "--", sys.executable, "-c"]
    return subprocess.run([*command, textwrap.dedent(code)], capture_output=True, text=True, timeout=110, check=False)


def test_run_takes_faults_and_states_at_the_end_what_they_did():
    code = """
    import numpy as np, netreduce
    with netreduce.Communicator.connect() as world:
        x = np.full(100_000, world.rank + 1.0, np.float32)
        print(world.all_reduce(x).sum())
    """
    faults = ["worker 1: drop psn=7", "all: duplicate probability=0.05", "worker 2: drop psn=9999"]
    done = netreduce_run(code, *(word for text in faults for word in ("--fault", text)), "--fault-seed", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" 600000.0") == 3
    assert "faults on the links, their chance from seed 7" in done.stderr
    assert "fault 'worker 1: drop psn=7' struck 1 times" in done.stderr
    assert re.search(r"fault 'all: duplicate probability=0.05' struck [1-9]\d* times", done.stderr)
    assert "fault 'worker 2: drop psn=9999' struck 0 times" in done.stderr


def test_a_fault_that_is_spelled_wrong_is_an_error_before_anything_starts():
    done = netreduce_run("print('started')", "--fault", "worker 1: drop psm=7")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("netreduce: fault 'worker 1: drop psm=7': drop takes psn")
    assert len(done.stderr.splitlines()) == 1


def test_a_worker_that_comes_back_finds_the_faults_of_its_link(seed, rng):
    faults = LiveFaults(seed)
    link = faults.link(worker=1)
    link.up.delay(PS_PER_S * 1000, nth=3)  # still held when the worker goes
    with served(faults=faults) as address:
        for _ in range(2):
            assert reduced(address, rng, 1000)
            assert eventually(lambda: not observe(address).ports)
        assert eventually(lambda: link.up.held_frames == 0)
