"""How many packets a second NICs and switch move together, on one core, in the simulator's loop.

A *passage* is one data packet's way from the sending NIC through the switch, its sum included, to the receiving NIC:
two frame-hops, four ends, counted once. ACKs are carried too and not counted, and the work of the programs
that post messages is part of the time. Seconds are the process's own CPU time, because one thread does it all and a
shared machine's clock measures its neighbours; the wall clock's rate stands beside it. Usage::

    python benchmarks/data_path.py [--ranks 4] [--mtu 1024] [--quantum-us 20] [--seconds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from netreduce.soak.program import Ring
from netreduce.soak.rig import Rig, RigSettings
from netreduce.units import PS_PER_S, PS_PER_US
from netreduce.wire.control import Geometry

TARGET_PASSAGES_PER_S = 500_000


class Watch:
    """CPU and wall-clock seconds since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """CPU seconds, wall-clock seconds."""
        return time.process_time() - self._cpu, time.perf_counter() - self._wall


def run(rig: Rig, ring: Ring, arrays: list[np.ndarray]) -> tuple[float, float]:
    """CPU and wall-clock seconds that one all-reduce of `arrays` takes."""
    ring.all_reduce(arrays)
    watch = Watch()
    rig.simulator.run_until(lambda: ring.done, limit_ps=PS_PER_S)
    return watch.read()


def frame_hops(rig: Rig) -> int:
    """Frames that lines have carried so far, ACKs included."""
    return sum(int(line.row.frames) for line in rig.simulator.lines)


def measure(ranks: int, geometry: Geometry, quantum_us: float, seconds: float) -> dict[str, float]:
    """Passages per second over repeated all-reduces for about `seconds`, and what was measured besides."""
    set_up = Watch()
    rig = Rig(RigSettings(world_size=ranks, quantum_ps=round(quantum_us * PS_PER_US)))
    ring = rig.ring(geometry)
    arrays = [np.ones(32 * geometry.message_data_bytes // 4, np.float32) for _ in range(ranks)]
    run(rig, ring, arrays)
    set_up_s = set_up.read()[1]
    runs: list[tuple[float, float]] = []
    virtual_ps, before, hops = rig.simulator.now_ps, rig.switch.counters(), frame_hops(rig)
    while sum(wall_s for _, wall_s in runs) < seconds:
        for array in arrays:
            array[:] = 1
        runs.append(run(rig, ring, arrays))
        assert not ring.errors, ring.errors
        assert all((array == ranks).all() for array in arrays)
    after = rig.switch.counters()
    passages = (after["packets_spliced"] - before["packets_spliced"]) // len(runs)
    cpu_s, wall_s = (sum(run[i] for run in runs) for i in range(2))
    return {
        "ranks": ranks,
        "path_mtu": geometry.path_mtu,
        "quantum_us": quantum_us,
        "set_up_s": round(set_up_s, 3),
        "passages": passages * len(runs),
        "passages_per_s": round(passages * len(runs) / cpu_s),
        "best_passages_per_s": round(passages / min(cpu_s for cpu_s, _ in runs)),
        "passages_per_wall_s": round(passages * len(runs) / wall_s),
        "frame_hops_per_s": round((frame_hops(rig) - hops) / cpu_s),
        "frames_in_per_s": round((after["packets_in"] - before["packets_in"]) / cpu_s),
        "payload_gbps": round(passages * len(runs) * geometry.path_mtu * 8 / cpu_s / 1e9, 3),
        "virtual_us_per_run": round((rig.simulator.now_ps - virtual_ps) / len(runs) / PS_PER_US, 1),
        "target_passages_per_s": TARGET_PASSAGES_PER_S,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mtu", type=int, default=1024)
    parser.add_argument("--message-packets", type=int, default=170, help="as in the paper, like the window")
    parser.add_argument("--message-window", type=int, default=2)
    parser.add_argument("--quantum-us", type=float, default=20.0, help="0: every frame at its own instant")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    geometry = Geometry(options.message_window, options.message_packets, options.mtu)
    result = measure(options.ranks, geometry, options.quantum_us, options.seconds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:>24}  {value:,}")


if __name__ == "__main__":
    main()
