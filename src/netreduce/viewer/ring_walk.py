"""The ten steps of a ring all-reduce over four hosts, cut from the trace of a run.

The order of the steps is that of the ring algorithm: before, queue pairs, clear to send, one hop, two more, finished
chunks, three hops of all-gather, the end. Frames, header fields and chunk values all come from the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netreduce.trace.recording import FrameMoment, Moment, Trace
from netreduce.viewer.replay import Replay
from netreduce.viewer.story import Sentence, draw_step, tone
from netreduce.wire.opcodes import Role


def _sent(trace: Trace) -> list[FrameMoment]:
    """What hosts sent, as it reached the switch."""
    return [moment for moment in trace if isinstance(moment, FrameMoment) and moment.target == "switch"]


def _hops(trace: Trace, hosts: list[str]) -> list[tuple[FrameMoment, ...]]:
    """The chunk frames of each hop: the h-th one of every host."""
    chunks = [frame for frame in _sent(trace) if frame.view.roles & Role.IMMEDIATE]
    return list(zip(*([frame for frame in chunks if frame.source == host] for host in hosts), strict=True))


def _replay_until(trace: Trace, end: Moment | None) -> Replay:
    replay = Replay(trace.header)
    for moment in trace:
        if moment is end:
            break
        replay.apply(moment)
    return replay


def tell_ring(trace: Trace) -> list[dict[str, Any]]:
    """The steps, for a trace of one ring all-reduce of one slice a chunk."""
    hosts = [node.name for node in trace.header.nodes if node.kind == "host"]
    n = len(hosts)
    hops = _hops(trace, hosts)
    grants = [frame for frame in _sent(trace) if tone(frame) == "cts"]
    first_grants = [next(frame for frame in grants if frame.source == host) for host in hosts]
    finished = str(sum(10**rank for rank in range(n)))
    before, after = _replay_until(trace, trace.moments[n]), _replay_until(trace, None)
    states = [_replay_until(trace, hop[0]) for hop in hops[1:]] + [after]
    length = hops[0][0].view.payload_bytes

    def step(sentence: Sentence, replay: Replay, frames: Sequence[FrameMoment]) -> dict[str, Any]:
        return draw_step(trace, replay, sentence, list(frames), lambda text: text == finished)

    steps = [
        step(_before(n), before, []),
        step(_queue_pairs(n), before, []),
        step(_granted(first_grants[0]), before, first_grants),
    ]
    for number, (hop, state) in enumerate(zip(hops[: n - 1], states, strict=False)):
        steps.append(step(_reduce_hop(number, n, length), state, hop))
    steps.append(step(_owned(n, finished), states[n - 2], []))
    for number, (hop, state) in enumerate(zip(hops[n - 1 :], states[n - 1 :], strict=True)):
        steps.append(step(_gather_hop(number, n), state, hop))
    sent = sum(frame.view.payload_bytes for hop in hops for frame in hop if frame.source == hosts[0])
    return [*steps, step(_cost(n, sent, length, finished), after, [])]


def _before(n: int) -> Sentence:
    return (
        "Before",
        f"Each of {n} hosts has a buffer of {n} chunks. Host r holds 10^r in every chunk, so the digits of a number"
        " will"
        " show whose share is in it.",
        "All-reduce means: at the end every host holds the sum of all. With one digit a host, the sum reads all ones.",
    )


def _queue_pairs(n: int) -> Sentence:
    ring = " → ".join(str(rank) for rank in [*range(n), 0])
    return (
        "Queue pairs",
        f"The hosts form a ring, {ring}. Neighbours are joined by Reliable Connections, and all buffers are"
        " registered.",
        "Set-up happens once. After that the NICs move data between registered memories without asking the kernel.",
    )


def _granted(grant: FrameMoment) -> Sentence:
    return (
        "Clear to send",
        f"Every host posts a receive and RDMA WRITEs a clear-to-send slot of {grant.view.dma_length} bytes against"
        " the ring, into"
        " a FIFO in its left neighbour's memory: the address, key and size where the next chunk may land.",
        "The receiver owns the memory, so it names the place. Once the sender sees a fresh slot it can write"
        " straight there.",
    )


def _reduce_hop(number: int, n: int, length: int) -> Sentence:
    return (
        f"Reduce-scatter, hop {number + 1} of {n - 1}",
        f"Every host writes one chunk ({length} bytes, RDMA WRITE with immediate) to its right neighbour, which adds"
        " it to"
        " its own copy.",
        "The NIC never adds: the chunk lands in a staging buffer, and the immediate wakes the host, which does the"
        " addition."
        " Each port of the switch has exactly one sender, so nothing queues.",
    )


def _owned(n: int, finished: str) -> Sentence:
    return (
        "One finished chunk each",
        f"After {n - 1} hops each host holds one chunk that reads {finished}: host r owns chunk r + 1, the last one"
        " chunk 0.",
        "Every chunk has visited every host. Half of the work is done: now the finished chunks must go round.",
    )


def _gather_hop(number: int, n: int) -> Sentence:
    return (
        f"All-gather, hop {number + 1} of {n - 1}",
        "The finished chunks move on to the right neighbour, which only stores them.",
        "Nothing is added any more, so the chunks land directly in place.",
    )


def _cost(n: int, sent: int, length: int, finished: str) -> Sentence:
    buffer_bytes = n * length
    return (
        "The cost",
        f"All chunks read {finished}. Each host sent {sent:,} bytes for a buffer of {buffer_bytes:,}:"
        f" {sent / buffer_bytes:g} times"
        f" as much, in {2 * (n - 1)} ordered hops.",
        "2(N-1)/N buffers is the least that hosts can do alone. A switch that adds needs 1, and one hop: see the"
        " next walk.",
    )
