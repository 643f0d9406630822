"""The switch as a process of its own: ``python -m netreduce.runtime.switch_process``, started by an owner.

The owner binds the listening socket and passes it on, so that workers may connect while this process still starts. A
second inherited socket ties the two together: this process says there when it is ready, and when the owner's end
closes, by intent or by death, it ends as soon as no cable is plugged in. So nothing is left behind, whoever dies first.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
from pathlib import Path

READY = b"ready"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="netreduce-switch", description="The NetReduce switch; started by its owner.")
    parser.add_argument("--listener-fd", type=int, required=True, help="the listening socket, inherited")
    parser.add_argument("--owner-fd", type=int, required=True, help="a socket whose other end the owner holds")
    parser.add_argument("--ports", type=int, default=64, help="how many workers can be plugged in at a time")
    parser.add_argument("--topology", type=Path, help="stand for the switches of this topology file, not for one")
    parser.add_argument("--pcap", type=Path, help="record everything that crosses the switch in this file")
    parser.add_argument("--trace", type=Path, help="record events and frames into files of this directory")
    parser.add_argument("--fault", action="append", default=[], help="a fault on a link, as `netreduce run` takes it")
    parser.add_argument("--fault-seed", type=int, default=0, help="decides what faults do by chance")
    parser.add_argument("--log-level", default="WARNING")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run a switch until its owner and its workers are gone."""
    options = _parse(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="netreduce switch: %(levelname)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, whose end is what ends us

    # Imported late: the parser's errors need no compiler.
    from netreduce.control.description import load
    from netreduce.control.switch_network import AnySwitch, SwitchNetwork
    from netreduce.fabric.spelling import parse_fault
    from netreduce.runtime.clock import Clock
    from netreduce.runtime.live_faults import LiveFaults
    from netreduce.runtime.server import SwitchServer
    from netreduce.runtime.tracing import SWITCH, Recorder
    from netreduce.runtime.warmup import ensure_compiled
    from netreduce.switch import Switch
    from netreduce.trace.recording import NodeInfo
    from netreduce.wire.pcap import PcapWriter

    ensure_compiled()
    listener = socket.socket(fileno=options.listener_fd)
    listener.setblocking(False)
    owner = socket.socket(fileno=options.owner_fd)
    clock = Clock()
    capture = None
    if options.pcap:
        names = [f"port{number}" for number in range(options.ports)]
        capture = PcapWriter(options.pcap, names, epoch_ns=clock.epoch_unix_ns())
    recorder = Recorder(options.trace, SWITCH, NodeInfo(SWITCH, "switch"), clock.now_ps) if options.trace else None
    switch: AnySwitch
    if options.topology:
        switch = SwitchNetwork(load(options.topology))
    else:
        switch = Switch("switch", options.ports, events=recorder.log if recorder else None)
    faults = LiveFaults(options.fault_seed, map(parse_fault, options.fault)) if options.fault else None
    server = SwitchServer(switch, listener, clock, capture, recorder, faults)
    server.watch_owner(owner.fileno())
    try:
        owner.send(READY)
        server.run()
    finally:
        server.close()
        if capture is not None:
            capture.close()
        if recorder is not None:
            recorder.close()


if __name__ == "__main__":
    main()
