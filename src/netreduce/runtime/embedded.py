"""Starting a switch process, and holding on to it: its owner's side.

`netreduce run` owns one for its workers. Under plain ``torchrun`` rank 0 owns one and publishes its address.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from netreduce.errors import SwitchLostError
from netreduce.runtime.cable import hang_up, listen, new_address

START_TIMEOUT_S = 120
"""How long a switch may take until it is ready; a first run compiles."""
STOP_TIMEOUT_S = 5
"""How long a switch may take to end once its owner lets go and no cable remains."""


class SwitchProcess:
    """A switch in a child process. `address` is good for workers at once, before the switch is ready.

    The child also ends by itself when this process dies. `pcap`: record what crosses the switch there; `trace`: leave
    the switch's part of a trace in that directory; `topology`: stand for the switches of that file, instead of for one.
    `faults`, spelled as `fabric.spelling` says, lie on its links.
    """

    def __init__(
        self,
        ports: int = 64,
        pcap: Path | None = None,
        log_level: str = "WARNING",
        trace: Path | None = None,
        topology: Path | None = None,
        faults: Sequence[str] = (),
        fault_seed: int = 0,
    ) -> None:
        self.address = new_address()
        self._owner, child_end = socket.socketpair()
        listener = listen(self.address)
        command = [sys.executable, "-m", "netreduce.runtime.switch_process", "--ports", str(ports)]
        command += ["--listener-fd", str(listener.fileno()), "--owner-fd", str(child_end.fileno())]
        command += ["--log-level", log_level] + ([] if pcap is None else ["--pcap", str(pcap)])
        command += [] if trace is None else ["--trace", str(trace)]
        command += [] if topology is None else ["--topology", str(topology)]
        command += [f"--fault={text}" for text in faults] + ["--fault-seed", str(fault_seed)]
        with listener, child_end:
            self._process = subprocess.Popen(
                command,
                pass_fds=(listener.fileno(), child_end.fileno()),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal reaches workers first, the switch last
            )
        self._owner_pid = os.getpid()

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when the switch serves; `SwitchLostError` when it ends before, or takes longer than `timeout_s`."""
        poll = select.poll()
        poll.register(self._owner, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise SwitchLostError(f"the switch was not ready within {timeout_s:g} s")
        if not self._owner.recv(16):
            raise SwitchLostError("the switch ended while it started; its own message is above")

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Let go of the switch and wait until it has ended; after `timeout_s` it is killed."""
        if os.getpid() != self._owner_pid:
            return  # a forked copy of the owner: not its to end
        hang_up(self._owner)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def release(self) -> None:
        """Let go of the switch without waiting: it serves the remaining workers, then ends."""
        if os.getpid() != self._owner_pid:
            return
        hang_up(self._owner)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0)
