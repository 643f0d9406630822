"""From a trace to steps that anyone can follow: what happens, why, which frames are on the links, and the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from netreduce.nic.enums import WcStatus
from netreduce.trace.events import DropReason
from netreduce.trace.recording import EventMoment, FrameMoment, Moment, Trace
from netreduce.viewer.replay import Replay, frame_fields, sample_text
from netreduce.wire.opcodes import Opcode

STEPS_MAX = 400
"""Steps of one walk; what comes after is left out, and the last step says so."""

LOOK_AHEAD = 4096
"""Moments in which a frame that the switch sends is looked for."""

Sentence = tuple[str, str, str]
"""Title, what happens, why."""
Teller = Callable[[list[Moment], Replay], "Sentence | None"]
"""Tells a step if it is its kind."""


def first_event(moments: Iterable[Moment], *kinds: str) -> EventMoment | None:
    return next((m for m in moments if isinstance(m, EventMoment) and m.event in kinds), None)


def all_events(moments: Iterable[Moment], *kinds: str) -> list[EventMoment]:
    return [m for m in moments if isinstance(m, EventMoment) and m.event in kinds]


def _names(events: Iterable[EventMoment]) -> str:
    names = list(dict.fromkeys(event.node for event in events))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _posted(step: list[Moment], _replay: Replay) -> Sentence | None:
    posted, sent = all_events(step, "POSTED"), all_events(step, "SENT")
    if not posted:
        return None
    packets = (
        f" Their NICs cut the messages into {len(sent)} packets of at most {max(e.bytes for e in sent)} bytes."
        if sent
        else ""
    )
    return (
        "Work is posted",
        f"{_names(posted).capitalize()} post {posted[0].bytes}-byte sends, to their successors in the ring.{packets}",
        "An ordinary work request of an ordinary RoCE queue pair: the INA header is simply the first 16 bytes of its"
        " data.",
    )


def _replayed(step: list[Moment], _replay: Replay) -> Sentence | None:
    if (event := first_event(step, "REPLAYED")) is None:
        return None
    return (
        "The switch answers a replay",
        f"Rank {event.rank} sent PSN {event.psn} again, but slot {event.slot} of message {event.message_id} is"
        " complete."
        " The switch adds the stored payloads once more and sends the sum on this connection only.",
        "The copies in the slot are kept, so the same bits come out, and nothing is counted twice. The other"
        " connections"
        " need nothing: their successors have the sum already.",
    )


def _summed(step: list[Moment], replay: Replay) -> Sentence | None:
    if (event := first_event(step, "SUMMED")) is None:
        return None
    values = replay.slots[event.ring_id, event.message_id, event.slot]["values"]
    terms = " + ".join(values[rank] for rank in sorted(values))
    psns = ", ".join(f"{e.psn} (rank {e.rank})" for e in all_events(step, "SPLICED"))
    return (
        f"Slot {event.slot} is complete: sum and splice",
        f"All bits of the bitmap are set. The switch adds the payloads in rank order, {terms}, and sends the sum on"
        " every"
        f" connection, inside that connection's own frame: PSN {psns}. The ICRC is computed afresh.",
        "Rank order makes the sum the same bits on every rank and in every run. Headers, lengths and sequence numbers"
        " stay, so each receiver sees exactly the packet that it expects.",
    )


def _filled(step: list[Moment], _replay: Replay) -> Sentence | None:
    if (event := first_event(step, "SLOT_FILLED")) is None:
        return None
    if (clt := first_event(step, "CLT_FILLED")) is not None:
        return (
            f"First packet of rank {clt.rank}: the CLT learns",
            f"Its INA header names ring {clt.ring_id}, rank {clt.rank}, message {clt.message_id}. The connection"
            " lookup table"
            f" notes that the message starts at PSN {clt.psn}, and slot {event.slot} keeps the payload.",
            "Only the first packet of a message carries the INA header, for the NIC cuts messages behind it. All later"
            " packets will be recognised by their PSN.",
        )
    return (
        f"Rank {event.rank} fills slot {event.slot}",
        f"PSN {event.psn} belongs to message {event.message_id} and is its packet {event.slot}. Its payload is kept,"
        " and"
        f" rank {event.rank}'s bit is set.",
        "Payloads are kept apart until all have come, never added on arrival: a replay then finds its bit set and"
        " changes"
        " nothing.",
    )


def _dropped(step: list[Moment], _replay: Replay) -> Sentence | None:
    if (event := first_event(step, "DROPPED")) is None:
        return None
    reason = DropReason(event.detail).name.lower().replace("_", " ")
    why = {
        DropReason.OUT_OF_SEQUENCE: "A packet before it is missing. Go-back-N brings both again, in order.",
        DropReason.BAD_ICRC: "A packet whose ICRC is wrong is dropped in silence: to the transport it is lost.",
        DropReason.HELD: "The slot holds a copy of this packet already; the first copy wins.",
        DropReason.NOT_FOR_ME: "Address or queue pair are not this NIC's. It does not answer.",
        DropReason.DUPLICATE: "The receiver has it already, so it drops the data and acknowledges again.",
    }.get(DropReason(event.detail), "")
    return f"Dropped: {reason}", f"{event.node.capitalize()} drops PSN {event.psn}: {reason}. It counts the drop.", why


def _nak(step: list[Moment], _replay: Replay) -> Sentence | None:
    if (event := first_event(step, "NAK_SENT")) is None:
        return None
    if event.node == "switch":
        return (
            "A gap: the switch answers NAK",
            "A packet came whose predecessor is missing: the switch drops it and answers its sender with a NAK for PSN"
            f" {event.psn}, on the successor's behalf.",
            "The switch alone sees which sender the gap belongs to. Without its answer every receiver would miss a"
            " sum, and all senders would go back.",
        )
    return (
        "A gap: the receiver answers NAK",
        f"{event.node.capitalize()} expected PSN {event.psn}, something later came, and it says so with a NAK.",
        "The NAK acknowledges everything before its PSN and asks for the rest: that is ordinary RoCE reliability, and"
        " NetReduce adds nothing to it.",
    )


def _again(step: list[Moment], _replay: Replay) -> Sentence | None:
    events = all_events(step, "RETRANSMITTED")
    if not events:
        return None
    cause = first_event(step, "TIMER_FIRED", "NAK_RECEIVED")
    many = len({e.node for e in events}) > 1
    timer = "their timers fired" if many else "its timer fired"
    why = timer if cause and cause.event == "TIMER_FIRED" else "a NAK asked for it"
    psns = ", ".join(str(e.psn) for e in events)
    return (
        "Go-back-N",
        f"{_names(events).capitalize()} {'send' if many else 'sends'} again, since {why}: PSN {psns}.",
        "The NIC repeats packets as they were: short data from a copy, long data from where the sum may lie by now."
        " The switch uses what it holds.",
    )


def _received(step: list[Moment], replay: Replay) -> Sentence | None:
    events = all_events(step, "RECEIVED")
    if not events:
        return None
    frame = next((m for m in step if isinstance(m, FrameMoment)), None)
    value = sample_text(frame.sample, replay.header.element) if frame else ""
    finished = (
        " That was the message's last packet: the receive work request is complete."
        if first_event(step, "COMPLETED")
        else ""
    )
    return (
        f"{_names(events).capitalize()} receives",
        f"PSN {events[0].psn} is the one that was expected, and the ICRC is right. The NIC writes the payload"
        f"{f' ({value})' if value else ''} to where the receive work request points.{finished}",
        "To the NIC this is its predecessor's packet. That the numbers in it are the sum of all ranks', it cannot"
        " know.",
    )


def _acknowledged(step: list[Moment], _replay: Replay) -> Sentence | None:
    events = all_events(step, "ACK_RECEIVED")
    if not events:
        return None
    done = all_events(step, "COMPLETED")
    failed = next((e for e in done if WcStatus(e.detail) is not WcStatus.IBV_WC_SUCCESS), None)
    ending = " The send work request is complete." if done and not failed else ""
    return (
        f"{_names(events).capitalize()} is acknowledged" if len({e.node for e in events}) == 1 else "Acknowledged",
        f"The ACK for PSN {events[0].psn} has come back the whole way from the successor.{ending}",
        "The window moves on when a message has been both received and acknowledged: that proves that no rank needs its"
        " slot any more.",
    )


def _failed(step: list[Moment], _replay: Replay) -> Sentence | None:
    bad = next((e for e in all_events(step, "COMPLETED") if WcStatus(e.detail) is not WcStatus.IBV_WC_SUCCESS), None)
    if bad is None:
        return None
    name = WcStatus(bad.detail).name
    return (
        "A work request fails",
        f"On {bad.node} a work request completes with {name}.",
        "The transport has given up; the job hears of it.",
    )


def _passed(step: list[Moment], _replay: Replay) -> Sentence | None:
    frame = next((m for m in step if isinstance(m, FrameMoment) and m.target == "switch"), None)
    if frame is None:
        return None
    what = frame.view.acknowledgement or frame.view.opcode_name or frame.view.protocol
    if first_event(step, "STALE_PASSED"):
        return (
            "A stale replay passes unchanged",
            f"PSN {frame.view.psn} is older than anything that is held. The switch lets it through.",
            "Its successor surely has it, and answers with the ACK that the sender lacks.",
        )
    return (
        f"{what} passes",
        f"A frame of {frame.source} ({what}, PSN {frame.view.psn}) is forwarded unchanged.",
        "Only the data of a ring is aggregated. Everything else passes as through any switch.",
    )


def _waiting(step: list[Moment], _replay: Replay) -> Sentence | None:
    if (event := first_event(step, "RNR_SENT")) is None:
        return None
    return (
        "The switch says: wait",
        f"Rank {event.rank} sent again while others are missing. The switch answers RNR NAK at PSN {event.psn}.",
        "A slow rank must not run the others out of retries. Every RoCE stack understands receiver-not-ready.",
    )


def _lost(step: list[Moment], _replay: Replay) -> Sentence | None:
    frame = next((m for m in step if isinstance(m, FrameMoment) and m.lost), None)
    if frame is None:
        return None
    return (
        "A frame is lost",
        f"{frame.view.opcode_name} with PSN {frame.view.psn} from {frame.source} never reaches {frame.target}.",
        "Nobody is told. The transport will find out by a gap, or by a timer.",
    )


_TELLERS: tuple[Teller, ...] = (
    _lost, _failed, _replayed, _summed, _waiting, _filled, _nak, _dropped, _again, _received, _acknowledged, _posted,
    _passed,
)  # fmt: skip
"""Who gets to tell a step, most telling first."""


def tone(frame: FrameMoment) -> str:
    """The colour of a frame: data, sum, cts, ack or nak."""
    view = frame.view
    if view.opcode == Opcode.ACKNOWLEDGE:
        return "ack" if view.acknowledgement.startswith("ACK") else "nak"
    if view.ring_id >= 0 and frame.source == "switch":
        return "sum"
    return "cts" if view.opcode == Opcode.RDMA_WRITE_ONLY and view.dma_length == 64 else "data"


def frame_label(frame: FrameMoment, element: str) -> str:
    """What stands on a frame in the picture."""
    view = frame.view
    if view.opcode < 0:
        return view.protocol
    if view.acknowledgement:
        return view.acknowledgement.split(",")[0].split(" (")[0][:14]
    if tone(frame) == "cts":
        return "CTS"
    place = (
        view.opcode_name.removeprefix("RC ")
        .removeprefix("SEND_")
        .removeprefix("RDMA_")
        .replace("_WITH_IMMEDIATE", "+IMM")
        .replace("_ONLY", "")
    )
    value = sample_text(frame.sample, element)
    return f"{place} {value}".strip()


def draw_frame(frame: FrameMoment, element: str) -> dict[str, Any]:
    """A frame as the page draws it."""
    return {
        "from": frame.source,
        "to": frame.target,
        "label": frame_label(frame, element),
        "tone": tone(frame),
        "lost": frame.lost,
        "fields": frame_fields(frame, element),
    }


def draw_nodes(trace: Trace, replay: Replay, done: Callable[[str], bool]) -> dict[str, Any]:
    """Every node as it is now; `done(text)` says whether an element is finished."""
    return {
        node.name: {
            "note": node.ip,
            "chunks": [{"value": v, "done": done(v)} for v in replay.buffers.get(node.name, [])],
        }
        for node in trace.header.nodes
    }


def draw_step(
    trace: Trace, replay: Replay, sentence: Sentence, frames: list[FrameMoment], done: Callable[[str], bool]
) -> dict[str, Any]:
    """One step as the page shows it."""
    title, text, why = sentence
    return {
        "title": title,
        "text": text,
        "why": why,
        "frames": [draw_frame(frame, trace.header.element) for frame in frames],
        "nodes": draw_nodes(trace, replay, done),
        "tables": replay.tables(),
    }


def _groups(moments: list[Moment]) -> Iterator[list[Moment]]:
    """Moments that belong together: all of one instant, but each lost frame for itself."""
    group: list[Moment] = []
    for moment in moments:
        is_lost = isinstance(moment, FrameMoment) and moment.lost
        was_lost = bool(group) and isinstance(group[-1], FrameMoment) and group[-1].lost
        if group and (moment.t_ps != group[-1].t_ps or is_lost or was_lost):
            yield group
            group = []
        group.append(moment)
    if group:
        yield group


def _leaving(step: list[Moment], later: list[Moment]) -> list[FrameMoment]:
    """The spliced frames of this step, as they will arrive (or be lost)."""
    psns = {event.psn for event in all_events(step, "SPLICED", "REPLAYED")}
    found: dict[int, FrameMoment] = {}
    for moment in later:
        if len(found) == len(psns):
            break
        if isinstance(moment, FrameMoment) and moment.source == "switch" and moment.view.psn in psns:
            found.setdefault(moment.view.psn, moment)
    return [found[psn] for psn in sorted(found)]


def tell(
    trace: Trace, *, done: Callable[[str], bool] = lambda _: False, tellers: Sequence[Teller] = (), closing: str = ""
) -> list[dict[str, Any]]:
    """The steps of any trace, one for each instant at which something can be told.

    `done(text)` says which buffer elements are finished. `tellers` are asked before the usual ones; `closing` is said
    in a last step.
    """
    replay, at = Replay(trace.header), 0
    steps: list[dict[str, Any]] = []
    for group in _groups(trace.moments):
        for moment in group:
            replay.apply(moment)
        at += len(group)
        sentence = next((told for teller in (*tellers, *_TELLERS) if (told := teller(group, replay))), None)
        if sentence is None:
            continue
        if len(steps) == STEPS_MAX:
            rest = f"The trace goes on; a walk shows its first {STEPS_MAX} steps."
            steps.append(draw_step(trace, replay, (*sentence[:2], rest), [], done))
            break
        frames = [moment for moment in group if isinstance(moment, FrameMoment)]
        leaving = _leaving(group, trace.moments[at : at + LOOK_AHEAD])
        if leaving and (event := first_event(group, "SUMMED")):
            replay.learn_sum(event, sample_text(leaving[0].sample, trace.header.element))
        frames += leaving
        steps.append(draw_step(trace, replay, sentence, frames, done))
    if closing:
        held = "; ".join(f"{node} holds {', '.join(values)}" for node, values in sorted(replay.buffers.items()))
        steps.append(draw_step(trace, replay, ("The end", f"{held.capitalize()}.", closing), [], done))
    return steps
