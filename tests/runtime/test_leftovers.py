"""Nothing is left of processes that came and went: no process, socket, shared memory or descriptor.

The whole, 2,000 cycles of a process that connects, reduces, closes and ends: ``NETREDUCE_CYCLES=2000 pytest`` on it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.runtime.ranks import nest, switch

from netreduce.runtime.observer import observe

CYCLES = int(os.environ.get("NETREDUCE_CYCLES", "60"))
PAIRS_AT_ONCE = 4
pytestmark = [pytest.mark.live, pytest.mark.timeout(600 + CYCLES)]
CYCLE = """
import numpy as np
from netreduce.runtime.communicator import Communicator
with Communicator.connect(address, rank, 2, group=group, timeout_s=60) as world:
    assert world.all_reduce(np.ones(1000, np.float32))[0] == 2
print("DONE", flush=True)
"""


def open_files(pid):
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            found.append(os.readlink(path))
    return sorted(found)


def sockets_named(address):
    name = "@" + address.removeprefix("local:")
    return sum(line.split()[-1] == name for line in Path("/proc/net/unix").read_text().splitlines())


def test_nothing_is_left_of_processes_that_came_and_went(tmp_path):
    with switch(ports=16) as fabric, nest(tmp_path) as home:
        pid = fabric._process.pid
        assert eventually(lambda: not observe(fabric.address).rings)
        before, shared = len(open_files(pid)), set(os.listdir("/dev/shm"))
        for start in range(0, CYCLES // 2, PAIRS_AT_ONCE):
            pairs = range(start, min(start + PAIRS_AT_ONCE, CYCLES // 2))
            ranks = [
                home.start(CYCLE, address=fabric.address, group=f"pair {pair}", rank=rank)
                for pair in pairs
                for rank in range(2)
            ]
            for rank in ranks:
                assert "DONE" in rank.wait()
        assert eventually(lambda: len(open_files(pid)) <= before), open_files(pid)
        assert eventually(lambda: not (observe(fabric.address).rings or observe(fabric.address).ports))
        assert eventually(lambda: sockets_named(fabric.address) <= 1)
        assert eventually(lambda: set(os.listdir("/dev/shm")) <= shared)
        assert eventually(lambda: not Path(f"/proc/{home.process.pid}/task/{home.process.pid}/children").read_text())
