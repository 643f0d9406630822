"""What must hold after every run, whatever went wrong on the way: one property a function.

Each takes the rig after its rings are done and the network is quiet, and returns one line for each violation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from netreduce.soak.program import Rank, Ring
from netreduce.soak.rig import Rig
from netreduce.switch import Switch
from netreduce.wire.psn import psn_add

Checker = Callable[[Rig], list[str]]


def every_program_finished(rig: Rig) -> list[str]:
    """Each message of each rank was received and acknowledged, without an error completion."""
    found = [f"ring {ring.ring_id} {error}" for ring in rig.rings for error in ring.errors]
    for ring in rig.rings:
        for rank in ring.ranks:
            left = [i for i, message in enumerate(rank.messages) if not (message.received and message.acknowledged)]
            if left:
                found.append(f"ring {ring.ring_id} rank {rank.rank}: messages {left[:8]} are not finished")
    return found


def headers_pass_unchanged(rig: Rig) -> list[str]:
    """The INA headers that a rank received are those that its predecessor sent, in order."""
    found = []
    for ring in rig.rings:
        for rank in ring.ranks:
            for sent, received in zip(ring.ranks[rank.rank - 1].headers, rank.headers, strict=True):
                wrong = np.flatnonzero((sent[0] != received[1]).any(axis=1))
                if wrong.size:
                    found.append(f"ring {ring.ring_id} rank {rank.rank}: header of message {wrong[0]} differs")
    return found


def psns_are_free_of_gaps(rig: Rig) -> list[str]:
    """Each connection delivered exactly the packets that were sent: both ends stand at the PSN behind the last."""
    found = []
    for ring in rig.rings:
        for rank in ring.ranks:
            found += _ends_agree(ring, ring.ranks[rank.rank - 1], rank)
    return found


def _ends_agree(ring: Ring, sender: Rank, receiver: Rank) -> list[str]:
    end = int(psn_add(sender.first_psn, sender.packets_posted))
    expected = receiver.predecessor_qp.query().rq_psn
    sent = sender.successor_qp.query().sq_psn
    if expected == sent == end:
        return []
    return [
        f"ring {ring.ring_id} connection {sender.rank}: PSN {end:#x} should come next, "
        f"the sender is at {sent:#x}, the receiver at {expected:#x}"
    ]


def no_frame_is_lost_unseen(rig: Rig) -> list[str]:
    """Every frame that entered a line was delivered or lost to a fault; every copy came from one."""
    found = []
    for line in rig.simulator.lines:
        counts = line.counters()
        entered = counts["frames"] + counts["copied_frames"]
        left = counts["delivered_frames"] + counts["lost_frames"]
        if entered != left or counts["in_flight_frames"]:
            found.append(f"line {line.name}: {entered} frames entered, {left} left; {counts}")
    return found


def switches_account_for_every_frame(rig: Rig) -> list[str]:
    """Frames into a switch were forwarded, held once, replayed, or dropped with a reason."""
    return [line for switch in rig.switches.values() for line in _unaccounted(rig, switch)]


def _unaccounted(rig: Rig, switch: Switch) -> list[str]:
    counts = switch.counters()
    delivered = sum(line.counters()["delivered_frames"] for line in rig.simulator.lines if line.receiver is switch)
    held = sum(
        ring.ranks[rank].packets_posted
        for ring in _rings_at(rig, switch)
        for rank in switch.part(ring.ring_id).connections
    )
    drops = sum(count for name, count in counts.items() if name.startswith("drop_") and name != "drop_queue_full")
    ways = {name: counts[name] for name in ("forwarded", "flooded", "filtered", "replays")}
    if counts["packets_in"] == delivered == held + drops + sum(ways.values()):
        return []
    counted = counts["packets_in"]
    return [f"{switch.name}: {delivered} frames delivered, {counted} counted in, {held} to hold, {drops} drops, {ways}"]


def _rings_at(rig: Rig, switch: Switch) -> list[Ring]:
    return [ring for ring in rig.rings if ring.ring_id in switch.rings()]


def every_slot_is_summed_once(rig: Rig) -> list[str]:
    """Each message of each ring was completed at each switch where a part of it meets, and no more often."""
    found = []
    for switch in rig.switches.values():
        messages = sum(len(ring.ranks[0].messages) for ring in _rings_at(rig, switch))
        aggregated = switch.counters()["messages_aggregated"]
        if aggregated != messages:
            found.append(f"{switch.name}: {aggregated} messages aggregated of {messages}")
    return found


def no_queue_is_above_its_bound(rig: Rig) -> list[str]:
    """Egress queues never held more than their capacity, and are empty now."""
    found = []
    for line in rig.simulator.lines:
        state = line.egress.state[0]
        if int(state.peak_bytes) > line.egress.data.size or int(state.frames):
            found.append(f"queue of {line.name}: {state.frames} frames, peak {state.peak_bytes} bytes")
    return found


CHECKERS: tuple[Checker, ...] = (
    every_program_finished,
    headers_pass_unchanged,
    psns_are_free_of_gaps,
    no_frame_is_lost_unseen,
    switches_account_for_every_frame,
    every_slot_is_summed_once,
    no_queue_is_above_its_bound,
)


def check(rig: Rig, checkers: Sequence[Checker] = CHECKERS) -> list[str]:
    """All violations, each behind the name of its property."""
    return [f"{checker.__name__}: {violation}" for checker in checkers for violation in checker(rig)]
