"""The network of a testbed: NICs and engines on machines, and the switches between them, in the simulator.

A machine with several workers is a switch that only forwards, with a link for each worker and the machine's network
port. So whatever leaves a machine shares that port, and steps inside run at the inside links' rate, by the same NICs.
A NIC's egress queue is short, because a NIC makes packets as its wire takes them: in a long one ACKs would wait behind
data that a NIC would not have made yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from netreduce.collectives.algorithms import Tuning
from netreduce.collectives.engine import Engine
from netreduce.collectives.links import rings_of
from netreduce.collectives.slots import FIFO_SLOTS
from netreduce.collectives.transport import SEND_QUEUE_DEPTH
from netreduce.fabric import Simulator
from netreduce.fabric.node import Node
from netreduce.nic import Nic, NicLimits, verbs
from netreduce.switch import RingSpec, Switch, SwitchLimits
from netreduce.testbed.hardware import WAYS, Hardware
from netreduce.units import KIB, MIB, PS_PER_S

RING_ID = 1
NIC_EGRESS_BYTES = 32 * KIB
"""Two to three of the longest frames: enough to keep a line busy between two looks at the NIC."""
ACK_EVERY = 32
PSN_WINDOW_MIN = 128
PSN_WINDOW_MAX = 4096
ACK_TIMEOUT = 15
"""4.096 us x 2^15 = 134 ms: nothing is lost here, and a machine's port may be behind by milliseconds."""
FORWARDER = SwitchLimits(memory_bytes=64 * KIB, egress_bytes=16 * MIB, rings=1, connections=8)
"""A switch that adds nothing. Its queue stands for the memory from which a machine's NIC would fetch data."""
ADDER_EGRESS_BYTES = 8 * MIB


class Network:
    """The nodes of `hardware`, joined as `way` needs it, with one engine a worker, connected."""

    def __init__(self, hardware: Hardware, way: str) -> None:
        self.hardware = hardware
        self.way = WAYS[way]
        self.simulator = Simulator(hardware.seed, quantum_ps=hardware.quantum_ps)
        limits = NicLimits(
            queue_pairs=1 << (hardware.workers + 1).bit_length(),  # one to each other worker, two of a ring
            completion_queues=4,
            memory_regions=1024,
            send_depth=SEND_QUEUE_DEPTH,
            receive_depth=FIFO_SLOTS,
            psn_window=self._psn_window(),
            ack_every=ACK_EVERY,
            egress_bytes=NIC_EGRESS_BYTES,
        )
        self.nics = [
            Nic(f"worker{rank}", f"02:4e:52:00:00:{rank:02x}", f"10.78.0.{rank + 1}", limits=limits)
            for rank in range(hardware.workers)
        ]
        neighbours = {nic.ip: nic.mac for nic in self.nics}
        for nic in self.nics:
            nic.neighbours.update(neighbours)
        self.switch = self._make_adder()
        self._join(self._machine_ports())
        # Calls of the published system end when they are acknowledged.
        tuning = Tuning(machine_size=hardware.gpus if self.way.by_machine else 1, staged_bytes=0)
        self.engines = [self._make_engine(rank, nic, tuning) for rank, nic in enumerate(self.nics)]
        self._connect(tuning)

    def _psn_window(self) -> int:
        """Packets that fill the way to a neighbour and back, and what stands between two ACKs."""
        hardware = self.hardware
        ways = [(hardware.port_bps, 2 * (hardware.between_ps + hardware.detour_ps))]
        if hardware.gpus > 1:
            ways.append((hardware.inside_bps, 2 * hardware.inside_delay_ps))
        # A node reacts up to one quantum late, and four of them make a round trip.
        longest = max(rate * (trip_ps + 4 * hardware.quantum_ps) for rate, trip_ps in ways) // (8 * PS_PER_S)
        packets = 5 * longest // (4 * hardware.geometry.path_mtu) + 2 * ACK_EVERY
        return min(max(packets, PSN_WINDOW_MIN), PSN_WINDOW_MAX)

    def _make_adder(self) -> Switch:
        geometry, workers = self.hardware.geometry, self.hardware.workers
        copies = 2 * geometry.message_window * geometry.message_packets * workers
        memory = copies * (geometry.path_mtu + 256)
        limits = SwitchLimits(memory_bytes=memory, egress_bytes=ADDER_EGRESS_BYTES)
        return Switch("switch", self.hardware.machines, limits=limits)

    def _members(self, machine: int) -> Sequence[Nic]:
        gpus = self.hardware.gpus
        return self.nics[machine * gpus : (machine + 1) * gpus]

    def _machine_ports(self) -> list[tuple[Node, int]]:
        """Node and port of each machine's network cable."""
        hardware = self.hardware
        if hardware.gpus == 1:
            return [(nic, 0) for nic in self.nics]
        ports: list[tuple[Node, int]] = []
        for machine in range(hardware.machines):
            inside = Switch(f"machine{machine}", hardware.gpus + 1, limits=FORWARDER)
            members = self._members(machine)
            for port, nic in enumerate(members):
                rate_bps, delay_ps = hardware.inside_bps, hardware.inside_delay_ps // 2
                self.simulator.connect(nic, 0, inside, port, rate_bps=rate_bps, delay_ps=delay_ps)
                inside.attach(port, nic.mac, nic.ip)
            self._attach_others(inside, hardware.gpus, members)
            ports.append((inside, hardware.gpus))
        return ports

    def _attach_others(self, switch: Switch, port: int, members: Sequence[Nic]) -> None:
        for nic in self.nics:
            if nic not in members:
                switch.attach(port, nic.mac, nic.ip)

    def _join(self, ports: Sequence[tuple[Node, int]]) -> None:
        """Connect the machines with the switch: straight, or over a bridge for each, as port-based VLANs make it."""
        hardware = self.hardware
        half_ps = hardware.switch_latency_ps // 2
        for machine, (node, port) in enumerate(ports):
            members = self._members(machine)
            delay_ps = hardware.delay_ps + half_ps
            if hardware.middlebox is not None and self.way.spliced:
                bridge = Switch(f"bridge{machine}", 2, limits=FORWARDER)
                for nic in members:
                    bridge.attach(0, nic.mac, nic.ip)
                self._attach_others(bridge, 1, members)
                self.simulator.connect(node, port, bridge, 0, rate_bps=hardware.port_bps, delay_ps=delay_ps)
                node, port = bridge, 1
                delay_ps = half_ps + hardware.middlebox.delay_ps + hardware.middlebox.latency_ps // 2
            self.simulator.connect(node, port, self.switch, machine, rate_bps=hardware.port_bps, delay_ps=delay_ps)
            for nic in members:
                self.switch.attach(machine, nic.mac, nic.ip)

    def _make_engine(self, rank: int, nic: Nic, tuning: Tuning) -> Engine:
        hardware = self.hardware
        return Engine(
            verbs.Context(nic),
            rank,
            hardware.workers,
            hardware.geometry,
            algorithm=self.way.algorithm,
            tuning=tuning,
            seed=hardware.seed,
            ack_timeout=ACK_TIMEOUT,
        )

    def _connect(self, tuning: Tuning) -> None:
        endpoints = tuple(engine.endpoint() for engine in self.engines)
        if self.way.spliced:
            for ring_id, members in rings_of(RING_ID, endpoints, tuning):
                self.switch.register_ring(RingSpec(ring_id, members, self.hardware.geometry))
        for nic, engine in zip(self.nics, self.engines, strict=True):
            engine.connect(RING_ID, endpoints)
            self.simulator.run_on(nic, engine.progress)
