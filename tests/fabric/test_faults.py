"""Each fault by itself, then their conditions, then that nothing is lost that no rule took."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fabric.toys import Source, Toy, frame_of, mark_of, split

from netreduce.errors import ConfigurationError
from netreduce.fabric import Faults, Line, Rule, SeenFrame, Simulator
from netreduce.fabric.rules import REORDER_PATIENCE_PS, Effect, Verdict
from netreduce.units import GBPS, PS_PER_US
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import ETHERNET_BYTES, IPV4_BYTES, finish_frame, write_bth

LIMIT = 10_000 * PS_PER_US


def network(count: int = 10, quantum_ps: int = 0, seed: int = 3) -> tuple[Simulator, Line, Toy]:
    source, sink = Source("worker0", count, length=100), Toy("switch")
    simulator = Simulator(seed, quantum_ps=quantum_ps)
    link = simulator.connect(source, 0, sink, 0, rate_bps=100 * GBPS, delay_ps=100_000)
    return simulator, link.up, sink


def marks_after(install: str, *arguments: int, count: int = 10, **conditions: object) -> list[int]:
    simulator, line, sink = network(count)
    getattr(line, install)(*arguments, **conditions)
    simulator.run_until_quiet(limit_ps=LIMIT)
    return sink.marks


def rocev2_frame(psn: int, opcode: Opcode = Opcode.SEND_ONLY, qpn: int = 17) -> np.ndarray:
    frame = np.zeros(ETHERNET_BYTES + IPV4_BYTES + 8 + 12 + 16 + 4, np.uint8)
    frame[12:14] = 8, 0
    frame[14], frame[15], frame[22], frame[23] = 0x45, 2, 64, 17
    frame[36:38] = 0x12, 0xB7
    write_bth(frame, 42, opcode, 0, qpn, psn, False)
    finish_frame(frame, 14, 34, frame.size)
    return frame


def test_a_dropped_frame_never_arrives_and_the_others_do() -> None:
    assert marks_after("drop", nth=4) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_every_third_frame_is_dropped() -> None:
    assert marks_after("drop", every=3) == [0, 1, 3, 4, 6, 7, 9]


def test_times_bounds_how_often_a_rule_strikes() -> None:
    assert marks_after("drop", every=3, times=2) == [0, 1, 3, 4, 6, 7, 8, 9]


def test_a_duplicate_follows_its_original() -> None:
    assert marks_after("duplicate", 2, nth=3, count=4) == [0, 1, 2, 2, 2, 3]


def test_a_late_duplicate_comes_after_the_named_time() -> None:
    simulator, line, sink = network(6)
    line.duplicate(after_ps=2 * 124 * 80 + 1, nth=2)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert sink.marks == [0, 1, 2, 3, 1, 4, 5]


def test_a_delayed_frame_is_overtaken_and_arrives_after_its_delay() -> None:
    simulator, line, sink = network(6)
    line.delay(3 * 124 * 80 + 1, nth=2)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert sink.marks == [0, 2, 3, 4, 1, 5]
    assert sink.times[4] == 2 * 124 * 80 + 100_000 + 3 * 124 * 80 + 1


def test_a_reordered_frame_lets_the_named_number_pass() -> None:
    assert marks_after("reorder", 3, nth=2, count=6) == [0, 2, 3, 4, 1, 5]


def test_a_reordered_last_frame_goes_on_when_patience_runs_out() -> None:
    simulator, line, sink = network(2)
    line.reorder(nth=2)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert sink.marks == [0, 1]
    assert sink.times[1] == 2 * 124 * 80 + 100_000 + REORDER_PATIENCE_PS


def test_corruption_flips_the_named_bit_and_no_other() -> None:
    simulator, line, sink = network(3)
    line.corrupt(-1, nth=2)
    simulator.run_until_quiet(limit_ps=LIMIT)
    expected = frame_of(100, 1)
    expected[99] ^= 0x80
    assert np.array_equal(sink.arrivals[1][2], expected)
    assert np.array_equal(sink.arrivals[2][2], frame_of(100, 2))


def test_corruption_by_chance_flips_exactly_one_bit() -> None:
    simulator, line, sink = network(50)
    line.corrupt()
    simulator.run_until_quiet(limit_ps=LIMIT)
    flipped = [np.unpackbits(frame ^ frame_of(100, i)).sum() for i, (_, _, frame) in enumerate(sink.arrivals)]
    assert flipped == [1] * 50


def test_an_altered_frame_arrives_as_the_function_left_it() -> None:
    simulator, line, sink = network(3)

    def blank(frame: SeenFrame) -> None:
        frame.data[10:] = 0

    line.alter(blank, nth=2)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert [int(frame[10:].any()) for _, _, frame in sink.arrivals] == [1, 0, 1]
    assert sink.marks == [0, 1, 2]


def test_truncation_keeps_the_head_of_the_frame() -> None:
    simulator, line, sink = network(2)
    line.truncate(37, nth=1)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert [frame.size for _, _, frame in sink.arrivals] == [37, 100]
    assert np.array_equal(sink.arrivals[0][2], frame_of(100, 0)[:37])


def test_a_partition_loses_all_until_it_is_healed() -> None:
    simulator, line, sink = network(100)
    with line.partition():
        simulator.run_for(5 * 124 * 80 + 100_000)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert sink.marks == list(range(5, 100))
    assert line.counters()["fault_partition"] == line.counters()["lost_frames"] == 5


def test_a_stalled_line_lets_the_egress_queue_fill_and_loses_nothing() -> None:
    simulator, line, sink = network(300)
    rule = line.stall()
    simulator.run_for(100 * PS_PER_US)
    assert sink.marks == []
    assert line.egress.state[0].frames > 100
    rule.remove()
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert sink.marks == list(range(300))
    assert sink.times[0] == 100 * PS_PER_US + 124 * 80 + 100_000


def test_a_stall_with_an_end_ends_by_itself() -> None:
    simulator, line, sink = network(2)
    line.stall(until_ps=PS_PER_US)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert sink.times[0] == PS_PER_US + 124 * 80 + 100_000


def test_the_first_rule_that_strikes_decides() -> None:
    simulator, line, sink = network(4)
    line.duplicate(nth=2)
    line.drop(every=2)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert sink.marks == [0, 1, 1, 3]  # the second rule never saw frame 1: to it, frame 2 is the second


def test_frames_in_flight_when_a_rule_comes_and_goes_stay_in_order() -> None:
    simulator, line, sink = network(400)
    for _ in range(20):
        with line.delay(10, where=lambda frame: False):
            simulator.run_for(PS_PER_US)
        simulator.run_for(PS_PER_US)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert sink.marks == list(range(400))


def test_psn_opcode_and_qpn_pick_packets() -> None:
    faults = Faults(np.random.default_rng(0))
    faults.drop(psn=7)
    faults.drop(opcode=[Opcode.SEND_FIRST, Opcode.SEND_LAST])
    faults.drop(qpn=99)
    frames = [
        rocev2_frame(7),
        rocev2_frame(7),  # the retransmission passes
        rocev2_frame(8, Opcode.SEND_FIRST),
        rocev2_frame(9, Opcode.SEND_LAST),
        rocev2_frame(10, qpn=99),
        rocev2_frame(11),
        frame_of(100),  # no packet: no condition on packets holds
    ]
    toy = Toy("burst")
    for frame in frames:
        toy.put(frame)
    faults.push(toy.queues[0].data[: toy.queues[0].state[0].tail])
    survivors = [frame for _, frame in split(faults.pop(0))]
    assert [frame.tobytes() for frame in survivors] == [frames[i].tobytes() for i in (1, 5, 6)]


def test_a_predicate_sees_the_frame_and_its_packet() -> None:
    seen = []

    def look(frame: SeenFrame) -> bool:
        seen.append(None if frame.packet is None else int(frame.packet.psn))
        return False

    faults = Faults(np.random.default_rng(0))
    faults.drop(where=look)
    toy = Toy("burst")
    toy.put(rocev2_frame(123))
    toy.put(frame_of(60))
    faults.push(toy.queues[0].data[: toy.queues[0].state[0].tail])
    assert seen == [123, None]


def test_one_rule_on_both_lines_counts_together() -> None:
    simulator, line, _ = network(10)
    rule = simulator.links[0].drop(nth=3)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert rule.struck == 1
    rule.remove()
    assert not line.faults.active


def test_probability_is_met_within_five_sigma(seed: int) -> None:
    simulator, line, sink = network(2000, seed=seed)
    line.drop(probability=0.2)
    simulator.run_until_quiet(limit_ps=LIMIT)
    assert abs(len(sink.marks) - 1600) < 5 * (2000 * 0.2 * 0.8) ** 0.5


@pytest.mark.parametrize("conditions", [{"probability": 1.5}, {"nth": 0}, {"every": 0}, {"times": 0}])
def test_impossible_conditions_are_refused_by_name(conditions: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(conditions))):
        Rule(Verdict(Effect.DROP), **conditions)


chance = st.floats(0, 0.5)


@given(
    seed=st.integers(0, 1 << 32),
    quantum_ps=st.sampled_from([0, 50_000, 3_000_000]),
    drop=chance,
    duplicate=chance,
    delay=chance,
    reorder=chance,
)
def test_frames_are_conserved_under_all_rules_together(
    seed: int, quantum_ps: int, drop: float, duplicate: float, delay: float, reorder: float
) -> None:
    simulator, line, sink = network(120, quantum_ps, seed)
    line.drop(probability=drop)
    line.duplicate(probability=duplicate)
    line.delay(5 * PS_PER_US, probability=delay)
    line.reorder(4, probability=reorder)
    simulator.run_for(2 * PS_PER_US)
    counts = line.counters()
    entered, left = counts["frames"] + counts["copied_frames"], counts["delivered_frames"] + counts["lost_frames"]
    assert entered == left + counts["in_flight_frames"]
    simulator.run_until_quiet(limit_ps=LIMIT)
    counts = line.counters()
    assert counts["in_flight_frames"] == 0
    assert counts["frames"] == 120
    assert counts["delivered_frames"] == len(sink.arrivals) == 120 + counts["copied_frames"] - counts["lost_frames"]
    assert all(np.array_equal(frame, frame_of(100, mark_of(frame))) for _, _, frame in sink.arrivals)
    assert sink.times == sorted(sink.times)
