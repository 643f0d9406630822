import pytest
from tests.fabric.test_faults import rocev2_frame
from tests.fabric.toys import Toy, split

from netreduce.errors import ConfigurationError
from netreduce.fabric import Faults
from netreduce.fabric.rules import Effect
from netreduce.fabric.spelling import parse_fault
from netreduce.units import PS_PER_MS, PS_PER_S
from netreduce.wire.opcodes import Opcode


def rule_of(text, rng):
    return parse_fault(text).install(Faults(rng))


def test_the_example_drops_one_packet_of_one_worker(rng):
    fault = parse_fault("worker 1: drop psn=7")
    assert (fault.worker, fault.port, fault.direction) == (1, None, None)
    rule = fault.install(Faults(rng))
    assert (rule.verdict.effect, rule.fields, rule.times) == (Effect.DROP, {"psn": frozenset([7])}, 1)


@pytest.mark.parametrize(
    ("text", "effect", "measure"),
    [
        ("duplicate copies=3", Effect.DUPLICATE, 3),
        ("delay by=5ms", Effect.DELAY, 5 * PS_PER_MS),
        ("reorder by=4", Effect.REORDER, 4),
        ("corrupt bit=9", Effect.CORRUPT, 9),
        ("truncate to=40", Effect.TRUNCATE, 40),
        ("partition from=1s for=2s", Effect.PARTITION, None),
        ("stall for=0.5s", Effect.STALL, PS_PER_S // 2),
    ],
)
def test_each_effect_takes_its_measure(text, effect, measure, rng):
    verdict = rule_of(f"all: {text}", rng).verdict
    assert (verdict.effect, verdict.measure) == (effect, measure)


def test_places_are_workers_ports_and_all_and_their_directions():
    places = [parse_fault(f"{place}: drop") for place in ("all", "port eth1 up", "worker 12 down", "port /run/a:b")]
    assert [(p.worker, p.port, p.direction) for p in places] == [
        (None, None, None),
        (None, "eth1", "up"),
        (12, None, "down"),
        (None, "/run/a:b", None),
    ]


def test_conditions_are_those_of_rules(rng):
    rule = rule_of("all: drop psn=1,5-7 opcode=ack,send_last qpn=3 every=2 probability=0.5 times=9 from=1s for=2s", rng)
    assert rule.fields["psn"] == {1, 5, 6, 7}
    sends = {code for code in Opcode if code.name.startswith("SEND_LAST")}
    assert rule.fields["opcode"] == {Opcode.ACKNOWLEDGE} | sends
    assert (rule.every, rule.probability, rule.times) == (2, 0.5, 9)
    assert (rule.from_ps, rule.for_ps) == (PS_PER_S, 2 * PS_PER_S)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("drop psn=7", "want WHERE: WHAT"),
        ("worker one: drop", "want WHERE: WHAT"),
        ("worker 1: melt", "'melt' is not known; there are drop, partition"),
        ("worker 1: drop pns=7", "drop takes psn, opcode"),
        ("worker 1: drop psn=x", "psn=x: want a number"),
        ("worker 1: drop psn=0-99999999", "at most 10000 numbers"),
        ("worker 1: drop opcode=NOTHING", "want names such as SEND_MIDDLE"),
        ("worker 1: drop probability=2", "probability=2.0"),
        ("worker 1: drop nth=0", "nth=0"),
        ("worker 1: delay", "delay needs by=TIME"),
        ("worker 1: delay by=5", "want a time such as 20us"),
        ("worker 1: stall nth=2", "stall needs for=TIME"),
        ("worker 1: duplicate copies=99", "copies=99"),
    ],
)
def test_what_is_spelled_wrong_is_named(text, says):
    with pytest.raises(ConfigurationError) as caught:
        parse_fault(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def pushed(faults, psn, now_ps):
    """What comes out at `now_ps` when a packet goes in."""
    toy = Toy("burst")
    toy.put(rocev2_frame(psn))
    faults.push(toy.queues[0].data[: toy.queues[0].state[0].tail], now_ps)
    return len(split(faults.pop(now_ps)))


def test_a_rule_in_force_for_a_time_counts_from_the_first_frame(rng):
    faults = Faults(rng)
    parse_fault("all: partition from=1s for=2s").install(faults)
    start = 50 * PS_PER_S
    seconds = (0, 0.9, 1, 2.9, 3, 9)
    assert [pushed(faults, 1, start + round(s * PS_PER_S)) for s in seconds] == [1, 1, 0, 0, 1, 1]


def test_a_stall_begins_behind_the_frame_that_it_waits_for(rng):
    faults = Faults(rng)
    parse_fault("all: stall psn=7 for=2s").install(faults)
    assert pushed(faults, 6, PS_PER_S) == 1
    assert faults.stalled_until_ps() == 0
    assert pushed(faults, 7, PS_PER_S) == 1
    assert faults.stalled_until_ps() == 3 * PS_PER_S
    assert pushed(faults, 7, 4 * PS_PER_S) == 1
    assert faults.stalled_until_ps() == 3 * PS_PER_S  # once: the psn is named, so that the retransmission passes


def test_what_does_not_fit_into_a_burst_comes_with_the_next(rng):
    faults = Faults(rng)
    faults.duplicate(copies=15)
    toy = Toy("burst")
    toy.put(rocev2_frame(1))
    faults.push(toy.queues[0].data[: toy.queues[0].state[0].tail], 0)
    size = faults.pop(0, 1000).size
    assert 0 < size <= 1000
    total = size
    while (size := faults.pop(0, 1000).size) > 0:
        assert size <= 1000
        total += size
    assert total == 16 * toy.queues[0].state[0].tail
    assert faults.held_frames == 0
