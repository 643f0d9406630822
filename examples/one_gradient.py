"""Prints the journey of one gradient through NICs and a switch, from the events and frames of a live run.

    python examples/one_gradient.py
    python examples/one_gradient.py --loss          # the first packet of worker 1 gets lost on its way

Three workers stand in a ring, each with a NIC of its own, around one switch: the NIC and the switch that also train
models, here in virtual time on links of 10 Gb/s. Worker r's gradient is 10^r everywhere, so the digits of a number tell
whose gradients are in it. The gradient makes one message of two packets.
"""

import argparse
from collections.abc import Callable

import numpy as np

from netreduce.collectives.engine import Engine
from netreduce.fabric.recording import Recording
from netreduce.fabric.simulator import Simulator
from netreduce.nic import Nic
from netreduce.nic.verbs import Context, wc_status_to_str
from netreduce.switch import RingSpec, Switch
from netreduce.trace.events import DropReason, Event, drain, enable, make_event_log
from netreduce.units import GBPS, PS_PER_S, PS_PER_US
from netreduce.wire.aeth import describe_syndrome
from netreduce.wire.capture import CapturedFrame
from netreduce.wire.control import Geometry
from netreduce.wire.dissect import Dissector, FrameView
from netreduce.wire.ina import INA_BYTES
from netreduce.wire.opcodes import opcode_name
from netreduce.wire.pcap import Direction

WORKERS = 3
RING_ID = 1
GEOMETRY = Geometry(message_window=2, message_packets=2, path_mtu=256)
ELEMENTS = 120
ACK_TIMEOUT = 8  # 4.096 us x 2^8, about a millisecond


class World:
    """Three workers around a switch, with everything that happens written down."""

    def __init__(self) -> None:
        self.logs = [make_event_log(1000) for _ in range(WORKERS + 1)]
        for log in self.logs:
            enable(log)
        self.switch = Switch("switch", WORKERS, events=self.logs[WORKERS])
        self.nics = [
            Nic(f"nic{rank}", f"02:4e:52:00:00:0{rank}", f"10.78.0.{rank + 1}", events=self.logs[rank])
            for rank in range(WORKERS)
        ]
        self.simulator = Simulator()
        self.frames = Recording()
        for rank, nic in enumerate(self.nics):
            self.switch.attach(rank, nic.mac, nic.ip)
            self.simulator.connect(nic, 0, self.switch, rank, rate_bps=10 * GBPS, delay_ps=PS_PER_US)
            nic.neighbours.update({other.ip: other.mac for other in self.nics})
        self.simulator.tap(self.frames)
        self.engines = [
            Engine(Context(nic), rank, WORKERS, GEOMETRY, ack_timeout=ACK_TIMEOUT) for rank, nic in enumerate(self.nics)
        ]
        self.endpoints = tuple(engine.endpoint() for engine in self.engines)
        self.switch.register_ring(RingSpec(RING_ID, self.endpoints, GEOMETRY))
        for nic, engine in zip(self.nics, self.engines, strict=True):
            engine.connect(RING_ID, self.endpoints)
            self.simulator.run_on(nic, engine.progress)

    def all_reduce(self, gradients: list[np.ndarray]) -> None:
        """Sum the gradients in place, on all workers."""
        operations = [engine.all_reduce(gradient) for engine, gradient in zip(self.engines, gradients, strict=True)]
        self.simulator.run_until(lambda: all(operation.done for operation in operations), limit_ps=PS_PER_S)
        for operation in operations:
            if operation.error is not None:
                raise operation.error


class Story:
    """Turns events into sentences. `views` holds header fields, payload and ICRC of all frames by (line, PSN)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.views: dict[tuple[str, int], list[tuple[FrameView, bytes, str]]] = {}
        dissector = Dissector()
        for number, frame in enumerate(world.frames.frames()):
            captured = CapturedFrame(number, 0, frame.data, len(frame.data), "", Direction.UNKNOWN)
            view, payload = dissector.view(captured)
            self.views.setdefault((frame.line, view.psn), []).append((view, payload, frame.data[-4:].hex()))
        self.tellers: dict[Event, Callable[[np.record, str], str]] = {
            Event.POSTED: self.posted,
            Event.SENT: self.sent,
            Event.RETRANSMITTED: self.sent,
            Event.CLT_FILLED: self.clt_filled,
            Event.CLT_HIT: self.clt_hit,
            Event.SLOT_FILLED: self.slot_filled,
            Event.SUMMED: self.summed,
            Event.SPLICED: self.spliced,
            Event.REPLAYED: self.spliced,
            Event.RECEIVED: self.received,
            Event.COMPLETED: self.completed,
            Event.ACK_SENT: self.answered,
            Event.NAK_SENT: self.answered,
            Event.ACK_RECEIVED: self.heard,
            Event.NAK_RECEIVED: self.heard,
            Event.FORWARDED: self.forwarded,
            Event.DROPPED: self.dropped,
            Event.RNR_SENT: self.told_to_wait,
            Event.TIMER_FIRED: self.timed_out,
        }

    def lines(self) -> list[str]:
        """One line per event, in the order of time."""
        events = []
        for node, log in enumerate(self.world.logs):
            name = "switch" if node == WORKERS else f"nic{node}"
            events += [(int(row.time_ps), name, row) for row in drain(log)[0]]
        events.sort(key=lambda event: event[0])  # stable: within a node, events stay in order
        return [
            f"{time_ps / PS_PER_US:9.3f} us  {name:<6}  {Event(row.kind).name:<13}  {self.tell(row, name)}"
            for time_ps, name, row in events
        ]

    def tell(self, row: np.record, name: str) -> str:
        teller = self.tellers.get(Event(row.kind))
        return teller(row, name) if teller else ""

    def frame(self, line: str, psn: int) -> str:
        """The header fields of a frame that went over `line`."""
        found = self.views.get((line, psn))
        if not found:
            return f"psn {psn}, which never arrived"
        view, payload, icrc = found[0]
        header = "INA header and " if view.opcode_name == "RC SEND_FIRST" else ""
        values = np.frombuffer(payload[INA_BYTES if header else 0 :], np.float32)
        return (
            f"{view.opcode_name} {view.source_ip} > {view.destination_ip} qp {view.destination_qpn:#x} psn {view.psn}: "
            f"{header}{values.size} x {values[0]:g}, ICRC {icrc}"
        )

    def posted(self, row: np.record, name: str) -> str:
        return f"one SEND of two pieces, INA header and gradient: {row.bytes} bytes, on queue pair {row.qpn:#x}"

    def sent(self, row: np.record, name: str) -> str:
        return self.frame(f"{name}:0>switch:{name[3:]}", int(row.psn))

    def clt_filled(self, row: np.record, name: str) -> str:
        return f"the FIRST says: ring {row.ring_id}, rank {row.rank}, message {row.message_id}, from psn {row.psn} on"

    def clt_hit(self, row: np.record, name: str) -> str:
        place = f"message {row.message_id}, packet {row.slot}"
        return f"port {row.port}, qp {row.qpn:#x}, psn {row.psn} is rank {row.rank}'s: {place}"

    def slot_filled(self, row: np.record, name: str) -> str:
        return f"message {row.message_id}, packet {row.slot} has the ranks {row.detail:0{WORKERS}b}"

    def summed(self, row: np.record, name: str) -> str:
        return f"message {row.message_id}, packet {row.slot} is complete: {row.bytes} data bytes added, in rank order"

    def spliced(self, row: np.record, name: str) -> str:
        return f"to port {row.port}, in rank {row.rank}'s own headers: " + self.frame(
            f"switch:{row.port}>nic{row.port}:0", int(row.psn)
        )

    def told_to_wait(self, row: np.record, name: str) -> str:
        return f"RNR NAK to rank {row.rank}, in its successor's name: not everybody has sent yet"

    def timed_out(self, row: np.record, name: str) -> str:
        return f"qp {row.qpn:#x} has heard nothing about psn {row.psn}"

    def received(self, row: np.record, name: str) -> str:
        return f"in order: {opcode_name(int(row.detail))} psn {row.psn}, {row.bytes} B, ICRC good, scattered to memory"

    def completed(self, row: np.record, name: str) -> str:
        return f"qp {row.qpn:#x}: {wc_status_to_str(int(row.detail))}, {row.bytes} bytes"

    def answered(self, row: np.record, name: str) -> str:
        return f"{describe_syndrome(int(row.detail))}, psn {row.psn}, to qp {row.qpn:#x}"

    def heard(self, row: np.record, name: str) -> str:
        return f"{describe_syndrome(int(row.detail))}, psn {row.psn}, on qp {row.qpn:#x}"

    def forwarded(self, row: np.record, name: str) -> str:
        return f"to port {row.port}, untouched: {row.bytes} bytes"

    def dropped(self, row: np.record, name: str) -> str:
        return f"psn {row.psn}: {DropReason(row.detail).name}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Print the journey of one gradient through NICs and a switch.")
    parser.add_argument("--loss", action="store_true", help="lose the first packet of worker 1")
    options = parser.parse_args(arguments)

    world = World()
    print(f"Ring {RING_ID}: each worker has one RC connection to its successor, and the switch knows them all.")
    for rank, endpoint in enumerate(world.endpoints):
        peer = world.endpoints[(rank + 1) % WORKERS]
        print(
            f"  rank {rank} -> {peer.rank}: {endpoint.ip} > {peer.ip}, qp {peer.predecessor_qpn:#x}, "
            f"first psn {endpoint.first_psn}; answers come to qp {endpoint.successor_qpn:#x}"
        )
    gradients = [np.full(ELEMENTS, 10.0**rank, np.float32) for rank in range(WORKERS)]
    print("Gradients:", ", ".join(f"rank {rank} holds {gradient[0]:g}" for rank, gradient in enumerate(gradients)))
    print()
    if options.loss:
        world.simulator.link(nic=1).up.drop(psn=world.endpoints[1].first_psn)
    world.all_reduce(gradients)
    print("\n".join(Story(world).lines()))
    print()
    print("Gradients:", ", ".join(f"rank {rank} holds {gradient[-1]:g}" for rank, gradient in enumerate(gradients)))
    assert all(np.all(gradient == 111) for gradient in gradients)


if __name__ == "__main__":
    main()
