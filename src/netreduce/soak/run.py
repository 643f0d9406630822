"""One soak run: phase 1 hurts, phase 2 heals and must finish, then the checkers look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from netreduce.fabric import Rule, StuckError
from netreduce.nic import NicLimits
from netreduce.soak.checkers import check
from netreduce.soak.draw import Draw, Interruption, RingDraw
from netreduce.soak.oracle import make_input, reduce_in_order
from netreduce.soak.program import Reliability, Ring
from netreduce.soak.report import describe
from netreduce.soak.rig import Rig, RigSettings
from netreduce.switch import SwitchLimits
from netreduce.units import PS_PER_MS, PS_PER_S, PS_PER_US

HEAL_PS_MAX = 60 * PS_PER_S
"""In so much virtual time without faults every ring must finish: some hundred of the longest RNR waits."""
LATE_PS = 50 * PS_PER_US
"""By how much a `delay` by chance holds a frame back."""
NAMED_STATUSES = ("IBV_WC_RETRY_EXC_ERR", "IBV_WC_WR_FLUSH_ERR")
"""How a queue pair may end when losses were harsh."""
NIC_LIMITS = NicLimits(queue_pairs=16, memory_regions=256, send_depth=64, receive_depth=64, completion_depth=4096)
SWITCH_LIMITS = SwitchLimits(memory_bytes=256 << 20, rings=8, connections=64, macs=64)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: no violations is good. `tables` are those of every node, if it was not."""

    violations: list[str]
    frames: int
    virtual_ps: int
    lost_frames: int
    failed_by_name: bool
    tables: str

    def __str__(self) -> str:
        end = "ended by name" if self.failed_by_name else "ok" if not self.violations else "VIOLATED"
        milliseconds = self.virtual_ps / PS_PER_MS
        return f"{self.frames:,} frames, {self.lost_frames:,} lost, {milliseconds:,.2f} ms of virtual time: {end}"


class Reduction:
    """One ring with its data and what NumPy makes of them."""

    def __init__(self, rig: Rig, drawn: RingDraw, reliability: Reliability, splice: bool, seed: int) -> None:
        self.ring: Ring = rig.ring(
            drawn.geometry,
            hosts=drawn.hosts,
            first_psns=drawn.first_psns,
            reliability=reliability,
            splice=splice,
        )
        random = np.random.default_rng([seed, self.ring.ring_id])
        self._found: list[list[np.ndarray]] = []
        self._wanted: list[list[np.ndarray]] = []
        ranks = range(len(drawn.hosts))
        placement = rig.plane.placements.get(self.ring.ring_id)
        order = placement.order() if placement else tuple(ranks)
        for length in drawn.lengths:
            arrays = [make_input(random, drawn.data_type, length) for _ in ranks]
            if splice:
                results = arrays
                self._wanted.append([reduce_in_order(order, arrays, drawn.data_type, drawn.op)] * len(arrays))
            else:
                results = [np.zeros_like(array) for array in arrays]
                self._wanted.append([arrays[rank - 1] for rank in ranks])
            self._found.append(results)
            self.ring.all_reduce(arrays, drawn.data_type, drawn.op, results=results)

    def wrong(self) -> list[str]:
        """One line for each array whose received messages are not what NumPy says, to the bit."""
        return [
            f"sums: ring {self.ring.ring_id} rank {rank} all-reduce {number}"
            for number, (found, wanted) in enumerate(zip(self._found, self._wanted, strict=True))
            for rank, (array, expected) in enumerate(zip(found, wanted, strict=True))
            if any(array[part].tobytes() != expected[part].tobytes() for part in self._received(rank, number))
        ]

    def _received(self, rank: int, number: int) -> Iterator[slice]:
        """The elements of an all-reduce that a rank has received: of a ring that ended by name, perhaps not all."""
        messages, arrays = self.ring.ranks[rank].messages, [found[rank] for found in self._found]
        size = self.ring.geometry.message_data_bytes // arrays[number].itemsize
        counts = [max(1, -(-array.size // size)) for array in arrays]
        first = sum(counts[:number])
        for place in range(counts[number]):
            if messages[first + place].received:
                yield slice(place * size, (place + 1) * size)


def _hurt(rig: Rig, drawn: Draw) -> list[Rule]:
    """Install the rules by chance."""
    rules = []
    for chance in drawn.chances:
        target = rig.simulator if chance.line < 0 else rig.simulator.lines[chance.line]
        arguments = (LATE_PS,) if chance.effect == "delay" else ()
        rules.append(getattr(target, chance.effect)(*arguments, probability=chance.probability))
    return rules


def _begin(rig: Rig, interruption: Interruption) -> Callable[[], None]:
    """Start an interruption; what ends it."""
    if interruption.kind == "pause":
        paused = [ring.ranks[interruption.index % len(ring.ranks)] for ring in rig.rings]
        for rank in paused:
            rank.paused = True

        def resume() -> None:
            for rank in paused:
                rank.paused = False

        return resume
    if interruption.kind == "stall":
        return rig.simulator.lines[interruption.index].stall().remove
    return rig.simulator.links[interruption.index].partition().remove


def _interrupt(rig: Rig, drawn: Draw) -> None:
    """Play the interruptions, each from its start to its end."""
    events: list[tuple[int, int, Interruption]] = []
    for number, interruption in enumerate(drawn.interruptions):
        events.append((interruption.start_ps, number, interruption))
        events.append((interruption.start_ps + interruption.duration_ps, number, interruption))
    ends: dict[int, Callable[[], None]] = {}
    for time_ps, number, interruption in sorted(events, key=lambda event: event[:2]):
        rig.simulator.run_for(max(0, time_ps - rig.simulator.now_ps))
        if number in ends:
            ends.pop(number)()
        else:
            ends[number] = _begin(rig, interruption)


def _play(rig: Rig, drawn: Draw) -> None:
    """Both phases. Raises `StuckError` if the rings do not finish although everything is healed."""
    rules = _hurt(rig, drawn)
    _interrupt(rig, drawn)
    simulator = rig.simulator
    if not drawn.interruptions:
        simulator.run_for(drawn.delay_ps * 20)
    for rule in rules:
        rule.remove()
    for rank in (rank for ring in rig.rings for rank in ring.ranks):
        rank.paused = False  # two pauses of one rank may overlap
    simulator.run_until(lambda: all(ring.settled for ring in rig.rings), limit_ps=HEAL_PS_MAX)
    if not any(ring.errors for ring in rig.rings):
        simulator.run_until_quiet(limit_ps=HEAL_PS_MAX)


def run(drawn: Draw, *, splice: bool = True) -> Outcome:
    """Play a run, through splicing switches or, with the same queue pairs and faults, through ones that forward."""
    rig = Rig(
        RigSettings(
            topology=drawn.topology,
            seed=drawn.seed,
            quantum_ps=drawn.quantum_ps,
            gap_policy=drawn.gap_policy,
            nic_limits=NIC_LIMITS._replace(egress_bytes=drawn.nic_egress_bytes),
            switch_limits=SWITCH_LIMITS._replace(egress_bytes=drawn.switch_egress_bytes),
        )
    )
    reliability = Reliability(timeout=drawn.timeout, min_rnr_timer=drawn.min_rnr_timer)
    reductions = [Reduction(rig, ring, reliability, splice, drawn.seed) for ring in drawn.rings]
    failed_by_name = False
    try:
        _play(rig, drawn)
        errors = [error.split(": ")[1] for ring in rig.rings for error in ring.errors]
        failed_by_name = bool(errors) and drawn.harsh and set(errors) <= set(NAMED_STATUSES)
        violations = [] if failed_by_name else check(rig)
        violations += [line for each in reductions for line in each.wrong()]
    except StuckError as error:
        violations = [f"liveness: {error}"]
    counts = [line.counters() for line in rig.simulator.lines]
    return Outcome(
        violations=violations,
        frames=sum(count["frames"] for count in counts),
        virtual_ps=rig.simulator.now_ps,
        lost_frames=sum(count["lost_frames"] for count in counts),
        failed_by_name=failed_by_name,
        tables=describe(rig) if violations else "",
    )
