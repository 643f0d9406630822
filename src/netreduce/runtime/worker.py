"""A worker: a NIC on the switch's network, and the rounds in which one thread drives it and its groups' engines.

With the embedded NIC a round makes compiled calls, a burst at a time; nothing in it is per frame. When nothing is to be
done, whoever drives (see progress.py) sleeps until a burst, a control message, a command of another thread, or the next
timer.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict
from functools import partial

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.engine import Engine
from netreduce.errors import CollectiveTimeoutError, ConfigurationError, NetReduceError, SwitchLostError
from netreduce.runtime.cable import BadBurstError, CableClosedError
from netreduce.runtime.control_channel import BadMessageError
from netreduce.runtime.driver import attach
from netreduce.runtime.member import Home, Member, ranks_text
from netreduce.runtime.progress import IDLE_S, Progress
from netreduce.runtime.provider import provider_named
from netreduce.runtime.short_collectives import ShortCollectives
from netreduce.units import PS_PER_MS, PS_PER_S
from netreduce.wire import control
from netreduce.wire.psn import PSN_MASK

logger = logging.getLogger("netreduce")

TICK_PS = 100 * PS_PER_MS
"""Interval of looking for operations that have timed out."""
FIRST_PSN_VARIABLE = "NETREDUCE_FIRST_PSN"
"""With it, all connections begin at this PSN instead of a random one, so that a fault can name a packet."""
LINGER_S = 1.0
"""How long a closing worker stays to acknowledge what others send again, unless they have all left before."""


def first_psn_from_environment() -> int | None:
    """The PSN of NETREDUCE_FIRST_PSN; None when it is not set. Raises ConfigurationError for what is no PSN."""
    text = os.environ.get(FIRST_PSN_VARIABLE)
    if text is None:
        return None
    if not text.isdecimal() or int(text) > PSN_MASK:
        raise ConfigurationError(f"{FIRST_PSN_VARIABLE}={text}: want a number from 0 to {PSN_MASK}")
    return int(text)


class Worker:
    """Attaches to the switch at `address`. Thread-safe; `close` it, or use it as a context manager.

    `provider` is auto, embedded or rdma (see `choose`), by default what NETREDUCE_PROVIDER says.

    Raises `SwitchLostError` when there is no switch, `ConfigurationError` when the provider does not do.
    """

    def __init__(self, address: str, name: str, provider: str | None = None) -> None:
        self.address = address
        self._driver, self._channel, self._clock, self.words = attach(address, name, provider_named(provider))
        if self.words:
            logger.info("%s %s", name, self.words)
        self.path_mtu = self._driver.path_mtu
        self._members: list[Member] = []
        self._engine_totals: dict[str, int] = {}  # of groups that were left
        self._statistics: deque[Future[control.Statistics]] = deque()
        self._pid = os.getpid()
        self._moved_ps = 0
        self._lost: NetReduceError | None = None
        self._next_tick_ps = 0
        self._awaits_acknowledgements = False
        self._has_news = False  # from the switch
        self._progress = Progress(self)
        self._progress.inbox.register(self._channel, select.EPOLLIN)
        self._driver.watch(self._progress.inbox)
        self._progress.start()
        atexit.register(self._close_at_exit)

    # --- called by any thread

    def join(
        self,
        group: str,
        rank: int,
        world_size: int,
        geometry: control.Geometry,
        timeout_s: float,
        tuning: Tuning = Tuning(),  # noqa: B008 (immutable)
        home: Home = Home(),  # noqa: B008 (immutable)
    ) -> Member:
        """Enter `group` and wait for its other ranks, at most `timeout_s`, which also bounds its operations.

        Raises `AdmissionError` when the switch refuses, `CollectiveTimeoutError` when ranks do not come.
        """
        member = Member(group, rank, world_size, geometry, tuning, timeout_s, self._progress, self._channel.send, home)
        self._progress.submit(lambda: self._enter(member))
        try:
            member.joined.result(timeout_s)
        except FutureTimeoutError:
            missing = f": {ranks_text(member.gathering_missing)} did not come" if member.gathering_missing else ""
            late = CollectiveTimeoutError(f"group {group!r} was not complete after {timeout_s:g} s{missing}")
            self._progress.submit(lambda: self._forget(member, late))
            raise late from None
        except NetReduceError:
            self._progress.submit(lambda: self._forget(member))
            raise
        return member

    def short_collectives(self, member: Member) -> ShortCollectives | None:
        """The quick way of `member`'s short all-reduces; None if this worker has none."""
        if self._driver.round is None or member.across is not None:
            return None
        return ShortCollectives(member, self._members, self._driver.round, self._progress, self._clock.epoch_ns)

    def statistics(self, timeout_s: float = 5.0) -> control.Statistics:
        """The switch's counters; `workers` has this NIC's. Raises `SwitchLostError` when it does not answer."""
        future: Future[control.Statistics] = Future()
        self._progress.submit(lambda: self._ask_statistics(future))
        try:
            statistics = future.result(timeout_s)
        except FutureTimeoutError:
            raise SwitchLostError(f"the switch at {self.address} did not answer within {timeout_s:g} s") from None
        statistics.workers = self._driver.counters()
        return statistics

    def leave(self, member: Member) -> None:
        """Leave one group; wait until its other ranks have left as well, at most `LINGER_S`."""
        self._leave(list(member.parts))
        for left in member.parts:
            self._progress.submit(partial(self._forget, left))

    @property
    def inbox(self) -> select.epoll:
        """What ends this worker's sleeps; its members' mates belong there."""
        return self._progress.inbox

    def close(self, *, in_good_order: bool = True) -> None:
        """Leave all groups, stay a moment for the others, unplug. Happens at the interpreter's exit at the latest.

        Not `in_good_order`, after a failure: unplug at once, and the others hear that this rank is lost.
        """
        if self._progress.stopping or os.getpid() != self._pid:
            return  # closed already, or a forked copy, whose progress thread does not exist
        atexit.unregister(self._close_at_exit)
        if in_good_order:
            self._leave(list(self._members))
        self._progress.submit(self._stop)
        self._progress.close()

    def _close_at_exit(self) -> None:
        self.close(in_good_order=getattr(sys, "last_value", None) is None)  # else an exception ends the program

    def _leave(self, members: list[Member]) -> None:
        for member in members:
            self._progress.submit(member.leave)
        deadline = time.monotonic() + LINGER_S
        for member in members:
            with contextlib.suppress(FutureTimeoutError):
                member.closed.result(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_exception: object) -> None:
        self.close(in_good_order=exception_type is None)

    # --- the rounds

    def step(self) -> bool:
        """One round: bursts in, engines, bursts out; whether another one would find something to do."""
        moved = self._progress.run_commands()
        now_ps, has_taken, more = self._driver.take(self._clock.now_ps())
        moved |= has_taken
        for member in self._members:
            moved |= member.progress(now_ps)
            more |= member.has_more
        if self._has_news:  # after the data that came before it: news of a death must not spoil what is complete
            self._has_news = False
            self._hear()
        # What ends in this round may be acknowledged by what leaves in it.
        awaited, self._awaits_acknowledgements = self._awaits_acknowledgements, self._await_acknowledgements()
        self._driver.be_patient(not (awaited or self._awaits_acknowledgements))
        more |= self._driver.give(now_ps)
        if now_ps >= self._next_tick_ps:
            self._next_tick_ps = now_ps + TICK_PS
            for member in self._members:
                member.tick(now_ps)
            self._channel.flush()
            self._hear()
        if moved:
            self._moved_ps = now_ps
        return more

    def _await_acknowledgements(self) -> bool:
        return any(member.awaits_acknowledgements for member in self._members)

    def prepare_to_sleep(self) -> float:
        """Seconds until something is due; 0 if something is there."""
        busy = any(member.is_busy for member in self._members)
        now_ps = self._clock.now_ps()
        due_ps = self._driver.rest(now_ps, self._moved_ps, busy)
        if busy:
            due_ps = min(due_ps, self._next_tick_ps)
        return min(IDLE_S, max(0, due_ps - now_ps) / PS_PER_S)

    def wake(self, ready: list[int]) -> None:
        """Note that the switch has said something, and hear what the driver watches."""
        for descriptor in ready:
            if descriptor == self._channel.fileno():
                self._has_news = True
            else:
                self._driver.wake()

    def lose(self, error: BaseException) -> None:
        """Nothing works any more: end everything that is under way, or was asked for."""
        self._lost = lost = self._described(error)
        self._progress.is_over = True
        for member in self._members:
            member.fail(member.placed(lost))
            if not member.closed.done():
                member.closed.set_result(None)
        while self._statistics:
            self._statistics.popleft().set_exception(lost)
        self._progress.run_commands()

    def _described(self, error: BaseException) -> NetReduceError:
        if isinstance(error, CableClosedError | BadBurstError | BadMessageError):
            return SwitchLostError(f"the switch at {self.address} is gone: {error}")
        if isinstance(error, NetReduceError):
            return error
        if not isinstance(error, Exception):
            return NetReduceError(f"this worker was interrupted in the middle of a round: {error!r}")
        logger.error("the progress thread failed", exc_info=error)  # our mistake: whoever waits must hear of it
        return NetReduceError(f"the progress thread failed: {error!r}")

    def end(self) -> None:
        """Unplug."""
        if self._lost is None:
            self.lose(NetReduceError("this worker is closed"))
        self._driver.close()
        self._channel.close()

    # --- groups and control

    def _enter(self, member: Member) -> None:
        if self._lost is not None:
            member.fail(self._lost)
            return
        self._members.append(member)
        with self._failing(member):
            seed = secrets.randbits(32)
            identity = member.rank, member.world_size, member.geometry
            psn = first_psn_from_environment()
            member.join(Engine(self._driver.context, *identity, tuning=member.tuning, seed=seed, first_psn=psn))

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
            if self._lost is None:
                self._channel.send(control.Withdraw(member.name))
        if member in self._members:
            self._members.remove(member)
            if member.engine is not None:
                member.engine.close()
                if member.mates is not None:
                    member.mates.close()
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
            self._driver.learn(message.endpoints)
        for member in list(self._members):
            ring_id = getattr(message, "ring_id", None)
            if getattr(message, "group", None) == member.name or (ring_id is not None and ring_id == member.ring_id):
                with self._failing(member):
                    member.handle(message)

    def _stop(self) -> None:
        self._progress.stopping = True
        if self._lost is None:
            for member in list(self._members):
                self._forget(member)
            self._channel.send(control.Report(self._driver.counters() | self._engine_totals))
