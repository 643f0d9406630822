"""What one soak run is made of, drawn from its seed: network, rings, data, and what hurts them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from netreduce.control.topology import Topology, leaf_spine_topology, star_topology, three_level_topology
from netreduce.units import GBPS, PS_PER_MS, PS_PER_NS, PS_PER_US
from netreduce.wire.control import PATH_MTUS, Geometry
from netreduce.wire.ina import ELEMENT_BYTES, DataType, ReduceOp
from netreduce.wire.psn import PSN_MASK

PACKETS_MAX = 400
"""Most packets that one rank sends on one ring: a run takes about a second."""
HURT_PS_MAX = 30 * PS_PER_MS
"""Longest time from the start to the last interruption."""
GENTLE_LOSS = 0.04
"""Up to this much loss on every line, eight attempts in a row do not fail, so every ring must finish; with levels of
switches a part of it, for there are more lines on the way. A frame that is overtaken counts as well: to go-back-N it is
a gap."""


@dataclass(frozen=True)
class RingDraw:
    """One ring and its all-reduces."""

    hosts: tuple[int, ...]
    geometry: Geometry
    first_psns: tuple[int, ...]
    data_type: DataType
    op: ReduceOp
    lengths: tuple[int, ...]  # elements of each all-reduce

    def __str__(self) -> str:
        geometry = self.geometry
        psns = " ".join(f"{psn:#x}" for psn in self.first_psns)
        return (
            f"hosts {' '.join(map(str, self.hosts))}, window {geometry.message_window} x {geometry.message_packets} "
            f"packets x {geometry.path_mtu} bytes, {self.data_type.name.lower()} {self.op.name.lower()} of "
            f"{' + '.join(map(str, self.lengths))} elements, PSNs from {psns}"
        )


@dataclass(frozen=True)
class Chance:
    """A rule by probability on one line, by its index, or on all (-1)."""

    effect: str
    probability: float
    line: int

    def __str__(self) -> str:
        return f"{self.effect} {self.probability:.3%} on {'all lines' if self.line < 0 else f'line {self.line}'}"


@dataclass(frozen=True)
class Interruption:
    """Something that starts and ends: a partition of a host's link, a stall of a line, a rank that sends nothing."""

    kind: str
    index: int  # link of a partition, line of a stall; a pause takes the rank on each ring modulo its size
    start_ps: int
    duration_ps: int

    def __str__(self) -> str:
        return f"{self.kind} {self.index} from {_time(self.start_ps)} for {_time(self.duration_ps)}"


@dataclass(frozen=True)
class Draw:
    """Everything that a run depends on."""

    seed: int
    hosts: int
    pods: tuple[tuple[int, ...], ...]  # racks by their hosts; without pods all hosts are around one switch
    spines: int  # over each pod
    cores: int  # over all spines, where there are several pods
    rate_bps: int
    delay_ps: int
    quantum_ps: int
    gap_policy: str
    switch_egress_bytes: int
    nic_egress_bytes: int
    timeout: int
    min_rnr_timer: int
    rings: tuple[RingDraw, ...]
    chances: tuple[Chance, ...]
    interruptions: tuple[Interruption, ...]

    @property
    def harsh(self) -> bool:
        """Whether a ring may run out of retries; then it must say so by name."""
        losing = sum(chance.probability for chance in self.chances if chance.effect in LOSING)
        return losing * len(set(self.topology.levels.values())) > GENTLE_LOSS

    @property
    def topology(self) -> Topology:
        """The network."""
        line: dict[str, int] = {"rate_bps": self.rate_bps, "delay_ps": self.delay_ps}
        if not self.pods:
            return star_topology(self.hosts, **line)
        if len(self.pods) == 1:
            return leaf_spine_topology(self.pods[0], self.spines, **line)
        return three_level_topology(self.pods, self.spines, self.cores, **line)

    def lines(self) -> list[str]:
        """Each drawn value, in a few lines for a reader."""
        queues_kib = self.switch_egress_bytes // 1024, self.nic_egress_bytes // 1024
        pods = " | ".join(" ".join(map(str, pod)) for pod in self.pods)
        switches = f"under {self.spines} spines" + f" a pod and {self.cores} super-spines" * (len(self.pods) > 1)
        shape = f" in racks of {pods} {switches}," if self.pods else ""
        network = (
            f"seed {self.seed}: {self.hosts} hosts{shape} at {self.rate_bps // GBPS} Gb/s, "
            f"delay {_time(self.delay_ps)}, quantum {_time(self.quantum_ps)}, gap policy {self.gap_policy}, "
            f"queues of {queues_kib[0]} KiB (switch) and {queues_kib[1]} KiB (NIC), timeout {self.timeout}, "
            f"RNR timer {self.min_rnr_timer}"
        )
        rings = [f"  ring {number}: {ring}" for number, ring in enumerate(self.rings, 1)]
        hurts = [str(hurt) for hurt in (*self.chances, *self.interruptions)]
        return [network, *rings, f"  {'harsh' if self.harsh else 'gentle'}: {', '.join(hurts) or 'no faults'}"]


def _time(time_ps: int) -> str:
    return f"{time_ps / PS_PER_US:,.1f} us"


LOSING = ("drop", "reorder", "delay", "corrupt", "truncate")
_EFFECTS = (*LOSING, "duplicate")


def _one_of(random: np.random.Generator, *values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def _draw_ring(random: np.random.Generator, hosts: int) -> RingDraw:
    size = int(random.integers(2, hosts + 1))
    members = tuple(int(host) for host in random.permutation(hosts)[:size])
    geometry = Geometry(
        message_window=int(random.integers(1, 9)),
        message_packets=int(2 ** random.uniform(0, 6)),
        path_mtu=_one_of(random, *PATH_MTUS),
    )
    data_type, op = DataType(int(random.integers(1, 9))), ReduceOp(int(random.integers(1, 5)))
    most = PACKETS_MAX * geometry.message_data_bytes // geometry.message_packets
    count = int(random.integers(1, 4))
    element_bytes = int(ELEMENT_BYTES[data_type])
    lengths = tuple(int(random.uniform(0, 1) ** 2 * most / count / element_bytes) for _ in range(count))
    near_wrap = random.random() < 0.3
    spread = 64 if near_wrap else PSN_MASK
    first_psns = tuple(int(PSN_MASK - random.integers(spread)) for _ in members)
    return RingDraw(members, geometry, first_psns, data_type, op, lengths)


def _draw_chances(random: np.random.Generator, line_count: int) -> tuple[Chance, ...]:
    harsh = random.random() < 0.15
    chances = []
    for effect in _EFFECTS:
        if random.random() < 0.5:
            everywhere = random.random() < 0.7
            most = -1.7 if effect in LOSING and not harsh else -0.6  # powers of ten: 2 %, 25 %
            probability = float(10 ** random.uniform(-3.5, most))
            chances.append(Chance(effect, probability, -1 if everywhere else int(random.integers(line_count))))
    return tuple(chances)


def _draw_interruptions(random: np.random.Generator, hosts: int, timeout_ps: int) -> tuple[Interruption, ...]:
    """Partitions and stalls shorter than the retries, pauses of any length."""
    found = []
    for _ in range(int(random.integers(0, 4))):
        kind = _one_of(random, "partition", "stall", "pause")
        index = int(random.integers(2 * hosts if kind == "stall" else hosts))
        most_ps = HURT_PS_MAX if kind == "pause" else min(2 * timeout_ps, HURT_PS_MAX)
        start_ps = int(random.uniform(0, 1) ** 3 * HURT_PS_MAX)
        found.append(Interruption(kind, index, start_ps, int(random.integers(1, most_ps))))
    return tuple(sorted(found, key=lambda interruption: interruption.start_ps))


def _draw_pods(random: np.random.Generator, hosts: int) -> tuple[tuple[int, ...], ...]:
    """One switch, one pod of racks, or several pods, with unequal racks, in equal parts."""
    cuts = sorted({0, hosts, *(int(cut) for cut in random.integers(1, hosts, int(random.integers(1, 5))))})
    racks = [after - before for before, after in pairwise(cuts)]
    levels = int(random.integers(1, 4))
    if levels < 3:
        return (tuple(racks),) * (levels - 1)
    between = int(random.integers(1, len(racks)))
    return tuple(racks[:between]), tuple(racks[between:])


def _over_levels(drawn: Draw) -> Draw:
    """The same run over levels of switches, by chance of its own: rings rack by rack, and hurt on any link."""
    random = np.random.default_rng([drawn.seed, 1])
    pods = _draw_pods(random, drawn.hosts)
    drawn = replace(drawn, pods=pods, spines=int(random.integers(1, 4)), cores=int(random.integers(1, 4)))
    if not pods:
        return drawn
    topology = drawn.topology
    links = drawn.hosts + len(topology.cables)
    rack_of = [topology.hosts[host].switch for host in range(drawn.hosts)]
    rings = []
    for ring in drawn.rings:
        hosts = sorted(ring.hosts, key=lambda host: rack_of[host])  # stable: any order inside a rack
        turn = int(random.integers(len(hosts)))
        rings.append(replace(ring, hosts=(*hosts[turn:], *hosts[:turn])))
    chances = [replace(c, line=c.line if c.line < 0 else int(random.integers(2 * links))) for c in drawn.chances]
    interruptions = [
        replace(i, index=i.index if i.kind == "pause" else int(random.integers(links * (1 + (i.kind == "stall")))))
        for i in drawn.interruptions
    ]
    return replace(drawn, rings=tuple(rings), chances=tuple(chances), interruptions=tuple(interruptions))


def draw(seed: int, *, levels: bool = True) -> Draw:
    """The run of `seed`; without `levels` around one switch."""
    return _over_levels(_draw_star(seed)) if levels else _draw_star(seed)


def _draw_star(seed: int) -> Draw:
    random = np.random.default_rng(seed)
    hosts = int(random.integers(2, 9))
    rate_bps = int(_one_of(random, 1, 10, 25, 100)) * GBPS
    delay_ps = int(10 ** random.uniform(2, 5)) * PS_PER_NS  # 0.1 us to 100 us
    quantum_ps = _one_of(random, 0, 0, PS_PER_US, 5 * PS_PER_US)
    # A window of 8 messages of 64 packets of 4 KiB from each of 8 hosts is 16 MiB: the timer is above all queueing.
    timeout = _one_of(random, 10, 12) if rate_bps >= 25 * GBPS else 14
    return Draw(
        seed=seed,
        hosts=hosts,
        pods=(),
        spines=0,
        cores=0,
        rate_bps=rate_bps,
        delay_ps=delay_ps,
        quantum_ps=quantum_ps,
        gap_policy=_one_of(random, "pass", "hold"),
        switch_egress_bytes=_one_of(random, 64, 256, 4096) * 1024,
        nic_egress_bytes=_one_of(random, 32, 512) * 1024,
        timeout=timeout,
        min_rnr_timer=int(random.integers(1, 15)),
        rings=tuple(_draw_ring(random, hosts) for _ in range(int(random.integers(1, 4)))),
        chances=_draw_chances(random, 2 * hosts),
        interruptions=_draw_interruptions(random, hosts, 4_096_000 << timeout),
    )
