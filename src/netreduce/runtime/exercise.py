"""One small all-reduce in memory, so that everything is compiled before anybody waits for it.

Two NICs and a switch take turns in one thread. Most of the compilation happens when a NIC and a switch are made; a
second process makes the NIC while this one makes the switch, and finds the result in the cache afterwards.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from netreduce.collectives.engine import Engine
from netreduce.errors import NetReduceError
from netreduce.nic import Nic
from netreduce.nic.verbs import Context
from netreduce.runtime import exchange, interface, nic_round, short_call, stream
from netreduce.runtime.cable import Cable, Outlet, make_burst_buffer
from netreduce.switch import RingSpec, Switch
from netreduce.wire.control import Geometry
from netreduce.wire.pcap import Direction, PcapWriter

STEPS_MAX = 10_000
STEP_PS = 1_000_000
TAKE_TIMEOUT_S = 5.0


def _make_nic(port: int) -> Nic:
    return Nic(f"warm-up {port}", f"02:4e:52:ff:ff:{port:02x}", f"10.78.255.{port}")


def exercise() -> None:
    """Compile, or load, all that a run needs; `NetReduceError` if the all-reduce comes out wrong."""
    with subprocess.Popen([sys.executable, "-m", "netreduce.runtime.exercise"]) as other:
        switch = Switch("warm-up", 2)
        exchange.load(switch.tables)
        interface.load()
        stream.load()
        if other.wait() != 0:
            raise NetReduceError("the data path cannot be compiled: the reason is above")
    with PcapWriter(os.devnull, ["port0"]) as capture:
        capture.write_burst(0, Direction.UNKNOWN, make_burst_buffer()[:0])
    nics = [_make_nic(port) for port in range(2)]
    engines = [Engine(Context(nic), rank, 2, Geometry()) for rank, nic in enumerate(nics)]
    endpoints = tuple(engine.endpoint() for engine in engines)
    for port, nic in enumerate(nics):
        switch.attach(port, nic.mac, nic.ip)
        nic.neighbours.update({other.ip: other.mac for other in nics})
    switch.set_hop(nics[0].ip, nics[0].mac, 0)
    switch.forget_hop(nics[0].ip)
    switch.register_ring(RingSpec(1, endpoints, Geometry()))
    for engine in engines:
        engine.connect(1, endpoints)
    arrays = [np.full(2000, 1.0, np.float32), np.full(2000, 2.0, np.float32)]
    operations = [engine.all_reduce(array) for engine, array in zip(engines, arrays, strict=True)]
    _run(nics, engines, switch, lambda: all(operation.done for operation in operations))
    if any(operation.error for operation in operations) or not all((array == 3.0).all() for array in arrays):
        raise NetReduceError(f"the data path is broken: {[operation.error for operation in operations]}")


def _run(nics: list[Nic], engines: list[Engine], switch: Switch, is_done: Callable[[], bool]) -> None:
    """Let everybody take turns; each NIC's frames reach the switch, and back, over a cable."""
    buffer = make_burst_buffer()
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in nics]
    cables = [(Cable.offer(far), Cable.take(near, TAKE_TIMEOUT_S)) for near, far in pairs]
    outlets = [Outlet(near, nic.egress(0)) for (_, near), nic in zip(cables, nics, strict=True)]
    outlets += [Outlet(far, switch.egress(port)) for port, (far, _) in enumerate(cables)]
    for step in range(STEPS_MAX):
        if is_done():
            break
        now_ps = step * STEP_PS
        for port, (nic, engine, (far, near)) in enumerate(zip(nics, engines, cables, strict=True)):
            if (burst := far.receive(buffer)) is not None:
                switch.receive(port, burst, now_ps)
            if (burst := near.receive(buffer)) is not None:
                nic.receive(0, burst, now_ps)
            nic.advance(now_ps)
            engine.progress(now_ps)
            nic.advance(now_ps)
        for outlet in outlets:
            outlet.send()
    for ends in cables:
        for end in ends:
            end.close()


if __name__ == "__main__":
    nic = _make_nic(1)
    nic_round.load(nic.tables)
    short_call.load(nic.tables)
