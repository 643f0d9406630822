"""Next hops for a switch that routes, from the kernel of the host that it runs on.

The interfaces stay the host's: its kernel owns their addresses and answers ARP and neighbour solicitations for them,
and its routes and neighbour table say where a packet goes next. What it does not know yet it finds out when this
process sends a datagram that way. It must not forward itself, or every packet would go twice, once unsummed.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
from pathlib import Path
from typing import NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netreduce.errors import ConfigurationError
from netreduce.runtime.address import DISCARD_PORT
from netreduce.runtime.interface import interface_index, interface_mac
from netreduce.switch import Switch
from netreduce.switch.tables import NOBODY
from netreduce.units import PS_PER_S

logger = logging.getLogger("netreduce.switch")

REFRESH_PS = 5 * PS_PER_S
"""How old a next hop may be before the kernel is asked again."""
RETRY_PS = PS_PER_S // 5
"""How long a packet's destination is not looked for again after it was not found."""
LOOKUPS_PER_TICK_MAX = 8
"""Of what is old: a look-up takes about 1 ms."""
MISSED_MAX = 1024
_ROUTE_UNICAST, _ROUTE_LOCAL = 1, 2
_NEIGHBOUR_IS_USABLE = 0x02 | 0x04 | 0x08 | 0x10 | 0x80
"""NUD_REACHABLE, STALE, DELAY, PROBE, PERMANENT of linux/neighbour.h."""
_FORWARDING = Path("/proc/sys/net")


class NextHop(NamedTuple):
    """The port by which packets leave (`NOBODY`: they are the host's own), to which MAC, and through which router."""

    port: int
    mac: str
    router: str = ""


def require_arm(name: str) -> None:
    """`ConfigurationError`, with what to type, when the kernel forwards between interface `name` and others itself."""
    for version in ("ipv4", "ipv6"):
        with contextlib.suppress(OSError):
            if (_FORWARDING / version / "conf" / name / "forwarding").read_text().strip() != "0":
                raise ConfigurationError(
                    f"interface {name!r}: the kernel forwards {version} packets that come in there, so each would "
                    f"leave twice: sysctl -w net.{version}.conf.{name}.forwarding=0"
                )


class Router:
    """Keeps the next hops of `switch` for the destinations of packets that have come."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._netlink = IPRoute()
        self._ports: dict[int, int] = {}  # by interface index
        self._macs: dict[int, str] = {}  # by port
        self._hops: dict[str, tuple[NextHop, int]] = {}  # by destination, and when it was asked for; oldest first
        self._missed: dict[str, int] = {}  # destinations that were not found, and until when they are left alone
        self._pinned: set[str] = set()

    def add(self, name: str, number: int) -> None:
        """Let port `number` route for interface `name`, which has an address; see `require_arm`."""
        index, mac = interface_index(name), interface_mac(name)
        if not list(self._netlink.get_addr(index=index)):
            raise ConfigurationError(
                f"interface {name!r} has no address, and hosts' routes must point at one: ip addr add ... dev {name}"
            )
        self._ports[index], self._macs[number] = number, mac
        self._switch.route_at(number, mac)

    def gateway(self, number: int) -> str:
        """The MAC address at which port `number` takes packets."""
        return self._macs[number]

    def pin(self, ip: str, now_ps: int) -> NextHop:
        """The next hop of a host that takes part in rings, kept until `let_go`; `ConfigurationError` without one."""
        hop = self._look(ip, now_ps)
        if hop is None or hop.port == NOBODY:
            raise ConfigurationError(
                f"the switch's host cannot reach {ip} by any of its ports: ping it from there, then try again"
            )
        if hop.router:
            raise ConfigurationError(
                f"{ip} is behind the router {hop.router}, which would lead packets past the switch: "
                "connect it to a network of the switch's"
            )
        self._pinned.add(ip)
        return hop

    def let_go(self, ip: str) -> None:
        """Undo `pin`."""
        self._pinned.discard(ip)

    def look_for_wanted(self, now_ps: int) -> None:
        """Find the next hops that packets have lacked."""
        for ip in self._switch.wanted_hops():
            if self._missed.get(ip, 0) <= now_ps:
                self._look(ip, now_ps)

    def tick(self, now_ps: int) -> None:
        """Ask again for the oldest, and for what was not found."""
        old = [ip for ip, (_, asked_ps) in self._hops.items() if now_ps - asked_ps > REFRESH_PS]
        missed = [ip for ip, until_ps in self._missed.items() if until_ps <= now_ps]
        for ip in missed:
            del self._missed[ip]
        for ip in (missed + old)[:LOOKUPS_PER_TICK_MAX]:
            self._look(ip, now_ps, poke=ip not in missed)

    def _look(self, ip: str, now_ps: int, poke: bool = True) -> NextHop | None:
        """Ask the kernel, and tell the switch. With `poke`, make the kernel find out what it does not know."""
        hop = self._ask(ip)
        known = self._hops.pop(ip, None)
        if hop is None and known is not None and ip in self._pinned:
            hop = known[0]
        if hop is not None:
            self._hops[ip] = (hop, now_ps)
            self._missed.pop(ip, None)
            self._switch.set_hop(ip, hop.mac, hop.port)
            if ip in self._pinned and known is not None and known[0] != hop:
                self._switch.let_go(ip, now_ps)
                self._switch.attach(hop.port, hop.mac, ip)
            return hop
        self._switch.forget_hop(ip)
        if poke:
            _poke(ip)
            if len(self._missed) < MISSED_MAX:
                self._missed[ip] = now_ps + RETRY_PS
        return None

    def _ask(self, ip: str) -> NextHop | None:
        """What the kernel knows."""
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        try:
            route = next(iter(self._netlink.route("get", dst=ip, family=family)))
            if route["type"] == _ROUTE_LOCAL:
                return NextHop(NOBODY, next(iter(self._macs.values())))
            index = route.get_attr("RTA_OIF")
            if route["type"] != _ROUTE_UNICAST or index not in self._ports:
                return None
            router = route.get_attr("RTA_GATEWAY") or ""
            neighbours = list(self._netlink.neigh("get", dst=router or ip, ifindex=index, family=family))
        except NetlinkError as error:
            if error.code not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENOENT, errno.EACCES, errno.EINVAL):
                logger.warning("no next hop for %s: %s", ip, error)
            return None
        if not neighbours or not neighbours[0]["state"] & _NEIGHBOUR_IS_USABLE:
            return None
        return NextHop(self._ports[index], neighbours[0].get_attr("NDA_LLADDR"), router)

    def close(self) -> None:
        """Let go of the kernel."""
        self._netlink.close()


def _poke(ip: str) -> None:
    """Have the kernel look for the neighbour on the way to `ip`, by an empty datagram to a port that discards."""
    address = ipaddress.ip_address(ip)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as poke, contextlib.suppress(OSError):
        poke.setblocking(False)
        poke.sendto(b"", (ip, DISCARD_PORT))
