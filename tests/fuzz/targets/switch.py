"""The splicing switch under hostile frames: no receiver takes a wrong sum, and every frame is accounted for.

Input: one byte for the gap policy, and a script of steps. Two ranks of a ring send messages, in any order; frames are
changed, cut, sealed anew, come in by the wrong port, or are acknowledged by liars. What leaves is judged by receivers
that know go-back-N, and by what each rank has said at its own port.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from ipaddress import ip_address

import numpy as np
from tests.fuzz.script import Script, Seen, as_frame, changed, sealed, seen
from tests.switch.switch_harness import Ring, drain

from netreduce.soak.oracle import reduce_in_order
from netreduce.switch import Switch, SwitchLimits
from netreduce.trace.events import DropReason, Event, enable, make_event_log
from netreduce.trace.events import drain as drain_log
from netreduce.wire.build import build_burst, build_frame, mac_bytes
from netreduce.wire.control import Geometry
from netreduce.wire.ina import INA_BYTES, NUMPY_DTYPES, DataType, ReduceOp
from netreduce.wire.opcodes import Opcode, Role
from netreduce.wire.psn import PSN_MASK, psn_distance

RANKS, PORTS = 2, 3
MESSAGES, PACKETS = 4, 2
"""Messages of two packets: more of them than twice the window of one, so that places are taken over."""
GEOMETRY = Geometry(message_window=1, message_packets=PACKETS, path_mtu=256)
ELEMENTS = (PACKETS * 256 - INA_BYTES) // 4
STEPS_MAX = 120
COMBINATIONS_MAX = 64
EVENTS_MAX = 1 << 14
"""More than any script can cause."""
LIMITS = SwitchLimits(memory_bytes=1 << 18, egress_bytes=1 << 15, rings=2, connections=8, macs=64)
DATA = Role.SEND.value | Role.WRITE.value


@cache
def _honest(rank: int) -> list[np.ndarray]:
    """All frames that a rank has to send, in order."""
    ring = Ring(Switch("nowhere", PORTS, limits=LIMITS), RANKS, geometry=GEOMETRY)
    random = np.random.default_rng(rank)
    frames = []
    for number in range(MESSAGES):
        frames += ring.message(rank, number, random.standard_normal(ELEMENTS).astype(np.float32))
    return frames


class _Receiver:
    """What one connection's successor takes: packets at the expected PSN, as go-back-N does."""

    def __init__(self, first_psn: int) -> None:
        self.first_psn = first_psn
        self.delivered: list[bytes] = []
        self.is_misled = False  # somebody acknowledged what it does not have

    @property
    def expected_psn(self) -> int:
        return self.first_psn + len(self.delivered) & PSN_MASK


class _Bench:
    def __init__(self, gap_policy: str) -> None:
        self.log = make_event_log(EVENTS_MAX)
        enable(self.log)
        self.switch = Switch("switch", PORTS, limits=LIMITS, gap_policy=gap_policy, events=self.log)
        self.ring = Ring(self.switch, RANKS, geometry=GEOMETRY).register()
        assert self.ring.first_psns is not None
        self.receivers = [_Receiver(psn) for psn in self.ring.first_psns]
        self.said: list[dict[int, set[bytes]]] = [{} for _ in range(RANKS)]  # by rank and place: payloads
        self.given: set[bytes] = set()
        self.packets_given = 0
        ends = [ip_address(endpoint.ip).packed for endpoint in self.ring.endpoints]
        self.keys: dict[tuple[bytes, bytes, int], tuple[str, int]] = {}
        for rank, here in enumerate(self.ring.endpoints):
            next_rank = (rank + 1) % RANKS
            qpn = self.ring.endpoints[next_rank].predecessor_qpn
            self.keys[ends[rank], ends[next_rank], qpn] = "data", rank
            self.keys[ends[next_rank], ends[rank], here.successor_qpn] = "answer", rank
        self.sums: dict[int, set[tuple[bytes, ...]]] = {}  # by place: what the ranks may have said, if sums are right

    def key_of(self, packet: Seen | None) -> tuple[str, int] | None:
        """("data" or "answer", connection) of a good packet of the ring, else None."""
        if packet is None or not packet.icrc_good:
            return None
        return self.keys.get((packet.source_ip, packet.destination_ip, packet.destination_qpn))

    def give(self, port: int, frame: np.ndarray) -> None:
        """Let a frame arrive, note what it says and to whom, and judge all that leaves."""
        if not frame.size:
            return
        data = frame.tobytes()
        packet = seen(data)
        found = self.key_of(packet)
        if found is not None and packet is not None:
            kind, rank = found
            receiver = self.receivers[rank]
            if kind == "data" and port == rank and packet.roles & DATA:
                place = psn_distance(packet.psn, receiver.first_psn)
                self.said[rank].setdefault(place, set()).add(packet.payload)
            elif kind == "answer" and port == (rank + 1) % RANKS and packet.opcode == Opcode.ACKNOWLEDGE:
                # An ACK covers its own PSN, a NAK what lies before it.
                covered = packet.psn if packet.syndrome < 0x20 else packet.psn - 1
                receiver.is_misled |= bool(psn_distance(covered & PSN_MASK, receiver.expected_psn) >= 0)
        self.given.add(data)
        self.packets_given += 1
        self.switch.receive(port, build_burst([frame]), 1000 * self.packets_given)
        self.switch.notices()
        for out in range(PORTS):
            for leaving in drain(self.switch, out):
                self.judge(out, leaving.tobytes())

    def account(self) -> None:
        """Every frame was forwarded, flooded, filtered, held, replayed or dropped for a reason."""
        rows, overwritten = drain_log(self.log)
        assert not overwritten
        events = Counter(int(kind) for kind in rows["kind"])
        drops = Counter(int(reason) for reason in rows["detail"][rows["kind"] == Event.DROPPED])
        counters, ring = self.switch.counters(), self.switch.ring_counters(self.ring.ring_id)
        dropped = sum(count for reason, count in drops.items() if reason != DropReason.QUEUE_FULL)
        fates = [events[kind] for kind in (Event.FORWARDED, Event.FLOODED, Event.SLOT_FILLED)]
        assert counters["packets_in"] == self.packets_given
        assert counters["packets_in"] == sum(fates) + dropped + counters["filtered"] + counters["replays"]
        assert fates[:2] == [counters["forwarded"], counters["flooded"]]
        for reason, count in drops.items():
            assert counters[f"drop_{DropReason(reason).name.lower()}"] == count
        assert ring["stale_passed"] == events[Event.STALE_PASSED]

    def judge(self, port: int, frame: bytes) -> None:
        """A frame leaves: it came in like that, or it is the switch's own answer, or a sum that is right."""
        packet, is_new = seen(frame), frame not in self.given
        found = self.key_of(packet)
        if found is None or packet is None:
            assert not is_new, "what the switch makes is whole, and of the ring"
            return
        kind, rank = found
        if kind == "answer" or not packet.roles & DATA:
            assert not is_new or (kind == "answer" and packet.opcode == Opcode.ACKNOWLEDGE)
            return
        receiver = self.receivers[rank]
        place = psn_distance(packet.psn, receiver.first_psn)
        successor = (rank + 1) % RANKS
        is_there = port == successor and frame[:6] == mac_bytes(self.ring.endpoints[successor].mac)
        if is_there and place == len(receiver.delivered):
            receiver.delivered.append(packet.payload)
            if not receiver.is_misled:
                self.judge_sum(rank, place, packet.payload)
        elif is_new and 0 <= place < len(receiver.delivered):
            assert packet.payload == receiver.delivered[place], "a replay says the same"

    def judge_sum(self, rank: int, place: int, payload: bytes) -> None:
        """The payload is the sum of what each rank has said at its own port, the same words on all connections."""
        said = [self.said[r].get(place, set()) for r in range(RANKS)]
        assert all(said), "summed before all ranks had come"
        if np.prod([len(each) for each in said]) > COMBINATIONS_MAX:
            return
        header_bytes, start = self.header_before(rank, place)
        kind = DataType(header_bytes[12]), ReduceOp(header_bytes[13])
        fits = {words for words in itertools.product(*said) if _sum(words, rank, start, *kind) == payload}
        assert fits, f"connection {rank}, place {place}: no sum of what was said"
        self.sums[place] = self.sums.get(place, fits) & fits
        assert self.sums[place], f"place {place}: other words on other connections"

    def header_before(self, rank: int, place: int) -> tuple[bytes, int]:
        """The INA header of the message at `place` as delivered, and how much of this payload is header."""
        delivered, at = self.receivers[rank].delivered, 0
        while True:
            header = delivered[at][:INA_BYTES]
            length = int.from_bytes(header[8:12], "big")
            packets = -(-(INA_BYTES + length) // self.ring.geometry.path_mtu)
            if place < at + packets:
                return header, INA_BYTES if place == at else 0
            at += packets

    def answer(self, rank: int, syndrome: int, lie: int) -> None:
        """The successor of `rank` acknowledges what it has, or, with a `lie`, something else."""
        psn = self.receivers[rank].expected_psn - (syndrome < 0x20) + lie & PSN_MASK
        here, there = self.ring.endpoints[rank], self.ring.endpoints[(rank + 1) % RANKS]
        addresses = {"source_ip": there.ip, "destination_ip": here.ip}
        macs = {"source_mac": there.mac, "destination_mac": here.mac}
        fields = {"psn": psn, "syndrome": syndrome, "destination_qpn": here.successor_qpn}
        self.give((rank + 1) % RANKS, build_frame(Opcode.ACKNOWLEDGE, **addresses, **macs, **fields))


def _sum(words: tuple[bytes, ...], rank: int, start: int, data_type: DataType, op: ReduceOp) -> bytes:
    """The payload of a connection: its own header, and NumPy's sum of the ranks' data."""
    if len({len(word) for word in words}) != 1 or (len(words[0]) - start) % NUMPY_DTYPES[data_type].itemsize:
        return b""
    arrays = [np.frombuffer(word[start:], NUMPY_DTYPES[data_type]) for word in words]
    with np.errstate(all="ignore"):
        return words[rank][:start] + reduce_in_order(tuple(range(RANKS)), arrays, data_type, op).tobytes()


def check(data: bytes) -> None:
    """Raise AssertionError when a sum is wrong or a frame is not accounted for."""
    script = Script(data)
    bench = _Bench(("hold", "pass")[script.byte() % 2])
    for _ in range(STEPS_MAX):
        if not script:
            break
        step, rank = script.byte() % 8, script.byte()
        if step == 7:  # a run of honest packets
            first = script.byte()
            for frame in _honest(rank % RANKS)[first % (MESSAGES * PACKETS) :][: rank // RANKS]:
                bench.give(rank % RANKS, frame.copy())
        elif step == 6:
            bench.answer(rank % RANKS, 0x1F, 0)
        elif step == 5:
            bench.answer(rank % RANKS, script.byte(), script.signed())
        elif step == 4:
            bench.give(rank % PORTS, as_frame(script.take(script.byte())))
        else:
            frame = _honest(rank % RANKS)[script.byte() % (MESSAGES * PACKETS)]
            if step == 0:
                bench.give(script.byte() % PORTS, frame.copy())
            else:
                port = script.byte() % PORTS if step == 3 else rank % RANKS
                copy = changed(frame, script)
                bench.give(port, sealed(copy) if step != 1 else copy)
    bench.account()
