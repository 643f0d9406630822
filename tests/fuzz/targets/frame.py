"""One frame of any bytes: parsed, its ICRC checked, and printed.

Input: one byte, whose lowest bit says whether to seal the rest anew, and the frame.
"""

from __future__ import annotations

import msgspec
import numpy as np
from tests.fuzz.script import Script, Seen, as_frame, reference_icrc, sealed, seen

from netreduce.wire.capture import CapturedFrame
from netreduce.wire.conversations import Conversations
from netreduce.wire.dissect import Dissector
from netreduce.wire.frames import FRAME_BYTES_MAX
from netreduce.wire.icrc import icrc, icrc_is_good
from netreduce.wire.packet import Parse, make_packet_table, parse_packet
from netreduce.wire.pcap import Direction
from netreduce.wire.show import frame_line


def check(data: bytes) -> None:
    """Raise AssertionError when a frame is read wrongly."""
    script = Script(data)
    seal = script.byte() & 1
    frame = as_frame(script.rest()[:FRAME_BYTES_MAX])
    if seal:
        frame = sealed(frame)
    before = frame.tobytes()
    packet = make_packet_table()[0]
    code = Parse(int(parse_packet(frame, packet)))
    expected = seen(before)
    assert (code is Parse.OK) == (expected is not None)
    if expected is not None:
        _check_fields(before, packet, expected)
        assert bool(icrc_is_good(frame, packet)) == expected.icrc_good
        value = reference_icrc(before[packet.ip_at : packet.icrc_at], packet.ip_version, packet.udp_at - packet.ip_at)
        assert int(icrc(frame, packet.ip_at, packet.udp_at, packet.icrc_at)) == value
    assert frame.tobytes() == before, "looking at a frame leaves it as it is"
    _show(before, code)


def _check_fields(frame: bytes, packet: np.record, expected: Seen) -> None:
    """Offsets follow each other within the frame, and fields are what lies there."""
    assert 14 <= packet.ip_at < packet.udp_at < packet.bth_at < packet.payload_at <= packet.icrc_at
    assert packet.payload_at + packet.payload_bytes + packet.pad_bytes == packet.icrc_at
    assert packet.payload_bytes >= 0
    assert packet.icrc_at + 4 <= len(frame)
    found = packet.opcode, packet.roles, packet.destination_qpn, packet.psn
    assert found == (expected.opcode, expected.roles, expected.destination_qpn, expected.psn)
    assert frame[packet.payload_at :][: packet.payload_bytes] == expected.payload
    assert expected.syndrome in (-1, packet.syndrome)
    for address, low in (
        (expected.source_ip, packet.source_ip_low),
        (expected.destination_ip, packet.destination_ip_low),
    ):
        assert int(low) & 0xFFFFFFFF == int.from_bytes(address[-4:], "big")


def _show(frame: bytes, code: Parse) -> None:
    captured = CapturedFrame(1, 0, frame, len(frame), "port", Direction.INBOUND)
    view, payload = Dissector().view(captured)
    Conversations().follow(view, payload)
    assert "\n" not in frame_line(view, "0")
    assert msgspec.json.encode(view)
    if code is Parse.OK:
        assert view.icrc in ("good", "bad")
