"""Tells transfers between hosts, as in a ring, a tree or a broadcast: clear to send, data, completion.

For how they work see collectives/transport.py. In a trace they are RDMA WRITEs: plain ones of 64 bytes are
clear-to-send slots, all others carry data.
"""

from __future__ import annotations

from netreduce.nic.enums import WcStatus, WrOpcode
from netreduce.trace.recording import FrameMoment, Moment
from netreduce.viewer.replay import Replay, sample_text
from netreduce.viewer.story import Sentence, Teller, all_events, first_event, tone
from netreduce.wire.opcodes import Role

SLOT_BYTES = 64
_WRITES = (WrOpcode.IBV_WR_RDMA_WRITE, WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM)
OTHER_NEWS = ("DROPPED", "NAK_SENT", "RETRANSMITTED", "RNR_SENT", "SLOT_FILLED", "SUMMED", "REPLAYED", "STALE_PASSED")
"""Events that make a step another story."""


def _is_plain(step: list[Moment]) -> bool:
    """Whether nothing in the step is another story: what the switch adds, losses, failures."""
    failed = any(event.detail != WcStatus.IBV_WC_SUCCESS for event in all_events(step, "COMPLETED"))
    lost = any(isinstance(moment, FrameMoment) and moment.lost for moment in step)
    return not failed and not lost and first_event(step, *OTHER_NEWS) is None


def _frame(step: list[Moment], role: Role, *, at_switch: bool) -> FrameMoment | None:
    """The frame with `role` that arrived at the switch, or at a host."""
    frames = (moment for moment in step if isinstance(moment, FrameMoment) and moment.view.roles & role)
    return next((frame for frame in frames if (frame.target == "switch") == at_switch), None)


def _posted(step: list[Moment], _replay: Replay) -> Sentence | None:
    posted = [event for event in all_events(step, "POSTED") if event.detail in _WRITES]
    if not posted or not _is_plain(step):
        return None
    first = posted[0]
    who = first.node.capitalize()
    if first.detail == WrOpcode.IBV_WR_RDMA_WRITE and first.bytes == SLOT_BYTES:
        return (
            "Clear to send is posted",
            f"{who} posts a receive, and RDMA WRITEs a slot of {SLOT_BYTES} bytes into its sender's FIFO: address, key"
            " and size of the memory where data may land.",
            "The receiver owns the memory, so it names the place. The sender waits until it sees the slot.",
        )
    ending = ", with an immediate at the end" if first.detail == WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM else ""
    return (
        "Data is posted",
        f"{who} has read the slot and RDMA WRITEs {first.bytes:,} bytes straight to the address in it{ending}.",
        "No copy in between. The immediate uses up the receive that was posted, and names its request.",
    )


def _passes(step: list[Moment], _replay: Replay) -> Sentence | None:
    frame = _frame(step, Role.WRITE, at_switch=True)
    if frame is None or not _is_plain(step):
        return None
    view = frame.view
    if tone(frame) == "cts":
        return (
            "Clear to send passes",
            f"{frame.source.capitalize()}'s slot for {view.destination_ip} crosses the switch as it is.",
            "It goes against the direction of the data that it asks for.",
        )
    return (
        "Data passes",
        f"{view.opcode_name} from {frame.source} with PSN {view.psn} and {view.payload_bytes:,} bytes is forwarded"
        " unchanged.",
        "It belongs to no ring of the switch, so the hosts do the adding: each byte crosses the switch again and"
        " again.",
    )


def _arrives(step: list[Moment], replay: Replay) -> Sentence | None:
    frame = _frame(step, Role.WRITE, at_switch=False)
    if frame is None or first_event(step, "RECEIVED") is None or not _is_plain(step):
        return None
    who, view = frame.target.capitalize(), frame.view
    if tone(frame) == "cts":
        return (
            f"{who} is clear to send",
            f"The slot lies in {frame.target}'s FIFO: PSN {view.psn} was expected, the ICRC is right. No receive was"
            " used.",
            "Nobody wakes the host. It finds the slot when it looks, for the slot's index has become the one that is"
            " due.",
        )
    value = sample_text(frame.sample, replay.header.element)
    ends = bool(view.roles & Role.IMMEDIATE)
    return (
        f"{who} receives data",
        f"PSN {view.psn} was expected, and the ICRC is right: {view.payload_bytes:,} bytes"
        f"{f', first element {value},' if value else ''} lie in the memory that {frame.target} had named."
        f"{' The immediate completes the receive.' if ends else ''}",
        "Now the host may add, or pass on what it got." if ends else "The host hears of it only with the last packet.",
    )


def _acknowledged(step: list[Moment], _replay: Replay) -> Sentence | None:
    frame, event = _frame(step, Role.ACK, at_switch=False), first_event(step, "ACK_RECEIVED")
    if frame is None or event is None or frame.view.ring_id >= 0 or not _is_plain(step):
        return None
    ending = " The send work request is complete." if first_event(step, "COMPLETED") else ""
    return (
        f"{event.node.capitalize()} is acknowledged",
        f"The ACK for PSN {event.psn} has come back from the receiver's NIC.{ending}",
        "Data completes visibly. Slots are signaled once in each pass round the FIFO: that one completion retires the"
        " others as well.",
    )


TRANSFER_TELLERS: tuple[Teller, ...] = (_arrives, _passes, _posted, _acknowledged)
"""To be asked before the usual ones."""
