"""Short all-reduces by the thread that calls them, without the rounds of a worker: see short_call.py.

This is for the ordinary case: one staged message through the switch, an embedded NIC on a cable that nobody records,
and nothing else under way. In any other case the call goes the usual way, also when it has begun here already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from netreduce.collectives.aggregation import STAGED_BYTES_MAX
from netreduce.collectives.algorithms import Algorithm
from netreduce.collectives.engine import Engine, ShortPlan
from netreduce.collectives.operation import Operation
from netreduce.collectives.reductions import Reduction
from netreduce.errors import NetReduceError
from netreduce.runtime import short_call, system_calls
from netreduce.runtime.progress import IDLE_S, Pending, Progress
from netreduce.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netreduce.runtime.member import Member
    from netreduce.runtime.nic_driver import NicRound

PLANS_MAX = 1024
"""Different calls that are remembered."""
_FIELDS = short_call.CALL.names
assert _FIELDS is not None
_NUMBER, _ACKNOWLEDGED, _POSTED, _DONE, _FULL, _RINGS, _REST_PS = range(len(_FIELDS))


class ShortCollectives:
    """The short all-reduces of `member`, which is one of `members`, all driven by `progress`; `nic` takes rounds."""

    def __init__(
        self, member: Member, members: Sequence[Member], nic: NicRound, progress: Progress, epoch_ns: int
    ) -> None:
        assert member.engine is not None
        self._member, self._members, self._nic, self._progress = member, members, nic, progress
        self._engine: Engine = member.engine
        self._plans: dict[tuple[np.dtype, int, Reduction, Algorithm], ShortPlan | None] = {}
        successor, predecessor, completions = (part.row for part in self._engine.ring_parts)
        way = (
            successor, predecessor, completions, *self._engine.staging,
            nic.bell, progress.inbox.fileno(), progress.watch, epoch_ns,
        )  # fmt: skip
        calls = np.zeros(1, short_call.CALL)
        self._call = calls.view(np.int64).data
        self._given = np.array([way], short_call.WAY).view(np.recarray), calls.view(np.recarray)
        self._room = system_calls.make_events(short_call.EVENTS_MAX), np.zeros(2, np.int64)
        self._run = short_call.load(nic.tables)

    def all_reduce(self, array: np.ndarray, op: Reduction, algorithm: Algorithm, out: np.ndarray | None) -> bool:
        """All-reduce `array` in place or into `out`, if this is the ordinary case; else nothing is done (False).

        Raises what an all-reduce may.
        """
        target = array if out is None else out
        if not type(array) is type(target) is np.ndarray or array.nbytes > STAGED_BYTES_MAX or not array.flags.carray:
            return False
        if out is not None and not (out.flags.carray and out.dtype == array.dtype and out.size == array.size):
            return False
        key = array.dtype, array.size, op, algorithm
        plan = self._plans[key] if key in self._plans else self._plan(array, op, algorithm)
        if plan is None or not self._progress.take_turn():
            return False
        if self._begin():
            self._call_with(plan, array, op, algorithm, target)
            return True
        self._progress.give_back(IDLE_S)
        return False

    def _plan(self, array: np.ndarray, op: Reduction, algorithm: Algorithm) -> ShortPlan | None:
        """The plan, which is kept; None if it is not for here."""
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        try:
            plan = self._engine.plan_short(array, op, algorithm)
        except NetReduceError:
            plan = None  # the usual way raises it, too
        self._plans[array.dtype, array.size, op, algorithm] = plan
        return plan

    def _begin(self) -> bool:
        """Prepare the row of the call, if nothing else is under way."""
        number = self._engine.next_short()
        if number < 0 or self._nic.is_full or any(member.is_busy for member in self._members):
            return False
        call = self._call
        call[_NUMBER], call[_ACKNOWLEDGED] = number, self._engine.oldest_unacknowledged
        call[_POSTED] = call[_DONE] = call[_FULL] = call[_RINGS] = 0
        call[_REST_PS] = -1
        return True

    def _call_with(
        self, plan: ShortPlan, array: np.ndarray, op: Reduction, algorithm: Algorithm, target: np.ndarray
    ) -> None:
        """Run the call; it has the turn, and gives it back."""
        call, is_interrupted = self._call, True
        given = array.reshape(-1).view(np.uint8)
        taken = given if target is array else target.reshape(-1).view(np.uint8)
        try:
            self._run(self._nic.tables, *self._nic.pipes, *self._given, plan.headers, given, taken, *self._room)
            is_interrupted = False
        finally:
            if call[_DONE]:
                self._engine.note_short(plan, call[_ACKNOWLEDGED], array.nbytes)
            if call[_REST_PS] >= 0:
                self._progress.give_back(call[_REST_PS] / PS_PER_S)
            else:
                self._go_on(is_interrupted, array, op, algorithm, target)

    def _go_on(
        self, is_interrupted: bool, array: np.ndarray, op: Reduction, algorithm: Algorithm, target: np.ndarray
    ) -> None:
        """Do the usual way what remains to be done, after an interrupt in the progress thread."""
        call, pending = self._call, Pending()

        def resume(engine: Engine) -> Operation:
            return engine.resume_short(call[_ACKNOWLEDGED], array, op, out=target, algorithm=algorithm)

        def go_on() -> None:
            if call[_POSTED] and not call[_DONE]:
                self._member.begin(resume, pending)
            else:
                pending.set_result(None)
            # last: a switch that is gone fails what has begun
            self._nic.go_on(is_full=call[_FULL] != 0, rings=call[_RINGS] != 0)

        if is_interrupted:
            self._progress.hand_over(go_on)
        else:
            self._progress.drive(go_on, pending)
