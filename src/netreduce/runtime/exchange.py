"""A switch's turn at its cables in one compiled call: what has come is taken, and what follows of it is sent.

It is made of the very steps that lines.py takes from Python for other carriers, and for cables with faults, a capture
or a recorder. Whoever has slept finds cold caches, in which each of some thirty calls from Python costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netreduce.compiled import JIT_DISABLED, compiled, entry, memory_at
from netreduce.switch.pipeline import take_burst
from netreduce.switch.tables import SwitchTables
from netreduce.wire.burst_pipe import STATE_WORDS, Found, Put, pipe_fill, pipe_next, pipe_release

CABLE = np.dtype(
    [
        ("port", np.int64),
        ("data_in", np.int64),  # addresses of the pipes: what has come, ...
        ("state_in", np.int64),
        ("data_out", np.int64),  # ... and what leaves
        ("state_out", np.int64),
        ("is_full", np.int64),  # 1 until the caller has heard of room: nothing is sent
        # what `exchange` says
        ("rings", np.int64),  # 1 if the other end must be woken
        ("bad_bytes", np.int64),  # size of a burst that makes no sense, else -1
    ]
)


@compiled
def _take(tables: SwitchTables, cable: np.record, pipe_bytes: int, place: np.ndarray, most: int, now_ps: int) -> bool:
    """Take up to `most` bursts from one cable; whether there was one."""
    data = memory_at(cable.data_in, pipe_bytes)
    state = memory_at(cable.state_in, STATE_WORDS * 8).view(np.int64)
    for number in range(most):
        found = pipe_next(data, state, place)
        if found == Found.NOTHING.value:
            return number > 0
        size = place[1]
        if found == Found.NONSENSE.value:
            cable.bad_bytes = size
            return True
        take_burst(tables, cable.port, data[place[0] : place[0] + size], now_ps)
        if pipe_release(data, state, size):
            cable.rings = 1
    return most > 0


@compiled
def _send(tables: SwitchTables, cable: np.record, pipe_bytes: int) -> None:
    """Send what waits at one cable's port, as far as there is room."""
    data = memory_at(cable.data_out, pipe_bytes)
    state = memory_at(cable.state_out, STATE_WORDS * 8).view(np.int64)
    put = pipe_fill(data, state, tables.egress_data[cable.port], tables.egress_state[cable.port], False)
    cable.is_full = put & Put.NO_ROOM.value
    if put & Put.DONE_WAKE.value:
        cable.rings = 1


@compiled
def exchange(
    tables: SwitchTables, cables: np.ndarray, pipe_bytes: int, places: np.ndarray, most: int, now_ps: int
) -> int:
    """Take up to `most` bursts from each of `cables` (rows of `CABLE`), then send what waits at their ports.

    Returns whether a burst had come, plus twice the number of rows with something to say, whose numbers are written to
    `places` (int64, two more than there are rows).
    """
    taken, count = 0, 0
    place = places[cables.size :]
    for number in range(cables.size):
        cable = cables[number]
        cable.rings = 0
        cable.bad_bytes = -1
        if _take(tables, cable, pipe_bytes, place, most, now_ps):
            taken = 1
    for number in range(cables.size):
        cable = cables[number]
        if cable.is_full == 0 and tables.egress_state[cable.port].frames > 0:
            _send(tables, cable, pipe_bytes)
        if cable.rings != 0 or cable.bad_bytes >= 0:
            places[count] = number
            count += 1
    return taken + 2 * count


def load(tables: SwitchTables) -> Callable[..., int]:
    """`exchange`, compiled or loaded for the tables of a switch."""
    function: Callable[..., Any] = entry(exchange, tables, make_cables(0), 0, np.zeros(2, np.int64), 0, 0)
    # as in Switch: a peer's numbers may overflow, which compiled code never warns of
    return np.errstate(over="ignore", invalid="ignore")(function) if JIT_DISABLED else function


def make_cables(count: int) -> np.ndarray:
    """Rows for `count` cables."""
    return np.zeros(count, CABLE).view(np.recarray)
