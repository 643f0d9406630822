"""The six walks: each is a run in virtual time, recorded as it happens, with real NICs, a real switch, real engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netreduce.collectives.algorithms import Algorithm
from netreduce.fabric.rules import SeenFrame
from netreduce.trace.recording import Trace
from netreduce.units import PS_PER_MS
from netreduce.viewer.foils import InPlaceAccumulator, UnsplicedAggregate, tell_adding, tell_multicast
from netreduce.viewer.ring_walk import tell_ring
from netreduce.viewer.stage import Stage
from netreduce.viewer.story import Teller, tell
from netreduce.viewer.transfers import TRANSFER_TELLERS
from netreduce.wire.control import Geometry
from netreduce.wire.ina import INA_BYTES
from netreduce.wire.opcodes import Role

PATH_MTU = 256
SKEW_PS = 100_000
"""Each host's cable is 20 m longer than the one before, so that packets arrive one by one."""
RANKS = 3


def _is_start(frame: SeenFrame) -> bool:
    return _is_send(frame) and bool(int(frame.packet.roles) & Role.START)  # type: ignore[union-attr]


def _is_send(frame: SeenFrame) -> bool:
    return frame.packet is not None and bool(int(frame.packet.roles) & Role.SEND)


def _arrays(world_size: int, elements: int) -> list[np.ndarray]:
    """Rank r holds 10^r everywhere, so that the digits of a result show who has been added."""
    return [np.full(elements, 10.0**rank, np.float32) for rank in range(world_size)]


def _one_message(stage: Stage, packets: int) -> list[np.ndarray]:
    """All-reduce one message of `packets` packets; the picture shows the first element of each packet."""
    elements = (packets * PATH_MTU - INA_BYTES) // 4
    arrays = _arrays(RANKS, elements)
    firsts = np.array([0, *(k * (PATH_MTU // 4) - INA_BYTES // 4 for k in range(1, packets))])
    stage.show(arrays, firsts)
    stage.run(
        [engine.all_reduce(array) for engine, array in zip(stage.engines, arrays, strict=True)], limit_ps=50 * PS_PER_MS
    )
    return arrays


def _document(key: str, stage: Stage, closing: str, tellers: Sequence[Teller] = ()) -> dict[str, Any]:
    finished = str(sum(10**rank for rank in range(RANKS)))
    steps = tell(stage.trace, done=lambda text: text == finished, tellers=tellers, closing=closing)
    return {**_frame(key, stage.trace), "steps": steps}


def _frame(key: str, trace: Trace) -> dict[str, Any]:
    nodes = [{"id": n.name, "kind": n.kind, "label": n.name, "detail": n.ip} for n in trace.header.nodes]
    source = f"Recorded from a run of {len(trace.moments)} moments in virtual time."
    return {"id": key, "title": trace.header.title, "source": source, "nodes": nodes}


def _stage(title: str, packets: int, **options: Any) -> Stage:
    geometry = Geometry(message_window=1, message_packets=packets, path_mtu=PATH_MTU)
    return Stage(title, RANKS, geometry, skew_ps=SKEW_PS, **options)


def ring() -> dict[str, Any]:
    """Walk 1: a ring all-reduce over four hosts, issued as NCCL issues it."""
    title = "Ring all-reduce over four hosts, as NCCL does it"
    stage = Stage(title, 4, Geometry(message_window=1, message_packets=4, path_mtu=4096), ack_timeout=14)
    elements = 4 * 256
    arrays = _arrays(4, elements)
    stage.show(arrays, np.arange(0, elements, 256))
    operations = [
        engine.all_reduce(array, algorithm=Algorithm.RING) for engine, array in zip(stage.engines, arrays, strict=True)
    ]
    stage.run(operations)
    return {**_frame("ring", stage.trace), "steps": tell_ring(stage.trace)}


def journey() -> dict[str, Any]:
    """Walk 2: one message of three packets through the splicing switch."""
    stage = _stage("NetReduce: the journey of one message", 3)
    _one_message(stage, 3)
    closing = "Every host sent its buffer once, in one hop, over ordinary connections. The NICs noticed nothing."
    return _document("journey", stage, closing)


def first_lost() -> dict[str, Any]:
    """Walk 3: the first packet of a message is lost."""
    stage = _stage("A message's first packet is lost", 2)
    stage.lose(1, "up", _is_start)
    _one_message(stage, 2)
    closing = "The sums are right. Ordinary retransmission did all of the repair; the switch only had to be idempotent."
    return _document("first-lost", stage, closing)


def run_replay() -> Stage:
    """One message; its result is lost towards rank 1, once."""
    stage = _stage("A result is lost: replay of a complete slot", 1)
    stage.lose(1, "down", _is_send)
    _one_message(stage, 1)
    return stage


def replay() -> dict[str, Any]:
    """Walk 4: a result is lost towards one successor; the replay meets a complete slot."""
    stage = run_replay()
    closing = "The replay was answered from the slot, on one connection, with the same bits. Nothing was counted twice."
    return _document("replay", stage, closing)


def in_place() -> dict[str, Any]:
    """Walk 5: the same loss with a switch that adds in place."""
    stage = _stage("The mistake: adding in place counts twice", 1, foil=InPlaceAccumulator)
    stage.lose(1, "down", _is_send)
    _one_message(stage, 1)
    closing = "The ranks disagree, every completion says success, and nobody is told: the worst kind of wrong."
    return _document("in-place", stage, closing, (tell_adding,))


def unspliced() -> dict[str, Any]:
    """Walk 6: one aggregate frame for everybody, at receivers that know nothing of it."""
    stage = _stage("The mistake: an aggregate that is not spliced", 1, foil=UnsplicedAggregate, ack_timeout=4)
    _one_message(stage, 1)
    closing = (
        "Only the connection whose frame was used got its packet; the others timed out, sent again, and got sums of"
        " whatever had come by then. A receiver needs its own headers, PSN and ICRC around the sum: splice, don't"
        " terminate."
    )
    return _document("unspliced", stage, closing, (tell_multicast,))


WALKS: Sequence[Callable[[], dict[str, Any]]] = (ring, journey, first_lost, replay, in_place, unspliced)


def record_walks() -> dict[str, Any]:
    """Run and record all walks; the document that the page plays."""
    return {"walks": [walk() for walk in WALKS]}


def walk_of(trace: Trace) -> dict[str, Any]:
    """The document for any recorded trace."""
    return {"walks": [{**_frame("trace", trace), "steps": tell(trace, tellers=TRANSFER_TELLERS)}]}
