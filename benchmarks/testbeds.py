"""The paper's testbeds, packet by packet: runs examples/testbed-*.toml, fills tables of docs/reproduction.md, draws.

    python benchmarks/testbeds.py                # a few minutes; figures in docs/figures
    python benchmarks/testbeds.py --speed        # 64 workers, 100 MB, packets of 4 KiB: how fast the simulator is

Times are virtual, so every machine writes the same tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from reproduction import DOCS, FIGURES, table, with_tables

EXAMPLES = Path(__file__).parent.parent / "examples"
SIX, FOUR, RACK = "testbed-six-machines", "testbed-four-by-eight", "testbed-rack-of-64"
PUBLISHED = {
    ("plain", "trip"): "5.7",
    ("plain", "goodput"): "84",
    ("netreduce", "trip"): "6.3",
    ("netreduce", "goodput"): "93",
}
TITLES = {"plain": "plain RoCE, no detour", "netreduce": "NetReduce, through the middlebox", "ring": "flat ring"}

Row = dict[str, Any]


def simulate(name: str, *options: str) -> None:
    """`netreduce sim` on one of the examples, with its progress."""
    command = [sys.executable, "-m", "netreduce", "sim", str(EXAMPLES / f"{name}.toml"), *options]
    subprocess.run(command, check=True)


@cache
def rows_of(name: str) -> tuple[Row, ...]:
    """The results, after drawing the figure."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        simulate(name, "--json", str(results), "--plot", str(FIGURES / f"{name}.svg"))
        return tuple(json.loads(results.read_text()))


def six_table() -> str:
    """Round trips of messages of 4 bytes, and goodput of a port."""
    cells = []
    for way, title in TITLES.items():
        mine = [row for row in rows_of(SIX) if row["way"] == way]
        trip = next((f"{row['time_s'] * 1e6:.2f}" for row in mine if row["size_bytes"] == 4), "")
        small, large = mine[-2:]
        carried = large["size_bytes"] - small["size_bytes"]  # so that neither start nor end count
        rate_gbps = carried * 8 / (large["time_s"] - small["time_s"]) / 1e9
        if way == "ring":
            rate_gbps = large["busbw"] * 8 / 1e9
        said = [PUBLISHED.get((way, what), "") for what in ("trip", "goodput")]
        cells.append([title, trip, said[0], f"{rate_gbps:.1f}", said[1]])
    return table(["messages", "round trip (us)", "published", "goodput of a port (Gb/s)", "published"], cells)


def scheme_table(entry: int, column: str, show: str, heading: str) -> str:
    """Times and closed forms of the three schemes for one entry of the second testbed."""
    mine = [row | {"workers": row["machines"] * row["gpus"]} for row in rows_of(FOUR) if row["run"] == entry]
    cells = []
    for value in dict.fromkeys(row[column] for row in mine):
        found = {row["way"]: row for row in mine if row[column] == value}
        times = [f"{found[way]['time_s'] * 1e3:.3g} ({found[way]['closed_form_s'] * 1e3:.3g})" for way in SCHEMES]
        ratios = [f"{found[way]['time_s'] / found['parallel']['time_s']:.2f}" for way in SCHEMES[:2]]
        faster = min(SCHEMES, key=lambda way: found[way]["time_s"])
        cells.append([show.format(value / SCALES.get(column, 1)), *times, *ratios, SCHEME_TITLES[faster]])
    titles = [f"{SCHEME_TITLES[way]} (ms)" for way in SCHEMES]
    return table([heading, *titles, "ring / PN", "Tencent / PN", "fastest"], cells)


SCHEMES: Sequence[str] = ("ring", "leaders", "parallel")
SCHEME_TITLES = {"ring": "flat ring", "leaders": "Tencent", "parallel": "PN"}
SCALES = {"inside_bps": 8e9, "size_bytes": 1e6}
TABLES = {
    "packets-six": six_table,
    "packets-workers": partial(scheme_table, 0, "workers", "{:.0f}", "workers"),
    "packets-inside": partial(scheme_table, 1, "inside_bps", "{:g}", "B inside (GB/s)"),
    "packets-size": partial(scheme_table, 2, "size_bytes", "{:g}", "size (MB)"),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="only run the large all-reduce, and tell how fast it was")
    if parser.parse_args().speed:
        simulate(RACK)
        return
    path = DOCS / "reproduction.md"
    path.write_text(with_tables(path.read_text(), TABLES))


if __name__ == "__main__":
    main()
