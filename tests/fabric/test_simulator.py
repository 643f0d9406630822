"""The simulator's arithmetic, order and bookkeeping, proved on toy nodes."""

from __future__ import annotations

import pytest
from tests.fabric.toys import Echo, Hub, Source, Toy, frame_of, star

from netreduce.errors import ConfigurationError
from netreduce.fabric import Recording, Simulator, StuckError
from netreduce.units import GBPS, NEVER_PS, PS_PER_US

RATE = 100 * GBPS
PS_PER_BYTE = 80  # at 100 Gb/s
DELAY = 500_000


def pair(a: Toy, b: Toy, **settings: int) -> Simulator:
    simulator = Simulator(seed=1, quantum_ps=settings.get("quantum_ps", 0))
    simulator.connect(a, 0, b, 0, rate_bps=settings.get("rate_bps", RATE), delay_ps=settings.get("delay_ps", DELAY))
    return simulator


@pytest.mark.parametrize("length", [60, 61, 1000, 1094, 4158, 9216])
def test_a_frame_arrives_after_its_bytes_and_overhead_and_the_delay(length: int) -> None:
    a, b = Toy("a"), Toy("b")
    simulator = pair(a, b)
    a.put(frame_of(length))
    simulator.run_until_quiet(limit_ps=PS_PER_US * 100)
    assert a.queues[0].state[0].frames == 0
    assert b.times == [(length + 24) * PS_PER_BYTE + DELAY]
    assert b.seen_at == b.times


def test_a_short_frame_occupies_the_line_as_one_of_64_bytes_with_fcs() -> None:
    a, b = Toy("a"), Toy("b")
    simulator = pair(a, b)
    a.put(frame_of(10))
    simulator.run_until_quiet(limit_ps=PS_PER_US * 100)
    assert b.times == [84 * PS_PER_BYTE + DELAY]
    assert [frame.size for _, _, frame in b.arrivals] == [10]


@pytest.mark.parametrize("quantum_ps", [0, 1, 999_983, 2_000_000])
@pytest.mark.parametrize("rate_bps", [RATE, 10 * GBPS, 7_777_777_777])
def test_back_to_back_frames_leave_no_gap_whatever_the_quantum(rate_bps: int, quantum_ps: int) -> None:
    source, sink = Source("a", count=300, length=1000), Toy("b")
    simulator = pair(source, sink, rate_bps=rate_bps, quantum_ps=quantum_ps)
    simulator.run_until_quiet(limit_ps=10_000 * PS_PER_US)
    occupancy = -(-1024 * 8 * 10**12 // rate_bps)
    assert sink.times == [(i + 1) * occupancy + DELAY for i in range(300)]
    assert sink.marks == list(range(300))
    assert all(0 <= seen - time <= quantum_ps for seen, time in zip(sink.seen_at, sink.times, strict=True))


def test_the_egress_queue_is_the_only_buffer_while_the_line_is_busy() -> None:
    a, b = Toy("a", egress_bytes=4096), Toy("b")
    simulator = pair(a, b)
    accepted = sum(a.put(frame_of(1000, i)) for i in range(6))
    assert accepted == 4
    simulator.run_for(1000)  # within the first frame's time on the line
    assert a.queues[0].state[0].frames == 3
    simulator.run_until_quiet(limit_ps=PS_PER_US * 100)
    assert b.marks == [0, 1, 2, 3]
    assert simulator.lines[0].counters()["egress_dropped_frames"] == 2


def test_both_directions_run_at_the_same_time() -> None:
    source, echo = Source("a", count=50, length=1000), Echo("b")
    simulator = pair(source, echo)
    simulator.run_until_quiet(limit_ps=PS_PER_US * 1000)
    occupancy = 1024 * PS_PER_BYTE
    assert source.marks == list(range(50))
    assert source.times == [(i + 2) * occupancy + 2 * DELAY for i in range(50)]


def test_a_timer_of_a_node_is_kept_to_the_picosecond() -> None:
    source, sink = Source("a", count=5, length=1000, every_ps=1_234_567), Toy("b")
    simulator = pair(source, sink)
    simulator.run_until_quiet(limit_ps=PS_PER_US * 100)
    assert sink.times == [i * 1_234_567 + 1024 * PS_PER_BYTE + DELAY for i in range(5)]


def test_a_frame_that_is_ready_later_waits_for_its_time() -> None:
    a, b = Toy("a"), Toy("b")
    simulator = pair(a, b)
    a.put(frame_of(1000), now_ps=777)
    simulator.run_until_quiet(limit_ps=PS_PER_US * 100)
    assert b.times == [777 + 1024 * PS_PER_BYTE + DELAY]


def test_equal_arrivals_come_in_the_order_of_the_links() -> None:
    hosts = [Source(f"worker{i}", count=3) for i in range(4)]
    sink = Toy("switch", port_count=4)
    simulator = Simulator()
    star(simulator, hosts, sink, rate_bps=RATE, delay_ps=DELAY)
    simulator.run_until_quiet(limit_ps=PS_PER_US * 100)
    assert [port for _, port, _ in sink.arrivals] == [0, 1, 2, 3] * 3


@pytest.mark.parametrize("quantum_ps", [0, 3_000_000])
def test_frames_are_conserved_through_a_congested_hub(quantum_ps: int) -> None:
    hosts = [Source(f"worker{i}", count=200, length=500 + i) for i in range(4)]
    hub = Hub("switch", port_count=4, egress_bytes=32768)
    simulator = Simulator(quantum_ps=quantum_ps)
    links = star(simulator, hosts, hub, rate_bps=RATE, delay_ps=DELAY)
    simulator.run_until_quiet(limit_ps=PS_PER_US * 10_000)
    for host, link in zip(hosts, links, strict=True):
        up, down = link.up.counters(), link.down.counters()
        assert up["frames"] == up["delivered_frames"] == 200
        assert down["frames"] == down["delivered_frames"] == len(host.arrivals)
        assert down["frames"] + down["egress_dropped_frames"] == 600
        assert down["egress_dropped_frames"] > 0
        assert down["in_flight_frames"] == 0


@pytest.mark.parametrize("quantum_ps", [0, 1_000_000])
def test_the_same_seed_gives_the_same_recording(quantum_ps: int) -> None:
    def digest(seed: int) -> str:
        hosts = [Source(f"worker{i}", count=40, length=300 + i) for i in range(3)]
        simulator = Simulator(seed, quantum_ps=quantum_ps)
        star(simulator, hosts, Hub("switch", port_count=3), rate_bps=RATE, delay_ps=DELAY)
        simulator.drop(probability=0.1)
        simulator.duplicate(probability=0.1)
        simulator.delay(700_000, probability=0.1)
        recording = Recording()
        simulator.tap(recording)
        simulator.run_until_quiet(limit_ps=PS_PER_US * 10_000)
        return recording.digest()

    assert digest(7) == digest(7)
    assert digest(7) != digest(8)


def test_a_program_on_a_node_runs_after_it_and_can_post_work() -> None:
    a, b = Toy("a"), Echo("b")
    simulator = pair(a, b)
    posted = []

    def progress(now_ps: int) -> bool:
        if len(posted) < 5 and len(a.arrivals) == len(posted):
            posted.append(now_ps)
            return a.put(frame_of(100, len(posted)), now_ps)
        return False

    simulator.run_on(a, progress)
    simulator.run_until(lambda: len(a.arrivals) == 5, limit_ps=PS_PER_US * 100)
    assert posted == [0, *a.times[:4]]


def test_waiting_for_what_cannot_happen_says_what_is_pending() -> None:
    a, b = Toy("a"), Toy("b")
    simulator = pair(a, b)
    a.put(frame_of(100))
    with pytest.raises(StuckError, match=r"quiet at .*timers: none; frames in flight: none; frames queued: none"):
        simulator.run_until(lambda: len(b.arrivals) == 2, limit_ps=PS_PER_US)


def test_a_limit_that_passes_names_the_timers() -> None:
    source, sink = Source("a", count=5, every_ps=PS_PER_US), Toy("b")
    simulator = pair(source, sink)
    with pytest.raises(StuckError, match=r"not done after 1500000 ps\. timers: a at 2000000 ps"):
        simulator.run_until(lambda: len(sink.arrivals) == 5, limit_ps=1_500_000)
    assert simulator.next_event_ps() < NEVER_PS


def test_a_node_whose_timer_stays_in_the_past_is_found_out() -> None:
    source, sink = Source("a", count=1, length=2000, every_ps=1, egress_bytes=1024), Toy("b")
    simulator = pair(source, sink)
    with pytest.raises(StuckError, match=r"without progress.*timers: a at 0"):
        simulator.run_for(1)


def test_rate_and_delay_beyond_memory_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"link a:0>b:0: .* bytes in flight, at most"):
        pair(Toy("a"), Toy("b"), rate_bps=800 * GBPS, delay_ps=10**12)


def test_bad_wiring_is_refused_by_name() -> None:
    a, b = Toy("a"), Toy("b")
    simulator = pair(a, b)
    with pytest.raises(ConfigurationError, match="port 0 of a is connected already"):
        simulator.connect(a, 0, Toy("c"), 0, rate_bps=RATE, delay_ps=0)
    with pytest.raises(ConfigurationError, match="d has ports 0 to 0"):
        simulator.connect(Toy("d"), 1, Toy("e"), 0, rate_bps=RATE, delay_ps=0)
    with pytest.raises(ConfigurationError, match="'a' is taken"):
        simulator.add(Toy("a"))
    with pytest.raises(ConfigurationError, match="rate_bps=0"):
        simulator.connect(Toy("f"), 0, Toy("g"), 0, rate_bps=0, delay_ps=0)


def test_a_link_is_found_by_kind_and_number() -> None:
    hosts = [Toy(f"worker{i}") for i in range(3)]
    simulator = Simulator()
    links = star(simulator, hosts, Toy("switch", port_count=3), rate_bps=RATE, delay_ps=DELAY)
    assert simulator.link(worker=1) is links[1]
    assert links[1].up.sender is hosts[1]
    with pytest.raises(KeyError, match="worker9 has 0 links"):
        simulator.link(worker=9)
