"""What scenarios have in common: a ring through a switch, names for its lines and PSNs, and the checks at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from netreduce.control.placement import Order
from netreduce.control.topology import leaf_spine_topology, star_topology, three_level_topology
from netreduce.fabric import Line, Link, SeenFrame
from netreduce.nic import NicLimits
from netreduce.soak.checkers import check
from netreduce.soak.oracle import reduce_in_order
from netreduce.soak.program import Reliability
from netreduce.soak.report import describe
from netreduce.soak.rig import Rig, RigSettings
from netreduce.switch import SwitchLimits
from netreduce.units import GBPS, PS_PER_S, PS_PER_US
from netreduce.wire.control import Geometry
from netreduce.wire.icrc import write_icrc
from netreduce.wire.ina import DataType, ReduceOp
from netreduce.wire.opcodes import Opcode
from netreduce.wire.psn import PSN_MASK

SMALL = Geometry(message_window=2, message_packets=4, path_mtu=256)
QUICK = Reliability(timeout=8)  # 4.096 us x 2^8: 1.05 ms
SMALL_NIC = NicLimits(queue_pairs=16, memory_regions=64, send_depth=64, receive_depth=64, completion_depth=4096)
SMALL_SWITCH = SwitchLimits(memory_bytes=8 << 20, rings=8, connections=64, macs=64)
DATA = [opcode for opcode in Opcode if opcode.name.startswith("SEND")]
LIMIT_PS = 20 * PS_PER_S


def _racks(world_size: int) -> list[int]:
    """Racks of unequal size, one of one rank."""
    return [world_size - 1, 1] if world_size < 5 else [2, 1, world_size - 3]


def _pods(world_size: int) -> list[list[int]]:
    """Pods of one rack, and of two where there are enough ranks."""
    if world_size > 6:
        return [[2, 1], [1], [world_size - 6, 2]]
    return [[world_size - 2, 1], [1]] if world_size > 2 else [[1]] * world_size


SHAPES = {
    "star": star_topology,
    "two": lambda world_size, **rates: leaf_spine_topology(_racks(world_size), 2, **rates),
    "three": lambda world_size, **rates: three_level_topology(_pods(world_size), 1, 2, **rates),
}
"""Topologies by the number of their levels."""


def forge(frame: SeenFrame, offset: int, value: bytes) -> None:
    """Overwrite payload bytes of a packet and give it an ICRC that fits."""
    packet = frame.packet
    at = int(packet.payload_at) + offset
    frame.data[at : at + len(value)] = np.frombuffer(value, np.uint8)
    write_icrc(frame.data, packet.ip_at, packet.udp_at, packet.icrc_at)


class Scenario:
    """One all-reduce of float32 through one ring: 5 full messages and a short one, unless told otherwise.

    Connection r goes from rank r to its successor. PSNs of different connections differ, so that a `psn` names one.
    """

    gap_policy = "pass"  # conftest.py runs every scenario with both, over each shape, ...
    shape = "star"
    at_core = False  # ... and with faults next to the hosts, or where connections pass between switches

    def __init__(
        self,
        world_size: int = 3,
        *,
        geometry: Geometry = SMALL,
        reliability: Reliability = QUICK,
        first_psns: list[int] | None = None,
        elements: int | None = None,
        seed: int = 1,
        rate_bps: int = 100 * GBPS,
        delay_ps: int = PS_PER_US // 2,
        **settings: Any,
    ) -> None:
        settings = {"nic_limits": SMALL_NIC, "switch_limits": SMALL_SWITCH, **settings}
        topology = SHAPES[self.shape](world_size, rate_bps=rate_bps, delay_ps=delay_ps)
        self.rig = Rig(RigSettings(topology=topology, seed=seed, gap_policy=self.gap_policy, **settings))
        self.first_psns = first_psns or [0x1000 * (rank + 1) for rank in range(world_size)]
        self.ring = self.rig.ring(geometry, first_psns=self.first_psns, reliability=reliability)
        count = 5 * geometry.message_data_bytes // 4 + 100 if elements is None else elements
        random = np.random.default_rng(seed)
        self.arrays = [random.standard_normal(count).astype(np.float32) for _ in range(world_size)]
        self.expected = reduce_in_order(self.order, self.arrays, DataType.FLOAT32, ReduceOp.SUM)
        self.ring.all_reduce(self.arrays)

    # Where things are.

    def psn(self, rank: int, message: int, packet: int = 0) -> int:
        """PSN of a packet of a full message on connection `rank`."""
        return (self.first_psns[rank] + message * self.ring.geometry.message_packets + packet) & PSN_MASK

    @property
    def order(self) -> Order:
        """How the sums are nested."""
        return self.rig.plane.placements[self.ring.ring_id].order()

    @property
    def level_count(self) -> int:
        """How many levels of switches there are."""
        return max(self.rig.topology.levels.values())

    def data_up(self, rank: int) -> Line:
        """Where connection `rank` carries data, or a partial sum, to a switch."""
        return self._ways(rank)[0].up

    def result_down(self, rank: int) -> Line:
        """Where connection `rank` carries sums to its successor."""
        return self._ways(rank)[1].down

    def answer_up(self, rank: int) -> Line:
        """Where the successor's answers on connection `rank` go to a switch."""
        return self._ways(rank)[1].up

    def answer_down(self, rank: int) -> Line:
        """Where the answers of connection `rank` come down to its sender."""
        return self._ways(rank)[0].down

    def crosses(self, rank: int) -> bool:
        """Whether faults on connection `rank` strike between switches."""
        return self._ways(rank)[0] is not self.rig.links[rank]

    def _ways(self, rank: int) -> tuple[Link, Link]:
        """The links on the sender's and on the successor's side of connection `rank` where faults strike."""
        successor = (rank + 1) % len(self.rig.links)
        edges = self.rig.links[rank], self.rig.links[successor]
        placement = self.rig.plane.placements.get(self.ring.ring_id)
        if not self.at_core or placement is None:
            return edges
        top = min((name for name, ranks in placement.ranks.items() if {rank, successor} <= ranks), key=self._level)
        sides = [
            next((name for name in placement.below(top) if end in placement.ranks[name]), "")
            for end in (rank, successor)
        ]
        return (self.rig.cables[sides[0], top], self.rig.cables[sides[1], top]) if sides[0] else edges

    def _level(self, switch: str) -> int:
        return self.rig.topology.levels[switch]

    # What happened.

    def nic(self, rank: int, counter: str) -> int:
        """A counter of one NIC."""
        return self.rig.nics[rank].counters()[counter]

    def nics(self, counter: str) -> int:
        """A counter of all NICs together."""
        return sum(nic.counters()[counter] for nic in self.rig.nics)

    def switch(self, counter: str) -> int:
        """A counter of all switches together, 0 if none ever counted."""
        return sum(switch.counters().get(counter, 0) for switch in self.rig.switches.values())

    # Running it.

    def run(self) -> Scenario:
        """Run until all ranks are done and the network is quiet; sums and all properties must hold."""
        try:
            self.rig.simulator.run_until(lambda: self.ring.done, limit_ps=LIMIT_PS)
            self.rig.simulator.run_until_quiet(limit_ps=LIMIT_PS)
            assert check(self.rig) == []
            for rank, array in enumerate(self.arrays):
                assert np.array_equal(array, self.expected), f"rank {rank} has a wrong sum"
        except BaseException:
            print(describe(self.rig))
            raise
        return self

    def run_to_errors(self) -> list[str]:
        """Run until all ranks are done or failed, and until nothing moves; the errors by rank."""
        self.rig.simulator.run_until(lambda: self.ring.done, limit_ps=LIMIT_PS)
        return self.ring.errors
