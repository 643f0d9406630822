"""A round of the embedded NIC on a cable in three compiled calls: take what has come, give what leaves, and rest.

They are made of the very steps that nic_driver.py takes from Python for other carriers and for traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from netreduce.compiled import compiled, entry
from netreduce.nic.path import advance, next_timer, receive
from netreduce.nic.tables import NicTables
from netreduce.wire.burst_pipe import Found, Put, pipe_fill, pipe_next, pipe_release, pipe_rest

TAKEN = 1
"""Bit of what `take` returns: a burst had come."""
RINGS = 2
"""Bit of what `take` returns: the other end must be woken."""
NONSENSE = 4
"""Bit of what `take` returns: a burst was malformed, of the size in ``place[1]``."""


@compiled
def take(tables: NicTables, data: np.ndarray, state: np.ndarray, place: np.ndarray, most: int, now_ps: int) -> int:
    """Let the NIC take up to `most` bursts of a pipe, and act. `place` is scratch, int64[2]."""
    said = 0
    for _ in range(most):
        found = pipe_next(data, state, place)
        if found == Found.NOTHING.value:
            break
        said |= TAKEN
        if found == Found.NONSENSE.value:
            return said | NONSENSE
        receive(tables, data[place[0] : place[0] + place[1]], now_ps)
        if pipe_release(data, state, place[1]):
            said |= RINGS
    advance(tables, now_ps)
    return said


@compiled
def give(tables: NicTables, data: np.ndarray, state: np.ndarray, is_full: bool, is_patient: bool, now_ps: int) -> int:
    """Let the NIC act, and put what it has to send into a pipe, unless that `is_full`; the `Put`, see there."""
    advance(tables, now_ps)
    egress = tables.egress
    if is_full or egress.state[0].frames == 0:
        return Put.DONE.value
    return pipe_fill(data, state, egress.data, egress.state[0], is_patient)


@compiled
def rest(tables: NicTables, state: np.ndarray, sleep: int, now_ps: int) -> int:
    """Say in a pipe's `state` that its reader is about to sleep, and how; the time until which it may.

    That is `now_ps` if a burst is there, else the NIC's next timer.
    """
    return next_timer(tables) if pipe_rest(state, sleep) else now_ps


class Compiled(NamedTuple):
    """The three, compiled or loaded for the tables of a NIC."""

    take: Callable[..., int]
    give: Callable[..., int]
    rest: Callable[..., int]


def load(tables: NicTables) -> Compiled:
    """Loading takes a while: better at the start than amid the traffic."""
    data, numbers = np.zeros(0, np.uint8), np.zeros(0, np.int64)
    return Compiled(
        entry(take, tables, data, numbers, numbers, 0, 0),
        entry(give, tables, data, numbers, False, False, 0),
        entry(rest, tables, numbers, 0, 0),
    )
