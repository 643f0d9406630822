"""Process groups of their own that end badly, or are started by other means: torchrun, a dead worker, no destroy."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.patience import bound_s, eventually
from tests.torch.world import World, await_all

pytestmark = pytest.mark.live

RANKS = 4
MARK = "NETREDUCE_TEST_FOLDER"
"""In the environment of everything that a test starts, so that what it leaves behind can be found."""
PREAMBLE = """
    import os, signal, sys, time
    import torch
    import torch.distributed as dist
    dist.init_process_group("netreduce")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.full((1000,), float(rank))
"""


@contextmanager
def torchrun(folder: Path, body: str) -> Iterator[subprocess.Popen[str]]:
    """Four ranks of a script, started by torchrun, with no switch given."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(PREAMBLE) + textwrap.dedent(body))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", str(script)]
    environment = {name: value for name, value in os.environ.items() if name != "NETREDUCE_SWITCH"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", MARK: str(folder)}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(folder: Path, body: str) -> tuple[int, str]:
    """Exit code and output of such a script."""
    with torchrun(folder, body) as process:
        output, _ = process.communicate(timeout=110)
    return process.returncode, output


def leftovers(folder: Path) -> list[str]:
    """Command lines of processes that belong to the test of this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def test_torchrun_needs_no_switch_and_leaves_none_behind(tmp_path: Path):
    body = """
        dist.all_reduce(total)
        assert (total == 6).all()
        dist.destroy_process_group()
        dist.init_process_group("netreduce")  # a second time, over the same store
        dist.all_reduce(total)
        assert (total == 24).all()
        dist.destroy_process_group()
        print(f"rank {rank} done", flush=True)
    """
    code, output = run(tmp_path, body)
    assert code == 0, output
    assert output.count("done") == RANKS
    assert eventually(lambda: not leftovers(tmp_path)), leftovers(tmp_path)


def test_a_script_that_destroys_nothing_ends_without_a_word(tmp_path: Path):
    code, output = run(tmp_path, "dist.all_reduce(total); assert (total == 6).all()\n")
    assert code == 0, output
    assert "Error" not in output


GROUPS: dict[int, Any] = {}


def make_groups() -> None:
    """Groups of the ranks that are left after each death."""
    GROUPS.update({size: dist.new_group(list(range(5 - size, 5))) for size in (5, 4, 3, 2)})


def check_death(size: int, moment: str) -> tuple[float, str]:
    """The lowest rank of a group of the `size` highest ones kills itself; the others report when and how they hear."""
    group, dying = GROUPS[size], dist.get_rank() == 5 - size
    total = torch.ones(100_000)
    model = torch.nn.Linear(100, 100)
    if moment != "before the first collective":
        dist.all_reduce(total, group=group)
    if moment == "in a backward pass":
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    await_all(moment, range(5 - size, 5))
    if moment == "while others wait" and dying:
        time.sleep(1)
    if dying:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        for _ in range(1000):
            if moment == "in a backward pass":
                model(torch.ones(1, 100)).sum().backward()
            else:
                dist.all_reduce(total, group=group)
    except RuntimeError as error:
        return time.monotonic() - start, "".join(traceback.format_exception(error))
    return 0, "no error"


def test_a_killed_worker_is_named_to_all_survivors_within_five_seconds(tmp_path: Path):
    """Rank 0, which owns the switch, dies first."""
    world = World(5, tmp_path)
    try:
        world.run(make_groups)
        moments = ("before the first collective", "between collectives", "while others wait", "in a backward pass")
        for size, moment in zip((5, 4, 3, 2), moments, strict=True):
            for seconds, message in world.run(check_death, size, moment, dying=5 - size):
                assert "PeerLostError: group" in message, (moment, message)
                assert "rank 0 was lost" in message, (moment, message)  # it was the first of its group
                assert seconds < bound_s()
    finally:
        world.close()


def test_a_stopped_worker_is_waited_for(tmp_path: Path):
    body = """
        dist.all_reduce(total)
        print(f"rank {rank} pid {os.getpid()} ready", flush=True)
        time.sleep(0.5)
        for _ in range(200):
            total.fill_(rank)
            dist.all_reduce(total)
            assert (total == 6).all()
        dist.destroy_process_group()
        print("done", flush=True)
    """
    with torchrun(tmp_path, body) as process:
        assert process.stdout is not None
        # Four ranks write into one pipe, unbuffered: their lines may start in the middle of others'.
        pid = next(int(found[1]) for line in process.stdout if (found := re.search(r"rank 3 pid (\d+) ", line)))
        time.sleep(0.4)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
        output, _ = process.communicate(timeout=60)
    assert output.count("done") == RANKS, output
