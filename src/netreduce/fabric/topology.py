"""Shapes of networks. Names and order are fixed by the arguments, so that runs are replayable."""

from __future__ import annotations

from collections.abc import Sequence

from netreduce.errors import ConfigurationError
from netreduce.fabric.ecn import EcnMarking
from netreduce.fabric.link import Link
from netreduce.fabric.node import Node
from netreduce.fabric.simulator import Simulator


def star(
    simulator: Simulator,
    hosts: Sequence[Node],
    switch: Node,
    *,
    rate_bps: int,
    delay_ps: int,
    ecn: EcnMarking | None = None,
) -> list[Link]:
    """Connect port 0 of host i with port i of `switch`; on each link `up` is towards the switch."""
    if len(hosts) > switch.port_count:
        raise ConfigurationError(f"{len(hosts)} hosts, but {switch.name} has only {switch.port_count} ports")
    return [
        simulator.connect(host, 0, switch, port, rate_bps=rate_bps, delay_ps=delay_ps, ecn=ecn)
        for port, host in enumerate(hosts)
    ]
