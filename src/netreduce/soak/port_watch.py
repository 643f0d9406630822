"""What the switch sees of a collective: who sends to each port at a time, how deep its queue gets, marks and drops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from netreduce.fabric import Line
from netreduce.soak.engines import EngineRig
from netreduce.wire.frames import RECORD_HEADER_BYTES, record_bytes, record_length, record_time

DATA_FRAME_BYTES_MIN = 256
"""Shorter frames are acknowledgements and clear-to-send slots; they come from the other side, and queue for nobody."""


@dataclass(slots=True)
class PortSample:
    """One port in one interval: data bytes by sending host, deepest queue that was seen, frames marked and dropped."""

    bytes_from: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    queue_bytes: int = 0
    marked: int = 0
    dropped: int = 0


class PortSummary(NamedTuple):
    """One port over a whole run."""

    port: int
    senders: int  # most hosts whose data left by this port within one interval
    data_bytes: int
    queue_bytes: int
    marked: int
    dropped: int


class PortWatch:
    """Watches what the ports of `rig`'s switch send, in intervals of `interval_ps`, from now on.

    `samples[port]` are by number of the interval, counted from time 0. Only ports that sent something have samples.
    """

    def __init__(self, rig: EngineRig, interval_ps: int) -> None:
        self.interval_ps = interval_ps
        self.samples: list[dict[int, PortSample]] = [defaultdict(PortSample) for _ in rig.links]
        self._switch = rig.switch
        self._links = rig.links
        self._host_of = {nic.mac: rank for rank, nic in enumerate(rig.nics)}
        self._port_of = {link.down.index: port for port, link in enumerate(rig.links)}
        self._counted = [(0, 0)] * len(rig.links)
        rig.simulator.tap(self._see, [link.down for link in rig.links])

    def _see(self, line: Line, burst: np.ndarray) -> None:
        port, at = self._port_of[line.index], 0
        sample = self.samples[port][int(record_time(burst, 0)) // self.interval_ps]
        while at < burst.size:
            length = int(record_length(burst, at))
            if length >= DATA_FRAME_BYTES_MIN:
                sample = self.samples[port][int(record_time(burst, at)) // self.interval_ps]
                start = at + RECORD_HEADER_BYTES
                mac = burst[start + 6 : start + 12].tobytes().hex(":")
                sample.bytes_from[self._host_of[mac]] += length
            at += int(record_bytes(length))
        self._count(port, sample)

    def _count(self, port: int, sample: PortSample) -> None:
        """Take the port's counters into `sample`."""
        sample.queue_bytes = max(sample.queue_bytes, int(self._switch.egress(port).state[0].bytes))
        before = self._counted[port]
        counters = self._links[port].down.counters()
        now = counters["marked_frames"], counters["egress_dropped_frames"]
        self._counted[port] = now
        sample.marked += now[0] - before[0]
        sample.dropped += now[1] - before[1]

    def summaries(self) -> Iterator[PortSummary]:
        """Every port that sent data, in order."""
        for port, samples in enumerate(self.samples):
            data_bytes = sum(sum(sample.bytes_from.values()) for sample in samples.values())
            if data_bytes:
                yield PortSummary(
                    port,
                    max(len(sample.bytes_from) for sample in samples.values()),
                    data_bytes,
                    int(self._switch.egress(port).state[0].peak_bytes),
                    sum(sample.marked for sample in samples.values()),
                    sum(sample.dropped for sample in samples.values()),
                )
