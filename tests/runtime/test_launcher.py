import os
import signal
import socket
import sys
import threading
import time

import pytest
from tests.patience import descriptors, eventually, is_alive

from netreduce.errors import ConfigurationError
from netreduce.runtime.launcher import Interrupted, Launcher, raise_interrupted, reserve_port, worker_environment

pytestmark = pytest.mark.live


def launcher_of(code, workers=2, prefix=True):
    """A launcher of Python `code`, and what its workers write."""
    out, err = bytearray(), bytearray()
    environments = [
        worker_environment(rank, workers, 29500, "run", "local:none", os.environ) for rank in range(workers)
    ]
    return Launcher([sys.executable, "-c", code], environments, out.extend, err.extend, prefix=prefix), out, err


def children():
    path = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children"
    with open(path) as file:
        return file.read().split()


@pytest.fixture(autouse=True)
def nothing_is_left_over():
    before, known = descriptors(), children()  # others' tests may have left some that live as long as the session
    yield
    assert eventually(lambda: len(descriptors()) <= len(before)), (before, descriptors())
    assert set(children()) <= set(known)


def test_workers_of_pretended_machines_are_told_so_as_torchrun_does():
    told = [worker_environment(rank, 6, 29500, "run", "local:none", {}, machines=2) for rank in range(6)]
    assert [env["NETREDUCE_MACHINE"] for env in told] == ["machine 0"] * 3 + ["machine 1"] * 3
    assert [env["LOCAL_RANK"] for env in told] == list("012012")
    assert [env["GROUP_RANK"] for env in told] == list("000111")
    assert {(env["LOCAL_WORLD_SIZE"], env["GROUP_WORLD_SIZE"], env["WORLD_SIZE"]) for env in told} == {("3", "2", "6")}


def test_workers_get_the_environment_that_torchrun_sets():
    code = "import os; e = os.environ; print(e['RANK'], e['WORLD_SIZE'], e['LOCAL_RANK'], e['NETREDUCE_SWITCH'])"
    launcher, out, _ = launcher_of(code)
    assert launcher.run() is None
    assert sorted(out.decode().splitlines()) == ["[0] 0 2 0 local:none", "[1] 1 2 1 local:none"]


def test_without_prefix_output_passes_as_it_is():
    launcher, out, _ = launcher_of("import sys; sys.stdout.write('50%\\r100%')", workers=1, prefix=False)
    assert launcher.run() is None
    assert out == b"50%\r100%"


def test_the_first_failure_ends_the_others_and_keeps_its_own_last_words():
    code = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("my own fault")
time.sleep(60)
"""
    start = time.monotonic()
    launcher, _, err = launcher_of(code, workers=3)
    failure = launcher.run()
    assert (failure.rank, failure.returncode, failure.last_words) == (1, 1, ("my own fault",))
    assert b"[1] my own fault\n" in err
    assert time.monotonic() - start < 30  # not the 60 s of the others


def test_a_killed_worker_is_a_failure_with_its_signal():
    code = "import os, time; os.kill(os.getpid(), 9) if os.environ['RANK'] == '0' else time.sleep(60)"
    launcher, _, _ = launcher_of(code)
    assert launcher.run().returncode == -signal.SIGKILL


def test_what_a_worker_has_started_ends_with_it():
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=False).pid)"
    launcher, out, _ = launcher_of(code, workers=1, prefix=False)
    assert launcher.run() is None
    pid = int(out)
    assert eventually(lambda: not is_alive(pid))


def test_an_interruption_is_passed_on_to_the_workers():
    code = """
import time
try:
    print("here", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped in good order")
"""
    launcher, out, _ = launcher_of(code)
    previous = signal.signal(signal.SIGINT, raise_interrupted)

    def interrupt_once_all_run():
        while out.count(b"here") < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt_once_all_run)
    helper.start()
    try:
        with pytest.raises(Interrupted, match="SIGINT"):
            launcher.run()
    finally:
        helper.join()
        signal.signal(signal.SIGINT, previous)
    assert out.count(b"stopped in good order") == 2


def test_a_command_that_does_not_exist_is_a_clear_error():
    launcher = Launcher(["/no/such/command"], [dict(os.environ)], len, len, prefix=True)
    with pytest.raises(ConfigurationError, match="cannot start '/no/such/command'"):
        launcher.run()


def test_a_reserved_port_is_free_for_a_listener_that_asks_for_it():
    with reserve_port() as reserved, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(reserved.getsockname())
        listener.listen()
