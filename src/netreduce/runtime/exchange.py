"""A switch's turns at its cables in one compiled call: what has come is taken, and what follows of it is sent.

It is made of the very steps that lines.py takes from Python for other carriers, and for cables with faults, a capture
or a recorder. Whoever has slept finds cold caches, in which each of some thirty calls from Python costs microseconds:
so `serve` also sleeps between its turns, and returns when there is something that only Python can do.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import numpy as np

from netreduce.compiled import JIT_DISABLED, compiled, entry, memory_at
from netreduce.runtime import system_calls
from netreduce.switch.pipeline import take_burst
from netreduce.switch.tables import SwitchTables
from netreduce.units import PS_PER_US
from netreduce.wire.burst_pipe import STATE_WORDS, Found, Put, Sleep, pipe_fill, pipe_next, pipe_release, pipe_rest

POLL_INTERVAL_PS = 50 * PS_PER_US
"""Interval of looking for anything but bursts on cables, while these are busy."""
EVENTS_MAX = 64
"""Descriptors that are ready, taken at once."""
_READABLE = int(select.EPOLLIN)

CABLE = np.dtype(
    [
        ("port", np.int64),
        ("data_in", np.int64),  # addresses of the pipes: what has come, ...
        ("state_in", np.int64),
        ("data_out", np.int64),  # ... and what leaves
        ("state_out", np.int64),
        ("bell", np.int64),  # descriptor of its socket
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


@compiled
def _ring(cables: np.ndarray, places: np.ndarray, count: int, scratch: np.ndarray) -> bool:
    """Ring at the other ends of cables that have something to say; whether that was all they had to."""
    is_all = True
    for number in range(count):
        cable = cables[places[number]]
        if cable.rings != 0 and system_calls.ring_bell(cable.bell, scratch):
            cable.rings = 0
        is_all = is_all and cable.rings == 0 and cable.bad_bytes < 0
    return is_all


@compiled
def _rest(cables: np.ndarray) -> bool:
    """Say in all pipes that their reader is about to sleep; False if a burst is there."""
    may_sleep = True
    for number in range(cables.size):
        state = memory_at(cables[number].state_in, STATE_WORDS * 8).view(np.int64)
        may_sleep = pipe_rest(state, Sleep.FOR_ANYTHING.value) and may_sleep
    return may_sleep


@compiled
def _hear_bells(cables: np.ndarray, events: np.ndarray, count: int, scratch: np.ndarray) -> bool:
    """Take the bells of cables; whether nothing else is ready."""
    heard = 0
    for event in range(count):
        descriptor = system_calls.ready_descriptor(events, event)
        if system_calls.ready_mask(events, event) != _READABLE:
            continue
        for number in range(cables.size):
            if cables[number].bell == descriptor and system_calls.take_bell(descriptor, scratch):
                cables[number].is_full = 0  # the bell may mean room
                heard += 1
    return heard == count


@compiled
def serve(
    tables: SwitchTables,
    cables: np.ndarray,
    pipe_bytes: int,
    places: np.ndarray,
    most: int,
    epoll: int,
    events: np.ndarray,
    scratch: np.ndarray,
    epoch_ns: int,
    due_ps: int,
) -> int:
    """Take turns as `exchange` does, and sleep in `epoll` between them, until `due_ps` or until something else happens.

    That is a descriptor that is no bell, which `epoll` tells of again, or a cable with something to say that no bell
    can. Returns what `exchange` did last, if that is not settled; with a `due_ps` of 0, whether a burst had come.
    `events` is room for `system_calls.wait`, `scratch` int64[2].
    """
    polled_ps = system_calls.now_ps(scratch, epoch_ns)
    while True:
        now_ps = system_calls.now_ps(scratch, epoch_ns)
        said = exchange(tables, cables, pipe_bytes, places, most, now_ps)
        if not _ring(cables, places, said >> 1, scratch):
            return said
        if now_ps >= due_ps:
            return said & 1
        wait_ps = 0
        if said & 1 == 0 and _rest(cables):
            wait_ps = due_ps - now_ps
        elif now_ps - polled_ps < POLL_INTERVAL_PS:
            continue
        polled_ps = now_ps
        count = system_calls.wait(epoll, events, wait_ps)
        if count < 0 or not _hear_bells(cables, events, count, scratch):
            return 0


def load(tables: SwitchTables) -> Callable[..., int]:
    """`serve`, compiled or loaded for the tables of a switch."""
    numbers, events = np.zeros(2, np.int64), system_calls.make_events(0)
    function: Callable[..., Any] = entry(serve, tables, make_cables(0), 0, numbers, 0, 0, events, numbers, 0, 0)
    # as in Switch: a peer's numbers may overflow, which compiled code never warns of
    return np.errstate(over="ignore", invalid="ignore")(function) if JIT_DISABLED else function


def make_cables(count: int) -> np.ndarray:
    """Rows for `count` cables."""
    return np.zeros(count, CABLE).view(np.recarray)
