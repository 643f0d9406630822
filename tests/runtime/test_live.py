"""Whole runs with real processes: who dies, who hears of it, and what is left behind."""

import os
import re
import secrets
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from tests.patience import bound_s, eventually, is_alive

pytestmark = pytest.mark.live

PRELUDE = """
import os, signal, sys, time
import numpy as np
import netreduce
from netreduce.errors import *
world = netreduce.Communicator.connect()
rank = world.rank
"""


def start(code, workers=3, *options):
    command = [sys.executable, "-m", "netreduce", "run", "--workers", str(workers), *options, "--"]
    command += [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(code)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process, timeout_s=60):
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def run(code, workers=3, *options):
    return finish(start(code, workers, *options))


def processes_of(mark):
    """Processes that were started with `mark` in their environment."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_over(monkeypatch):
    """All processes of a run end with it, and so do their sockets, which have no other place to live."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv("NETREDUCE_TEST_MARK", mark)
    yield
    assert eventually(lambda: not processes_of(mark)), processes_of(mark)


def test_a_run_ends_with_what_the_network_did():
    code, out, err = run("x = np.ones(200_000, np.float32); world.all_reduce(x); print(x[0], x[-1])")
    assert (code, sorted(out.splitlines())) == (0, [f"[{rank}] 3.0 3.0" for rank in range(3)]), err
    active = re.search(r"in-network reduction was ACTIVE: 2 messages, (\d+) packets spliced", err)
    assert active, err
    assert int(active[1]) >= 588  # more, if one was sent twice
    assert "ICRC failures: 0" in err


def test_the_capture_of_a_run_can_be_shown(tmp_path):
    file = tmp_path / "run.pcap"
    code, _, err = run("world.all_reduce(np.ones(1000, np.float32))", 2, "--pcap", str(file))
    assert code == 0, err
    shown = subprocess.run([sys.executable, "-m", "netreduce", "show", str(file)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("float32 sum 4000 B") >= 4  # two ranks' data, in and out
    assert "icrc bad" not in shown.stdout.lower()


MOMENTS = {
    "before the first message": "if rank == 1: {act}\ntry:\n  world.all_reduce(np.ones(10)) ",
    "mid-message": """
if rank == 1:
  import threading
  threading.Timer(0.3, lambda: {act}).start()
try:
  while True: world.all_reduce(np.ones(3_000_000, np.float32))""",
    "between messages": "world.all_reduce(np.ones(10))\nif rank == 1: {act}\ntry:\n  world.all_reduce(np.ones(10))",
}
CATCH = """
except PeerLostError as error:
  print("survivor", error, flush=True)
  time.sleep(60)
"""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_worker_ends_the_run_and_is_named(moment):
    code, _, err = run(MOMENTS[moment].format(act="os.kill(os.getpid(), 9)") + CATCH)
    assert code == 128 + signal.SIGKILL
    assert re.search(r"worker 1 .*signal SIGKILL", err.splitlines()[-1])


def test_survivors_raise_within_the_bound_when_nobody_else_ends_them():
    code = """
    if rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), 9)
    world.all_reduce(np.ones(10))
    """
    from netreduce.runtime.embedded import SwitchProcess

    switch = SwitchProcess(3)
    switch.wait_until_ready()
    base = {**os.environ, "WORLD_SIZE": "3", "NETREDUCE_SWITCH": switch.address}
    script = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script], env={**base, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    workers[1].communicate(timeout=60)
    killed_s = time.monotonic()
    for rank in (0, 2):
        _, err = workers[rank].communicate(timeout=60)
        assert time.monotonic() - killed_s < bound_s()
        last = err.strip().splitlines()[-1]
        assert "PeerLostError" in last
        # Who was slow to call has heard of it before.
        assert re.search(r"group 'world' \(ring 1\): (all_reduce #0: )?rank 1 was lost: .*process \d+", last), last
        assert "all_reduce #0" in last
    switch.close()


def test_a_failing_worker_shows_its_own_error_last_and_gives_its_exit_code():
    code, _, err = run("if rank == 2: sys.exit('my own fault')\nworld.all_reduce(np.ones(10))")
    assert code == 1
    assert err.splitlines()[-2:-1] == ["[2] my own fault"]
    assert "worker 2" in err.splitlines()[-1]


def test_a_rank_that_ends_without_closing_does_not_disturb_those_who_still_work():
    code, out, err = run("""
    world.all_reduce(np.ones(10))
    if rank:
        time.sleep(0.5)
        import gc; gc.collect()
        print("still here", flush=True)
    """)
    assert code == 0, err
    assert out.count("still here") == 2


def test_an_exception_in_one_rank_is_news_at_once_to_the_others():
    code, _, err = run("""
    if rank == 1:
        raise ValueError("my own fault")
    try:
        start = time.monotonic()
        world.all_reduce(np.ones(10))
    except PeerLostError as error:
        print("heard after", time.monotonic() - start, "s:", error, file=sys.stderr, flush=True)
        time.sleep(5)
    """)
    assert code == 1
    assert "ValueError: my own fault" in err.splitlines()[-2]
    assert all(float(seconds) < bound_s() for seconds in re.findall(r"heard after (\S+) s", err)), err


def test_interrupting_the_launcher_ends_everything():
    process = start("print('here', flush=True); time.sleep(60)")
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 128 + signal.SIGINT
    assert "ended by SIGINT" in err


def test_a_killed_launcher_takes_workers_and_switch_with_it():
    process = start("print(os.getpid(), flush=True); time.sleep(60)")
    pids = [int(process.stdout.readline().split()[1]) for _ in range(3)]
    process.kill()
    finish(process)
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))


def test_a_killed_switch_is_a_clear_error_on_every_rank():
    code, out, err = run("""
    def kill_the_switch():
        parent = os.getppid()
        children = open(f"/proc/{parent}/task/{parent}/children").read().split()
        arguments = {pid: open(f"/proc/{pid}/cmdline").read().split("\\0") for pid in children}
        (switch,) = (int(pid) for pid in children if "netreduce.runtime.switch_process" in arguments[pid])
        os.kill(switch, 9)

    try:
        world.all_reduce(np.ones(10))
        if rank == 0:
            kill_the_switch()
        while True:
            world.all_reduce(np.ones(10))
    except SwitchLostError as error:
        print("switch lost:", error, flush=True)
    """)
    assert len(re.findall(r"switch lost: group .world. .*: the switch at local:netreduce-", out)) == 3, (out, err)
    del code


def test_a_stopped_worker_keeps_others_waiting_and_nothing_breaks():
    code, out, err = run("""
    import subprocess
    if rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    x = np.ones(10); world.all_reduce(x); print(x[0])
    """)
    assert (code, sorted(out.splitlines())) == (0, [f"[{rank}] 3.0" for rank in range(3)]), err
    assert "StragglerWarning: all_reduce #0: waiting for rank 1 for " in err
    assert "ranks 0, 2 have sent" in err
