"""Each fuzz target notices what it is there for: with a mistake planted, some input of its corpus fails."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fuzz.replay import check_of, kept
from tests.fuzz.targets import burst, frame

from netreduce.compiled import memory_at
from netreduce.nic import Nic
from netreduce.runtime.rendezvous import Rendezvous
from netreduce.switch import Switch
from netreduce.wire import capture
from netreduce.wire.build import burst_frames
from netreduce.wire.icrc import write_icrc
from netreduce.wire.ina import DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.packet import Parse, make_packet_table, parse_packet

Patch = pytest.MonkeyPatch


def _around(patch: Patch, node: type, around: Callable[..., None]) -> None:
    """Let `around(original, node, port, burst, now_ps)` stand in for a node's `receive`."""
    original = node.receive  # type: ignore[attr-defined]
    patch.setattr(node, "receive", lambda self, *arguments: around(original, self, *arguments))


def _parsed(frame: np.ndarray) -> Any:
    packet = make_packet_table()[0]
    return packet if parse_packet(frame, packet) == Parse.OK else None


def every_icrc_is_good(patch: Patch) -> None:
    patch.setattr(frame, "icrc_is_good", lambda *_: True)


def every_burst_is_whole(patch: Patch) -> None:
    patch.setattr(burst, "burst_is_whole", lambda *_: True)


def names_are_shown_as_they_are(patch: Patch) -> None:
    patch.setattr(capture, "_printable", lambda text: text)


def the_lost_are_not_cleared_away(patch: Patch) -> None:
    patch.setattr(Rendezvous, "lost", lambda *_: [])


def every_token_is_right(patch: Patch) -> None:
    patch.setattr(hmac, "compare_digest", lambda *_: True)


def a_byte_before_the_region_is_written(patch: Patch) -> None:
    def around(receive: Any, nic: Nic, *arguments: Any) -> None:
        receive(nic, *arguments)
        memory_at(int(nic.tables.mr[1].address) - 1, 1)[0] += 1

    _around(patch, Nic, around)


def a_frame_vanishes_in_the_nic(patch: Patch) -> None:
    _around(patch, Nic, lambda *_: None)


def a_frame_vanishes_in_the_switch(patch: Patch) -> None:
    _around(patch, Switch, lambda *_: None)


def a_sum_has_a_wrong_bit(patch: Patch) -> None:
    def around(receive: Any, switch: Switch, *arguments: Any) -> None:
        receive(switch, *arguments)
        queue = switch.egress(1)
        for _, leaving in burst_frames(queue.data[: int(queue.state[0].tail)]):
            packet = _parsed(leaving)
            if packet is not None and packet.payload_bytes > 100:
                leaving[int(packet.icrc_at) - 5] ^= 1
                write_icrc(leaving, packet.ip_at, packet.udp_at, packet.icrc_at)

    _around(patch, Switch, around)


def a_strangers_frame_is_summed(patch: Patch) -> None:
    def around(receive: Any, switch: Switch, port: int, frames: np.ndarray, now_ps: int) -> None:
        packets = [_parsed(frame) for _, frame in burst_frames(frames)]
        owner = (int(packets[0].source_ip_low) & 0xFF) - 1 if packets and packets[0] is not None else port
        receive(switch, owner if 0 <= owner < 2 else port, frames, now_ps)

    _around(patch, Switch, around)


def a_lie_is_taken_for_the_truth(patch: Patch) -> None:
    def around(receive: Any, switch: Switch, port: int, frames: np.ndarray, now_ps: int) -> None:
        for _, each in burst_frames(frames):
            packet = _parsed(each)
            if port == 0 and packet.opcode in (0, 4):
                flags, length = InaFlag.START | InaFlag.END, 188 * 4
                truth = pack_ina(7, 0, 0, length, DataType.FLOAT32, ReduceOp.SUM, flags)
                each[54:70] = np.frombuffer(truth, np.uint8)
                write_icrc(each, packet.ip_at, packet.udp_at, packet.icrc_at)
        receive(switch, port, frames, now_ps)

    _around(patch, Switch, around)


MISTAKES = [
    ("frame", every_icrc_is_good),
    ("burst", every_burst_is_whole),
    ("burst", a_frame_vanishes_in_the_switch),
    ("capture", names_are_shown_as_they_are),
    ("control", the_lost_are_not_cleared_away),
    ("door", every_token_is_right),
    ("nic", a_byte_before_the_region_is_written),
    ("nic", a_frame_vanishes_in_the_nic),
    ("switch", a_frame_vanishes_in_the_switch),
    ("switch", a_sum_has_a_wrong_bit),
    ("switch", a_strangers_frame_is_summed),
    ("ina", a_lie_is_taken_for_the_truth),
]


@pytest.mark.parametrize(("target", "plant"), MISTAKES, ids=[f"{t}-{plant.__name__}" for t, plant in MISTAKES])
def test_a_planted_mistake_is_noticed(target: str, plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    check = check_of(target)

    def is_noticed(data: bytes) -> bool:
        try:
            check(data)
        except AssertionError:
            return True
        return False

    assert any(is_noticed(path.read_bytes()) for path in kept(target))
