"""Toy nodes: the least that moves frames, so that the fabric is tested by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netreduce.fabric import Link, Node, Simulator
from netreduce.units import NEVER_PS
from netreduce.wire.frames import (
    RECORD_HEADER_BYTES,
    FrameQueue,
    make_queue,
    queue_put,
    record_bytes,
    record_length,
    record_time,
)


def frame_of(length: int, mark: int = 0) -> np.ndarray:
    """A frame of `length` bytes of no protocol, numbered by its first four bytes."""
    frame = np.arange(length, dtype=np.int64).astype(np.uint8)
    frame[:4] = np.frombuffer(mark.to_bytes(4, "big"), np.uint8)
    return frame


def star(simulator: Simulator, hosts: Sequence[Node], switch: Node, *, rate_bps: int, delay_ps: int) -> list[Link]:
    """Connect port 0 of host i with port i of `switch`; on each link `up` is towards the switch."""
    return [
        simulator.connect(host, 0, switch, port, rate_bps=rate_bps, delay_ps=delay_ps)
        for port, host in enumerate(hosts)
    ]


def mark_of(frame: np.ndarray | bytes) -> int:
    """The number of a frame made by `frame_of`."""
    return int.from_bytes(bytes(frame[:4]), "big")


def split(burst: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Time and frame of each record of a burst."""
    found, at = [], 0
    while at < burst.size:
        length = int(record_length(burst, at))
        start = at + RECORD_HEADER_BYTES
        found.append((int(record_time(burst, at)), burst[start : start + length].copy()))
        at += int(record_bytes(length))
    return found


class Toy:
    """A node that keeps what arrives."""

    def __init__(self, name: str, port_count: int = 1, egress_bytes: int = 1 << 20) -> None:
        self.name = name
        self.port_count = port_count
        self.queues = [make_queue(egress_bytes) for _ in range(port_count)]
        self.arrivals: list[tuple[int, int, np.ndarray]] = []  # time, port, frame
        self.seen_at: list[int] = []

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        for time_ps, frame in split(burst):
            self.arrivals.append((time_ps, port, frame))
            self.seen_at.append(now_ps)

    def advance(self, now_ps: int) -> None:
        pass

    def next_timer_ps(self) -> int:
        return NEVER_PS

    def egress(self, port: int) -> FrameQueue:
        return self.queues[port]

    def put(self, frame: np.ndarray, now_ps: int = 0, port: int = 0) -> bool:
        queue = self.queues[port]
        return bool(queue_put(queue.data, queue.state[0], frame, now_ps))

    @property
    def marks(self) -> list[int]:
        return [mark_of(frame) for _, _, frame in self.arrivals]

    @property
    def times(self) -> list[int]:
        return [time_ps for time_ps, _, _ in self.arrivals]


class Source(Toy):
    """A node that sends `count` frames as fast as its egress queue takes them, and paces by a timer if told."""

    def __init__(
        self, name: str, count: int, length: int = 1000, every_ps: int = 0, egress_bytes: int = 1 << 14
    ) -> None:
        super().__init__(name, 1, egress_bytes)
        self.left, self.length, self.every_ps, self.next_ps, self.sent = count, length, every_ps, 0, 0

    def advance(self, now_ps: int) -> None:
        while self.left and self.next_ps <= now_ps and self.put(frame_of(self.length, self.sent), now_ps):
            self.left -= 1
            self.sent += 1
            self.next_ps += self.every_ps

    def next_timer_ps(self) -> int:
        return self.next_ps if self.left and self.every_ps else NEVER_PS


class Echo(Toy):
    """A node that sends back whatever arrives."""

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        super().receive(port, burst, now_ps)
        for _, frame in split(burst):
            self.put(frame, now_ps, port)


class Hub(Toy):
    """A node that sends whatever arrives to all other ports."""

    def receive(self, port: int, burst: np.ndarray, now_ps: int) -> None:
        super().receive(port, burst, now_ps)
        for _, frame in split(burst):
            for other in range(self.port_count):
                if other != port:
                    self.put(frame, now_ps, other)
