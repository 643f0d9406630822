"""The tables of every node, for the report of a failure."""

from __future__ import annotations

from netreduce.soak.rig import Rig
from netreduce.switch import Switch


def describe_switch(switch: Switch, now_ps: int) -> str:
    """Counters that are not 0, those of each ring, and which messages wait for whom."""

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "nothing"

    lines = [f"{switch.name}  {listed(switch.counters())}"]
    lines += [f"  port {port}: {listed(switch.port_counters(port))}" for port in range(switch.port_count)]
    for waiting in switch.waiting(now_ps, -1):
        ranks = ", ".join(map(str, waiting.missing_ranks))
        lines.append(f"  ring {waiting.ring_id} message {waiting.message_id}: waits for ranks {ranks or 'unknown'}")
    return "\n".join(lines)


def describe(rig: Rig) -> str:
    """What is pending, the queue pairs of every NIC, the switches, and the lines."""
    now_ps = rig.simulator.now_ps
    parts = [f"time {now_ps} ps; {rig.simulator.pending()}"]
    parts += [nic.describe() for nic in rig.nics]
    parts += [describe_switch(switch, now_ps) for switch in rig.switches.values()]
    parts.append("\n".join(f"{line.name}: {line.counters()}" for line in rig.simulator.lines))
    return "\n\n".join(parts)
