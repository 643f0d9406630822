"""One rank's membership in a group: the engine of its ring, what is under way on it, and how it can fail.

A member is driven with its worker. Other threads only call `start` and `run`, and read futures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.engine import Engine
from netreduce.collectives.operation import Operation
from netreduce.errors import (
    AdmissionError,
    CollectiveTimeoutError,
    MismatchError,
    NetReduceError,
    PeerLostError,
)
from netreduce.runtime.progress import Pending, Progress
from netreduce.units import PS_PER_S
from netreduce.wire import control

logger = logging.getLogger("netreduce")

LEFT_GRACE_S = 3.0
"""How long a collective may go on after a rank has left the group: it left because it was done, or by mistake."""
STRAGGLER_LOG_INTERVAL_S = 10.0


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
        self._progress = progress
        self._send = send
        self._outstanding: list[_Outstanding] = []
        self._left: dict[int, float] = {}  # ranks that have left, and since when
        self._waiting: control.Waiting | None = None
        self._straggler_logged_s = -STRAGGLER_LOG_INTERVAL_S
        self._now_s = 0.0

    # --- called by any thread

    def start(self, function: Callable[[Engine], Operation]) -> Future[None]:
        """Have ``function(engine)`` called by whoever drives; the future resolves when its operation is done.

        Operations of one member start in the order of the calls. The future's callbacks run where it is driven.
        """
        future: Future[None] = Future()
        self._progress.submit(lambda: self._begin(function, future))
        return future

    def run(self, function: Callable[[Engine], Operation]) -> None:
        """As `start`, and wait for the end. Raises the operation's error."""
        pending = Pending()
        self._progress.run(lambda: self._begin(function, pending), pending)

    # --- called by whoever drives

    def _begin(self, function: Callable[[Engine], Operation], future: Future[None] | Pending) -> None:
        if self.error is not None:
            future.set_exception(self.error)
            return
        assert self.engine is not None
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
        self._send(control.Join(self.name, self.world_size, engine.endpoint(), self.geometry))

    def progress(self, now_ps: int) -> bool:
        """Let the engine work; whether it did anything."""
        self._now_s = now_ps / PS_PER_S
        if self.engine is None:
            return False
        worked = self.engine.progress(now_ps)
        finished = [entry for entry in self._outstanding if entry.operation.done]
        if finished:
            self._outstanding = [entry for entry in self._outstanding if not entry.operation.done]
            for entry in finished:
                if entry.operation.error is None:
                    entry.future.set_result(None)
                else:
                    entry.future.set_exception(entry.operation.error)
            self._waiting = None
        if self.engine.error is not None and self.error is None:
            self._report(self.engine.error)
            self.fail(self.engine.error)
        return worked

    @property
    def has_more(self) -> bool:
        """Whether the engine may find more to do, without anything new from the network."""
        return self.engine is not None and self.engine.has_more

    def _report(self, error: BaseException) -> None:
        """Two ranks found that they disagree: the others wait for them, and hear of it through the switch."""
        if isinstance(error, MismatchError) and len(error.sides) == 2 and self.ring_id is not None:
            (rank_a, what_a), (rank_b, what_b) = error.sides
            self._send(control.Mismatch(self.ring_id, control.BETWEEN_PEERS, rank_a, what_a, rank_b, what_b))

    def tick(self, now_ps: int) -> None:
        """Find operations that have waited for too long, or for ranks that have left."""
        self._now_s = now_ps / PS_PER_S
        if not self._outstanding:
            return
        oldest = self._outstanding[0]
        if self._now_s - oldest.since_s > self.timeout_s:
            self.fail(CollectiveTimeoutError(f"{self._where()}: not done after {self.timeout_s:g} s{self._missing()}"))
            return
        expired_s = self._now_s - LEFT_GRACE_S
        gone = [rank for rank, since_s in self._left.items() if max(since_s, oldest.since_s) < expired_s]
        if gone:
            self.fail(PeerLostError(f"{self._where()}: {ranks_text(gone)} left the group before it was done"))

    def _where(self) -> str:
        """Names ring and operation for an error message."""
        ring = f"group {self.name!r} (ring {self.ring_id})"
        if not self._outstanding:
            return ring
        operation = self._outstanding[0].operation
        return f"{ring}: {operation.name} #{operation.sequence}"

    def _missing(self) -> str:
        if self._waiting is None:
            return ""
        return f"; {ranks_text(self._waiting.missing_ranks)} had not sent message {self._waiting.message_id}"

    def fail(self, error: BaseException) -> None:
        """End everything with `error`, now and for later calls."""
        if self.error is not None:
            return
        self.error = error
        if not self.joined.done():
            self.joined.set_exception(error)
        if self.engine is not None and self.ring_id is not None:
            self.engine.fail(error)
        outstanding, self._outstanding = self._outstanding, []
        for entry in outstanding:
            entry.future.set_exception(error)

    def leave(self) -> None:
        """Say goodbye to the others; `closed` resolves when they have as well."""
        self.fail(NetReduceError(f"group {self.name!r} is closed"))
        if self.ring_id is None:
            self.closed.set_result(None)
        else:
            self._send(control.Leave(self.ring_id))

    def handle(self, message: control.Message) -> None:
        """News from the switch about this group."""
        if isinstance(message, control.Joined):
            assert self.engine is not None
            self.ring_id = message.ring_id
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
            self.fail(AdmissionError(f"group {self.name!r}: {message.reason}"))
        elif isinstance(message, control.PeerLost):
            self.fail(PeerLostError(f"{self._where()}: rank {message.rank} was lost: {message.reason}"))
        elif isinstance(message, control.Mismatch):
            self.fail(self._mismatch(message))
        elif isinstance(message, control.Waiting):
            self._note_straggler(message)
        elif isinstance(message, control.Left):
            self._left[message.rank] = self._now_s
        elif isinstance(message, control.Closed):
            self.closed.set_result(None)

    def _mismatch(self, message: control.Mismatch) -> MismatchError:
        if message.message_id == control.BETWEEN_PEERS:
            return MismatchError.between(
                (message.rank_a, message.description_a), (message.rank_b, message.description_b)
            )
        return MismatchError(
            f"{self._where()}: ranks disagree about message {message.message_id}: "
            f"rank {message.rank_a} sent {message.description_a}, rank {message.rank_b} sent {message.description_b}"
        )

    def _note_straggler(self, waiting: control.Waiting) -> None:
        """Say once per interval who keeps the others waiting."""
        self._waiting = waiting
        if self._now_s - self._straggler_logged_s < STRAGGLER_LOG_INTERVAL_S or not self._outstanding:
            return
        self._straggler_logged_s = self._now_s
        operation = self._outstanding[0].operation
        sent = [rank for rank in range(self.world_size) if rank not in waiting.missing_ranks]
        logger.warning(
            "StragglerWarning: %s #%d: waiting for %s for %.1f s; %s have sent (group %r, message %d)",
            operation.name, operation.sequence, ranks_text(waiting.missing_ranks), waiting.waiting_s,
            ranks_text(sent), self.name, waiting.message_id,
        )  # fmt: skip
