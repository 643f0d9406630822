"""ASTRA-sim's analytical network description: dimensions of Ring, FullyConnected or Switch, in YAML.

topology, npus_count, bandwidth (GB/s) and latency (ns) are lists with one element per dimension; NPU i's place is i's
digits in the mixed radix of npus_count, first dimension fastest. Each link of a dimension has the given bandwidth each
way. Only these four keys are read, from lists in one line, which is how the files are written.
"""

from __future__ import annotations

import re
from pathlib import Path

from netreduce.flowsim.formats.lines import Lines
from netreduce.flowsim.graph import Edge, Graph

KEYS = ("topology", "npus_count", "bandwidth", "latency")
KINDS = ("Ring", "FullyConnected", "Switch")
ENDLESS = 1e15
"""Capacity of the link between an NPU and its own network logic, which forwards for others: no limit."""
NPUS_MAX = 1 << 16


def read(path: Path) -> Graph:
    """The described network, with the NPUs as hosts. Raises ConfigurationError that names the line."""
    lines = Lines(path)
    lists = _lists(lines)
    kinds, counts = lists["topology"], [lines.integer(word, "npus_count", 1) for word in lists["npus_count"]]
    rates = [lines.number_of(word, "bandwidth") * 1e9 for word in lists["bandwidth"]]
    latencies_s = [lines.number_of(word, "latency", or_zero=True) * 1e-9 for word in lists["latency"]]
    for kind in kinds:
        if kind not in KINDS:
            lines.fail(f"topology {kind!r} is none of {', '.join(KINDS)}")
    total = 1
    for count in counts:
        total *= count
    if not 2 <= total <= NPUS_MAX:
        lines.fail(f"{total} NPUs, must be 2 to {NPUS_MAX}")
    edges = [edge for npu in range(total) for edge in _both_ways(f"npu{npu}", f"npu{npu}.net", ENDLESS, 0.0)]
    stride = 1
    for dimension, (kind, count) in enumerate(zip(kinds, counts, strict=True)):
        for first in range(total):
            if first // stride % count == 0:
                group = [f"npu{first + place * stride}.net" for place in range(count)]
                edges += _group(kind, group, f"switch{dimension}.{first}", rates[dimension], latencies_s[dimension])
        stride *= count
    return Graph([f"npu{npu}" for npu in range(total)], edges, f"ASTRA-sim network {path.name}")


def _lists(lines: Lines) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for words in lines:
        match = re.fullmatch(r"(\w+):\s*\[(.*)\]", " ".join(words))
        if match and match[1] in KEYS:
            found[match[1]] = [word.strip() for word in match[2].split(",")]
        elif words[0].rstrip(":") in KEYS:
            lines.fail(f"{words[0]} must be followed by a list in brackets on the same line")
    for key in KEYS:
        if key not in found:
            lines.fail(f"the file ends without {key}")
        if len(found[key]) != len(found["topology"]):
            lines.fail(f"{key} has {len(found[key])} elements, topology {len(found['topology'])}")
    return found


def _group(kind: str, group: list[str], switch: str, rate: float, latency_s: float) -> list[Edge]:
    if len(group) == 1:
        return []
    if kind == "Switch":
        return [edge for node in group for edge in _both_ways(node, switch, rate, latency_s)]
    if kind == "Ring" and len(group) > 2:
        pairs = list(zip(group, [*group[1:], group[0]], strict=True))
    else:
        pairs = [(a, b) for number, a in enumerate(group) for b in group[number + 1 :]]
    return [edge for a, b in pairs for edge in _both_ways(a, b, rate, latency_s)]


def _both_ways(a: str, b: str, rate: float, latency_s: float) -> list[Edge]:
    return [(a, b, rate, latency_s), (b, a, rate, latency_s)]
