"""Testbeds described in a TOML file; docs/testbed.md explains each field by an example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from netreduce import quantities
from netreduce.errors import ConfigurationError
from netreduce.testbed.hardware import GEOMETRY, Case, Hardware, Middlebox
from netreduce.toml_files import Fields, parse, read, within
from netreduce.units import PS_PER_S
from netreduce.wire.control import PATH_MTUS, Geometry

CASES_MAX = 1000


class TestbedFields(Fields, frozen=True):
    """Rates as "100Gbps" or "150GB/s", times as "1us". Delays are one way; see `hardware.Hardware`."""

    machines: int
    title: str = ""
    gpus: int = 1
    port: str = "100Gbps"
    delay: str = "1us"
    switch_latency: str = "0s"
    inside: str | None = None
    inside_delay: str = "500ns"


class MiddleboxFields(Fields, frozen=True):
    """The cables to the switch that adds, and its latency."""

    delay: str = "0s"
    latency: str = "0s"


class TransportFields(Fields, frozen=True):
    """What all ranks of a ring agree on; limits as in `wire.control.Geometry`."""

    path_mtu: int = GEOMETRY.path_mtu
    message_packets: int = GEOMETRY.message_packets
    message_window: int = GEOMETRY.message_window


class SimulationFields(Fields, frozen=True):
    """See `fabric.simulator.Simulator`."""

    quantum: str = "0s"
    seed: int = 0


class RunFields(Fields, frozen=True):
    """All combinations run. `machines` and `inside` stand in for the testbed's."""

    algorithms: tuple[str, ...]
    sizes: tuple[str, ...]
    machines: tuple[int, ...] = ()
    inside: tuple[str, ...] = ()


class Description(Fields, frozen=True):
    """A whole file."""

    testbed: TestbedFields
    middlebox: MiddleboxFields | None = None
    transport: TransportFields = TransportFields()
    simulation: SimulationFields = SimulationFields()
    run: tuple[RunFields, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A testbed's title and the all-reduces to run on it, by entry of the file, in order."""

    title: str
    runs: tuple[tuple[Case, ...], ...]


def is_testbed(path: Path) -> bool:
    """Whether the file has a table `testbed`; False for one that cannot be read."""
    try:
        return "testbed" in parse(path)[1]
    except ConfigurationError:
        return False


def load(path: Path) -> Plan:
    """Read a description. Raises ConfigurationError that names the file, the entry and the reason."""
    return within(path, plan_of, read(path, Description))


def plan_of(description: Description) -> Plan:
    """The described runs, all of them checked. Raises ConfigurationError that names the entry."""
    hardware = _hardware(description)
    runs = tuple(tuple(_cases(number, run, hardware)) for number, run in enumerate(description.run))
    if not runs:
        raise ConfigurationError("nothing to run: add [[run]] with algorithms and sizes")
    count = sum(map(len, runs))
    if count > CASES_MAX:
        raise ConfigurationError(f"run: {count} all-reduces in all, up to {CASES_MAX} are possible")
    return Plan(description.testbed.title or f"{hardware.machines} x {hardware.gpus} workers", runs)


def _hardware(description: Description) -> Hardware:
    bed, beside, simulation = description.testbed, description.middlebox, description.simulation
    middlebox = None
    if beside is not None:
        middlebox = Middlebox(_ps("middlebox: delay", beside.delay), _ps("middlebox: latency", beside.latency))
    return within(
        "testbed",
        Hardware,
        machines=bed.machines,
        gpus=bed.gpus,
        port_bps=_bps("testbed: port", bed.port),
        delay_ps=_ps("testbed: delay", bed.delay),
        switch_latency_ps=_ps("testbed: switch-latency", bed.switch_latency),
        inside_bps=_bps("testbed: inside", bed.inside) if bed.inside else 0,
        inside_delay_ps=_ps("testbed: inside-delay", bed.inside_delay),
        middlebox=middlebox,
        geometry=_geometry(description.transport),
        quantum_ps=_ps("simulation: quantum", simulation.quantum),
        seed=simulation.seed,
    )


def _geometry(fields: TransportFields) -> Geometry:
    """Checked by the types of `Geometry`."""
    values = {name: getattr(fields, name) for name in Geometry.__struct_fields__}
    if fields.path_mtu not in PATH_MTUS:
        allowed = ", ".join(map(str, PATH_MTUS))
        raise ConfigurationError(f"transport: path-mtu is {fields.path_mtu}, allowed are {allowed}")
    try:
        return msgspec.convert(values, Geometry)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"transport: {error}".replace("_", "-")) from error


def _cases(number: int, fields: RunFields, hardware: Hardware) -> Iterator[Case]:
    where = f"run {number}"
    if not fields.algorithms or not fields.sizes:
        raise ConfigurationError(f"{where}: algorithms and sizes must name at least one each")
    insides = [_bps(f"{where}: inside", text) for text in fields.inside] or [hardware.inside_bps]
    sizes = [within(f"{where}: size", quantities.size, text) for text in fields.sizes]
    for machines, inside_bps in product(fields.machines or (hardware.machines,), insides):
        changed = within(where, replace, hardware, machines=machines, inside_bps=inside_bps)
        for size, way in product(sizes, fields.algorithms):
            yield within(where, Case, changed, way, size)


def _bps(name: str, text: str) -> int:
    return round(within(name, quantities.rate, text) * 8)


def _ps(name: str, text: Any) -> int:
    return round(within(name, quantities.duration, text) * PS_PER_S)
