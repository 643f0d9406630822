"""Splicing: each connection's own frame leaves, with the sum inside and an ICRC that others verify."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from tests.switch.switch_harness import FLOATS, OPCODES, Ring, dissect, drain, make_ring, powers_of_ten, total_of

from netreduce.switch import RingSpec, Switch
from netreduce.trace import events
from netreduce.trace.events import Event
from netreduce.wire.ina import INA_BYTES, DataType


def outside_icrc(frame: np.ndarray) -> bytes:
    """ICRC of an untagged IPv4 frame by zlib, straight from the text of RoCEv2 annex A17.3.3."""
    body = bytearray(frame[14:-4].tobytes())
    body[1] = body[8] = body[10] = body[11] = body[26] = body[27] = body[32] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(body)))


@pytest.mark.parametrize("carrier", OPCODES)
@pytest.mark.parametrize("count", [0, 1, 60, FLOATS - 1, FLOATS])
def test_each_frame_leaves_with_its_own_headers_the_sum_and_a_good_icrc(carrier: str, count: int) -> None:
    ring = make_ring(3, carrier=carrier, header={"traffic_class": 0x03, "hop_limit": 9})
    datas = [np.full(count, 10.0**rank, np.float32) for rank in range(3)]
    frames = [ring.message(rank, 0, datas[rank]) for rank in range(3)]
    for rank in range(3):
        ring.give(rank, *frames[rank])
    total = total_of(datas) if count else b""
    for rank in range(3):
        left = drain(ring.switch, ring.port(rank + 1))
        assert len(left) == len(frames[rank])
        for sent, got in zip(frames[rank], left, strict=True):
            header = int(dissect(sent).fields.payload_at)
            assert got.size == sent.size
            assert got[:header].tobytes() == sent[:header].tobytes(), "own headers, ECN bits included"
            assert got[-4:].tobytes() == outside_icrc(got)
        body = b"".join(dissect(frame).payload for frame in left)
        assert body[:INA_BYTES] == dissect(frames[rank][0]).payload[:INA_BYTES], "own INA header"
        assert body[INA_BYTES:] == total


def test_padding_is_zero_and_counted_in_the_icrc() -> None:
    ring = make_ring(2)
    datas = [np.array([1, 2, 3, 4, 5], np.int8), np.array([1] * 5, np.int8)]
    for rank in range(2):
        ring.give(rank, *ring.message(rank, 0, datas[rank], dtype=DataType.INT8))
    (packet,) = ring.take(1)
    assert packet.fields.pad_bytes == 3
    assert packet.icrc_good
    assert packet.payload[INA_BYTES:] == bytes([2, 3, 4, 5, 6])
    assert packet.frame[-7:-4].tobytes() == bytes(3)


@pytest.mark.parametrize("header", [{"vlan": 7}, {"udp_checksum": 0x1234}, {"vlan": 0x6001, "traffic_class": 0x2}])
def test_tags_are_kept_and_a_udp_checksum_is_blanked(header: dict[str, int]) -> None:
    ring = make_ring(2, header=header)
    datas = powers_of_ten(2)
    for rank in range(2):
        ring.give(rank, *ring.message(rank, 0, datas[rank]))
    packets = ring.take(1)
    assert all(packet.icrc_good and packet.fields.vlan == header.get("vlan", 0) for packet in packets)
    assert all(packet.frame[packet.fields.udp_at + 6 : packet.fields.udp_at + 8].sum() == 0 for packet in packets)
    assert b"".join(packet.payload for packet in packets)[INA_BYTES:] == total_of(datas)


def test_an_unknown_destination_is_flooded_with_the_sum_inside() -> None:
    ring = make_ring(3)
    ring.header = {"destination_mac": "02:99:00:00:00:99"}
    datas = powers_of_ten(3, 4)
    for rank in range(3):
        ring.give(rank, *ring.message(rank, 0, datas[rank]))
    assert [len(ring.take(rank)) for rank in range(3)] == [2, 2, 2]


def test_a_full_egress_queue_drops_the_result_and_a_replay_brings_it() -> None:
    ring = make_ring(2)
    datas = powers_of_ten(2)
    state = ring.switch.egress(1).state[0]
    frames = [ring.message(rank, 0, datas[rank]) for rank in range(2)]
    data = ring.switch.egress(1).data
    state.frames, state.head, state.tail = 1, data.size, data.size  # as if full
    for rank in range(2):
        ring.give(rank, *frames[rank])
    assert ring.switch.ring_counters(7)["drop_queue_full"] == 3
    assert len(ring.take(0)) == 3
    state.frames, state.head, state.tail = 0, 0, 0
    ring.give(0, *frames[0])
    assert ring.result(0) == total_of(datas)


def test_the_endpoints_of_a_ring_may_share_a_port() -> None:
    """Two ranks behind one cable, as with an interface that leads to another switch."""
    ring = Ring(Switch("s0", 2), 3)
    ring.port = lambda rank: 0 if rank % 3 < 2 else 1  # type: ignore[method-assign]
    for endpoint in ring.endpoints:
        ring.switch.attach(ring.port(endpoint.rank), endpoint.mac, endpoint.ip)
    ring.switch.register_ring(RingSpec(7, ring.endpoints, ring.geometry))
    datas = powers_of_ten(3, 4)
    for rank in range(3):
        ring.give(rank, *ring.message(rank, 0, datas[rank]))
    assert [packet.payload[INA_BYTES:] for packet in ring.take(0)] == [total_of(datas)] * 2
    assert [packet.payload[INA_BYTES:] for packet in ring.take(2)] == [total_of(datas)]


def test_events_tell_the_way_of_a_packet() -> None:
    ring = make_ring(2, events=64)
    log = ring.switch.tables.log
    events.enable(log)
    for rank in range(2):
        ring.give(rank, *ring.message(rank, 0, powers_of_ten(2, 4)[rank]), now_ps=5)
    rows, lost = events.drain(log)
    arrival = [Event.CLT_FILLED, Event.CLT_HIT, Event.SLOT_FILLED]
    assert [Event(row.kind) for row in rows] == [*arrival, *arrival, Event.SUMMED, Event.SPLICED, Event.SPLICED]
    assert lost == 0
    spliced = rows[-2:]
    assert [(row.rank, row.psn, row.port) for row in spliced] == [
        (0, ring.first_psns[0], 1),
        (1, ring.first_psns[1], 0),
    ]
