"""Starting workers with torchrun's environment, and ending them all together: the engine of `netreduce run`.

Every worker is a session of its own, so that ending it ends what it started; the kernel ends it when the launcher
dies (PR_SET_PDEATHSIG). The first worker to fail is the one whose own last words are repeated at the end: what the
others say after that is mostly about the loss of the first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from netreduce.errors import ConfigurationError
from netreduce.runtime.mates import MACHINE_VARIABLE

TERM_GRACE_S = 5.0
"""How long workers may take to end by SIGTERM before SIGKILL."""
LAST_WORDS_LINES = 40
LINE_BYTES_MAX = 64 * 1024
READ_BYTES = 64 * 1024
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def reserve_port() -> socket.socket:
    """A socket bound to a free TCP port of the loopback, not listening.

    While it is open nobody else is given the port, but who asks for this very port (torch's store) may listen on it.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def worker_environment(
    rank: int,
    world_size: int,
    master_port: int,
    run_id: str,
    switch_address: str,
    base: Mapping[str, str],
    machines: int = 1,
) -> dict[str, str]:
    """The environment that torchrun gives a worker, and NETREDUCE_SWITCH.

    With several `machines` the workers pretend to be on so many, evenly: NETREDUCE_MACHINE names each one's.
    """
    local_size = world_size // machines
    machine, local_rank = divmod(rank, local_size)
    environment = dict(base)
    environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: workers share the cores
    environment.setdefault("PYTHONUNBUFFERED", "1")
    ranks = {"RANK": rank, "LOCAL_RANK": local_rank, "ROLE_RANK": rank, "GROUP_RANK": machine}
    sizes = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": local_size, "ROLE_WORLD_SIZE": world_size}
    environment.update({name: str(value) for name, value in {**ranks, **sizes, "GROUP_WORLD_SIZE": machines}.items()})
    if machines > 1:
        environment[MACHINE_VARIABLE] = f"machine {machine}"
    environment.update(
        ROLE_NAME="default",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(master_port),
        TORCHELASTIC_RUN_ID=run_id,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_USE_AGENT_STORE="False",
        NETREDUCE_SWITCH=switch_address,
    )
    return environment


class Interrupted(BaseException):
    """A signal asked the launcher to end the run."""

    def __init__(self, signal_number: signal.Signals) -> None:
        super().__init__(signal_number.name)
        self.signal_number = signal_number


def raise_interrupted(signal_number: int, _frame: FrameType | None) -> None:
    """Signal handler for the signals that should end a run in good order."""
    raise Interrupted(signal.Signals(signal_number))


def _die_with_launcher() -> None:
    """Runs in the child before exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_text(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        return f"exit code {returncode}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-returncode).name}"
    return f"signal {-returncode}"


@dataclass
class _Stream:
    """One pipe of a worker: passes its lines on, prefixed, or its bytes as they are; remembers the last lines."""

    pipe: IO[bytes]
    sink: Callable[[bytes], None]
    prefix: bytes
    last: deque[bytes]
    partial: bytes = b""

    def drain(self) -> bool:
        """Pass on what is there; False at the end of the stream."""
        data = os.read(self.pipe.fileno(), READ_BYTES)
        *lines, self.partial = (self.partial + data).split(b"\n")
        if self.partial and (not data or len(self.partial) > LINE_BYTES_MAX):
            lines.append(self.partial)
            self.partial = b""
        self.last.extend(lines)
        self.sink(b"".join(self.prefix + line + b"\n" for line in lines) if self.prefix else data)
        return bool(data)


@dataclass
class _Child:
    rank: int
    process: subprocess.Popen[bytes]
    death_fd: int
    streams: list[_Stream]
    last_words: deque[bytes] = field(default_factory=lambda: deque(maxlen=LAST_WORDS_LINES))


@dataclass(frozen=True)
class Failure:
    """The worker that failed first: its rank, its `returncode` (negative: a signal) and its last error lines."""

    rank: int
    pid: int
    returncode: int
    last_words: tuple[str, ...]


class Launcher:
    """Runs `command` once per environment. `out` and `err` take the workers' output, with `prefix` marked by rank."""

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
        *,
        prefix: bool,
    ) -> None:
        self._command = list(command)
        self._environments = environments
        self._out, self._err = out, err
        self._prefix = prefix
        self._children: list[_Child] = []
        self._poll = select.poll()
        self._streams: dict[int, _Stream] = {}
        self._deaths: dict[int, _Child] = {}

    def run(self) -> Failure | None:
        """Run until every worker has ended; the first failure, if any, which ends the others.

        `Interrupted`, raised by a signal handler meanwhile, is passed on to the workers, and then to the caller.
        """
        failure: Failure | None = None
        closing_signal = signal.SIGTERM
        try:
            for rank, environment in enumerate(self._environments):
                self._start(rank, environment)
            while self._deaths and failure is None:
                child = self._next_death()
                if child is not None and child.process.returncode != 0:
                    failure = self._describe(child)
        except Interrupted as interruption:
            closing_signal = interruption.signal_number
            raise
        finally:
            self._end_all(closing_signal)
            self._drain_all()
        return failure

    def _start(self, rank: int, environment: Mapping[str, str]) -> None:
        try:
            process = subprocess.Popen(
                self._command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_die_with_launcher,  # before any thread is started here
            )
        except OSError as error:
            raise ConfigurationError(f"cannot start {self._command[0]!r}: {error.strerror}") from error
        child = _Child(rank, process, os.pidfd_open(process.pid), [])
        assert process.stdout is not None
        assert process.stderr is not None
        prefix = f"[{rank}] ".encode() if self._prefix else b""
        outputs = ((process.stdout, self._out, deque[bytes](maxlen=0)), (process.stderr, self._err, child.last_words))
        for pipe, sink, last in outputs:
            stream = _Stream(pipe, sink, prefix, last)
            child.streams.append(stream)
            self._streams[pipe.fileno()] = stream
            self._poll.register(pipe, select.POLLIN)
        self._children.append(child)
        self._deaths[child.death_fd] = child
        self._poll.register(child.death_fd, select.POLLIN)

    def _next_death(self, timeout_s: float | None = None) -> _Child | None:
        """Pass output on until a worker ends; None after `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while deadline is None or time.monotonic() < deadline:
            dead = None
            for descriptor, _ in self._poll.poll(None if deadline is None else 1000 * (deadline - time.monotonic())):
                if descriptor in self._streams:
                    self._drain(descriptor)
                elif descriptor in self._deaths and dead is None:
                    dead = self._deaths.pop(descriptor)
            if dead is not None:
                self._poll.unregister(dead.death_fd)
                os.close(dead.death_fd)
                dead.process.wait()
                return dead
        return None

    def _drain(self, descriptor: int) -> None:
        stream = self._streams[descriptor]
        if not stream.drain():
            self._poll.unregister(descriptor)
            del self._streams[descriptor]
            stream.pipe.close()

    def _drain_all(self) -> None:
        """Pass on what is left in the pipes, without waiting for grandchildren that hold them open."""
        while self._streams:
            ready = [descriptor for descriptor, _ in self._poll.poll(0)]
            if not ready:
                break
            for descriptor in ready:
                self._drain(descriptor)
        for stream in self._streams.values():
            stream.pipe.close()
        self._streams.clear()

    def _describe(self, child: _Child) -> Failure:
        for stream in child.streams:
            poll = select.poll()
            if not stream.pipe.closed:
                poll.register(stream.pipe, select.POLLIN)
                while not stream.pipe.closed and poll.poll(0):
                    self._drain(stream.pipe.fileno())
        words = tuple(line.decode(errors="replace") for line in child.last_words)
        return Failure(child.rank, child.process.pid, child.process.returncode, words)

    def _signal(self, child: _Child, signal_number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal_number)

    def _end_all(self, closing_signal: signal.Signals) -> None:
        """`closing_signal` to the workers and what they started; SIGKILL after a grace, or when interrupted again."""
        deadline = time.monotonic() + TERM_GRACE_S
        try:
            for child in self._deaths.values():
                self._signal(child, closing_signal)
            while self._deaths and time.monotonic() < deadline:
                self._next_death(deadline - time.monotonic())
        finally:
            for child in self._children:  # also the groups of workers that have ended: their children may live on
                self._signal(child, signal.SIGKILL)
            while self._deaths:
                self._next_death()


def new_run_id() -> str:
    """A name for one run, as torchrun makes one."""
    return f"netreduce-{secrets.token_hex(4)}"
