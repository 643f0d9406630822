"""A short in-network collective from its posting to its result, in one compiled call that sleeps where it must.

It does for one staged message what aggregation.py and worker.py do from Python for all, by the same steps of the NIC
and of the cable. Whoever has slept finds cold caches, in which the interpreter needs 170 us for what takes 20 here.
What is not the ordinary course of things, such as news from the switch or a failed connection, ends the call as it
stands, and Python goes on from there.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import numpy as np

from netreduce.compiled import compiled, copy_bytes, entry, memory_at
from netreduce.nic.enums import WcStatus, WrOpcode
from netreduce.nic.posting import queue_receive, queue_send
from netreduce.nic.tables import NicTables
from netreduce.runtime import nic_round, system_calls
from netreduce.units import PS_PER_MS
from netreduce.wire.bigendian import write_be32
from netreduce.wire.burst_pipe import Put, Sleep, pipe_awake
from netreduce.wire.ina import INA_BYTES

WAIT_PS = 20 * PS_PER_MS
"""How long such a call sleeps at most before Python goes on: somebody may have to be told who is waited for."""
ROUNDS_AFTER_MAX = 8
"""Rounds after the result, for acknowledgements that come beside it: else the progress thread is woken for them."""
BURSTS_PER_ROUND = 4
EVENTS_MAX = 8
_MESSAGE_ID_AT = 4
_READABLE = int(select.EPOLLIN)

WAY = np.dtype(
    [
        ("successor", np.int64),  # rows of the two ring queue pairs, and of their completion queue
        ("predecessor", np.int64),
        ("completions", np.int64),
        ("staging", np.int64),  # address of the places of messages to send, ...
        ("received", np.int64),  # ... and of those of messages received
        ("place_bytes", np.int64),
        ("places", np.int64),
        ("key", np.int64),
        ("bell", np.int64),  # descriptors: the cable's, the epoll that wakes who drives, and the progress thread's
        ("inbox", np.int64),
        ("watch", np.int64),
        ("epoch_ns", np.int64),
    ]
)
"""What stays the same between the calls of a group."""

CALL = np.dtype(
    [
        ("number", np.int64),  # of the message
        ("acknowledged", np.int64),  # the oldest message of which the acknowledgement is due
        # what has become of it
        ("posted", np.int64),  # 1 once it is with the NIC
        ("done", np.int64),  # 1 once the result is where it belongs
        ("full", np.int64),  # 1 if the cable had no room for all
        ("rings", np.int64),  # 1 if the other end of the cable must be woken, which was not possible
        ("rest_ps", np.int64),  # at the end of an ordinary course: for how long the NIC need not be looked at
    ]
)
"""One call. `acknowledged` counts on, `rest_ps` is -1 before."""


@compiled
def _stage(tables: NicTables, way: np.record, number: int, header: np.ndarray, given: np.ndarray) -> None:
    """Copy header and data of message `number` to its place, and post it; first the receive of its result."""
    place = number % way.places * way.place_bytes
    size = INA_BYTES + given.size
    message = memory_at(way.staging + place, size)
    copy_bytes(message, 0, header, 0, INA_BYTES)
    write_be32(message, _MESSAGE_ID_AT, number)
    copy_bytes(message, INA_BYTES, given, 0, given.size)
    receiver = tables.qp[way.predecessor]
    element = tables.rq_sge[way.predecessor, receiver.rq_posted & receiver.rq_mask, 0]
    element.address, element.length, element.key = way.received + place, size, way.key
    queue_receive(tables, way.predecessor, number, 1, size)
    sender = tables.qp[way.successor]
    element = tables.sq_sge[way.successor, sender.sq_posted & sender.sq_mask, 0]
    element.address, element.length, element.key = way.staging + place, size, way.key
    queue_send(tables, way.successor, number, WrOpcode.IBV_WR_SEND.value, 1, 0, 1, size, 0, 0, 0)


@compiled
def _is_expected(message: np.ndarray, header: np.ndarray, number: int, scratch: np.ndarray) -> bool:
    """Whether a result begins with the INA `header` of message `number`."""
    due = scratch.view(np.uint8)
    copy_bytes(due, 0, header, 0, INA_BYTES)
    write_be32(due, _MESSAGE_ID_AT, number)
    came = message[:INA_BYTES].view(np.int64)
    return came[0] == scratch[0] and came[1] == scratch[1]


@compiled
def _harvest(
    tables: NicTables, way: np.record, call: np.record, header: np.ndarray, taken: np.ndarray, scratch: np.ndarray
) -> bool:
    """Take completions: acknowledgements, and the result of the call, which goes to `taken`; whether all were due.

    What was not is left in the queue.
    """
    completions = tables.cq[way.completions]
    while completions.polled < completions.posted:
        completion = tables.cqe[way.completions, completions.polled % completions.depth]
        if completion.status != WcStatus.IBV_WC_SUCCESS.value:
            return False
        if completion.qp_num == tables.qp[way.successor].qpn:
            if completion.wr_id != call.acknowledged:
                return False
            call.acknowledged += 1
        else:
            size = INA_BYTES + taken.size
            message = memory_at(way.received + call.number % way.places * way.place_bytes, size)
            if completion.wr_id != call.number or completion.byte_len != size:
                return False
            if not _is_expected(message, header, call.number, scratch):
                return False
            copy_bytes(taken, 0, message, INA_BYTES, taken.size)
            call.done = 1
        completions.polled += 1
    return True


@compiled
def _sleep(way: np.record, events: np.ndarray, scratch: np.ndarray, wait_ps: int) -> bool:
    """Sleep until the bell of the cable, and take it; whether that was all that happened."""
    if system_calls.wait(way.inbox, events, wait_ps) != 1:
        return False
    is_bell = system_calls.ready_descriptor(events, 0) == way.bell and system_calls.ready_mask(events, 0) == _READABLE
    return is_bell and system_calls.take_bell(way.bell, scratch)


@compiled
def _ring(way: np.record, call: np.record, must: int, scratch: np.ndarray) -> bool:
    """Wake the other end of the cable if it `must` be; whether it could."""
    call.rings = must != 0 and not system_calls.ring_bell(way.bell, scratch)
    return call.rings == 0


@compiled
def run(
    tables: NicTables,
    data_in: np.ndarray,
    state_in: np.ndarray,
    data_out: np.ndarray,
    state_out: np.ndarray,
    ways: np.ndarray,
    calls: np.ndarray,
    headers: np.ndarray,
    given: np.ndarray,
    taken: np.ndarray,
    events: np.ndarray,
    scratch: np.ndarray,
) -> None:
    """Send `given` as one message and wait for the result in `taken` (uint8, equally long, possibly the same memory).

    `ways` and `calls` have one row each; the latter says how far it has come. `headers` (uint8[2, INA_BYTES]) are that
    of the message and that of its result, apart from the message's number. Meanwhile the progress thread's epoll does
    not watch. `events` is room for `EVENTS_MAX`, `scratch` int64[2].
    """
    way, call = ways[0], calls[0]
    system_calls.watch_for(way.watch, way.inbox, 0, events)
    pipe_awake(state_in)  # a bell that nobody waits for would wake the progress thread later
    _stage(tables, way, call.number, headers[0], given)
    call.posted = 1
    now_ps = system_calls.now_ps(scratch, way.epoch_ns)
    put = nic_round.give(tables, data_out, state_out, False, True, now_ps)
    rounds = ROUNDS_AFTER_MAX
    while True:
        call.full = put & Put.NO_ROOM.value
        if not _ring(way, call, put & Put.DONE_WAKE.value, scratch) or call.full != 0:
            return
        due_ps = nic_round.rest(tables, state_in, Sleep.FOR_DATA.value, now_ps)
        if call.done != 0:
            if due_ps > now_ps or rounds == 0:
                break
            rounds -= 1
        if due_ps > now_ps and not _sleep(way, events, scratch, min(due_ps - now_ps, WAIT_PS)):
            return
        now_ps = system_calls.now_ps(scratch, way.epoch_ns)
        said = nic_round.take(tables, data_in, state_in, scratch, BURSTS_PER_ROUND, now_ps)
        if said & nic_round.NONSENSE or not _ring(way, call, said & nic_round.RINGS, scratch):
            return
        if not _harvest(tables, way, call, headers[1], taken, scratch):
            return
        put = nic_round.give(tables, data_out, state_out, False, True, now_ps)
    call.rest_ps = due_ps - now_ps
    system_calls.watch_for(way.watch, way.inbox, _READABLE, events)


def load(tables: NicTables) -> Callable[..., None]:
    """`run`, compiled or loaded for the tables of a NIC."""
    data, numbers = np.zeros(0, np.uint8), np.zeros(2, np.int64)
    ways, calls = np.zeros(1, WAY).view(np.recarray), np.zeros(1, CALL).view(np.recarray)
    headers, events = np.zeros((2, INA_BYTES), np.uint8), system_calls.make_events(0)
    return entry(run, tables, data, numbers, data, numbers, ways, calls, headers, data, data, events, numbers)
