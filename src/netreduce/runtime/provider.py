"""Which NIC a worker uses: the embedded one, or an RDMA device of this host on the switch's network."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from netreduce.errors import ConfigurationError
from netreduce.runtime.address import INTERFACE_VARIABLE, is_remote, source_ip
from netreduce.runtime.rdma_ports import ACTIVE, INSTALL_PYVERBS, ROCE_V2, ROOT, Gid, RdmaPort, rdma_ports

PROVIDER_VARIABLE = "NETREDUCE_PROVIDER"
AUTO, EMBEDDED, RDMA = "auto", "embedded", "rdma"
PROVIDERS = (AUTO, EMBEDDED, RDMA)


class Choice(NamedTuple):
    """An RDMA port and its GID, or None for the embedded NIC; and why."""

    port: RdmaPort | None
    gid: Gid | None
    reason: str


def provider_named(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """`given`, or what NETREDUCE_PROVIDER says, or auto; `ConfigurationError` names those there are."""
    name = given or environment.get(PROVIDER_VARIABLE) or AUTO
    if name not in PROVIDERS:
        raise ConfigurationError(f"provider is {name!r}, allowed are {', '.join(PROVIDERS)}")
    return name


def choose(address: str, provider: str, *, environment: Mapping[str, str] = os.environ, root: Path = ROOT) -> Choice:
    """The NIC for the switch at `address`.

    `auto` takes an RDMA port that works and has a RoCE v2 GID of this host's address on the way to the switch (or of
    the interface that NETREDUCE_INTERFACE names), and otherwise the embedded NIC. `ConfigurationError` when `rdma` is
    asked for and there is none.
    """
    if provider == EMBEDDED:
        return Choice(None, None, "it was asked for")
    if is_remote(address):
        choice = _search(source_ip(address), environment.get(INTERFACE_VARIABLE, ""), root)
    else:
        choice = Choice(None, None, "the switch is on this machine")
    if provider == RDMA and choice.port is None:
        raise ConfigurationError(f"provider rdma for the switch at {address}: {choice.reason}")
    return choice


def _search(ip: str, interface: str, root: Path) -> Choice:
    ports = rdma_ports(root)
    if not ports:
        return Choice(None, None, "this host has no RDMA device")
    wanted = f"interface {interface}" if interface else ip
    found = [
        (port, gid)
        for port in ports
        for gid in port.gids
        if (gid.interface == interface and "." in gid.address if interface else gid.address == ip)
    ]
    if not found:
        return Choice(None, None, f"no RDMA device has a GID of {wanted}")
    good = next(((port, gid) for port, gid in found if port.state == ACTIVE and gid.kind == ROCE_V2), None)
    if good is None:
        port, gid = found[0]
        trouble = f"is {port.state}" if port.state != ACTIVE else f"knows {gid.address} as {gid.kind}, not as {ROCE_V2}"
        return Choice(None, None, f"{port} {trouble}")
    if importlib.util.find_spec("pyverbs") is None:
        return Choice(None, None, f"pyverbs is not installed for {good[0]}: {INSTALL_PYVERBS}")
    return Choice(*good, f"its GID {good[1].entry} is {good[1].address} of {good[1].interface}, as {ROCE_V2}")
