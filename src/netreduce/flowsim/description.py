"""Clusters and scenarios described in a TOML file. docs/flowsim.md explains each field by an example."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from netreduce import quantities
from netreduce.errors import ConfigurationError
from netreduce.flowsim.cluster import Cluster, Inside
from netreduce.flowsim.fabrics import Fabric, FatTree, leaf_spine, rail_optimised, single_switch
from netreduce.flowsim.graph import Graph
from netreduce.flowsim.links import Change
from netreduce.flowsim.packets import UNTAXED, roce
from netreduce.flowsim.scenario import Background, Job
from netreduce.flowsim.schemes import scheme_named
from netreduce.flowsim.traffic import Settings
from netreduce.toml_files import Fields, read

Kind = Literal["single-switch", "leaf-spine", "fat-tree", "rail", "graph"]


class ClusterFields(Fields, frozen=True):
    """Rates as "100Gbps" or "12.5GB/s", durations as "1us". `per_leaf` counts ports, or machines on a rail fabric."""

    fabric: Kind = "leaf-spine"
    machines: int = 32
    gpus: int = 1
    ports: int = 1
    port: str = "100Gbps"
    uplink: str | None = None
    latency: str = "1us"
    inside: str = "100GB/s"
    inside_latency: str = "500ns"
    per_leaf: int = 32
    spines: int = 32
    radix: int = 32


class LinkFields(Fields, frozen=True):
    """A link of a graph, in both directions unless `one_way`."""

    ends: tuple[str, str]
    rate: str
    latency: str = "1us"
    one_way: bool = False


class ChangeFields(Fields, frozen=True):
    """What is different about the links whose names match."""

    links: str
    factor: float = 1.0
    latency: str = "0s"


class JobFields(Fields, frozen=True):
    """`workers` as "0-15" or "0,2,4-7"; all of them by default."""

    scheme: str
    size: str
    name: str = ""
    workers: str = ""
    start: str = "0s"
    repeats: int = 1
    pause: str = "0s"
    late: dict[str, str] = msgspec.field(default_factory=dict)


class BackgroundFields(Fields, frozen=True):
    source: int
    sink: int
    size: str
    start: str = "0s"
    repeat: bool = False


class SettingsFields(Fields, frozen=True):
    """`payload`: bytes of a RoCE packet, 0 for links without header tax. `step`: software latency of a step."""

    payload: int = 1024
    step: str = "0s"


class Description(Fields, frozen=True):
    """A whole file."""

    cluster: ClusterFields = ClusterFields()
    settings: SettingsFields = SettingsFields()
    hosts: tuple[str, ...] = ()
    link: tuple[LinkFields, ...] = ()
    change: tuple[ChangeFields, ...] = ()
    job: tuple[JobFields, ...] = ()
    background: tuple[BackgroundFields, ...] = ()


def load(path: Path) -> Description:
    """Read a description. Raises ConfigurationError that names the file and the line or field."""
    return read(path, Description)


def cluster_of(description: Description) -> Cluster:
    """The described cluster, with its changes."""
    fields = description.cluster
    if fields.machines < 1 or fields.gpus < 1 or fields.ports < 1 or fields.per_leaf < 1:
        raise ConfigurationError("machines, gpus, ports and per-leaf must be at least 1")
    fabric = _fabric(description)
    if description.change:
        fabric.change([Change(c.links, c.factor, quantities.duration(c.latency)) for c in description.change])
    inside = Inside(fields.gpus, quantities.rate(fields.inside), quantities.duration(fields.inside_latency))
    return Cluster(fabric, inside, fields.ports)


def _fabric(description: Description) -> Fabric:
    fields = description.cluster
    common: dict[str, Any] = {
        "capacity": quantities.rate(fields.port),
        "latency_s": quantities.duration(fields.latency),
    }
    endpoints = fields.machines * fields.ports
    if fields.fabric == "single-switch":
        return single_switch(endpoints, **common)
    if fields.fabric == "fat-tree":
        return FatTree(endpoints, fields.radix, **common)
    if fields.fabric == "rail":
        return rail_optimised(fields.machines, fields.ports, fields.per_leaf, fields.spines, **common)
    if fields.fabric == "graph":
        edges = []
        for link in description.link:
            rate, latency_s = quantities.rate(link.rate), quantities.duration(link.latency)
            edges.append((*link.ends, rate, latency_s))
            if not link.one_way:
                edges.append((link.ends[1], link.ends[0], rate, latency_s))
        return Graph(description.hosts, edges)
    uplink = quantities.rate(fields.uplink) if fields.uplink else None
    return leaf_spine(endpoints, fields.per_leaf, fields.spines, uplink_capacity=uplink, **common)


def settings_of(description: Description) -> Settings:
    """Header tax and step latency."""
    fields = description.settings
    packets = roce(fields.payload) if fields.payload else UNTAXED
    return Settings(packets, quantities.duration(fields.step))


def jobs_of(description: Description, cluster: Cluster) -> list[Job]:
    """The described jobs; those without a name are numbered."""
    jobs = []
    for number, fields in enumerate(description.job):
        workers = _workers(fields.workers, cluster.worker_count)
        late = {int(rank): quantities.duration(text) for rank, text in fields.late.items()}
        if any(not 0 <= rank < len(workers) for rank in late):
            raise ConfigurationError(f"job {number}: late ranks must be 0 to {len(workers) - 1}")
        jobs.append(
            Job(
                fields.name or f"job{number}",
                scheme_named(fields.scheme),
                workers,
                quantities.size(fields.size),
                quantities.duration(fields.start),
                fields.repeats,
                quantities.duration(fields.pause),
                late,
            )
        )
    return jobs


def background_of(description: Description, cluster: Cluster) -> list[Background]:
    """The described background flows."""
    flows = []
    for fields in description.background:
        if fields.source == fields.sink or not all(
            0 <= end < cluster.worker_count for end in (fields.source, fields.sink)
        ):
            raise ConfigurationError(f"background from {fields.source} to {fields.sink}: no two workers of the cluster")
        start_s = quantities.duration(fields.start)
        flows.append(Background(fields.source, fields.sink, quantities.size(fields.size), start_s, fields.repeat))
    return flows


def _workers(text: str, count: int) -> np.ndarray:
    """ "0-3,8" as an array; all workers for ""."""
    if not text:
        return np.arange(count)
    workers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            workers.extend(range(int(first), int(last or first) + 1))
        except ValueError:
            raise ConfigurationError(f"workers {text!r}: write 0-15 or 0,2,4-7") from None
    if len(set(workers)) < len(workers) or not all(0 <= worker < count for worker in workers):
        raise ConfigurationError(f"workers {text!r}: each once, from 0 to {count - 1}")
    return np.array(workers)
