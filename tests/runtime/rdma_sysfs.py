"""A sysfs with RDMA devices in a directory, laid out as the kernel does it for ConnectX and soft-RoCE."""

from __future__ import annotations

import ipaddress
from pathlib import Path

Entry = tuple[str, str, str]
"""Address, type and interface of a GID."""


def add_port(
    root: Path,
    device: str,
    gids: dict[int, Entry],
    *,
    state: str = "4: ACTIVE",
    layer: str = "Ethernet",
    empty: int = 4,
) -> None:
    """Port 1 of `device`, with `gids` by index and `empty` places behind them."""
    port = root / "sys/class/infiniband" / device / "ports/1"
    for name in ("gids", "gid_attrs/types", "gid_attrs/ndevs", "hw_counters"):
        (port / name).mkdir(parents=True)
    for name, text in (("state", state), ("link_layer", layer), ("rate", "100 Gb/sec (4X EDR)")):
        (port / name).write_text(text + "\n")
    for index in range(max(gids, default=-1) + 1 + empty):
        address, kind, interface = gids.get(index, ("::", "", ""))
        mapped = f"::ffff:{address}" if "." in address else address
        (port / "gids" / str(index)).write_text(ipaddress.IPv6Address(mapped).exploded + "\n")
        if kind:
            (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")
            (port / "gid_attrs/ndevs" / str(index)).write_text(interface + "\n")


def add_interface(root: Path, name: str, mtu: int) -> None:
    """A network interface."""
    place = root / "sys/class/net" / name
    place.mkdir(parents=True)
    (place / "mtu").write_text(f"{mtu}\n")
