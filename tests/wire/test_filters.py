"""Which frames a filter admits, and what it says of conditions that make no sense."""

from __future__ import annotations

from typing import Any

import pytest
from tests.wire.conversation import Watcher, answer, message_frames

from netreduce.errors import ConfigurationError
from netreduce.wire.build import build_frame
from netreduce.wire.dissect import FrameView
from netreduce.wire.filters import FrameFilter, parse_addresses, parse_kind, parse_range
from netreduce.wire.opcodes import Opcode
from netreduce.wire.pcap import Direction


@pytest.fixture
def views() -> list[FrameView]:
    """0-3: rank 0's message, 4-7: rank 1's, 8: ACK to rank 0, 9: NAK, 10: CNP, 11: ARP, 12: bad, 13: repeat."""
    watcher = Watcher()
    frames = [*message_frames(0, 0, rank=0), *message_frames(0, 500, rank=1), answer(0, 3), answer(1, 500, 0x60)]
    damaged = build_frame(Opcode.UC_SEND_ONLY, psn=77)
    damaged[-1] ^= 1
    arp = bytes(12) + b"\x08\x06" + bytes(46)
    frames += [build_frame(Opcode.CNP, source_ip="fe80::1", destination_ip="fe80::2"), arp, damaged, frames[2]]
    return [watcher.see(frame, "port 1" if i == 11 else "port 0", Direction.INBOUND) for i, frame in enumerate(frames)]


@pytest.mark.parametrize(
    ("conditions", "admitted"),
    [
        ({}, range(14)),
        ({"qpns": [parse_range("0x21", "")]}, [4, 5, 6, 7]),
        ({"qpns": [parse_range("0x20-0x21", "")]}, [0, 1, 2, 3, 4, 5, 6, 7, 13]),
        ({"psns": [range(2, 3), range(501, 503)]}, [2, 5, 6, 13]),
        ({"addresses": [parse_addresses("10.78.0.3")]}, [4, 5, 6, 7, 9]),
        ({"addresses": [parse_addresses("10.78.0.0/16")]}, [*range(10), 13]),
        ({"addresses": [parse_addresses("fe80::/10")]}, [10]),
        ({"kinds": [parse_kind("send_first")]}, [0, 4]),
        ({"kinds": [parse_kind("uc send-only"), parse_kind("arp")]}, [11, 12]),
        ({"kinds": [parse_kind("nak")]}, [9]),
        ({"kinds": [parse_kind("0x81")]}, [10]),
        ({"kinds": [parse_kind("0x0")]}, [0, 4]),
        ({"rings": [range(3, 4)]}, [*range(10), 13]),
        ({"ranks": [range(1, 2)]}, [4, 5, 6, 7, 9]),
        ({"messages": [range(1, 9)]}, []),
        ({"ranks": [range(1, 2)], "kinds": [parse_kind("middle")]}, [5, 6]),
        ({"ports": ["port 1"]}, [11]),
        ({"bad": True}, [12]),
        ({"retransmitted": True}, [13]),
        ({"roce": True}, [i for i in range(14) if i != 11]),
    ],
)
def test_conditions_admit_what_they_say(
    views: list[FrameView], conditions: dict[str, Any], admitted: list[int]
) -> None:
    wanted = FrameFilter(**conditions)
    assert [i for i, view in enumerate(views) if wanted.admits(view)] == list(admitted)


@pytest.mark.parametrize(
    ("parse", "message"),
    [
        (lambda: parse_range("x", "--qpn"), "--qpn 'x': a number is expected"),
        (lambda: parse_range("1-", "--psn"), "--psn ''"),
        (lambda: parse_range("5-3", "--psn"), "--psn '5-3': the range is empty"),
        (lambda: parse_addresses("10.78.0"), "--ip '10.78.0': an address or a network"),
        (lambda: parse_kind("snd"), "--opcode 'snd': no such name"),
        (lambda: parse_kind("0xzz"), "--opcode '0xzz'"),
    ],
)
def test_nonsense_is_refused_by_name(parse: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse()
