"""Frames that are damaged, not ours or hostile: dropped with a reason and a counter, never an exception."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nic.harness import IPS, MACS, End, Frame, connect, make_wire

from netreduce.nic import verbs as v
from netreduce.trace.events import DropReason, Event, drain
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.opcodes import Opcode


def send_only(end: End, **changes: Any) -> Frame:
    """A good SEND ONLY for `end`, but for the changes."""
    return build_frame(
        Opcode.SEND_ONLY,
        b"abcd",
        **{
            "source_ip": IPS[0],
            "destination_ip": IPS[1],
            "source_mac": MACS[0],
            "destination_mac": MACS[1],
            "destination_qpn": end.qp.qp_num,
            "ack_request": True,
        }
        | changes,
    )


def receive(end: End, *frames: Frame) -> dict[str, int]:
    """Give frames to the NIC; the drop counters that moved."""
    before = end.nic.counters()
    end.nic.receive(0, build_burst(frames), 1000)
    after = end.nic.counters()
    return {
        name: after[name] - before[name] for name in after if name.startswith("drop_") and after[name] > before[name]
    }


def ready_end() -> End:
    _, b = connect(make_wire())
    for i in range(8):
        b.receive(i, 0, 64)
    return b


def test_a_good_frame_is_taken() -> None:
    b = ready_end()
    assert receive(b, send_only(b)) == {}
    assert b.statuses() == [(0, "IBV_WC_SUCCESS")]


@pytest.mark.parametrize(
    ("changes", "counter"),
    [
        ({"destination_mac": "02:00:00:00:00:99"}, "drop_not_for_me"),
        ({"destination_ip": "10.78.0.9"}, "drop_not_for_me"),
        ({"source_ip": "10.78.0.9"}, "drop_not_for_me"),
        ({"destination_qpn": 0x99}, "drop_not_for_me"),
        ({"destination_qpn": 0}, "drop_not_for_me"),
        ({"p_key": 0x1234}, "drop_bad_p_key"),
        ({"source_ip": "fd00::1", "destination_ip": "fd00::2"}, "drop_not_for_me"),
        ({"source_ip": f"::ffff:{IPS[0]}", "destination_ip": f"1::ffff:{IPS[1]}"}, "drop_not_for_me"),
        ({"source_ip": f"1::ffff:{IPS[0]}", "destination_ip": f"::ffff:{IPS[1]}"}, "drop_not_for_me"),
    ],
)
def test_what_is_not_for_us_is_dropped_with_its_reason(changes: dict[str, Any], counter: str) -> None:
    b = ready_end()
    assert receive(b, send_only(b, **changes)) == {counter: 1}
    assert b.completions() == []


@pytest.mark.parametrize(
    "changes",
    [{"migrated": True}, {"p_key": 0x7FFF}, {"fecn": True}, {"becn": True}, {"solicited": True}, {"hop_limit": 1}],
)
def test_bits_that_do_not_concern_us_are_ignored(changes: dict[str, Any]) -> None:
    b = ready_end()
    assert receive(b, send_only(b, **changes)) == {}
    assert b.statuses() == [(0, "IBV_WC_SUCCESS")]


def test_reserved_bits_of_the_transport_header_are_ignored() -> None:
    b = ready_end()
    frame = send_only(b)
    frame[14 + 20 + 8 + 4] |= 0x3F  # masked in the ICRC
    assert receive(b, frame) == {}


@pytest.mark.parametrize("at", [14 + 20 + 8 + 11, 14 + 20 + 8 + 12, 14 + 20 + 8 + 15, -1])
def test_one_flipped_bit_is_caught_by_the_icrc(at: int) -> None:
    b = ready_end()
    frame = send_only(b)
    frame[at] ^= 1
    assert receive(b, frame) == {"drop_bad_icrc": 1}
    assert b.nic.counters()["rx_icrc_encapsulated"] == 1
    assert b.completions() == []
    rows, _ = drain(b.nic.tables.log)
    assert [row.detail for row in rows if row.kind == Event.DROPPED] == [DropReason.BAD_ICRC]


def test_a_queue_pair_that_cannot_receive_yet_drops() -> None:
    b = ready_end()
    b.qp.modify(v.QPAttr(qp_state=v.IBV_QPS_RESET), v.IBV_QP_STATE)
    b.qp.to_init(v.QPAttr())
    frame = send_only(b)
    assert set(receive(b, frame)) <= {"drop_qp_state", "drop_not_for_me"}
    assert b.completions() == []


def test_congestion_marks_and_notifications_are_counted() -> None:
    b = ready_end()
    assert receive(b, send_only(b, traffic_class=3), send_only(b, psn=1, traffic_class=2)) == {}
    assert b.nic.counters()["np_ecn_marked_roce_packets"] == 1
    cnp = build_frame(
        Opcode.CNP,
        source_ip=IPS[0],
        destination_ip=IPS[1],
        source_mac=MACS[0],
        destination_mac=MACS[1],
        destination_qpn=b.qp.qp_num,
    )
    assert receive(b, cnp) == {}
    assert b.nic.counters()["rp_cnp_ignored"] == 1
    assert drain(b.nic.tables.log)[0][-1].kind == Event.CNP_RECEIVED


def test_other_protocols_are_dropped_as_unsupported() -> None:
    b = ready_end()
    arp = np.frombuffer(bytearray(bytes.fromhex("ffffffffffff020000000001" + "0806") + bytes(46)), np.uint8)
    assert receive(b, arp) == {"drop_unsupported": 1}


@given(data=st.data())
def test_no_bytes_whatever_make_the_data_path_raise(data: st.DataObject) -> None:
    b = ready_end()
    frames = []
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            frame = send_only(b)
            for _ in range(data.draw(st.integers(1, 3))):
                frame[data.draw(st.integers(0, frame.size - 1))] = data.draw(st.integers(0, 255))
            frames.append(frame[: data.draw(st.integers(1, frame.size))].copy())
        else:
            frames.append(np.frombuffer(bytearray(data.draw(st.binary(min_size=1, max_size=120))), np.uint8))
    b.nic.receive(0, build_burst(frames), 1000)
    b.nic.advance(1000)
    counters = b.nic.counters()
    assert counters["rcvd_pkts"] == len(frames)


@given(
    opcode=st.sampled_from([int(opcode) for opcode in Opcode if opcode != Opcode.CNP]),
    psn=st.integers(0, 4) | st.integers(0, (1 << 24) - 1),
    size=st.sampled_from([0, 1, 255, 256, 257, 1024]),
    syndrome=st.integers(0, 255),
)
def test_no_packet_with_a_good_icrc_makes_the_data_path_raise(opcode: int, psn: int, size: int, syndrome: int) -> None:
    wire = make_wire()
    a, b = connect(wire)
    b.receive(0, 0, 300)
    b.send(0, 0, 600)
    b.nic.advance(0)
    fields: dict[str, Any] = {}
    if opcode in (Opcode.ACKNOWLEDGE, Opcode.ATOMIC_ACKNOWLEDGE):
        fields = {"syndrome": syndrome}
    frame = build_frame(
        opcode,
        bytes(size),
        source_ip=IPS[0],
        destination_ip=IPS[1],
        source_mac=MACS[0],
        destination_mac=MACS[1],
        destination_qpn=b.qp.qp_num,
        psn=psn,
        **fields,
    )
    b.nic.receive(0, build_burst([frame]), 1)
    b.nic.advance(1)
    assert a.qp.qp_state is v.IBV_QPS_RTS
