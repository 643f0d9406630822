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
    counters = statistics.counters
    if counters.get("packets_spliced", 0):
        messages, packets = counters["messages_aggregated"], counters["packets_spliced"]
        first = f"in-network reduction was ACTIVE: {messages:,} messages, {packets:,} packets spliced"
    else:
        first = "in-network reduction was NOT active: nothing was reduced in the switch"
    lines = [first]
    sent, ring = (statistics.workers.get(name, 0) for name in ("in_network_bytes_sent", "ring_bytes"))
    if sent:
        lines.append(f"payload sent by all workers: {sent / 1e6:,.1f} MB; round a ring it were {ring / 1e6:,.1f} MB")
    lines.append(f"ICRC failures: {icrc_failures(statistics):,}, retransmissions: {retransmissions(statistics):,}")
    return lines


def icrc_failures(statistics: control.Statistics) -> int:
    """Frames whose ICRC was wrong, at the switch or at a NIC."""
    return statistics.counters.get("drop_bad_icrc", 0) + statistics.workers.get("drop_bad_icrc", 0)


def retransmissions(statistics: control.Statistics) -> int:
    """Packets that NICs sent again."""
    return statistics.workers.get("retransmitted_pkts", 0)
