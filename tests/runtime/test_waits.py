"""Calls that hosts carry out between themselves, in which the switch adds nothing: who is late, lost or in another one.

The switch's own bitmap knows nothing of them; what every rank hears all the same, among real processes. The cases run
side by side, as groups of three ranks each, at one switch and over two levels of switches.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

import pytest
from tests.patience import bound_s, eventually
from tests.runtime.ranks import nest, switch

from netreduce.runtime.member import STRAGGLER_LOG_INTERVAL_S

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

TIMEOUT_S = 90.0
STOPPED_TIMEOUT_S = 8.0
LATE, DYING = 2, 1
PORTS_PER_LEAF = 16
TOPOLOGY = f"""
[[switch]]
name = "leaf"
count = 2
[[switch]]
name = "spine"
[[rack]]
switch = "leaf0"
hosts = {PORTS_PER_LEAF}
[[rack]]
switch = "leaf1"
hosts = {PORTS_PER_LEAF}
[[link]]
ends = ["leaf*", "spine"]
"""

PRELUDE = """
import logging, os, re, signal, sys, threading, time
import numpy as np
from netreduce.errors import NetReduceError
from netreduce.runtime.communicator import Communicator

logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="AT %(created).2f %(message)s")
os.environ["RANK"] = str(port)  # where to be plugged in

def say(*words):
    print(*words, flush=True)

def wait_until_all_have(words, times=1):
    deadline = time.monotonic() + 80
    while min(len(re.findall(words, open(other).read())) for other in others) < times and time.monotonic() < deadline:
        time.sleep(0.05)

world = Communicator.connect(address, rank, 3, group=group, timeout_s=timeout_s)
array = np.full(999, rank + 1, np.float32)
"""
LATE_CALL = """
world.barrier()
if rank == 2:
    wait_until_all_have("waiting for rank 2 for", warnings)
exec(call)
say("DONE")
world.close()
"""
OTHER_CALL = """
world.barrier()
try:
    exec(call)
    world.barrier()  # whoever has all it needs hears of it here
except NetReduceError as error:
    say("ERROR", type(error).__name__, error)
wait_until_all_have("ERROR")  # else the others would hear of our departure
"""
LOST_RANK = """
array = np.ones(500_000, np.float32)
def act():
    say("ACT", time.monotonic())
    os.kill(os.getpid(), getattr(signal, way))
try:
    for _ in range(2):
        exec(call)
    if rank == 1:
        threading.Timer(0.05, act).start()
    while True:
        exec(call)
except NetReduceError as error:
    say("ERROR", time.monotonic(), type(error).__name__, error)
wait_until_all_have("ERROR")
"""


class Case(NamedTuple):
    """What each rank calls; `name` is the group's."""

    name: str
    program: str
    calls: tuple[str, str, str]
    variables: dict[str, Any] = {"warnings": 1}  # noqa: RUF012 (never changed)
    levels: bool = False


def all_reduce(way: str) -> str:
    return f"world.all_reduce(array, algorithm='{way}'); assert (array == 6).all()"


LATE_CALLS = {
    "all_reduce by ring": (all_reduce("ring"),) * 3,
    "all_reduce by tree": (all_reduce("tree"),) * 3,
    "all_reduce by halving": (all_reduce("halving"),) * 3,
    "broadcast": ("world.broadcast(array, root=2); assert (array == 3).all()",) * 3,
    "all_gather": ("assert world.all_gather(array)[2, 0] == 3",) * 3,
    "reduce_scatter": ("assert world.reduce_scatter(array, algorithm='ring')[0] == 6",) * 3,
    "all_to_all": ("assert world.all_to_all(array)[-1] == 3",) * 3,
    "recv from rank 2": ("assert world.recv(array, 2)[0] == 3",) * 2 + ("world.send(array, 0); world.send(array, 1)",),
    "send to rank 2": ("world.send(array, 2)",) * 2 + ("world.recv(array, 1); world.recv(array, 0)",),
}
OTHER_CALLS = {
    "all_reduce float32 sum by ring": "world.all_reduce(array, algorithm='ring')",
    "all_reduce float32 sum": "world.all_reduce(array)",
    "all_gather float32": "world.all_gather(array)",
}
ANOTHER = "broadcast float32 root 2", "world.broadcast(array, root=2)"
LOST_CALLS = {
    "all_reduce by ring": ("world.all_reduce(array, algorithm='ring')",) * 3,
    "all_reduce by tree": ("world.all_reduce(array, algorithm='tree')",) * 3,
    "all_reduce by halving": ("world.all_reduce(array, algorithm='halving')",) * 3,
    "broadcast": ("world.broadcast(array, root=1)",) * 3,
    "recv": ("world.recv(array, 1)", "world.send(array, 0); world.send(array, 2)", "world.recv(array, 1)"),
}
KILLED = {"way": "SIGKILL"}
CASES = [
    Case("late twice", LATE_CALL, LATE_CALLS["all_reduce by ring"], {"warnings": 2}),
    Case("late over levels", LATE_CALL, LATE_CALLS["all_reduce by ring"], levels=True),
    *(Case(f"late in {name}", LATE_CALL, calls) for name, calls in LATE_CALLS.items()),
    Case("other over levels", OTHER_CALL, (all_reduce("ring"), all_reduce("ring"), ANOTHER[1]), levels=True),
    *(Case(f"other than {name}", OTHER_CALL, (call, call, ANOTHER[1])) for name, call in OTHER_CALLS.items()),
    Case("lost over levels", LOST_RANK, LOST_CALLS["all_reduce by ring"], KILLED, levels=True),
    Case("stopped", LOST_RANK, LOST_CALLS["all_reduce by ring"], {"way": "SIGSTOP", "timeout_s": STOPPED_TIMEOUT_S}),
    *(Case(f"lost in {name}", LOST_RANK, calls, KILLED) for name, calls in LOST_CALLS.items()),
]
"""In an order that has quiet ones start first."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """What the three ranks of each case wrote, and the process id of the one in the middle, by the case's name."""
    folder = tmp_path_factory.mktemp("ranks")
    file = folder / "topology.toml"
    file.write_text(TOPOLOGY)
    running = {}
    with switch(ports=64) as single, switch(topology=file) as several, nest(folder) as home:
        for number, case in enumerate(CASES):
            names = [str(folder / f"{3 * number + rank}.log") for rank in range(3)]
            variables = {"timeout_s": TIMEOUT_S, "group": case.name, **case.variables}
            running[case.name] = [
                home.start(
                    PRELUDE + case.program,
                    address=(several if case.levels else single).address,
                    rank=rank,
                    port=place(case, number, rank),
                    call=case.calls[rank],
                    others=[
                        names[other] for other in range(3) if other != rank and not (lost(case) and other == DYING)
                    ],
                    **variables,
                )
                for rank in range(3)
            ]
        for case in CASES:
            for rank, process in enumerate(running[case.name]):
                word = "DONE" if case.program == LATE_CALL else "ERROR"
                word = "ACT" if lost(case) and rank == DYING else word
                assert eventually(lambda p=process, w=word: w in p.text(), 120), (case.name, process.text())
    return {name: ([rank.text() for rank in ranks], ranks[DYING].pid) for name, ranks in running.items()}


def place(case: Case, number: int, rank: int) -> int:
    """The port of a rank; over levels the last rank is at the other leaf."""
    return 3 * number + rank if not case.levels else number + rank % 2 * 4 + PORTS_PER_LEAF * (rank == LATE)


def lost(case: Case) -> bool:
    return case.program == LOST_RANK


@pytest.mark.parametrize("call", LATE_CALLS)
def test_a_late_rank_is_named_to_all_that_wait_for_it(logs, call):
    for text in logs[f"late in {call}"][0][:LATE]:
        number = "" if "rank" in call else " #1"
        name = re.sub(" by .*", "", call)
        assert re.search(
            rf"StragglerWarning: {name}{number}: waiting for rank 2 for \d+\.\d s \(group 'late in {call}'\)", text
        )


def test_it_is_named_once_per_interval(logs):
    for text in logs["late twice"][0][:LATE]:
        told_s = [float(at_s) for at_s in re.findall(r"AT (\S+) StragglerWarning", text)]
        assert len(told_s) >= 2, text
        for before_s, after_s in itertools.pairwise(told_s):
            assert after_s - before_s > STRAGGLER_LOG_INTERVAL_S - 1, text


def test_a_late_rank_is_named_over_levels_of_switches_as_well(logs):
    for text in logs["late over levels"][0][:LATE]:
        assert re.search(r"StragglerWarning: all_reduce #1: waiting for rank 2 for \d+\.\d s", text)


@pytest.mark.parametrize("call", OTHER_CALLS)
def test_ranks_in_different_calls_are_told_both_and_whose_they_are(logs, call):
    name = f"other than {call}"
    for text in logs[name][0]:
        check_that_calls_differ(text, name, call)


def test_ranks_in_different_calls_are_told_so_over_levels_of_switches_as_well(logs):
    for text in logs["other over levels"][0]:
        check_that_calls_differ(text, "other over levels", "all_reduce float32 sum by ring")


def saying(call: str) -> str:
    """Who has found out by the other's request names the bytes of that transfer as well."""
    kind, rest = call.split(" ", 1)
    return rf"{kind} (of \d+ bytes )?{rest}"


def check_that_calls_differ(text: str, group: str, call: str) -> None:
    mine = r"(all_reduce|all_gather|broadcast|barrier) #[12]"
    one, other = rf"rank [01] called {saying(call)}( as #1)?", rf"rank 2 called {saying(ANOTHER[0])}( as #1)?"
    sides = rf"({one}, {other}|{other}, {one})"  # who has found out says its own first
    assert re.search(
        rf"^ERROR MismatchError group '{group}' \(ring \d+\): ({mine}: )?ranks disagree: {sides}"
        r"( \(\w+ #[12] was called after that\))?$",
        text,
        re.MULTILINE,
    ), text


def error_within(text: str, pattern: str, victim: str, limit_s: float) -> str:
    """The line of `text` that is the error ``ERROR seconds pattern``, said `limit_s` after `victim` acted at most."""
    error = re.search(rf"ERROR (\S+) {pattern}", text)
    assert error, text
    assert float(error[1]) - acted_s(victim) < limit_s
    return error[0]


@pytest.mark.parametrize("name", [case.name for case in CASES if case.variables is KILLED])
def test_a_rank_that_is_killed_amid_the_call_is_named_to_the_survivors_in_time(logs, name):
    (first, victim, last), pid = logs[name]
    for text in (first, last):
        pattern = (
            rf"PeerLostError group '{name}' \(ring \d+\): "
            rf"(all_reduce #\d+|broadcast #\d+|recv from rank 1): rank 1 was lost: process {pid} is gone: "
        )
        error_within(text, pattern, victim, bound_s())


def test_a_rank_that_is_stopped_amid_the_call_is_given_up_when_time_is_up(logs):
    (first, victim, last), _ = logs["stopped"]
    for text in (first, last):
        pattern = (
            r"(CollectiveTimeoutError|CompletionError|PeerLostError) "
            r"group 'stopped' \(ring \d+\): all_reduce #\d+: .*"
        )
        assert "rank 1" in error_within(text, pattern, victim, STOPPED_TIMEOUT_S + bound_s())


def acted_s(text: str) -> float:
    found = re.search(r"ACT (\S+)", text)
    assert found, text
    return float(found[1])
