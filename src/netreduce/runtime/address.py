"""Addresses of switches: ``local:NAME`` on this machine, ``HOST:PORT`` for one that listens on TCP."""

from __future__ import annotations

import os
import socket

from netreduce.errors import ConfigurationError, SwitchLostError
from netreduce.runtime.cable import ADDRESS_SCHEME, connect
from netreduce.runtime.control_channel import ControlChannel, StreamChannel

TOKEN_VARIABLE = "NETREDUCE_TOKEN"
INTERFACE_VARIABLE = "NETREDUCE_INTERFACE"
"""Names the interface on the switch's network, instead of the one that the route to the switch takes."""
CONNECT_TIMEOUT_S = 10.0
DISCARD_PORT = 9
"""Of datagrams that nobody needs to read (RFC 863): sending one makes the kernel, or a switch, learn an address."""


def is_remote(address: str) -> bool:
    """Whether the switch at `address` is reached over TCP."""
    return not address.startswith(ADDRESS_SCHEME)


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``HOST:PORT`` (an IPv6 address in brackets); `ConfigurationError` if it is none."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ConfigurationError(f"switch address {address!r}: want {ADDRESS_SCHEME}NAME or HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def source_ip(address: str) -> str:
    """This host's IPv4 address on the way to the switch at ``HOST:PORT``; `ConfigurationError` if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(host_and_port(address))  # sends nothing, but asks for the route
        except OSError as error:
            raise ConfigurationError(f"no route to the switch at {address}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def token_from_environment() -> str:
    """The token of NETREDUCE_TOKEN; empty when it is not set."""
    return os.environ.get(TOKEN_VARIABLE, "")


def open_channel(address: str) -> ControlChannel:
    """A control connection to the switch at `address`; `SwitchLostError` when nobody answers there."""
    if not is_remote(address):
        return ControlChannel(connect(address))
    try:
        connection = socket.create_connection(host_and_port(address), CONNECT_TIMEOUT_S)
    except OSError as error:
        raise SwitchLostError(f"no switch at {address}: {error.strerror or error}") from error
    return StreamChannel(connection)
