"""In-network aggregation as one coupled flow per ring, with the limits that each system puts on it.

All of a ring's data advance at one rate: a slot is summed when the last rank's packet is there. What differs is the
packet format, how much may be in flight, what the switch must hold, where a byte goes that finds no aggregator, and
what the host stack adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from netreduce.errors import AdmissionError
from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.fabrics import AggregationTree
from netreduce.flowsim.flows import Flows, Ints, coupled
from netreduce.flowsim.packets import ATP, INFINIBAND, SWITCHML, Packets, roce


@dataclass(frozen=True)
class Aggregator:
    """An in-network system.

    packets: wire format. unit_bytes: what is sent, acknowledged and held as one (NetReduce's message, SwitchML's
    packet). window_units: units in flight per connection. copies: how many units a switch holds per unit of the
    window; `per_port` says whether it holds them for each connection (NetReduce buffers and re-sums) or once (the
    others add in place). memory_bytes: what a switch has for it. detour_s: added by each pass through the aggregator
    (a middlebox beside the switch costs two hops). host_s, host_capacity: latency and bytes a second of the hosts'
    software. warm_up_units: empty units before the first data. everywhere: leaves sum as well, not only the root.
    acknowledged: a place in the window is free when the peer's acknowledgement is back (NetReduce: the transport is
    RC's), not when the result is there. answer_queue_bytes: data that may stand before an acknowledgement in a NIC's
    egress queue. collision: part of the packets that find their aggregator taken and go to a parameter server
    unsummed. servers: how many ranks have a server beside them, each for its share of the data (at most all of them).
    """

    packets: Packets
    unit_bytes: float
    window_units: float
    copies: float
    per_port: bool = False
    memory_bytes: float = np.inf
    detour_s: float = 0.0
    host_s: float = 0.0
    host_capacity: float = np.inf
    warm_up_units: int = 0
    everywhere: bool = True
    acknowledged: bool = False
    answer_queue_bytes: float = 0.0
    collision: float = 0.0
    servers: int = 0


@dataclass(frozen=True)
class Ring:
    """A ring that the switches admitted: one flow, waiting for its size.

    there_s: from a rank to all others. line: payload bytes a second of its slowest port. window_bytes, stall_s: what
    may be under way, and how long the line stands idle whenever that much has been sent.
    """

    flow: Flows
    tree: AggregationTree
    there_s: float
    line: float
    window_bytes: float
    stall_s: float

    def of(self, size_bytes: float, added_s: float) -> Flows:
        """The flow for `size_bytes` of data per rank, started with `added_s` of further latency."""
        stalls = max(np.ceil(size_bytes / self.window_bytes) - 1, 0.0)
        bound = self.flow.bound
        if stalls and self.line and self.stall_s:
            bound = np.minimum(bound, size_bytes / (size_bytes / self.line + stalls * self.stall_s))
        latency_s = self.flow.latency_s + added_s
        return replace(self.flow, size_bytes=np.array([float(size_bytes)]), latency_s=latency_s, bound=bound)


@dataclass
class Admission:
    """What the switches were asked for and gave."""

    rings: list[Ring] = field(default_factory=list)
    memory_bytes: float = 0.0
    ports: int = 0
    notes: list[str] = field(default_factory=list)


def admit(
    cluster: Cluster,
    aggregator: Aggregator,
    rings: Sequence[Ints],
    memory_taken: Counter[str] | None = None,
    *,
    frame_bytes: int = 0,
) -> Admission:
    """Place the rings (workers, int64[members] each) on the cluster's switches.

    `memory_taken`, bytes by switch, is what others hold already; what is given here is added to it. A switch without
    memory for all of it gets smaller units, as an operator would configure. Raises AdmissionError when not even units
    of one packet fit.
    """
    taken = Counter() if memory_taken is None else memory_taken
    trees = [cluster.tree(members, number) for number, members in enumerate(rings)]
    ports: Counter[str] = Counter()
    for tree in trees:
        ports.update({switch: count if aggregator.per_port else 1 for switch, count in tree.ports.items()})
    window = aggregator.copies * aggregator.window_units
    admission = Admission(ports=max(max(tree.ports.values()) for tree in trees))
    unit_bytes = aggregator.unit_bytes
    for switch, count in ports.items():
        free = aggregator.memory_bytes - taken[switch]
        if window * count * unit_bytes > free:
            packets = int(free / (window * count) / aggregator.packets.payload_bytes)
            if packets < 1:
                raise AdmissionError(
                    f"{switch} must hold {window * count:.0f} packets for {len(rings)} rings, but has"
                    f" {free / 1e6:.3g} MB left: use fewer ranks per switch, fewer jobs or more memory"
                )
            unit_bytes = float(packets * aggregator.packets.payload_bytes)
            admission.notes = [f"the memory of {switch} allows messages of {packets} packets only"]
    for switch, count in ports.items():
        taken[switch] += int(window * count * unit_bytes)
    admission.memory_bytes = window * max(ports.values()) * unit_bytes
    for tree, members in zip(trees, rings, strict=True):
        admission.rings.append(_ring(cluster, aggregator, tree, members, unit_bytes, frame_bytes))
    return admission


def _ring(
    cluster: Cluster,
    aggregator: Aggregator,
    tree: AggregationTree,
    members: Ints,
    unit_bytes: float,
    frame_bytes: int,
) -> Ring:
    tax = aggregator.packets.tax()
    links, uses = _uses(cluster, aggregator, tree, members)
    line = float(cluster.links.capacity[tree.up[: tree.host_links]].min()) / tax
    passes = 2 * tree.levels - 1 if aggregator.everywhere else 1
    forwarding_s = (2 * tree.levels - 1) * frame_bytes / (line * tax) if line else 0.0
    there_s = tree.latency_s + passes * aggregator.detour_s + forwarding_s
    latency_s = there_s + aggregator.host_s + aggregator.warm_up_units * (there_s + unit_bytes / max(line, 1.0))
    flow = coupled(links, 0.0, latency_s, uses=uses * tax, bound=aggregator.host_capacity)
    stall_s = _stall_s(aggregator, unit_bytes, line, there_s) if line else 0.0
    return Ring(flow, tree, there_s, line, aggregator.window_units * unit_bytes, stall_s)


def _stall_s(aggregator: Aggregator, unit_bytes: float, line: float, there_s: float) -> float:
    """How long a rank waits after a window's bytes, until the answer for their first unit is back.

    The answer is the result, or the acknowledgement of who got the result; that one may have to wait behind data.
    """
    window_bytes = aggregator.window_units * unit_bytes
    answer_s = there_s
    if aggregator.acknowledged:
        ahead_bytes = min(window_bytes - unit_bytes, aggregator.answer_queue_bytes)
        answer_s += max(ahead_bytes / line - there_s, 0.0) + there_s
    return max(unit_bytes / line + answer_s - window_bytes / line, 0.0)


def _uses(cluster: Cluster, aggregator: Aggregator, tree: AggregationTree, members: Ints) -> tuple[Ints, np.ndarray]:
    """Links of the flow, and bytes on them per byte of a rank's data."""
    up, down = tree.up_members.astype(np.float64), tree.down_members.astype(np.float64)
    if aggregator.everywhere:
        up[tree.host_links :] = down[tree.host_links :] = 1.0
    links, uses = [tree.up, tree.down], [up, down]
    if aggregator.servers:
        # Sums, and the unsummed packets of every rank, go down to the servers; results come up from them.
        ranks = len(members)
        servers = members[: min(aggregator.servers, ranks)]
        into, out_of = cluster.port_links(servers)
        share = np.full(len(servers), 1 / len(servers))
        links += [into, out_of]
        uses += [share * (1 - aggregator.collision + aggregator.collision * ranks), share]
    return np.concatenate(links), np.concatenate(uses)


def netreduce(
    *,
    window: int = 2,
    packets_per_message: int = 170,
    payload_bytes: int = 1024,
    memory_bytes: float = 64e6,
    detour_s: float = 0.0,
) -> Aggregator:
    """NetReduce: the paper's window of 2 messages of 170 x 1 KiB; 2N messages are held per connection."""
    message = float(packets_per_message * payload_bytes)
    return Aggregator(
        roce(payload_bytes),
        message,
        window,
        2,
        per_port=True,
        memory_bytes=memory_bytes,
        detour_s=detour_s,
        acknowledged=True,
    )


def switchml(*, slots: int = 256, host_capacity: float = np.inf, host_s: float = 0.0) -> Aggregator:
    """SwitchML: 256 packets of 256 integers outstanding, two sets of slots, one empty batch to agree on exponents."""
    return Aggregator(
        SWITCHML,
        float(SWITCHML.payload_bytes),
        slots,
        2,
        host_capacity=host_capacity,
        host_s=host_s,
        warm_up_units=1,
    )


EVERY_RANK = 1 << 30

ATP_AGGREGATORS = 20_000
"""Pairs of the published switch program's 40,000 aggregators (a packet takes two)."""
ATP_WINDOW = 2_800
"""Aggregators an application may use at a time, in the published client."""


def atp(
    *, other_jobs: int = 0, host_capacity: float = np.inf, host_s: float = 0.0, servers: int = EVERY_RANK
) -> Aggregator:
    """ATP: packets hash to aggregators shared with `other_jobs` of equal windows; those that collide go to a server.

    Every rank has a server beside it unless told otherwise, which is the best case for ATP.
    """
    collision = 1 - float(np.exp(-other_jobs * ATP_WINDOW / ATP_AGGREGATORS))
    return Aggregator(
        ATP,
        float(ATP.payload_bytes),
        ATP_WINDOW,
        1,
        memory_bytes=ATP_AGGREGATORS * ATP.payload_bytes,
        host_capacity=host_capacity,
        host_s=host_s,
        collision=collision,
        servers=servers,
    )


SHARP_WINDOW = 1e6
"""Packets: more than any network holds, so that it never is what bounds the rate."""


def sharp() -> Aggregator:
    """A tree in the switches of an InfiniBand fabric, as SHARP's streaming aggregation. Credits, not a window, hold
    it.
    """
    return Aggregator(INFINIBAND, float(INFINIBAND.payload_bytes), SHARP_WINDOW, 0)
