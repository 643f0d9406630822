"""Four ways to fall out of a group at four moments: what every survivor hears, and how soon.

The sixteen cases run side by side, as groups of three real processes each on one switch process.
"""

from __future__ import annotations

import itertools
import re

import pytest
from tests.patience import bound_s, eventually
from tests.runtime.ranks import nest, switch

from netreduce.runtime.member import LEFT_GRACE_S

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

TIMEOUT_S = 8.0
WAYS = {
    "kill -9": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)",
    "clean exit": "sys.exit(0)",
    "exception": "raise ValueError('my own fault')",
}
WAITS_S = {"kill -9": 0.0, "SIGSTOP": TIMEOUT_S, "clean exit": LEFT_GRACE_S, "exception": 0.0}
"""How long the product waits on purpose, before the time that news take."""
MOMENTS = ("during set-up", "before the first message", "mid-message", "between messages")
CASES = list(itertools.product(WAYS, MOMENTS))

PRELUDE = """
import logging, os, signal, sys, threading, time
import numpy as np
from netreduce.collectives.engine import Engine
from netreduce.errors import NetReduceError
from netreduce.runtime.communicator import Communicator

def connect():
    return Communicator.connect(address, rank, 3, group=group, timeout_s=timeout_s)

def say(*words):
    print(*words, flush=True)
"""
VICTIM = """
def act(*_):
    say("ACT", time.monotonic())
    exec(way)

def act_amid_set_up(*_):
    if "os.kill" in way:
        act()
    os.kill(os.getpid(), signal.SIGALRM)  # how a program ends is up to its main thread
    time.sleep(1)

if moment == "during set-up":
    signal.signal(signal.SIGALRM, act)
    Engine.connect = act_amid_set_up
world = connect()
array = np.ones(3_000_000, np.float32)
if moment == "between messages":
    world.all_reduce(array[:100])
if moment == "mid-message":
    for _ in range(3):
        world.all_reduce(array)
    under_way = world.all_reduce(array, wait=False)
act()
"""
SURVIVOR = """
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
try:
    world = connect()
    array = np.ones(3_000_000, np.float32)
    while True:
        world.all_reduce(array if moment == "mid-message" else array[:100])
except NetReduceError as error:
    say("ERROR", time.monotonic(), type(error).__name__, error)
deadline = time.monotonic() + 40
while "ERROR" not in open(log.replace(own, other)).read() and time.monotonic() < deadline:
    time.sleep(0.05)  # else the other one would hear of our departure
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """What the ranks of each case wrote, by case: lists of three texts; and the victims' process ids."""
    folder = tmp_path_factory.mktemp("ranks")
    found, victims = {}, {}
    with switch(ports=64) as fabric, nest(folder) as home:
        for wave in (CASES[:8], CASES[8:]):
            running = {}
            for case in wave:
                way, moment = case
                number = CASES.index(case)
                common = {"address": fabric.address, "group": f"case {number}", "timeout_s": TIMEOUT_S}
                common |= {"moment": moment, "way": WAYS[way]}
                first = 3 * number
                texts = {0: SURVIVOR, 1: VICTIM, 2: SURVIVOR}
                running[case] = [
                    home.start(
                        PRELUDE + text, rank=rank, own=f"{first + rank}.log", other=f"{first + 2 - rank}.log", **common
                    )
                    for rank, text in texts.items()
                ]
            for case, ranks in running.items():
                for rank, word in zip(ranks, ("ERROR", "ACT", "ERROR"), strict=True):
                    assert eventually(lambda r=rank, w=word: w in r.text(), 60), (case, rank.text())
                found[case] = [rank.text() for rank in ranks]
                victims[case] = ranks[1].pid
    return found, victims


def heard(text):
    """When and what a survivor heard: seconds, the error's class, its text."""
    match = re.search(r"ERROR (\S+) (\w+) (.*)", text)
    assert match, text
    return float(match[1]), match[2], match[3]


@pytest.mark.parametrize(("way", "moment"), CASES)
def test_every_survivor_hears_within_the_bound_who_where_and_why(logs, way, moment):
    (first, victim, last), pid = logs[0][way, moment], logs[1][way, moment]
    acted_s = float(re.search(r"ACT (\S+)", victim)[1])
    group = rf"group 'case {CASES.index((way, moment))}'"
    for text in (first, last):
        at_s, kind, error = heard(text)
        assert at_s - acted_s < WAITS_S[way] + bound_s(), error
        assert re.match(group, error), error
        assert "rank 1" in error
        if moment != "during set-up":
            assert re.match(rf"{group} \(ring \d+\): all_reduce #\d+", error) or "all_reduce #" in error, error
        if way in ("kill -9", "exception"):
            assert kind == "PeerLostError", error
            assert f"rank 1 was lost: process {pid} is gone: " in error
        elif way == "clean exit":
            assert kind == "PeerLostError", error
            assert re.search(r"rank 1 (left the group|was lost)", error)
        elif moment == "mid-message":
            # Who has sums on their way to a silent rank gives it up as hardware does: after all retries.
            assert kind in ("CollectiveTimeoutError", "CompletionError", "PeerLostError"), error
        elif moment == "during set-up":
            assert kind == "CollectiveTimeoutError" or "gave up waiting for rank 1 to be ready" in error, error
        else:
            assert kind == "CollectiveTimeoutError", error


@pytest.mark.parametrize("moment", MOMENTS[1:])
def test_who_waits_for_a_stopped_rank_is_told_so_in_the_log_once(logs, moment):
    first, _, last = logs[0]["SIGSTOP", moment]
    for text in (first, last):
        warnings = re.findall(r"StragglerWarning: (all_reduce #\d+: waiting for rank 1 for \d+\.\d s.*)", text)
        if moment != "mid-message":
            assert len(warnings) == 1, text
            assert "; ranks 0, 2 have sent" in warnings[0]
    if moment == "mid-message":
        assert "waiting for rank 1" in first + last


def test_who_waits_for_a_rank_that_is_not_ready_is_told_so(logs):
    for text in logs[0]["SIGSTOP", "during set-up"][::2]:
        assert re.search(r"waiting \d+ s for rank 1 to join", text), text
