"""What a member says and does while its operation takes long, told by a clock of the test's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.fingerprint import Kind, fingerprint
from netreduce.collectives.operation import Operation
from netreduce.errors import PeerLostError
from netreduce.runtime.member import LEFT_GRACE_S, STUCK_S, Member
from netreduce.units import PS_PER_S
from netreduce.wire import control

RING, LATE_RANK, TICK_S = 7, 2, 0.1


class LongCall:
    """Stands for the engine of a call that rank 2 owes data; it moves while `is_moving`."""

    def __init__(self) -> None:
        self.is_moving = True
        self.error: BaseException | None = None

    def progress(self, _now_ps: int) -> bool:
        return self.is_moving

    def waits_for(self) -> list[int]:
        return [LATE_RANK]

    def waits_for_mates(self) -> list[int]:
        return []

    def fail(self, error: BaseException) -> None:
        self.error = error


class Directly:
    """Calls at once what a worker's progress thread would."""

    def submit(self, command: Any) -> None:
        command()


class Stage:
    """One member in the middle of a call, and what it has sent to the switch."""

    def __init__(self) -> None:
        self.sent: list[control.Message] = []
        self.engine = LongCall()
        geometry = control.Geometry(message_window=2, message_packets=4, path_mtu=1024)
        self.member = Member("g", 0, 3, geometry, Tuning(), 60.0, Directly(), self.sent.append)
        self.member.engine, self.member.ring_id = self.engine, RING
        self.now_s = 0.0
        self.member.joined.set_result(None)
        call = fingerprint(Kind.BROADCAST, np.dtype(np.float32), root=LATE_RANK)
        self.future = self.member.start(lambda _engine: Operation(Kind.BROADCAST, 3, 0, call))

    def spend(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.member.progress(round(self.now_s * PS_PER_S))
            self.member.tick(round(self.now_s * PS_PER_S))

    @property
    def complaints(self) -> list[control.Stuck]:
        return [message for message in self.sent if isinstance(message, control.Stuck)]


@pytest.fixture
def stage():
    return Stage()


def test_a_long_transfer_that_moves_keeps_nobody_waiting(stage):
    stage.spend(10 * STUCK_S)
    assert stage.complaints == []


def test_a_call_that_stands_still_is_told_of_once_an_interval_with_the_time_since_it_moved(stage):
    stage.spend(5 * STUCK_S)
    stage.engine.is_moving = False
    stage.spend(2.5 * STUCK_S)
    first, second = stage.complaints
    assert (first.waits_for, second.waits_for) == ((LATE_RANK,), (LATE_RANK,))
    assert first.waiting_s == pytest.approx(STUCK_S, abs=2 * TICK_S)
    assert second.waiting_s == pytest.approx(2 * STUCK_S, abs=3 * TICK_S)


def test_a_rank_that_left_when_it_was_done_is_not_missed_while_the_others_still_transfer(stage):
    stage.member.handle(control.Left(RING, LATE_RANK))
    stage.spend(3 * LEFT_GRACE_S)
    assert not stage.future.done()
    stage.engine.is_moving = False
    stage.spend(LEFT_GRACE_S + 2 * TICK_S)
    assert isinstance(stage.future.exception(), PeerLostError)
