"""One rank's membership in a group: the engine of its ring, what is under way on it, and how it can fail.

Where several machines have several workers each, a member has a second one across the machines (Parallel NetReduce),
and mates. The two fail together, and errors of the second name the ranks of the first.

A member is driven with its worker. Other threads only call `start` and `run`, and read futures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from select import epoll
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.engine import Engine
from netreduce.collectives.machines import Machines
from netreduce.collectives.operation import Operation
from netreduce.errors import (
    AdmissionError,
    CollectiveTimeoutError,
    CompletionError,
    MismatchError,
    NetReduceError,
    PeerLostError,
    StragglerWarning,
)
from netreduce.runtime.control_channel import BadMessageError
from netreduce.runtime.mates import Mates
from netreduce.runtime.progress import Pending, Progress
from netreduce.units import PS_PER_S
from netreduce.wire import control

if TYPE_CHECKING:
    from netreduce.runtime.short_collectives import ShortCollectives

logger = logging.getLogger("netreduce")

LEFT_GRACE_S = 3.0
"""How long a collective may stand still after a rank has left the group: it left because it was done, or by mistake."""
STRAGGLER_LOG_INTERVAL_S = 10.0
STUCK_S = 2.0
"""How long an operation may stand still before the switch is told; then once per interval."""
MATE_WAIT_S = 2.0
"""How long a mate may owe an answer until it is said that it does."""


class Home(NamedTuple):
    """The machine that a rank says it is on, and where ranks of the same one can connect."""

    machine: str = ""
    door: str = ""


@dataclass
class _Outstanding:
    operation: Operation
    future: Future[None] | Pending
    since_s: float


def ranks_text(ranks: tuple[int, ...] | list[int]) -> str:
    """Such as ``rank 3`` or ``ranks 0, 1, 2``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in ranks)


class Member:
    """Rank `rank` of the group `name`; `joined` resolves when every rank can receive."""

    def __init__(
        self,
        name: str,
        rank: int,
        world_size: int,
        geometry: control.Geometry,
        tuning: Tuning,
        timeout_s: float,
        progress: Progress,
        send: Callable[[control.Message], None],
        home: Home = Home(),  # noqa: B008 (immutable)
    ) -> None:
        self.name = name
        self.rank = rank
        self.world_size = world_size
        self.geometry = geometry
        self.tuning = tuning
        self.timeout_s = timeout_s
        self.joined: Future[None] = Future()
        self.closed: Future[None] = Future()
        self.ring_id: int | None = None
        self.engine: Engine | None = None
        self.error: BaseException | None = None
        self.gathering_missing: tuple[int, ...] = ()
        self.home = home
        self.endpoints: tuple[control.Endpoint, ...] = ()
        self.machines: Machines | None = None
        self.across: Member | None = None
        self.mates: Mates | None = None
        self.short: ShortCollectives | None = None  # the quick way of short all-reduces, where there is one
        self._parts: list[Member] = []  # members of some of these ranks, which fail together with this one
        self._whole: Member | None = None  # whose part this one is
        self._ranks = tuple(range(world_size))  # what these ranks are called in error messages
        self._progress = progress
        self._send = send
        self._outstanding: list[_Outstanding] = []
        self._left: dict[int, float] = {}  # ranks that have left, and since when
        self._waiting: control.Waiting | None = None
        self._straggler_logged_s = -STRAGGLER_LOG_INTERVAL_S
        self._stuck_told_s = -STUCK_S
        self._now_s = 0.0
        self._moved_s = 0.0  # when an engine did something last: a long transfer keeps nobody waiting

    # --- called by any thread

    def start(self, function: Callable[[Engine], Operation]) -> Future[None]:
        """Have ``function(engine)`` called by whoever drives; the future resolves when its operation is done.

        Operations of one member start in the order of the calls. The future's callbacks run where it is driven.
        """
        future: Future[None] = Future()
        self._progress.submit(lambda: self.begin(function, future))
        return future

    def run(self, function: Callable[[Engine], Operation]) -> None:
        """As `start`, and wait for the end. Raises the operation's error."""
        pending = Pending()
        self._progress.run(lambda: self.begin(function, pending), pending)

    # --- called by whoever drives

    def begin(self, function: Callable[[Engine], Operation], future: Future[None] | Pending) -> None:
        """Call ``function(engine)``; `future` hears of the end of its operation."""
        if self.engine is None:
            assert self.error is not None
            future.set_exception(self.error)
            return
        try:
            operation = function(self.engine)
        except Exception as error:  # the caller's mistake, such as an unsupported dtype, is raised by its future
            future.set_exception(error)
            return
        self._outstanding.append(_Outstanding(operation, future, self._now_s))

    @property
    def is_busy(self) -> bool:
        """Whether operations are under way."""
        return bool(self._outstanding)

    def join(self, engine: Engine) -> None:
        """Ask the switch for membership."""
        self.engine = engine
        endpoint = replace(engine.endpoint(), machine=self.home.machine, door=self.home.door)
        self._send(control.Join(self.name, self.world_size, endpoint, self.geometry))

    def use_machines(self, machines: Machines, across: Member, mates: Mates, inbox: epoll) -> None:
        """Run all-reduces by Parallel NetReduce from now on; `inbox` is told what mates say. Before the first call."""
        assert self.engine is not None
        assert across.engine is not None
        self.machines, self.across = machines, across
        self.adopt(across, machines.across(self.rank))
        self.engine.use_machines(machines, across.engine.ring, mates.shared)
        mates.listen(self.engine.hear, inbox)
        self.mates = mates

    def adopt(self, part: Member, ranks: tuple[int, ...]) -> None:
        """From now on `part`, of these `ranks` of this group, fails together with this member, and leaves with it."""
        part._whole, part._ranks = self, ranks
        self._parts.append(part)

    @property
    def parts(self) -> tuple[Member, ...]:
        """This member and its parts."""
        return self, *self._parts

    def progress(self, now_ps: int) -> bool:
        """Let the engine work; whether it did anything."""
        self._now_s = now_ps / PS_PER_S
        if self.engine is None:
            return False
        worked = self._hear_mates()
        worked |= self.engine.progress(now_ps)
        if worked:
            self._moved_s = self._now_s
        finished = [entry for entry in self._outstanding if entry.operation.done]
        if finished:
            # Those that have an error ended with the engine, and get the error that names the ring and the call.
            self._outstanding = [entry for entry in self._outstanding if entry.operation.error or entry not in finished]
            for entry in finished:
                if entry.operation.error is None:
                    entry.future.set_result(None)
            self._waiting = None
        if self.engine.error is not None and self.error is None:
            self._report(self.engine.error)
            self.fail(self.placed(self.engine.error))
        return worked

    @property
    def has_more(self) -> bool:
        """Whether an engine may find more to do, without anything new from the network."""
        engines = self.engine, None if self._whole is None else self._whole.engine
        return any(engine is not None and engine.has_more for engine in engines)

    @property
    def awaits_acknowledgements(self) -> bool:
        """Whether this rank or another one of the group may have to hear of an acknowledgement at once."""
        return self.engine is not None and self.engine.awaits_acknowledgements

    def _hear_mates(self) -> bool:
        if self.mates is None:
            return False
        try:
            return self.mates.progress()
        except BadMessageError as error:
            self.fail(error)
            return True

    def _report(self, error: BaseException) -> None:
        """Two ranks disagree, or connections have failed: the others wait for us, and hear of it by the switch."""
        if self.ring_id is None:
            return
        if isinstance(error, MismatchError) and len(error.sides) == 2:
            (rank_a, what_a), (rank_b, what_b) = error.sides
            self._send(control.Mismatch(self.ring_id, control.BETWEEN_PEERS, rank_a, what_a, rank_b, what_b))
        elif isinstance(error, CompletionError):
            self._send(control.Failed(self.ring_id, str(error)[: control.DESCRIPTION_MAX]))

    def placed(self, error: BaseException) -> BaseException:
        """`error` with ring and call in front of it."""
        return error.saying(f"{self._where()}: {error}") if isinstance(error, NetReduceError) else error

    def tick(self, now_ps: int) -> None:
        """Find operations that have waited for too long, or for ranks that have left."""
        self._now_s = now_ps / PS_PER_S
        if not self._outstanding:
            return
        oldest = self._outstanding[0]
        if self._now_s - oldest.since_s > self.timeout_s:
            self.fail(CollectiveTimeoutError(f"{self._where()}: not done after {self.timeout_s:g} s{self._missing()}"))
            return
        still_s, expired_s = max(oldest.since_s, self._moved_s), self._now_s - LEFT_GRACE_S
        self._say_that_we_wait(oldest.operation, still_s)
        gone = [rank for rank, since_s in self._left.items() if max(since_s, still_s) < expired_s]
        if gone:
            self.fail(PeerLostError(f"{self._where()}: {ranks_text(gone)} left the group before it was done"))
        elif self._now_s - oldest.since_s > MATE_WAIT_S and (mates := self._silent_mates()):
            self._tell_of_mates(mates, self._now_s - oldest.since_s)

    def _silent_mates(self) -> list[int]:
        return [] if self.engine is None else self.engine.waits_for_mates()

    def _say_that_we_wait(self, operation: Operation, still_s: float) -> None:
        """Once per interval: the switch tells all who keeps them waiting, and who is in another call."""
        waiting_s = self._now_s - still_s
        if waiting_s < STUCK_S or self._now_s - self._stuck_told_s < STUCK_S or self.ring_id is None:
            return
        assert self.engine is not None
        self._stuck_told_s = self._now_s
        waits_for = tuple(self.engine.waits_for())
        self._send(control.Stuck(self.ring_id, operation.sequence, operation.call, waits_for, waiting_s))

    def _where(self) -> str:
        """Names ring and operation for an error message."""
        ring = f"group {self.name!r} (ring {self.ring_id})"
        if not self._outstanding:
            return ring
        operation = self._outstanding[0].operation
        number = "" if operation.sequence < 0 else f" #{operation.sequence}"
        return f"{ring}: {operation.name}{number}"

    def _missing(self) -> str:
        if mates := self._silent_mates():
            return f"; {ranks_text(mates)} of this machine did not answer"
        if self._waiting is None:
            return ""
        missing = ranks_text(self._waiting.missing_ranks)
        if self._waiting.message_id == control.BETWEEN_PEERS:
            return f"; it waited for {missing}"
        return f"; {missing} had not sent message {self._waiting.message_id}"

    def fail(self, error: BaseException, *, leaves: bool = False) -> None:
        """End everything with `error`, now and for later calls; if it `leaves`, as `Engine.leave` does."""
        if self.error is not None:
            return
        self.error = error
        if not self.joined.done():
            self.joined.set_exception(error)
        if self.engine is not None:
            end = self.engine.leave if leaves else self.engine.fail
            end(error)
            self.engine.error = error  # the one that names ring and call, for calls to come
        outstanding, self._outstanding = self._outstanding, []
        for entry in outstanding:
            entry.future.set_exception(error)
        for part in self._parts:
            part.fail(error, leaves=leaves)
        if self._whole is not None:
            self._whole._report(error)
            self._whole.fail(error, leaves=leaves)

    def leave(self) -> None:
        """Say goodbye to the others; `closed` resolves when they have as well."""
        self.fail(NetReduceError(f"group {self.name!r} is closed"), leaves=True)
        if self.closed.done():
            return  # the switch is gone, and with it everybody who could hear
        if self.ring_id is None:
            self.closed.set_result(None)
        else:
            self._send(control.Leave(self.ring_id))

    def handle(self, message: control.Message) -> None:
        """News from the switch about this group."""
        if isinstance(message, control.Joined):
            assert self.engine is not None
            self.ring_id = message.ring_id
            self.endpoints = message.endpoints
            self.engine.connect(message.ring_id, message.endpoints)
            self._send(control.Ready(message.ring_id))
        elif isinstance(message, control.Go):
            if not self.joined.done():
                self.joined.set_result(None)
        elif isinstance(message, control.Gathering):
            self.gathering_missing = message.missing_ranks
            missing = ranks_text(message.missing_ranks)
            logger.warning("group %r: waiting %.0f s for %s to join", self.name, message.waiting_s, missing)
        elif isinstance(message, control.Refused):
            kind = AdmissionError if message.lost_rank < 0 else PeerLostError
            self.fail(kind(f"group {self.name!r}: {message.reason}"))
        elif isinstance(message, control.PeerLost):
            self.fail(PeerLostError(f"{self._where()}: rank {self._ranks[message.rank]} was lost: {message.reason}"))
        elif isinstance(message, control.Mismatch):
            self.fail(self._mismatch(message))
        elif isinstance(message, control.Waiting):
            (self._whole or self)._note_straggler(message, self._ranks)
        elif isinstance(message, control.Left):
            self._left[message.rank] = self._now_s
            if not self.joined.done():
                self.fail(PeerLostError(f"{self._where()}: rank {message.rank} left the group before it was ready"))
        elif isinstance(message, control.Closed):
            self.closed.set_result(None)

    def _mismatch(self, message: control.Mismatch) -> MismatchError:
        if message.message_id == control.BETWEEN_PEERS:
            sides = (message.rank_a, message.description_a), (message.rank_b, message.description_b)
            error = MismatchError.between(*sides)
            return error.saying(f"{self._where()}: {error}")
        rank_a, rank_b = self._ranks[message.rank_a], self._ranks[message.rank_b]
        text = (
            f"{self._where()}: ranks disagree about message {message.message_id}: "
            f"rank {rank_a} sent {message.description_a}, rank {rank_b} sent {message.description_b}"
        )
        if self._whole is None:
            return MismatchError(text)
        return MismatchError(text, ((rank_a, message.description_a), (rank_b, message.description_b)))

    def _note_straggler(self, waiting: control.Waiting, ranks: tuple[int, ...]) -> None:
        """Say once per interval who keeps the others waiting; `ranks` are those of the ring that waits."""
        missing = tuple(ranks[rank] for rank in waiting.missing_ranks)
        if self.rank in missing:
            return  # this one waits itself, for a mate
        self._waiting = replace(waiting, missing_ranks=missing)
        if self._now_s - self._straggler_logged_s < STRAGGLER_LOG_INTERVAL_S or not self._outstanding:
            return
        self._straggler_logged_s = self._now_s
        operation = self._outstanding[0].operation
        call = operation.name if operation.sequence < 0 else f"{operation.name} #{operation.sequence}"
        text = f"{call}: waiting for {ranks_text(missing)} for {waiting.waiting_s:.1f} s"
        if waiting.message_id == control.BETWEEN_PEERS:
            text += f" (group {self.name!r})"
        else:
            sent = [rank for rank in ranks if rank not in missing]
            verb = "has" if len(sent) == 1 else "have"
            text += f"; {ranks_text(sent)} {verb} sent (group {self.name!r}, message {waiting.message_id})"
        logger.warning("%s: %s", StragglerWarning.__name__, text)

    def _tell_of_mates(self, mates: list[int], waiting_s: float) -> None:
        if self._now_s - self._straggler_logged_s < STRAGGLER_LOG_INTERVAL_S:
            return
        self._straggler_logged_s = self._now_s
        operation, text = self._outstanding[0].operation, ranks_text(mates)
        logger.warning(
            "StragglerWarning: %s #%d: waiting for %s of this machine for %.1f s (group %r)",
            operation.name, operation.sequence, text, waiting_s, self.name,
        )  # fmt: skip
