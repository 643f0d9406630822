"""One INA header of any bytes at the start of a message, with a good ICRC: the switch believes only what is true.

Input: three bytes of choices (how many packets, which length is true, whether the others come first), and the header.
"""

from __future__ import annotations

import struct

import numpy as np
from tests.fuzz.script import Script
from tests.switch.switch_harness import Ring, drain

from netreduce.switch import Switch, SwitchLimits
from netreduce.wire.capture import CapturedFrame
from netreduce.wire.control import Geometry
from netreduce.wire.conversations import Conversations
from netreduce.wire.dissect import Dissector
from netreduce.wire.ina import INA_BYTES, DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.pcap import Direction
from netreduce.wire.show import frame_line

LIMITS = SwitchLimits(memory_bytes=1 << 18, egress_bytes=1 << 15, rings=2, connections=8, macs=16)
GEOMETRY = Geometry(message_window=2, message_packets=3, path_mtu=256)
ELEMENT_BYTES = {1: 4, 2: 8, 3: 2, 4: 2, 5: 1, 6: 1, 7: 4, 8: 8}
"""By code of the data type, as README and GLOSSARY list them."""


def _is_possible(header: bytes, payload_bytes: int) -> bool:
    """Whether rank 0 of ring 7 may send this in front of message 0 in packets of `payload_bytes` altogether."""
    ring, rank, message, length, data_type, op, version, flags = struct.unpack(">HHIIBBBB", header)
    element = ELEMENT_BYTES.get(data_type, 0)
    return (
        (ring, rank, message, version) == (7, 0, 0, 1)
        and element > 0
        and length % element == 0
        and INA_BYTES + length <= 3 * 256
        and 1 <= op <= 4
        and flags < 8
        and INA_BYTES + length == payload_bytes
    )


def check(data: bytes) -> None:
    """Raise AssertionError when a lie is summed, or the truth is not."""
    script = Script(data)
    elements = (1 + script.byte()) % 189
    first = script.byte() & 1
    header = script.take(INA_BYTES)
    ring = Ring(Switch("switch", 3, limits=LIMITS), 2, geometry=GEOMETRY).register()
    values = [np.full(elements, 10.0**rank, np.float32) for rank in range(2)]
    lying = ring.message(0, 0, values[0], ina=header)
    honest = ring.message(1, 0, values[1])
    for rank, frames in ((1, honest), (0, lying)) if first else ((0, lying), (1, honest)):
        ring.give(rank, *frames)
    truth = pack_ina(7, 0, 0, 4 * elements, DataType.FLOAT32, ReduceOp.SUM, InaFlag.START | InaFlag.END)
    notices = ring.switch.notices()
    left = [drain(ring.switch, port) for port in range(3)]
    counters = ring.switch.ring_counters(7)
    if header == truth:
        assert (counters["messages_aggregated"], notices) == (1, [])
        assert len(left[0]) == len(left[1]) == len(lying)
    else:
        assert counters["messages_aggregated"] == 0
        assert counters["packets_spliced"] == 0
        assert sum(len(frames) for frames in left) == counters["naks_sent"] + counters["rnr_sent"]
        if _is_possible(header, INA_BYTES + 4 * elements):
            assert [notice.message_id for notice in notices] == [0], "another view of the same message is told"
    _show(lying)


def _show(frames: list[np.ndarray]) -> None:
    """The header is printed, whatever it says."""
    dissector, conversations = Dissector(), Conversations()
    for number, frame in enumerate(frames, 1):
        captured = CapturedFrame(number, 0, frame.tobytes(), frame.size, "", Direction.INBOUND)
        view, payload = dissector.view(captured)
        conversations.follow(view, payload)
        assert frame_line(view, "0").isprintable()
