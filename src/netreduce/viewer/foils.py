"""Two switches that are wrong on purpose, for comparison: what NetReduce avoids shows best where it is not avoided.

Both forward like a hub and know the rings' data connections by their queue pairs; both are as simple as the mistake
allows, and neither is used outside of the walks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netreduce.nic import Nic
from netreduce.trace.events import Event, EventLog, emit
from netreduce.trace.recording import Moment
from netreduce.units import NEVER_PS
from netreduce.viewer.replay import Replay
from netreduce.viewer.story import Sentence, first_event
from netreduce.wire.build import burst_frames, mac_bytes
from netreduce.wire.frames import FrameQueue, make_queue, queue_put
from netreduce.wire.icrc import write_icrc
from netreduce.wire.ina import INA_BYTES, INA_HEADER
from netreduce.wire.opcodes import Role
from netreduce.wire.packet import Parse, make_packet_table, parse_packet

EGRESS_BYTES = 1 << 20


class Foil:
    """A hub with one float32 accumulator, for single-packet messages: subclasses decide what leaves when all came."""

    name = "switch"

    def __init__(self, nics: Sequence[Nic], log: EventLog) -> None:
        self.port_count = len(nics)
        self._ports = {mac_bytes(nic.mac): port for port, nic in enumerate(nics)}
        self._log = log
        self._egress = [make_queue(EGRESS_BYTES) for _ in nics]
        self._packet = make_packet_table()[0]
        self._total = np.zeros(0, np.float32)
        self._frames: dict[int, np.ndarray] = {}
        self._count = 0

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        """See `fabric.node.Node`."""
        for _, frame in burst_frames(burst):
            self._take(port, frame.copy(), now_ps)

    def advance(self, now_ps: int) -> None:
        """See `fabric.node.Node`."""

    def next_timer_ps(self) -> int:
        """See `fabric.node.Node`."""
        return NEVER_PS

    def egress(self, port: int) -> FrameQueue:
        """See `fabric.node.Node`."""
        return self._egress[port]

    def _take(self, port: int, frame: np.ndarray, now_ps: int) -> None:
        packet = self._packet
        is_data = parse_packet(frame, packet) == Parse.OK and packet.roles & Role.SEND.value
        if not is_data:
            self._send(frame, now_ps)
            return
        start = int(packet.payload_at) + INA_BYTES
        values = frame[start : int(packet.icrc_at)].view(np.float32)
        header = frame[start - INA_BYTES : start].view(INA_HEADER)[0]
        rank = int(header["rank"])
        if self._count % self.port_count == 0 and rank not in self._frames:
            self._total = np.zeros(values.size, np.float32)
        self._total = self._total + values
        self._frames[rank] = frame
        self._count += 1
        bits = sum(1 << r for r in self._frames)
        emit(self._log, now_ps, Event.SLOT_FILLED.value, port, -1, int(packet.psn), 1, rank, 0, 0, values.nbytes, bits)
        if self._count >= self.port_count:
            self._finish(rank, now_ps)

    def _finish(self, rank: int, now_ps: int) -> None:
        raise AssertionError("a subclass decides")

    def _spliced(self, frame: np.ndarray) -> np.ndarray:
        """A copy of `frame` with the total inside and a fresh ICRC."""
        packet = self._packet
        parse_packet(frame, packet)
        copy = frame.copy()
        start, end = int(packet.payload_at) + INA_BYTES, int(packet.icrc_at)
        copy[start:end] = self._total.view(np.uint8)
        write_icrc(copy, int(packet.ip_at), int(packet.udp_at), end)
        return copy

    def _send(self, frame: np.ndarray, now_ps: int, port: int | None = None) -> None:
        out = self._ports[bytes(frame[:6])] if port is None else port
        queue = self._egress[out]
        queue_put(queue.data, queue.state[0], frame, now_ps)


def tell_adding(step: list[Moment], replay: Replay) -> Sentence | None:
    """What `InPlaceAccumulator` does with a packet."""
    if (event := first_event(step, "REPLAYED")) is not None:
        return (
            "Counted twice",
            f"Rank {event.rank} sent PSN {event.psn} again. The accumulator cannot tell, adds it once more, and"
            " sends the"
            " result to the successor.",
            "Whoever adds on arrival must know every packet that was added already. NetReduce keeps the copies instead,"
            " one bit and one buffer a rank, and adds when all are there.",
        )
    if (event := first_event(step, "SLOT_FILLED")) is not None:
        complete = " All ranks have come: the total leaves on every connection." if first_event(step, "SPLICED") else ""
        return (
            f"Rank {event.rank} is added",
            f"The switch adds the payload to its accumulator and forgets it.{complete}",
            "It saves memory: one number instead of one a rank. So far nothing is wrong.",
        )
    return None


def tell_multicast(step: list[Moment], replay: Replay) -> Sentence | None:
    """What `UnsplicedAggregate` does with a packet."""
    if (event := first_event(step, "SUMMED")) is not None and event.ring_id >= 0:
        return (
            "One aggregate for everybody",
            "All ranks have come. The switch puts the sum into the frame that came last, and sends this one frame to"
            " every"
            " port.",
            "That is how an aggregation switch for a transport of its own works. These receivers speak plain RoCE.",
        )
    if (event := first_event(step, "SLOT_FILLED")) is not None:
        return (
            f"Rank {event.rank} comes",
            f"PSN {event.psn} is consumed by the switch.",
            "Its own connection will miss it.",
        )
    return None


class InPlaceAccumulator(Foil):
    """Adds each packet on arrival, and keeps nothing but the total: a packet that is sent again is added again."""

    def _finish(self, rank: int, now_ps: int) -> None:
        answered = sorted(self._frames) if self._count == self.port_count else [rank]
        kind = Event.SPLICED if self._count == self.port_count else Event.REPLAYED
        for r in answered:
            frame = self._spliced(self._frames[r])
            psn = int(self._packet.psn)
            emit(self._log, now_ps, kind.value, -1, -1, psn, 1, r, 0, 0, self._total.nbytes, -1)
            self._send(frame, now_ps)


class UnsplicedAggregate(Foil):
    """Multicasts one frame with the sum, the last one that came, to every port, as a plain aggregation switch would."""

    def _finish(self, rank: int, now_ps: int) -> None:
        frame = self._spliced(self._frames[rank])
        emit(self._log, now_ps, Event.SUMMED.value, -1, -1, -1, 1, -1, 0, 0, self._total.nbytes, -1)
        for port in range(self.port_count):
            self._send(frame, now_ps, port)
        self._count = 0
        self._frames.clear()
