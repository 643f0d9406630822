"""The part of `netreduce doctor` about RDMA devices: what ibstat and show_gids would tell, and which NIC is chosen.

All of it comes from sysfs, so that it is told before pyverbs is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from netreduce.cli.findings import Check
from netreduce.errors import NetReduceError
from netreduce.runtime.rdma_ports import (
    ACTIVE,
    HEADERS_BYTES,
    INSTALL_PYVERBS,
    ROCE_V2,
    ROOT,
    RdmaPort,
    interface_path_mtu,
    rdma_ports,
)
from netreduce.wire.control import PATH_MTUS

ETHERNET = "Ethernet"


def check_memlock(root: Path = ROOT) -> Check:
    """Locked memory: the embedded NIC needs none, RDMA devices pin what they transfer."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Check("memlock", "ok", "unlimited")
    found = f"{soft // 1024:,} KiB: enough for the embedded NIC, not for RDMA devices"
    if not rdma_ports(root):
        return Check("memlock", "ok", found)
    return Check("memlock", "note", found, "ulimit -l unlimited (docker: --ulimit memlock=-1)")


def rdma_checks(switch: str, provider: str, root: Path = ROOT) -> Iterator[Check]:
    """Devices, ports and GIDs; pyverbs, if there is a device; the choice of the NIC for `switch`, if it is named."""
    ports = rdma_ports(root)
    if not ports:
        yield Check("RDMA devices", "ok", "none, and none is needed: the NIC is embedded")
    else:
        yield Check("RDMA devices", "ok", ", ".join(sorted({port.device for port in ports})))
        for port in ports:
            yield from _port_checks(port, root)
        yield _check_pyverbs()
    if switch:
        yield _check_choice(switch, provider, root)


def _port_checks(port: RdmaPort, root: Path) -> Iterator[Check]:
    interfaces = sorted({gid.interface for gid in port.gids if gid.interface})
    mtus = {name: interface_path_mtu(name, root) for name in interfaces}
    words = [port.state, port.link_layer, port.rate]
    words += [f"{name} with active MTU {mtu}" for name, mtu in mtus.items()]
    advice = _port_advice(port, mtus)
    yield Check(str(port), "note" if advice else "ok", ", ".join(word for word in words if word), advice)
    for gid in port.gids:
        yield Check(f"  GID {gid.entry}", "ok", f"{gid.address} of {gid.interface or 'no interface'}, {gid.kind}")


def _port_advice(port: RdmaPort, mtus: dict[str, int]) -> str:
    """What to do so that the port can be used; empty when nothing."""
    if port.link_layer != ETHERNET:
        return f"nothing: RoCE needs Ethernet, not {port.link_layer}"
    if port.state != ACTIVE:
        return f"plug the cable in, and: ip link set {next(iter(mtus), 'INTERFACE')} up"
    if not any(gid.kind == ROCE_V2 and "." in gid.address for gid in port.gids):
        return f"it has no {ROCE_V2} GID of an IPv4 address: ip addr add ADDRESS/24 dev {next(iter(mtus), 'INTERFACE')}"
    small = [name for name, mtu in mtus.items() if mtu < PATH_MTUS[-1]]
    if small:
        return (
            f"works; for packets of {PATH_MTUS[-1]:,} bytes: ip link set {small[0]} mtu {PATH_MTUS[-1] + HEADERS_BYTES}"
        )
    return ""


def _check_pyverbs() -> Check:
    if importlib.util.find_spec("pyverbs") is not None:
        return Check("pyverbs", "ok", "installed: NETREDUCE_PROVIDER=auto uses RDMA devices")
    return Check("pyverbs", "note", "not installed; RDMA devices stay unused without it", INSTALL_PYVERBS)


def _check_choice(address: str, provider: str, root: Path) -> Check:
    try:
        from netreduce.runtime.provider import choose, provider_named

        choice = choose(address, provider_named(provider), root=root)
    except ImportError as error:
        return Check("provider", "note", f"cannot be told: {error}", "install what is missing above")
    except NetReduceError as error:
        return Check("provider", "note", str(error), "NETREDUCE_PROVIDER=embedded does without RDMA devices")
    name = "the embedded NIC" if choice.port is None else str(choice.port)
    return Check("provider", "ok", f"{name} for the switch at {address}: {choice.reason}")
