"""Asking a switch for its counters without being plugged in, and the summary of a run in words."""

from __future__ import annotations

import os

from netreduce.errors import SwitchLostError
from netreduce.runtime.cable import connect
from netreduce.runtime.control_channel import ControlChannel
from netreduce.wire import control

ANSWER_TIMEOUT_S = 5.0


def observe(address: str) -> control.Statistics:
    """The counters of the switch at `address`; `SwitchLostError` when it does not answer."""
    channel = ControlChannel(connect(address))
    try:
        channel.send(control.Hello(-1, "observer", os.getpid()))
        channel.receive_within(ANSWER_TIMEOUT_S)
        channel.send(control.StatisticsRequest())
        answer = channel.receive_within(ANSWER_TIMEOUT_S)
    finally:
        channel.close()
    if not isinstance(answer, control.Statistics):
        raise SwitchLostError(f"the switch at {address} did not answer within {ANSWER_TIMEOUT_S:g} s")
    return answer


def summary(statistics: control.Statistics) -> list[str]:
    """What the network did in a run, in lines for the user."""
    counters, nics = statistics.counters, statistics.nics
    spliced = counters.get("packets_spliced", 0)
    if spliced:
        first = (
            f"in-network reduction was ACTIVE: {counters.get('messages_completed', 0):,} messages, "
            f"{spliced:,} packets spliced"
        )
    else:
        first = "in-network reduction was NOT active: nothing was reduced in the switch"
    icrc_failures = counters.get("drop_bad_icrc", 0) + nics.get("drop_bad_icrc", 0)
    retransmitted = nics.get("packets_retransmitted", 0)
    return [first, f"ICRC failures: {icrc_failures:,}, retransmissions: {retransmitted:,}"]
