"""A switch that is started again at the address of one that has ended: its workers hear of it, and may come back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import bound_s, eventually
from tests.runtime.ranks import nest

from netreduce.runtime.launcher import reserve_port
from netreduce.runtime.observer import observe

pytestmark = [pytest.mark.live, pytest.mark.timeout(200)]

TOKEN = "0123456789abcdef0123"
DRAIN_S = 0.5
RANK = """
import time
import numpy as np
from netreduce.errors import SwitchLostError
from netreduce.runtime.communicator import Communicator

def say(*words):
    print(*words, flush=True)

def connect():
    deadline = time.monotonic() + 100
    while True:  # as a program would that wants to go on: until there is a switch again
        try:
            return Communicator.connect(address, rank, 2, timeout_s=60)
        except SwitchLostError:
            assert time.monotonic() < deadline
            time.sleep(0.1)

def reduce(world):
    array = np.ones(1000, np.float32)
    assert (world.all_reduce(array) == 2).all()
    say("RIGHT")

for _ in range(lives):
    world = connect()
    try:
        while True:
            reduce(world)
    except SwitchLostError as error:
        say("LOST", time.monotonic(), error)
    world.close()
with connect() as world:
    reduce(world)
say("ENDED")
"""


@contextlib.contextmanager
def daemon(config: Path) -> Iterator[subprocess.Popen[str]]:
    """`netreduce switch`, once it serves."""
    command = [sys.executable, "-m", "netreduce", "switch", "-v", "-c", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        lines = []
        while not lines or "is ready at" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_workers_hear_that_their_switch_has_ended_and_meet_at_the_next_one_at_its_address(tmp_path, monkeypatch):
    monkeypatch.setenv("NETREDUCE_TOKEN", TOKEN)
    name, token, config = f"netreduce-test-{os.getpid()}", tmp_path / "token", tmp_path / "fabric.toml"
    token.write_text(TOKEN + "\n")
    with reserve_port() as reserved:
        listen = f"127.0.0.1:{reserved.getsockname()[1]}"
    config.write_text(
        f'name = "{name}"\nlisten = "{listen}"\ntoken-file = "{token}"\ncables = 4\ndrain-s = {DRAIN_S}\n'
    )
    endings = {signal.SIGKILL: 0.0, signal.SIGTERM: DRAIN_S}
    with nest(tmp_path) as home:
        ranks = [home.start(RANK, address=f"local:{name}", rank=rank, lives=len(endings)) for rank in range(2)]
        for life, (ending, drained_s) in enumerate(endings.items(), 1):
            with daemon(config) as switch:
                for rank in ranks:
                    right = rank.text().count("RIGHT")
                    assert eventually(lambda r=rank, n=right: r.text().count("RIGHT") > n), rank.text()
                assert observe(listen).counters["messages_aggregated"] > 0
                switch.send_signal(ending)
                ended_s = time.monotonic()
                for rank in ranks:
                    assert eventually(lambda r=rank, n=life: r.text().count("LOST") == n), rank.text()
                    at_s, error = re.findall(r"LOST (\S+) (.*)", rank.text())[-1]
                    assert float(at_s) - ended_s < drained_s + bound_s()
                    where = r"group 'world' \(ring \d+\)"  # seen in a call, or between two
                    gone, call = rf"the switch at local:{name} is gone: .+", r"all_reduce #\d+"
                    expected = rf"{where}: ({call}: {gone}|{gone} \({call} was called after that\))"
                    assert re.fullmatch(expected, error), error
        with daemon(config):
            for rank in ranks:
                assert "ENDED" in rank.wait()
            assert eventually(lambda: not observe(listen).rings)
