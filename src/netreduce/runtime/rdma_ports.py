"""RDMA devices of the kernel, as sysfs shows them: ports, their state, and the GIDs by which RoCE reaches them.

Needs no library and no privileges. A GID of RoCE is an IP address. Only a GID of the type RoCE v2 speaks UDP, which is
what a switch can sum.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from netreduce.wire.control import PATH_MTUS

ROOT = Path("/")
CLASS = "sys/class/infiniband"
ACTIVE = "ACTIVE"
ROCE_V2 = "RoCE v2"
NO_GID = "::"
EMPTY_MAX = 16
"""Empty places in a row that end the search: tables have up to 1,024, and the kernel fills the lowest one first."""
HEADERS_BYTES = 96
"""What the kernel sets aside of the interface's MTU for GRH, UDP, BTH, the longest extensions and the ICRC."""
INSTALL_PYVERBS = "apt-get install python3-pyverbs, and a Python that sees it: python3 -m venv --system-site-packages"


class Gid(NamedTuple):
    """An entry of a port's GID table: an IP address of `interface`, used by RoCE of this `kind`."""

    entry: int
    address: str
    kind: str
    interface: str


class RdmaPort(NamedTuple):
    """Port `number` of `device`. `state` is as the verbs have it, ACTIVE when it works."""

    device: str
    number: int
    state: str
    link_layer: str
    rate: str
    gids: tuple[Gid, ...]

    def __str__(self) -> str:
        return f"{self.device} port {self.number}"


def rdma_ports(root: Path = ROOT) -> list[RdmaPort]:
    """All ports of all devices, by name."""
    places = sorted((root / CLASS).glob("*/ports/*"), key=lambda path: (path.parts[-3], int(path.name)))
    return [_read_port(place) for place in places]


def _read_port(place: Path) -> RdmaPort:
    state = _line(place / "state").rpartition(": ")[2]  # such as "4: ACTIVE"
    gids = tuple(_read_gids(place))
    return RdmaPort(place.parts[-3], int(place.name), state, _line(place / "link_layer"), _line(place / "rate"), gids)


def _read_gids(place: Path) -> Iterator[Gid]:
    empty = index = 0
    while empty < EMPTY_MAX and (place / "gids" / str(index)).exists():
        gid = _read_gid(place, index)
        empty = empty + 1 if gid is None else 0
        index += 1
        if gid is not None:
            yield gid


def _read_gid(place: Path, index: int) -> Gid | None:
    """An entry of the GID table; None for an empty one."""
    try:
        address = ipaddress.IPv6Address(_line(place / "gids" / str(index)))
    except ValueError:
        return None
    if str(address) == NO_GID:
        return None
    kind, interface = (_line(place / "gid_attrs" / name / str(index)) for name in ("types", "ndevs"))
    return Gid(index, str(address.ipv4_mapped or address), kind, interface)


def _line(path: Path) -> str:
    """The text of a file of sysfs; empty where there is none, or where reading it fails."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def interface_path_mtu(interface: str, root: Path = ROOT) -> int:
    """The largest path MTU that RoCE gets on a network interface, by the kernel's rule; 0 when none fits."""
    text = _line(root / "sys/class/net" / interface / "mtu")
    room = int(text or 0) - HEADERS_BYTES
    return max((size for size in PATH_MTUS if size <= room), default=0)


def hardware_counters(port: RdmaPort, root: Path = ROOT) -> dict[str, int]:
    """What the device has counted at `port` since it came up, for all its users; names are the driver's."""
    directory = root / CLASS / port.device / "ports" / str(port.number) / "hw_counters"
    texts = {path.name: _line(path) for path in sorted(directory.glob("*")) if path.name != "lifespan"}
    return {name: int(text) for name, text in texts.items() if text.isdecimal()}
