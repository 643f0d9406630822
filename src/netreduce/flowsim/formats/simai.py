"""SimAI's topology files: a line of counts, a line of switch numbers, then a line per link.

"nodes gpus_per_server nvswitches switches links gpu_type", the numbers of all switches with the NVSwitches first, and
"source sink 400Gbps 0.0005ms error_rate"; links work both ways. GPUs are the nodes that are no switches.
"""

from __future__ import annotations

from pathlib import Path

from netreduce import quantities
from netreduce.errors import ConfigurationError
from netreduce.flowsim.formats.lines import Lines
from netreduce.flowsim.graph import Edge, Graph


def read(path: Path) -> Graph:
    """The described network, with the GPUs as hosts. Raises ConfigurationError that names the line."""
    lines = Lines(path)
    rows = iter(lines)
    header = next(rows, [])
    if len(header) < 6:
        lines.fail("must begin with: nodes gpus_per_server nvswitches switches links gpu_type")
    names = ("nodes", "gpus_per_server", "nvswitches", "switches", "links")
    nodes, _, nvswitches, others, count = (lines.integer(word, what) for word, what in zip(header, names, strict=False))
    switches = [lines.integer(word, "switch") for word in next(rows, [])]
    if len(switches) != nvswitches + others:
        lines.fail(f"names {len(switches)} switches, but there are {nvswitches} NVSwitches and {others} others")
    label = {node: f"gpu{node}" for node in range(nodes)}
    for place, switch in enumerate(switches):
        if switch >= nodes:
            lines.fail(f"switch {switch} is none of the {nodes} nodes")
        label[switch] = f"nvswitch{switch}" if place < nvswitches else f"switch{switch}"
    edges: list[Edge] = []
    for words in rows:
        if len(words) < 4:
            lines.fail("a link needs: source sink rate latency")
        ends = [lines.integer(word, "node") for word in words[:2]]
        if any(end >= nodes for end in ends):
            lines.fail(f"node {max(ends)} is none of the {nodes} nodes")
        try:
            rate, latency_s = quantities.rate(words[2]), quantities.duration(words[3])
        except ConfigurationError as error:
            lines.fail(str(error))
        a, b = (label[end] for end in ends)
        edges += [(a, b, rate, latency_s), (b, a, rate, latency_s)]
    if len(edges) != 2 * count:
        lines.fail(f"the file has {len(edges) // 2} links, its first line says {count}")
    return Graph([label[node] for node in range(nodes) if node not in set(switches)], edges, f"SimAI {path.name}")
