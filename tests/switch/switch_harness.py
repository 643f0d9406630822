"""A ring of senders around one switch, in a for-loop: build frames, feed them in any order, read what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netreduce.switch import RingSpec, Switch, SwitchLimits
from netreduce.trace.events import make_event_log
from netreduce.wire.build import build_burst, build_frame, burst_frames
from netreduce.wire.control import Endpoint, Geometry
from netreduce.wire.frames import queue_burst_end, queue_release
from netreduce.wire.icrc import icrc_is_good
from netreduce.wire.ina import INA_BYTES, DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import Parse, make_packet_table, parse_packet

ONLY = InaFlag.START | InaFlag.END
OPCODES = {  # first, middle, last, only
    "send": (Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST, Opcode.SEND_ONLY),
    "send with immediate": (
        Opcode.SEND_FIRST,
        Opcode.SEND_MIDDLE,
        Opcode.SEND_LAST_WITH_IMMEDIATE,
        Opcode.SEND_ONLY_WITH_IMMEDIATE,
    ),
    "write": (
        Opcode.RDMA_WRITE_FIRST,
        Opcode.RDMA_WRITE_MIDDLE,
        Opcode.RDMA_WRITE_LAST,
        Opcode.RDMA_WRITE_ONLY,
    ),
    "write with immediate": (
        Opcode.RDMA_WRITE_FIRST,
        Opcode.RDMA_WRITE_MIDDLE,
        Opcode.RDMA_WRITE_LAST_WITH_IMMEDIATE,
        Opcode.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    ),
}
SMALL = SwitchLimits(memory_bytes=8_000_000, egress_bytes=1 << 20, rings=4, connections=64, macs=64)


FLOATS = 188
"""With the INA header exactly three packets of 256 bytes."""


def powers_of_ten(size: int, count: int = FLOATS) -> list[np.ndarray]:
    """Rank r holds 10^r: the digits of a sum show who is in it."""
    return [np.full(count, 10.0**rank, np.float32) for rank in range(size)]


def total_of(datas: list[np.ndarray]) -> bytes:
    """The bytes of the sum of float32 arrays, in rank order."""
    return np.sum(datas, axis=0, dtype=np.float32).tobytes()


@dataclass
class Packet:
    """A frame that left the switch, taken apart."""

    frame: np.ndarray
    fields: Any
    payload: bytes
    icrc_good: bool

    @property
    def psn(self) -> int:
        return int(self.fields.psn)

    @property
    def opcode(self) -> int:
        return int(self.fields.opcode)


def dissect(frame: np.ndarray) -> Packet:
    table = make_packet_table()
    assert parse_packet(frame, table[0]) == Parse.OK
    row = table[0]
    payload = frame[row.payload_at : row.payload_at + row.payload_bytes].tobytes()
    return Packet(frame, row, payload, bool(icrc_is_good(frame, row)))


def drain(switch: Switch, port: int) -> list[np.ndarray]:
    """All frames waiting at `port`, copied out of its queue."""
    data, state = switch.egress(port)
    frames: list[np.ndarray] = []
    while state[0].frames:
        end = int(queue_burst_end(data, state[0], 1 << 30))
        frames += [frame.copy() for _, frame in burst_frames(data[int(state[0].head) : end])]
        queue_release(data, state[0], end)
    return frames


@dataclass
class Ring:
    """The senders of one ring of `size` ranks on ports `first_port`...; PSNs differ by rank, and may wrap."""

    switch: Switch
    size: int
    ring_id: int = 7
    geometry: Geometry = field(default_factory=lambda: Geometry(message_window=2, message_packets=3, path_mtu=256))
    first_port: int = 0
    first_psns: tuple[int, ...] | None = None
    carrier: str = "send"
    ip_version: int = 4
    header: dict[str, Any] = field(default_factory=dict)  # further fields of every frame, as of `build_frame`

    def __post_init__(self) -> None:
        if self.first_psns is None:
            self.first_psns = tuple((1 << 24) - 2 + 1000 * rank & 0xFFFFFF for rank in range(self.size))
        self.next_psns = list(self.first_psns)
        self.endpoints = tuple(
            Endpoint(
                rank=rank,
                ip=f"10.{self.ring_id}.0.{rank + 1}" if self.ip_version == 4 else f"fd00::{self.ring_id}:{rank + 1}",
                mac=f"02:00:00:00:{self.ring_id:02x}:{rank + 1:02x}",
                successor_qpn=100 + rank,
                predecessor_qpn=200 + rank,
                first_psn=self.first_psns[rank],
            )
            for rank in range(self.size)
        )

    def register(self) -> Ring:
        for endpoint in self.endpoints:
            self.switch.attach(self.port(endpoint.rank), endpoint.mac, endpoint.ip)
        self.switch.register_ring(RingSpec(self.ring_id, self.endpoints, self.geometry))
        return self

    def port(self, rank: int) -> int:
        return self.first_port + rank % self.size

    def addresses(self, rank: int) -> dict[str, Any]:
        here, there = self.endpoints[rank], self.endpoints[(rank + 1) % self.size]
        return {
            "source_ip": here.ip,
            "destination_ip": there.ip,
            "source_mac": here.mac,
            "destination_mac": there.mac,
            "destination_qpn": there.predecessor_qpn,
            "udp_source_port": 0xC000 + rank,
            "ip_id": rank,
        } | self.header

    def message(
        self,
        rank: int,
        number: int,
        data: np.ndarray,
        *,
        op: ReduceOp = ReduceOp.SUM,
        dtype: DataType = DataType.FLOAT32,
        flags: InaFlag = ONLY,
        ina: bytes | None = None,
        psn: int | None = None,
    ) -> list[np.ndarray]:
        """The frames of message `number` of `rank`; `psn` of its first packet defaults to the next one."""
        ina = ina or pack_ina(self.ring_id, rank, number, data.nbytes, dtype, op, flags)
        body, mtu = ina + data.tobytes(), self.geometry.path_mtu
        count = -(-len(body) // mtu)
        if psn is None:
            psn = self.next_psns[rank]
            self.next_psns[rank] = (psn + count) & 0xFFFFFF
        first, middle, last, only = OPCODES[self.carrier]
        opcodes = [only] if count == 1 else [first, *[middle] * (count - 2), last]
        frames = []
        for i, opcode in enumerate(opcodes):
            extra: dict[str, Any] = {}
            if "write" in self.carrier and i == 0:
                extra |= {"remote_address": 0x1000 + rank, "rkey": rank + 1, "dma_length": len(body)}
            if opcode.name.endswith("IMMEDIATE"):
                extra |= {"immediate": 0xDEADBEE0 + rank}
            piece = body[i * mtu : (i + 1) * mtu]
            extra |= {"psn": (psn + i) & 0xFFFFFF, "ack_request": i == count - 1}
            frames.append(build_frame(opcode, piece, **self.addresses(rank), **extra))
        return frames

    def give(self, rank: int, *frames: np.ndarray, now_ps: int = 0) -> None:
        """Let frames of `rank` arrive at the switch in one burst."""
        self.switch.receive(self.port(rank), build_burst(frames), now_ps)
        self.switch.advance(now_ps)

    def take(self, rank: int) -> list[Packet]:
        """What left for `rank`, dissected."""
        return [dissect(frame) for frame in drain(self.switch, self.port(rank))]

    def result(self, rank: int) -> bytes:
        """The data that left on the connection of `rank`, that is to its successor, without the INA header."""
        return b"".join(packet.payload for packet in self.take(rank + 1))[INA_BYTES:]

    def answer(self, rank: int, psn: int, syndrome: int = 0x1F, now_ps: int = 0) -> None:
        """Let the successor's answer to the connection of `rank` pass through the switch."""
        here, there = self.endpoints[rank], self.endpoints[(rank + 1) % self.size]
        frame = build_frame(
            Opcode.ACKNOWLEDGE,
            source_ip=there.ip,
            destination_ip=here.ip,
            source_mac=there.mac,
            destination_mac=here.mac,
            destination_qpn=here.successor_qpn,
            psn=psn & 0xFFFFFF,
            syndrome=syndrome,
            msn=5,
        )
        self.give((rank + 1) % self.size, frame, now_ps=now_ps)

    def exchange(self, number: int, datas: list[np.ndarray], **kind: Any) -> list[bytes]:
        """One undisturbed message of all ranks, acknowledged; the data that each connection delivered."""
        for rank, data in enumerate(datas):
            self.give(rank, *self.message(rank, number, data, **kind))
        results = [self.result(rank) for rank in range(self.size)]
        for rank in range(self.size):
            self.answer(rank, self.next_psns[rank] - 1)
        for rank in range(self.size):
            drain(self.switch, self.port(rank))
        return results


def make_ring(size: int = 3, *, events: int = 0, gap_policy: str = "pass", **ring: Any) -> Ring:
    """A registered ring on a switch of its own; `events` rows of log, none by default."""
    log = make_event_log(events) if events else None
    return Ring(Switch("s0", size, limits=SMALL, events=log, gap_policy=gap_policy), size, **ring).register()
