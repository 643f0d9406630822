"""Goodput against loss: `pass` and `hold`, the switch's two gap policies, and a ring between the hosts.

Virtual time, so every machine prints the same numbers; `tests/snapshots` compares some of them. Usage::

    python benchmarks/goodput.py [--json] [--write tests/snapshots/goodput.json]
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

from netreduce.soak.goodput import LOSSES, METHODS, all_reduce_ps, goodput_gbps
from netreduce.units import MIB

WORLD_SIZE = 4
LENGTH_BYTES = MIB
SEEDS = range(5)

Times = dict[str, dict[str, list[int | None]]]
"""Virtual time of each seed's run, by method and loss."""


def measure() -> Times:
    """All runs; None where a queue pair gave up."""
    found: Times = {}
    for name, method in METHODS.items():
        found[name] = {}
        for loss in LOSSES:
            found[name][f"{loss:g}"] = [
                all_reduce_ps(method, loss, seed, world_size=WORLD_SIZE, length_bytes=LENGTH_BYTES) for seed in SEEDS
            ]
            gc.collect()  # each run's tables are a cycle
    return found


def table(found: Times) -> str:
    """Goodput in Gb/s as a table of Markdown; runs that gave up are told."""
    lines = ["| loss | " + " | ".join(METHODS) + " |", "|--:|" + "--:|" * len(METHODS)]
    for loss in (f"{loss:g}" for loss in LOSSES):
        cells = []
        for name in METHODS:
            times = [time_ps for time_ps in found[name][loss] if time_ps is not None]
            gave_up = len(SEEDS) - len(times)
            rate = f"{goodput_gbps(LENGTH_BYTES, times):.2f}" if times else "0"
            cells.append(f"{rate} ({gave_up} of {len(SEEDS)} gave up)" if gave_up else rate)
        lines.append(f"| {loss} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="write the runs' virtual times there")
    options = parser.parse_args()
    found = measure()
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if options.json else table(found))


if __name__ == "__main__":
    main()
