"""A worker: a NIC on a cable to the switch, and the one thread that drives it and the engines of its groups.

The progress thread alternates between system calls and compiled calls, a burst at a time; nothing in it is per frame.
When nothing moves it sleeps in `poll` until a burst, a control message, a command of another thread, or the next timer.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.engine import Engine
from netreduce.errors import CollectiveTimeoutError, NetReduceError, SwitchLostError
from netreduce.nic import Nic, verbs
from netreduce.runtime.cable import BadBurstError, Cable, CableClosedError, Outlet, make_burst_buffer
from netreduce.runtime.clock import Clock
from netreduce.runtime.control_channel import BadMessageError
from netreduce.runtime.member import Member, ranks_text
from netreduce.runtime.plug import plug_in
from netreduce.runtime.tracing import worker_recorder
from netreduce.runtime.warmup import ensure_compiled
from netreduce.units import PS_PER_MS, PS_PER_S
from netreduce.wire import control

logger = logging.getLogger("netreduce")

TICK_PS = 100 * PS_PER_MS
"""Interval of looking for operations that have timed out."""
BURSTS_PER_ROUND = 4
"""Bursts taken before the NIC and the engines answer: what has piled up is acknowledged together."""
IDLE_POLL_S = 1.0
LINGER_S = 1.0
"""How long a closing worker stays to acknowledge what others send again, unless they have all left before."""


class Worker:
    """Plugs into the switch at `address`. Thread-safe; `close` it, or use it as a context manager.

    Raises `SwitchLostError` when there is no switch.
    """

    def __init__(self, address: str, name: str) -> None:
        ensure_compiled()
        self.address = address
        self._cable, self._channel, attached, self.path_mtu = plug_in(address, name)
        self._clock = Clock(attached.epoch_ns)
        self._gateway = attached.gateway
        self._recorder = worker_recorder(attached.port, name, attached.ip, self._clock.now_ps)
        self.nic = Nic(name, attached.mac, attached.ip, events=self._recorder.log if self._recorder else None)
        self._context = verbs.Context(self.nic)
        self._outlet = Outlet(self._cable, self.nic.egress(0))
        self._buffer = make_burst_buffer()
        self._members: list[Member] = []
        self._engine_totals: dict[str, int] = {}  # of groups that were left
        self._commands: deque[Callable[[], None]] = deque()
        self._statistics: deque[Future[control.Statistics]] = deque()
        self._pid = os.getpid()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_asleep = False
        self._cable_is_full = False
        self._stopping = False
        self._lost: NetReduceError | None = None
        self._next_tick_ps = 0
        self._thread = threading.Thread(target=self._run, name="netreduce-progress", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    # --- called by any thread

    def submit(self, command: Callable[[], None]) -> None:
        """Call `command` on the progress thread, in the order of the calls."""
        self._commands.append(command)
        if self._lost is not None:
            self._run_commands()  # the progress thread has ended; every command finds that out for itself
        elif self._is_asleep:
            os.eventfd_write(self._wake, 1)

    def join(
        self,
        group: str,
        rank: int,
        world_size: int,
        geometry: control.Geometry,
        timeout_s: float,
        tuning: Tuning = Tuning(),  # noqa: B008 (immutable)
    ) -> Member:
        """Enter `group` and wait for its other ranks, at most `timeout_s`, which also bounds its operations.

        Raises `AdmissionError` when the switch refuses, `CollectiveTimeoutError` when ranks do not come.
        """
        member = Member(group, rank, world_size, geometry, tuning, timeout_s, self.submit, self._channel.send)
        self.submit(lambda: self._enter(member))
        try:
            member.joined.result(timeout_s)
        except FutureTimeoutError:
            missing = f": {ranks_text(member.gathering_missing)} did not come" if member.gathering_missing else ""
            late = CollectiveTimeoutError(f"group {group!r} was not complete after {timeout_s:g} s{missing}")
            self.submit(lambda: self._forget(member, late))
            raise late from None
        except NetReduceError:
            self.submit(lambda: self._forget(member))
            raise
        return member

    def statistics(self, timeout_s: float = 5.0) -> control.Statistics:
        """The switch's counters; `workers` has this NIC's. Raises `SwitchLostError` when it does not answer."""
        future: Future[control.Statistics] = Future()
        self.submit(lambda: self._ask_statistics(future))
        try:
            statistics = future.result(timeout_s)
        except FutureTimeoutError:
            raise SwitchLostError(f"the switch at {self.address} did not answer within {timeout_s:g} s") from None
        statistics.workers = self.nic.counters()
        return statistics

    def leave(self, member: Member) -> None:
        """Leave one group; wait until its other ranks have left as well, at most `LINGER_S`."""
        self.submit(member.leave)
        with contextlib.suppress(FutureTimeoutError):
            member.closed.result(LINGER_S)
        self.submit(lambda: self._forget(member))

    def close(self, *, in_good_order: bool = True) -> None:
        """Leave all groups, stay a moment for the others, unplug. Happens at the interpreter's exit at the latest.

        Not `in_good_order`, after a failure: unplug at once, and the others hear that this rank is lost.
        """
        if self._stopping or os.getpid() != self._pid:
            return  # closed already, or a forked copy, whose progress thread does not exist
        atexit.unregister(self._close_at_exit)
        if in_good_order:
            self._leave_all()
        self.submit(self._stop)
        self._thread.join()
        os.close(self._wake)

    def _close_at_exit(self) -> None:
        self.close(in_good_order=getattr(sys, "last_value", None) is None)  # else an exception ends the program

    def _leave_all(self) -> None:
        members = list(self._members)
        for member in members:
            self.submit(member.leave)
        deadline = time.monotonic() + LINGER_S
        for member in members:
            with contextlib.suppress(FutureTimeoutError):
                member.closed.result(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_exception: object) -> None:
        self.close(in_good_order=exception_type is None)

    # --- the progress thread

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        poll.register(self._cable, select.POLLIN)
        try:
            while not self._stopping:
                if not self._step():
                    self._sleep(poll)
            self._lose(NetReduceError("this worker is closed"))
        except (CableClosedError, BadBurstError, BadMessageError) as error:
            self._lose(SwitchLostError(f"the switch at {self.address} is gone: {error}"))
        except Exception as error:  # our mistake: whoever waits must hear of it
            logger.exception("the progress thread failed")
            self._lose(NetReduceError(f"the progress thread failed: {error!r}"))
        finally:
            self._cable.close()
            self._channel.close()
            if self._recorder is not None:
                self._recorder.close()

    def _step(self) -> bool:
        """One round: bursts in, engines, bursts out; whether anything moved."""
        now_ps = self._clock.now_ps()
        moved = bool(self._commands)
        for _ in range(BURSTS_PER_ROUND):
            burst = self._cable.receive(self._buffer)
            if burst is None:
                break
            if self._recorder is None:
                self.nic.receive(0, burst, now_ps)
            else:
                now_ps = self._recorder.receive(self.nic, 0, burst)
            moved = True
        self._run_commands()
        self.nic.advance(now_ps)
        for member in self._members:
            moved |= member.progress(now_ps)
        self.nic.advance(now_ps)
        if not (self._outlet.is_empty or self._cable_is_full):
            self._cable_is_full = not self._outlet.send()
            moved = True
        if now_ps >= self._next_tick_ps:
            self._next_tick_ps = now_ps + TICK_PS
            for member in self._members:
                member.tick(now_ps)
            self._channel.flush()
            self._hear()
        return moved

    def _run_commands(self) -> None:
        while self._commands:
            try:
                command = self._commands.popleft()
            except IndexError:
                return  # after the progress thread's end, several threads may be here
            command()

    def _sleep(self, poll: select.poll) -> None:
        """Wait until there is something to do."""
        busy = any(member.is_busy for member in self._members)
        due_ps = self.nic.next_timer_ps()
        if busy:
            due_ps = min(due_ps, self._next_tick_ps)
        timeout_s = min(IDLE_POLL_S, max(0, due_ps - self._clock.now_ps()) / PS_PER_S)
        if not isinstance(self._cable, Cable):
            poll.modify(self._cable, select.POLLIN | (select.POLLOUT if self._cable_is_full else 0))
        self._is_asleep = True
        ready = poll.poll(timeout_s * 1000 if self._cable.rest() and not self._commands else 0)
        self._is_asleep = False
        self._cable_is_full = False  # or so: the next round finds out
        for descriptor, _ in ready:
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif descriptor == self._channel.fileno():
                self._hear()
            else:
                self._cable.wake()

    def _enter(self, member: Member) -> None:
        if self._lost is not None:
            member.fail(self._lost)
            return
        self._members.append(member)
        with self._failing(member):
            seed = secrets.randbits(32)
            identity = member.rank, member.world_size, member.geometry
            member.join(Engine(self._context, *identity, tuning=member.tuning, seed=seed))

    @contextlib.contextmanager
    def _failing(self, member: Member) -> Iterator[None]:
        """What goes wrong inside ends this member, not the others."""
        try:
            yield
        except CableClosedError:
            raise
        except NetReduceError as error:
            member.fail(error)

    def _forget(self, member: Member, error: NetReduceError | None = None) -> None:
        """Free what a member holds, after it has left or never got in."""
        if error is not None:
            member.fail(error)
        if member in self._members:
            self._members.remove(member)
            if member.engine is not None:
                member.engine.close()
                for name, value in asdict(member.engine.statistics()).items():
                    self._engine_totals[name] = self._engine_totals.get(name, 0) + int(value)

    def _ask_statistics(self, future: Future[control.Statistics]) -> None:
        if self._lost is not None:
            future.set_exception(self._lost)
            return
        self._statistics.append(future)
        self._channel.send(control.StatisticsRequest())

    def _hear(self) -> None:
        """Take control messages to whom they concern."""
        while (message := self._channel.receive()) is not None:
            self._take(message)

    def _take(self, message: control.Message) -> None:
        if isinstance(message, control.Statistics):
            self._statistics.popleft().set_result(message)
            return
        if isinstance(message, control.Joined):
            for endpoint in message.endpoints:
                self.nic.neighbours[endpoint.ip] = self._gateway or endpoint.mac
        for member in list(self._members):
            ring_id = getattr(message, "ring_id", None)
            if getattr(message, "group", None) == member.name or (ring_id is not None and ring_id == member.ring_id):
                with self._failing(member):
                    member.handle(message)

    def _lose(self, error: NetReduceError) -> None:
        """Nothing works any more: end everything that is under way, or was asked for."""
        self._lost = error
        for member in self._members:
            member.fail(error)
            if not member.closed.done():
                member.closed.set_result(None)
        while self._statistics:
            self._statistics.popleft().set_exception(error)
        self._run_commands()

    def _stop(self) -> None:
        self._stopping = True
        if self._lost is None:
            for member in list(self._members):
                self._forget(member)
            self._channel.send(control.Report(self.nic.counters() | self._engine_totals))
