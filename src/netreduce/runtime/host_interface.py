"""The embedded NIC's place on a real network: the interface towards the switch, with the host's own addresses.

The kernel keeps answering ARP for the address. It must not answer RoCE: a socket holds UDP port 4791 and lets nothing
in, so that no ICMP "port unreachable" leaves, and no second NIC, soft-RoCE or ours, uses the same address.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from pyroute2 import IPRoute

from netreduce.errors import ConfigurationError
from netreduce.runtime.address import INTERFACE_VARIABLE, source_ip
from netreduce.runtime.interface import InterfaceCarrier, interface_mac
from netreduce.runtime.offloads import path_mtu_of
from netreduce.runtime.packet_filters import attach_filter, roce_to
from netreduce.wire.build import build_burst

ROCE_UDP_PORT = 4791
_DROP_ALL = [(0x06, 0, 0, 0)]
_UDP_GRO = 104


class HostInterface:
    """An interface and the IPv4 address of this host on it. `path_mtu` is the largest that fits."""

    def __init__(self, name: str, ip: str) -> None:
        self.name = name
        self.ip = ip
        self.mac = interface_mac(name)
        self.path_mtu = path_mtu_of(name)

    @classmethod
    def towards(cls, address: str, environment: Mapping[str, str] = os.environ) -> HostInterface:
        """The interface by which the switch at ``HOST:PORT`` is reached, or the one that NETREDUCE_INTERFACE names."""
        ip = source_ip(address)
        addresses = _addresses()
        name = environment.get(INTERFACE_VARIABLE) or next((n for n, ips in addresses.items() if ip in ips), "")
        if not addresses.get(name):
            raise ConfigurationError(f"interface {name!r} has no IPv4 address; those that do: {', '.join(addresses)}")
        return cls(name, ip if ip in addresses[name] else addresses[name][0])


def _addresses() -> dict[str, list[str]]:
    """IPv4 addresses by interface, without the loopback."""
    found: dict[str, list[str]] = {}
    with IPRoute() as netlink:
        for message in netlink.get_addr(family=socket.AF_INET):
            name = message.get_attr("IFA_LABEL")
            if name and name != "lo":
                found.setdefault(name.split(":")[0], []).append(message.get_attr("IFA_LOCAL"))
    return found


class HostCarrier(InterfaceCarrier):
    """RoCE frames for this host at `interface`. `ConfigurationError` when it may not, or another NIC is there."""

    def __init__(self, interface: HostInterface, now_ps: Callable[[], int]) -> None:
        self._guard = _hold_port(interface.ip)
        try:
            super().__init__(interface.name, now_ps, roce_to(interface.ip))
        except BaseException:
            self._guard.close()
            raise
        self.send_burst(build_burst([_announcement(interface)]))

    def close(self) -> None:
        """Stop listening, and let the port go."""
        super().close()
        self._guard.close()


def _hold_port(ip: str) -> socket.socket:
    guard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    attach_filter(guard, _DROP_ALL)
    guard.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)  # or the kernel would cut each super-frame before it drops it
    try:
        guard.bind((ip, ROCE_UDP_PORT))
    except OSError as error:
        guard.close()
        hint = " (rdma_rxe is loaded)" if Path("/sys/module/rdma_rxe").exists() else ""
        raise ConfigurationError(
            f"UDP port {ROCE_UDP_PORT} of {ip} is in use{hint}: one NIC an address; give each worker an address"
        ) from error
    return guard


def _announcement(interface: HostInterface) -> np.ndarray:
    """A gratuitous ARP request (RFC 5227), by which bridges learn where the address is."""
    mac, ip = bytes.fromhex(interface.mac.replace(":", "")), socket.inet_aton(interface.ip)
    frame = b"\xff" * 6 + mac + b"\x08\x06" + b"\x00\x01\x08\x00\x06\x04\x00\x01" + mac + ip + bytes(6) + ip
    return np.frombuffer(frame.ljust(60, b"\0"), np.uint8)
