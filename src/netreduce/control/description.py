"""Topologies described in a TOML file; docs/topology.md explains each field by an example."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path

from netreduce import quantities
from netreduce.control.topology import CableEntry, HostEntry, SwitchEntry, Topology
from netreduce.errors import ConfigurationError
from netreduce.toml_files import Fields, read, within
from netreduce.units import PS_PER_S


class DefaultFields(Fields, frozen=True):
    """What entries take that say nothing else. Rates as "100Gbps" or "12.5GB/s", times as "1us", sizes as "64MiB"."""

    rate: str = "100Gbps"
    latency: str = "1us"
    memory: str | None = None
    ring_memory: str | None = None
    rings: int | None = None


class SwitchFields(Fields, frozen=True):
    """One switch, or with `count` so many, whose names are `name` and a number from 0 on."""

    name: str
    count: int | None = None
    level: int = 0
    memory: str | None = None
    ring_memory: str | None = None
    rings: int | None = None


class RackFields(Fields, frozen=True):
    """Hosts under one switch: their names, or how many; then they are the next of `worker0`, `worker1` and so on."""

    switch: str
    hosts: tuple[str, ...] | int
    rate: str | None = None
    latency: str | None = None


class LinkFields(Fields, frozen=True):
    """A cable between two switches, or between all whose names match, as in ["leaf*", "spine*"]."""

    ends: tuple[str, str]
    rate: str | None = None
    latency: str | None = None


class Description(Fields, frozen=True):
    """A whole file."""

    title: str = ""
    defaults: DefaultFields = DefaultFields()
    switch: tuple[SwitchFields, ...] = ()
    rack: tuple[RackFields, ...] = ()
    link: tuple[LinkFields, ...] = ()


def load(path: Path) -> Topology:
    """The topology in a file. Raises ConfigurationError that names the file, the line or entry, and the reason."""
    return within(path, topology_of, read(path, Description))


def topology_of(description: Description) -> Topology:
    """The described topology. Raises ConfigurationError that names the entry."""
    switches = [entry for fields in description.switch for entry in _switches(fields, description.defaults)]
    numbers = count()
    hosts = [entry for fields in description.rack for entry in _hosts(fields, description.defaults, numbers)]
    names = [switch.name for switch in switches]
    cables = [entry for fields in description.link for entry in _cables(fields, description.defaults, names)]
    return Topology(tuple(hosts), tuple(switches), tuple(cables), description.title)


def _switches(fields: SwitchFields, defaults: DefaultFields) -> Iterator[SwitchEntry]:
    where = f"switch {fields.name}"
    if fields.count is not None and fields.count < 1:
        raise ConfigurationError(f"{where}: count is {fields.count}, at least 1 is needed")
    memory, ring_memory = fields.memory or defaults.memory, fields.ring_memory or defaults.ring_memory
    names = [fields.name] if fields.count is None else [f"{fields.name}{i}" for i in range(fields.count)]
    for name in names:
        yield SwitchEntry(
            name,
            fields.level,
            within(where, quantities.size, memory) if memory else None,
            within(where, quantities.size, ring_memory) if ring_memory else None,
            defaults.rings if fields.rings is None else fields.rings,
        )


def _hosts(fields: RackFields, defaults: DefaultFields, numbers: Iterator[int]) -> Iterator[HostEntry]:
    where = f"rack of {fields.switch}"
    rate_bps, delay_ps = _line(where, fields.rate or defaults.rate, fields.latency or defaults.latency)
    names = fields.hosts
    if isinstance(names, int):
        names = tuple(f"worker{next(numbers)}" for _ in range(names))
    if not names:
        raise ConfigurationError(f"{where}: it has no hosts")
    for name in names:
        yield HostEntry(name, fields.switch, rate_bps, delay_ps)


def _cables(fields: LinkFields, defaults: DefaultFields, names: list[str]) -> Iterator[CableEntry]:
    where = f"link {fields.ends[0]}--{fields.ends[1]}"
    rate_bps, delay_ps = _line(where, fields.rate or defaults.rate, fields.latency or defaults.latency)
    ends = [[name for name in names if fnmatchcase(name, end)] for end in fields.ends]
    for end, found in zip(fields.ends, ends, strict=True):
        if not found:
            raise ConfigurationError(f"{where}: there is no switch {end!r}")
    for one in ends[0]:
        for other in ends[1]:
            yield CableEntry((one, other), rate_bps, delay_ps)


def _line(where: str, rate: str, latency: str) -> tuple[int, int]:
    """Bits a second and picoseconds."""
    seconds = within(where, quantities.duration, latency)
    return round(within(where, quantities.rate, rate) * 8), round(seconds * PS_PER_S)
