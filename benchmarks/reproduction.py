"""The paper's comparisons as runs of our own: figures in docs/figures, tables in docs/reproduction.md.

    python benchmarks/reproduction.py            # draws and writes everything anew
    python benchmarks/reproduction.py --check    # only tells whether the tables are what the simulator gives

Nothing here is fitted to the paper. What the paper does not state (buffer sizes, batch sizes) is an input, stated in
the document.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from netreduce.cli.plots import pyplot, save
from netreduce.flowsim import aggregators
from netreduce.flowsim.cluster import Cluster, Inside
from netreduce.flowsim.fabrics import single_switch
from netreduce.flowsim.packets import UNTAXED, roce
from netreduce.flowsim.pricing import Price, Pricer
from netreduce.flowsim.schemes import SCHEMES, Scheme
from netreduce.flowsim.traffic import Settings
from netreduce.flowsim.workloads import iteration
from netreduce.flowsim.workloads.models import model_named

DOCS = Path(__file__).parent.parent / "docs"
FIGURES = DOCS / "figures"

ETHERNET = 12.5e9
RANKS = (32, 64, 128, 256, 512, 1024)
ALPHAS_S = (0.1e-6, 0.3e-6, 1e-6, 3e-6, 10e-6, 30e-6, 100e-6)
INSIDES = (15.75e9, 20e9, 23.4e9, 30e9, 40e9, 50e9, 75e9, 100e9)
NVLINK = 150e9
SIZE = 100_000_000
THREE = {"ring": "flat ring", "leaders": "Tencent", "parallel": "Parallel NetReduce"}
COLOURS = {"ring": "#d1703c", "leaders": "#8a6bb1", "parallel": "#2b7a9b"}
LIMITLESS = aggregators.netreduce(window=1_000, memory_bytes=1e12)
"""Parallel NetReduce as the formula has it: whatever is in flight, the switch holds it."""

NETREDUCE_TESTBED = aggregators.netreduce(memory_bytes=993 * 36 * 1024 / 8, detour_s=0.6e-6)
"""The FPGA beside a switch: 993 blocks of 36 Kbit, and 6.3 us of round trip where plain RoCE has 5.7."""
TESTBED_LATENCY_S = 5.7e-6 / 4
"""Of each of the four links of a round trip."""
TESTBED: dict[str, Scheme] = {
    "ring": SCHEMES["ring"],
    "netreduce": replace(SCHEMES["netreduce"], aggregator=NETREDUCE_TESTBED),
    # "roughly half NetReduce's throughput": half of 93 Gb/s.
    "switchml": replace(SCHEMES["switchml"], aggregator=aggregators.switchml(host_capacity=46.5e9 / 8)),
    "atp": replace(SCHEMES["atp"], aggregator=aggregators.atp(host_capacity=50.3e9 / 8, host_s=751e-6)),
}


def simulated(
    name: str, ranks: int, alpha_s: float, inside: float, size: int = SIZE, *, limitless: bool = False
) -> Price:
    """A point of the paper's simulation: 8 workers a machine, 12.5 GB/s Ethernet, alpha on every hop of a ring."""
    # A hop crosses two links; links inside a machine have bandwidth only, as in the cost model.
    fabric = single_switch(ranks // 8, capacity=ETHERNET, latency_s=alpha_s / 2)
    cluster = Cluster(fabric, Inside(8, inside, latency_s=0.0))
    scheme = replace(SCHEMES[name], aggregator=LIMITLESS) if limitless else SCHEMES[name]
    return Pricer(scheme, cluster, Settings(UNTAXED)).price(size)


@cache
def on_testbed(name: str) -> Pricer:
    """The first test bed: six single-GPU machines on 100 Gb/s Ethernet, packets of 1 KiB."""
    cluster = Cluster(single_switch(6, capacity=ETHERNET, latency_s=TESTBED_LATENCY_S))
    return Pricer(TESTBED[name], cluster, Settings(roce(1024)))


@cache
def on_nvlink(name: str) -> Pricer:
    """The second test bed: 4 machines of 8 V100, NVLink at 150 GB/s, one 100 Gb/s port."""
    fabric = single_switch(4, capacity=ETHERNET, latency_s=TESTBED_LATENCY_S)
    return Pricer(SCHEMES[name], Cluster(fabric, Inside(8, 150e9)), Settings(roce(1024)))


@cache
def seconds(pricer: Pricer, size: int) -> float:
    return pricer.price(size).time_s


def trained(pricer: Pricer, model: str, compute_s: float | None = None, *, overlap: bool) -> iteration.Iteration:
    """An iteration of a model with DDP."""
    described = model_named(model)
    compute_s = compute_s or described.measured.iteration_s
    return iteration.ddp(described, compute_s, partial(seconds, pricer), overlap=overlap)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def milliseconds(value: float) -> str:
    return f"{value * 1e3:.3g}"


def ranks_table() -> str:
    rows = []
    for ranks in RANKS:
        ring, leaders, parallel = (simulated(name, ranks, 1e-6, 100e9).time_s for name in THREE)
        ratios = [f"{ring / parallel:.2f}", f"{leaders / parallel:.2f}"]
        rows.append([str(ranks), *map(milliseconds, (ring, leaders, parallel)), *ratios])
    return table(["workers", "flat ring (ms)", "Tencent (ms)", "PN (ms)", "ring / PN", "Tencent / PN"], rows)


def inside_table() -> str:
    rows = []
    for inside in (*INSIDES, NVLINK):
        ring, leaders, parallel = (simulated(name, 32, 1e-6, inside).time_s for name in THREE)
        faster = "flat ring" if ring < parallel else "Parallel NetReduce"
        ratios = [f"{ring / parallel:.2f}", f"{leaders / parallel:.2f}", faster]
        rows.append([f"{inside / 1e9:g}", *map(milliseconds, (ring, leaders, parallel)), *ratios])
    heading = ["B inside (GB/s)", "flat ring (ms)", "Tencent (ms)", "PN (ms)", "ring / PN", "Tencent / PN", "faster"]
    return table(heading, rows)


def alpha_table() -> str:
    rows = []
    for size in (1_000_000, SIZE):
        for alpha_s in (0.1e-6, 1e-6, 10e-6, 100e-6):
            times = [simulated(name, 1024, alpha_s, 100e9, size).time_s for name in THREE]
            times.append(simulated("parallel", 1024, alpha_s, 100e9, size, limitless=True).time_s)
            ratios = [f"{times[0] / times[2]:.2f}", f"{times[1] / times[2]:.2f}"]
            rows.append([f"{size // 1_000_000} MB", f"{alpha_s * 1e6:g}", *map(milliseconds, times), *ratios])
    unlimited = "PN, any window (ms)"
    heading = [
        "size",
        "alpha (us)",
        "flat ring (ms)",
        "Tencent (ms)",
        "PN (ms)",
        unlimited,
        "ring / PN",
        "Tencent / PN",
    ]
    return table(heading, rows)


def throughput_table() -> str:
    published = {
        "ring": "84 Gb/s plain RoCE",
        "netreduce": "93 % of 100 Gb/s, 6.3 us",
        "switchml": "roughly half of NetReduce",
        "atp": "50.3 Gb/s, 751 us",
    }
    rows = []
    for name, scheme in TESTBED.items():
        pricer = on_testbed(name)
        much, little = pricer.price(600_000_000), pricer.price(1024 * 6)
        rate = much.busbw if name == "ring" else much.algbw
        rows.append([scheme.title, f"{rate * 8 / 1e9:.1f}", f"{little.time_s * 1e6:.1f}", published[name]])
    heading = ["scheme", "goodput of a port (Gb/s)", "6 KiB all-reduce (us)", "published"]
    return table(heading, rows)


def share_table() -> str:
    published = {"alexnet": "77.7 %", "vgg16": "not found", "resnet50": "25.8 %"}
    rows = []
    for name, said in published.items():
        model, found = model_named(name), trained(on_testbed("ring"), name, overlap=False)
        part = float(said.rstrip(" %")) / 100 if said[0].isdigit() else 0.0
        batch = ""
        if part:
            compute_s = found.communication_s * (1 - part) / part
            batch = f"{compute_s * model.measured.samples_per_s:.0f}"
        rows.append(
            [model.title, str(model.measured.batch), milliseconds(found.compute_s), milliseconds(found.communication_s),
             f"{found.share:.1%}", said, batch]
        )  # fmt: skip
    heading = ["model", "batch", "computing (ms)", "ring (ms)", "share", "published", "ours is that at batch"]
    return table(heading, rows)


def speedup_table() -> str:
    published = {
        "alexnet": "1.70",
        "vgg16": "not found",
        "resnet50": "1.069 to 1.151",
        "bert-large": "all models: up to 1.688 (ring)",
        "gpt2": "all models: 1.123 to 1.579 (Tencent)",
    }
    rows = []
    for name, said in published.items():
        single = name in ("alexnet", "vgg16", "resnet50")
        place: Callable[[str], Pricer] = on_testbed if single else on_nvlink
        ours = "netreduce" if single else "parallel"
        cells = []
        for rival in ("ring", "switchml", "atp") if single else ("ring", "leaders"):
            for overlap in (False, True):
                slow, fast = (trained(place(scheme), name, overlap=overlap).total_s for scheme in (rival, ours))
                cells.append(f"{slow / fast:.2f}")
        pairs = [f"{a} / {b}" for a, b in zip(cells[::2], cells[1::2], strict=True)]
        rows.append([model_named(name).title, *(pairs if single else [pairs[0], "", "", pairs[1]]), said])
        if single:
            rows[-1].insert(4, "")
    heading = ["model", "against ring", "against SwitchML", "against ATP", "against Tencent", "published"]
    return table(heading, rows)


TABLES: dict[str, Callable[[], str]] = {
    "ranks": ranks_table,
    "inside": inside_table,
    "alpha": alpha_table,
    "throughput": throughput_table,
    "share": share_table,
    "speedup": speedup_table,
}


def with_tables(document: str, tables: Mapping[str, Callable[[], str]] = TABLES) -> str:
    """The document with each block between <!-- name --> and <!-- /name --> filled anew."""
    for name, make in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = document.split(begin)
        after = rest.split(end)[1]
        document = f"{before}{begin}\n{make()}\n{end}{after}"
    return document


def draw_ranks() -> None:
    plot = pyplot()
    figure, axes = plot.subplots(figsize=(6.4, 4))
    for name, title in THREE.items():
        times = [simulated(name, ranks, 1e-6, 100e9).time_s * 1e3 for ranks in RANKS]
        axes.plot(RANKS, times, marker="o", color=COLOURS[name], label=title)
    axes.set(xscale="log", xlabel="workers (8 a machine)", ylabel="all-reduce of 100 MB (ms)", ylim=(0, None))
    axes.set_xticks(RANKS, map(str, RANKS))
    axes.legend()
    axes.grid(alpha=0.3)
    save(figure, FIGURES / "time-against-workers.svg")


def draw_alpha() -> None:
    plot = pyplot()
    figure, both = plot.subplots(1, 2, figsize=(9, 4))
    for axes, size in zip(both, (1_000_000, SIZE), strict=True):
        for name, title in THREE.items():
            times = [simulated(name, 1024, alpha_s, 100e9, size).time_s * 1e3 for alpha_s in ALPHAS_S]
            axes.plot([a * 1e6 for a in ALPHAS_S], times, marker="o", color=COLOURS[name], label=title)
        times = [simulated("parallel", 1024, a, 100e9, size, limitless=True).time_s * 1e3 for a in ALPHAS_S]
        label = "the same with any window"
        axes.plot([a * 1e6 for a in ALPHAS_S], times, linestyle=":", color=COLOURS["parallel"], label=label)
        title = f"{size // 1_000_000} MB, 1,024 workers"
        axes.set(xscale="log", yscale="log", xlabel="latency of a hop (us)", title=title)
        axes.grid(alpha=0.3)
    both[0].set(ylabel="all-reduce (ms)")
    both[0].legend()
    save(figure, FIGURES / "time-against-latency.svg")


def draw_inside() -> None:
    plot = pyplot()
    figure, axes = plot.subplots(figsize=(6.4, 4))
    for name, title in THREE.items():
        times = [simulated(name, 32, 1e-6, inside).time_s * 1e3 for inside in INSIDES]
        axes.plot([inside / 1e9 for inside in INSIDES], times, marker="o", color=COLOURS[name], label=title)
    # 2(n-1)/n x P/(P-2) times the port's bandwidth, for n = 8 and P = 32.
    crossing = 2 * 7 / 8 * 32 / 30 * ETHERNET / 1e9
    axes.axvspan(INSIDES[0] / 1e9, crossing, color="#d1703c", alpha=0.15)
    axes.text(crossing * 1.02, 2, "left of here the flat ring is faster", fontsize=9)
    axes.set(xlabel="bandwidth inside a machine (GB/s)", ylabel="all-reduce of 100 MB, 32 workers (ms)", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    save(figure, FIGURES / "time-against-inside.svg")


def draw_share() -> None:
    plot = pyplot()
    figure, axes = plot.subplots(figsize=(6.4, 4))
    batches = (4, 8, 16, 32, 64, 128, 256)
    published = {"alexnet": 0.777, "resnet50": 0.258}
    for number, name in enumerate(("alexnet", "vgg16", "resnet50")):
        model = model_named(name)
        shares = [
            trained(on_testbed("ring"), name, batch / model.measured.samples_per_s, overlap=False).share * 100
            for batch in batches
        ]
        axes.plot(batches, shares, marker="o", color=f"C{number}", label=model.title)
        if name in published:
            label = f"{model.title}, published (batch not known)"
            axes.axhline(published[name] * 100, color=f"C{number}", linestyle=":", label=label)
    axes.set(xscale="log", xlabel="samples per worker", ylabel="communication's share with a ring (%)", ylim=(0, 100))
    axes.set_xticks(batches, map(str, batches))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    save(figure, FIGURES / "share-of-communication.svg")


def draw_speedup() -> None:
    plot = pyplot()
    figure, axes = plot.subplots(figsize=(7.5, 4))
    names = ("alexnet", "vgg16", "resnet50", "bert-large", "gpt2")
    for number, name in enumerate(names):
        single = name in ("alexnet", "vgg16", "resnet50")
        place, ours = (on_testbed, "netreduce") if single else (on_nvlink, "parallel")
        for offset, overlap in ((-0.2, False), (0.2, True)):
            slow, fast = (trained(place(scheme), name, overlap=overlap).total_s for scheme in ("ring", ours))
            axes.bar(number + offset, slow / fast, 0.38, color="#2b7a9b" if overlap else "#9cc5d6")
    axes.plot([-0.4, 0.4], [1.70, 1.70], color="#d1703c", linewidth=2, label="published for AlexNet and ResNet-50")
    axes.fill_between([1.6, 2.4], 1.069, 1.151, color="#d1703c", alpha=0.6)
    axes.bar(0, 0, color="#9cc5d6", label="without overlap")
    axes.bar(0, 0, color="#2b7a9b", label="overlapped with the backward pass")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(names)), [model_named(name).title for name in names])
    axes.set(ylabel="iteration with a flat ring / with NetReduce", ylim=(0.9, 1.8))
    axes.legend()
    save(figure, FIGURES / "speed-up-per-model.svg")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the tables, write nothing")
    check = parser.parse_args().check
    path = DOCS / "reproduction.md"
    document = path.read_text()
    filled = with_tables(document)
    if check:
        print("tables are up to date" if filled == document else f"{path} is out of date: run {__file__}")
        return int(filled != document)
    path.write_text(filled)
    FIGURES.mkdir(exist_ok=True)
    for draw in (draw_ranks, draw_alpha, draw_inside, draw_share, draw_speedup):
        draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
