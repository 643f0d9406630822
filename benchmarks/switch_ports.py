"""What the switch sees: senders per port, queues, marks and drops of every all-reduce, with the naive way as the foil.

Hosts with this package's NICs and engines hang on its switch, in virtual time: the numbers are exact and the same on
every machine. One ring has one sender per output port, and its queues stay short; rings of different orders collide;
and when all send everything to one host, they pile up at its port. NICs do not react to marks. Usage::

    python benchmarks/switch_ports.py [--hosts 4] [--mib 1] [--timeline] [--json] [--figure ports.svg]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from netreduce.collectives.algorithms import Algorithm, Tuning
from netreduce.fabric import EcnMarking
from netreduce.soak.engines import EngineRig, EngineRigSettings
from netreduce.soak.port_watch import PortWatch
from netreduce.switch import SwitchLimits
from netreduce.units import KIB, MIB, PS_PER_US

INTERVAL_PS = 5 * PS_PER_US
TIMELINE_PS = 100 * PS_PER_US
EGRESS_BYTES = 1 * MIB
MARKING = EcnMarking(kmin_bytes=100 * KIB, kmax_bytes=400 * KIB, p_max=0.2)

Case = tuple[str, Algorithm, Tuning]


def cases(hosts: int) -> Iterator[Case]:
    """What is compared: a name, the algorithm, and the channels of a ring."""
    forward = tuple(range(hosts))
    backward = forward[::-1]
    crossed = forward[::2] + forward[1::2]
    yield "ring, one channel", Algorithm.RING, Tuning(channels=(forward,))
    yield "ring, four channels of one order", Algorithm.RING, Tuning(channels=(forward,) * 4)
    yield "ring, two channels, one each way", Algorithm.RING, Tuning(channels=(forward, backward))
    yield "ring, three channels of different orders", Algorithm.RING, Tuning(channels=(forward, backward, crossed))
    yield "tree", Algorithm.TREE, Tuning()
    yield "halving", Algorithm.HALVING, Tuning()
    yield "all to one host, the naive way", Algorithm.CENTRAL, Tuning()
    yield "netreduce", Algorithm.NETREDUCE, Tuning()


def watch(case: Case, hosts: int, length_bytes: int) -> tuple[dict[str, object], PortWatch]:
    """Run one all-reduce; what it took, and the watch that saw it."""
    name, algorithm, tuning = case
    limits = SwitchLimits(egress_bytes=EGRESS_BYTES)
    rig = EngineRig(EngineRigSettings(hosts, tuning=tuning, ecn=MARKING, switch_limits=limits))
    port_watch = PortWatch(rig, INTERVAL_PS)
    arrays = [np.full(length_bytes // 4, 1 << rank, np.float32) for rank in range(hosts)]
    took_ps = rig.run(
        [engine.all_reduce(array, algorithm=algorithm) for engine, array in zip(rig.engines, arrays, strict=True)]
    )
    assert all(np.all(array == (1 << hosts) - 1) for array in arrays)
    summaries = list(port_watch.summaries())
    row = {
        "algorithm": name,
        "time_us": round(took_ps / PS_PER_US, 1),
        "busiest_port_mib": round(max(s.data_bytes for s in summaries) / MIB, 2),
        "senders": max(s.senders for s in summaries),
        "queue_kib": round(max(s.queue_bytes for s in summaries) / KIB),
        "marked": sum(s.marked for s in summaries),
        "dropped": sum(s.dropped for s in summaries),
        "sent_again": sum(nic.counters()["retransmitted_pkts"] for nic in rig.nics),
    }
    return row, port_watch


def timeline(port_watch: PortWatch, port: int) -> Iterator[str]:
    """Port `port` over time, in lines."""
    steps = TIMELINE_PS // INTERVAL_PS
    samples = port_watch.samples[port]
    for first in range(0, max(samples, default=-1) + 1, steps):
        group = [samples[i] for i in range(first, first + steps) if i in samples]
        sent = {host: sum(s.bytes_from.get(host, 0) for s in group) for s in group for host in s.bytes_from}
        shares = ", ".join(f"host {host}: {count / KIB:.0f} KiB" for host, count in sorted(sent.items())) or "nothing"
        queue = max((s.queue_bytes for s in group), default=0) / KIB
        marked, dropped = sum(s.marked for s in group), sum(s.dropped for s in group)
        start_us = first * INTERVAL_PS // PS_PER_US
        yield f"{start_us:7} us  queue {queue:5.0f} KiB  marked {marked:4}  dropped {dropped:4}  from {shares}"


def figure(watches: dict[str, PortWatch], path: Path) -> None:
    """The busiest port of each run over time: rate by sending host, and the queue, crossed where it drops."""
    from netreduce.cli.plots import pyplot, save

    plot = pyplot()
    drawn, axes = plot.subplots(2, len(watches), figsize=(3.2 * len(watches), 4.4), sharey="row", squeeze=False)
    for (name, port_watch), rates, queue in zip(watches.items(), axes[0], axes[1], strict=True):
        busiest = max(port_watch.summaries(), key=lambda summary: (summary.queue_bytes, summary.data_bytes)).port
        samples = port_watch.samples[busiest]
        numbers = range(max(samples) + 1)
        times_us = [number * INTERVAL_PS / PS_PER_US for number in numbers]
        hosts = sorted({host for sample in samples.values() for host in sample.bytes_from})
        gbps = [[8 * samples[n].bytes_from[host] * 1000 / INTERVAL_PS for n in numbers] for host in hosts]
        rates.stackplot(
            times_us, gbps, labels=[f"host {host}" for host in hosts], colors=[f"C{h}" for h in hosts], step="post"
        )
        rates.set(title=f"{name}\n(port {busiest})", ylim=(0, 135))
        rates.title.set_fontsize("medium")
        rates.legend(fontsize="small", loc="upper center", ncols=3, handlelength=1, columnspacing=1)
        queue.step(times_us, [samples[n].queue_bytes / KIB for n in numbers], where="post", color="0.3")
        dropping = [n for n in numbers if samples[n].dropped]
        queue.plot([times_us[n] for n in dropping], [samples[n].queue_bytes / KIB for n in dropping], "kx")
        queue.set(xlabel="time (us)")
    axes[0][0].set(ylabel="leaving the port (Gb/s)")
    axes[1][0].set(ylabel="queue (KiB)")
    save(drawn, path)


DRAWN = ("ring, one channel", "ring, three channels of different orders", "all to one host, the naive way", "netreduce")


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--mib", type=int, default=1, help="buffer of each host")
    parser.add_argument("--timeline", action="store_true", help="also port 0 over time, in steps of 100 us")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figure", type=Path, help="draw four of the runs there, as SVG or PNG")
    options = parser.parse_args()
    rows = []
    watches = {}
    if not options.json:
        print(
            "| all-reduce | time, us | busiest port, MiB | most senders to a port | deepest queue, KiB | marked |",
            end="",
        )
        print(" dropped | sent again |\n|---|--:|--:|--:|--:|--:|--:|--:|")
    for case in cases(options.hosts):
        row, port_watch = watch(case, options.hosts, options.mib * MIB)
        rows.append(row)
        if case[0] in DRAWN:
            watches[case[0]] = port_watch
        if not options.json:
            print("| " + " | ".join(str(value) for value in row.values()) + " |", flush=True)
        if options.timeline:
            print(*timeline(port_watch, 0), sep="\n", flush=True)
    if options.figure:
        figure(watches, options.figure)
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
