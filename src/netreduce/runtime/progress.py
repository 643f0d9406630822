"""Who drives a worker: its progress thread, or a thread that would otherwise wait for it.

A hand-over between two threads costs more than a small collective, so a thread that wants to block runs the rounds
itself if nobody else is at it. The progress thread sleeps on meanwhile: it waits for an epoll that the other thread
silences for its time.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

IDLE_S = 0.4
"""Longest sleep, when nothing is due: less than ACK timeouts (0.54 s), so that whoever gives back a turn with one that
runs need not wake the progress thread for it."""

Command = Callable[[], None]


class Pending:
    """What `Progress.run` waits for: a `Future` for one thread that waits, at a tenth of the cost."""

    __slots__ = ("_arrival", "_error", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._error: BaseException | None = None
        self._arrival = threading.Lock()
        self._arrival.acquire()

    def set_result(self, _result: None) -> None:
        """It is done."""
        self.is_done = True
        self._arrival.release()

    def set_exception(self, error: BaseException) -> None:
        """It has failed."""
        self._error = error
        self.set_result(None)

    def result(self) -> None:
        """Wait for it; raises its error. To be called once."""
        self._arrival.acquire()
        if self._error is not None:
            raise self._error


class Rounds(Protocol):
    """What is driven, by one thread at a time."""

    def step(self) -> bool:
        """One round of work; whether another one would find something to do."""

    def prepare_to_sleep(self) -> float:
        """Have watched descriptors tell of what comes from now on; seconds until something is due, at most `IDLE_S`."""

    def wake(self, ready: list[int]) -> None:
        """A sleep is over, and these descriptors are ready."""

    def lose(self, error: BaseException) -> None:
        """A round has failed, and there will be no more: set `Progress.is_over`, and fail what waits."""

    def end(self) -> None:
        """For the progress thread, at its end: fail what waits, and close what was opened."""


class Progress:
    """Drives `rounds`: `start` starts the progress thread, which ends when `stopping` is set, and `close` awaits it.

    Descriptors that end sleeps are registered with `inbox`, an epoll.
    """

    def __init__(self, rounds: Rounds) -> None:
        self.stopping = False
        self.is_over = False
        self._rounds = rounds
        self._commands: deque[Command] = deque()
        self._turn = threading.Lock()
        self._is_asleep = False
        self._alarm_s = 0.0  # when the progress thread wakes by itself (time.monotonic)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.inbox, self._bell = select.epoll(), select.epoll()
        self._bell.register(self.inbox, select.EPOLLIN)
        self.inbox.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="netreduce-progress", daemon=True)

    # --- called by any thread

    def start(self) -> None:
        """Start the progress thread."""
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Have `command` called by whoever drives, in the order of the calls."""
        self._commands.append(command)
        if self.is_over:
            self.run_commands()  # nobody drives any more; every command finds that out for itself
        elif self._is_asleep:
            self._ring()

    def run(self, command: Command, pending: Pending) -> None:
        """As `submit`, and wait for `pending`, driving until then unless another thread does. Raises its error."""
        if self.is_over or not self._turn.acquire(blocking=False):
            self.submit(command)
            pending.result()
        else:
            self.drive(command, pending)

    def take_turn(self) -> bool:
        """Keep everybody from driving, unless somebody does or has asked for something; then `give_back` or `drive`.

        Whoever asks for something meanwhile ends sleeps in `inbox`.
        """
        if self.is_over or self.stopping or not self._turn.acquire(blocking=False):
            return False
        self._is_asleep = True
        if self._commands:
            self._turn.release()
            return False
        return True

    def give_back(self, rest_s: float) -> None:
        """End a turn, in which nothing has failed; the rounds have to go on after `rest_s`.

        `prepare_to_sleep` was called, or what it does was done.
        """
        is_in_time = not self._commands and self._alarm_s <= time.monotonic() + rest_s
        self._turn.release()
        if not is_in_time:  # else the progress thread wakes early enough without being woken
            self._ring()

    def hand_over(self, command: Command) -> None:
        """End a turn with something left to do, which the progress thread takes over."""
        self._commands.append(command)
        self._bell.modify(self.inbox, select.EPOLLIN)
        self.give_back(0.0)

    def drive(self, command: Command, pending: Pending) -> None:
        """With the turn: call `command`, and drive until `pending` is done. Gives the turn back, raises its error."""
        self._commands.append(command)
        self._drive(pending)
        pending.result()

    @property
    def watch(self) -> int:
        """The descriptor of the epoll in which the progress thread sleeps, and which watches `inbox`."""
        return self._bell.fileno()

    def close(self) -> None:
        """Wait for the progress thread's end."""
        self._thread.join()
        self.inbox.close()
        self._bell.close()
        os.close(self._wake)

    # --- called by whoever drives

    def run_commands(self) -> bool:
        """Call the commands that wait; whether there was one."""
        if not self._commands:
            return False
        while self._commands:
            with contextlib.suppress(IndexError):  # when nobody drives any more, several threads may be here
                self._commands.popleft()()
        return True

    def _drive(self, pending: Pending) -> None:
        """Drive until `pending` is done, with the turn, which is given back."""
        is_inside = True  # an exception there, such as an interrupt, would leave half a round behind
        try:
            self._bell.modify(self.inbox, 0)
            while True:
                while not pending.is_done and not self.stopping and self._rounds.step():
                    pass
                is_inside = False
                if pending.is_done or self.stopping or self.is_over:
                    return
                ready = self.inbox.poll(self._prepare_to_sleep())
                is_inside = True
                self._woken(ready)
        except BaseException as error:
            if is_inside:
                self._rounds.lose(error)
            if not is_inside or not isinstance(error, Exception):
                raise
        finally:
            self._bell.modify(self.inbox, select.EPOLLIN)
            self.give_back(0.0 if self.stopping or self.is_over else self._prepare_to_sleep())

    def _run(self) -> None:
        """The progress thread."""
        while not self.stopping and not self.is_over:
            with self._turn:
                timeout_s = self._work()
                self._alarm_s = time.monotonic() + timeout_s
            self._bell.poll(timeout_s)
        with self._turn:  # whoever drives may still be in the round that has ended everything
            self._rounds.end()

    def _work(self) -> float:
        """Rounds until there is nothing to do; for how long to sleep."""
        try:
            self._woken(self.inbox.poll(0))
            while not self.stopping and self._rounds.step():
                pass
            return self._prepare_to_sleep()
        except Exception as error:
            self._rounds.lose(error)
            return 0.0

    def _prepare_to_sleep(self) -> float:
        self._is_asleep = True
        timeout_s = self._rounds.prepare_to_sleep()
        return 0.0 if self._commands or self.stopping or self.is_over else timeout_s

    def _woken(self, ready: list[tuple[int, int]]) -> None:
        self._is_asleep = False
        descriptors = [descriptor for descriptor, _ in ready]
        if self._wake in descriptors:
            descriptors.remove(self._wake)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        self._rounds.wake(descriptors)

    def _ring(self) -> None:
        os.eventfd_write(self._wake, 1)
