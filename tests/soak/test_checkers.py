"""Every checker can fail: each sees the one thing that is bent for it, and switches broken on purpose are caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from netreduce.fabric import Rule
from netreduce.soak import run as soak_run
from netreduce.soak.checkers import CHECKERS, check
from netreduce.soak.draw import Draw, RingDraw, draw
from netreduce.soak.rig import Rig, RigSettings
from netreduce.soak.run import run
from netreduce.trace.events import make_event_log
from netreduce.units import PS_PER_MS, PS_PER_S
from netreduce.viewer.foils import Foil, InPlaceAccumulator, UnsplicedAggregate
from netreduce.wire.build import build_burst, burst_frames
from netreduce.wire.control import Geometry
from netreduce.wire.frames import queue_put
from netreduce.wire.ina import DataType, ReduceOp
from netreduce.wire.opcodes import Opcode, Role
from netreduce.wire.packet import Parse, make_packet_table, parse_packet

SMALL = Geometry(message_window=2, message_packets=4, path_mtu=256)
HOSTS = 3


@pytest.fixture
def clean_rig() -> Rig:
    """A rig on which all went well."""
    rig = Rig(RigSettings(HOSTS))
    ring = rig.ring(SMALL)
    ring.all_reduce([np.arange(1000, dtype=np.float32) for _ in range(HOSTS)])
    rig.simulator.run_until(lambda: ring.done, limit_ps=PS_PER_S)
    rig.simulator.run_until_quiet(limit_ps=PS_PER_S)
    assert check(rig) == []
    return rig


def unfinished(rig: Rig) -> None:
    rig.rings[0].ranks[1].messages[-1].acknowledged = False


def other_header(rig: Rig) -> None:
    rig.rings[0].ranks[1].headers[0][1, 0, 7] ^= 1


def gap(rig: Rig) -> None:
    nic, qpn = rig.nics[1], rig.rings[0].ranks[1].predecessor_qp.qp_num
    nic.tables.qp[qpn & (nic.tables.qp.size - 1)].expected_psn += 1


def vanished(rig: Rig) -> None:
    rig.simulator.lines[0].row.frames += 1


def uncounted(rig: Rig) -> None:
    rig.switch.tables.drops[-1, 1] += 1


def summed_twice(rig: Rig) -> None:
    rig.switch.tables.rings[0].messages_aggregated += 1


def stuck_in_a_queue(rig: Rig) -> None:
    rig.switch.egress(2).state[0].frames += 1


def over_the_bound(rig: Rig) -> None:
    queue = rig.nics[0].egress(0)
    queue.state[0].peak_bytes = queue.data.size + 1


BENT: dict[Callable[[Rig], None], str] = {
    unfinished: "every_program_finished",
    other_header: "headers_pass_unchanged",
    gap: "psns_are_free_of_gaps",
    vanished: "no_frame_is_lost_unseen",
    uncounted: "switches_account_for_every_frame",
    summed_twice: "every_slot_is_summed_once",
    stuck_in_a_queue: "no_queue_is_above_its_bound",
    over_the_bound: "no_queue_is_above_its_bound",
}


@pytest.mark.parametrize("bend", BENT, ids=lambda bend: bend.__name__)
def test_a_checker_sees_what_was_bent_and_no_other_does(bend: Callable[[Rig], None], clean_rig: Rig) -> None:
    bend(clean_rig)
    violations = check(clean_rig)
    assert violations
    assert {violation.split(":")[0] for violation in violations} == {BENT[bend]}


def test_every_checker_is_bent_for() -> None:
    assert {checker.__name__ for checker in CHECKERS} == set(BENT.values())


# Switches that are broken on purpose, in whole soak runs.


def one_switch(geometry: Geometry, *lengths: int) -> Draw:
    """A run on one switch without faults of its own: one ring of three hosts, float32 sums."""
    quiet = next(d for d in (draw(seed, levels=False) for seed in range(1000)) if not (d.chances or d.interruptions))
    ring = RingDraw((0, 1, 2), geometry, (5, 0xFFFFFE, 77), DataType.FLOAT32, ReduceOp.SUM, lengths)
    return replace(quiet, hosts=HOSTS, rings=(ring,), switch_egress_bytes=1 << 18, nic_egress_bytes=1 << 18)


def around(rig: Rig, instead: Callable[..., None]) -> None:
    """Let `instead(receive, port, burst, now_ps)` stand in for what the switch does with a burst."""
    receive = rig.switch.receive
    rig.switch.receive = lambda *arguments: instead(receive, *arguments)  # type: ignore[method-assign]


def data_frames(burst: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
    """The frames of a burst that carry data, with their packets."""
    for _, frame in burst_frames(burst):
        packet = make_packet_table()[0]
        if parse_packet(frame, packet) == Parse.OK and packet.roles & (Role.SEND | Role.WRITE):
            yield packet, frame


def foil(kind: type[Foil]) -> Callable[[Rig], list[Rule]]:
    """The switch is one of the walk's foils; the first sum for host 1 is lost, so that its packet is sent again."""

    def plant(rig: Rig) -> list[Rule]:
        wrong = kind(rig.nics, make_event_log())
        wrong._egress = [rig.switch.egress(port) for port in range(HOSTS)]
        rig.switch.receive = wrong.receive  # type: ignore[method-assign]
        return [rig.links[1].down.drop(opcode=Opcode.SEND_ONLY, nth=1)]

    return plant


def passes_a_packet_unsummed(rig: Rig) -> list[Rule]:
    """A data packet of host 0 also goes on to host 1 as it is, before the sum."""

    def instead(receive: Callable[..., None], port: int, burst: np.ndarray, now_ps: int) -> None:
        if port == 0:
            queue = rig.switch.egress(1)
            for _, frame in data_frames(burst):
                queue_put(queue.data, queue.state[0], frame, now_ps)
        receive(port, burst, now_ps)

    around(rig, instead)
    return []


def loses_a_frame_in_silence(rig: Rig) -> list[Rule]:
    lost: list[np.ndarray] = []

    def instead(receive: Callable[..., None], port: int, burst: np.ndarray, now_ps: int) -> None:
        frames = [frame.copy() for _, frame in burst_frames(burst)]
        if not lost and any(True for _ in data_frames(burst)):
            lost.append(frames.pop())
        receive(port, build_burst(frames, now_ps), now_ps)

    around(rig, instead)
    return []


def takes_a_frame_twice(rig: Rig) -> list[Rule]:
    def instead(receive: Callable[..., None], port: int, burst: np.ndarray, now_ps: int) -> None:
        receive(port, burst.copy(), now_ps)
        receive(port, burst, now_ps)

    around(rig, instead)
    return []


ONE = Geometry(message_window=1, message_packets=1, path_mtu=256)
BROKEN = {
    "an accumulator in place": (foil(InPlaceAccumulator), ONE, "sums: ring 1 rank 1"),
    "an aggregate that is not spliced": (foil(UnsplicedAggregate), ONE, "liveness: not done"),
    "a packet that passes unsummed": (passes_a_packet_unsummed, SMALL, "sums: ring 1 rank 1"),
    "a frame that is lost in silence": (loses_a_frame_in_silence, SMALL, "switches_account_for_every_frame"),
    "a frame that is taken twice": (takes_a_frame_twice, SMALL, "switches_account_for_every_frame"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_switch_that_is_broken_on_purpose_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, geometry, expected = BROKEN[name]
    monkeypatch.setattr(soak_run, "_hurt", lambda rig, _drawn: plant(rig))
    monkeypatch.setattr(soak_run, "HEAL_PS_MAX", 100 * PS_PER_MS)
    drawn = one_switch(geometry, 50 if geometry is ONE else 1000)
    violations = run(drawn).violations
    assert violations
    assert any(violation.startswith(expected) for violation in violations), violations


def test_the_same_run_through_an_honest_switch_holds() -> None:
    for splice in (True, False):
        assert run(one_switch(SMALL, 1000), splice=splice).violations == []
        assert run(one_switch(ONE, 50), splice=splice).violations == []
