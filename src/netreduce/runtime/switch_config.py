"""The configuration of `netreduce switch`: a TOML file. docs/real-networks.md shows one with every field."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path
from typing import Literal

import msgspec

from netreduce.errors import ConfigurationError
from netreduce.runtime.logs import LogFormat
from netreduce.switch import SwitchLimits
from netreduce.toml_files import Fields, parse
from netreduce.units import MIB
from netreduce.wire.control import PATH_MTUS


class PortConfig(Fields, frozen=True):
    """One port: a Linux interface, or a socket path that a guest's emulator connects to."""

    interface: str = ""
    stream: str = ""


class SwitchConfig(Fields, frozen=True):
    """A whole file. `listen` is HOST:PORT for the control channel; without it only this machine's user may ask."""

    port: tuple[PortConfig, ...] = ()
    name: str = "netreduce-switch"
    listen: str = ""
    token_file: str = ""
    user: str = ""
    log: LogFormat = "text"
    mode: Literal["bridge", "route"] = "bridge"
    path_mtu: int = 1024
    cables: int = 8
    memory_mb: int = 1024
    rings: int = 64
    rings_per_worker: int = 256
    drain_s: float = 30.0
    pcap: str = ""

    def limits(self) -> SwitchLimits:
        """What the switch may hold."""
        return SwitchLimits(memory_bytes=self.memory_mb * MIB, rings=self.rings)

    def run_as(self) -> str:
        """Whom to become once the ports are open: `user`, or nobody instead of root; empty to stay who one is."""
        return self.user or ("nobody" if os.geteuid() == 0 else "")

    def token(self) -> str:
        """The token of the control channel: the first line of `token_file`."""
        try:
            lines = Path(self.token_file).read_text().splitlines()
        except OSError as error:
            raise ConfigurationError(f"token-file {self.token_file}: {error.strerror}") from error
        if not lines or len(lines[0]) < 16:
            raise ConfigurationError(f"token-file {self.token_file}: its first line needs 16 characters or more")
        return lines[0]


def load_config(path: Path) -> SwitchConfig:
    """Read a configuration. ConfigurationError names the file, and the line or the field."""
    text, data = parse(path)
    try:
        config = msgspec.convert(data, SwitchConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}{_line_of(str(error), text)}: {error}") from error
    problem = _problem(config)
    if problem:
        field, what = problem
        raise ConfigurationError(f"{path}{_line_of(f'`{field}`', text)}: {field}: {what}")
    return config


def _line_of(message: str, text: str) -> str:
    """`` line N`` of the last field that `message` names, where it can be found."""
    names = re.findall(r"[`.]([a-z][a-z-]*)", message)
    for name in reversed(names):
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(rf"\s*\[*{name}\b", line):
                return f" line {number}"
    return ""


def _problem(config: SwitchConfig) -> tuple[str, str] | None:
    """A field that is wrong by itself or beside others, and why."""
    if any(bool(port.interface) == bool(port.stream) for port in config.port):
        return "port", "each needs either an interface or a stream"
    for field in ("memory_mb", "rings", "rings_per_worker"):
        if getattr(config, field) < 1:
            return field.replace("_", "-"), "want 1 or more"
    if config.path_mtu not in PATH_MTUS:
        return "path-mtu", f"{config.path_mtu} is none of {', '.join(map(str, PATH_MTUS))}"
    if config.listen and not config.token_file:
        return "listen", "who listens on a network needs a token-file: a file whose first line is a secret"
    if config.mode == "route" and not any(port.interface for port in config.port):
        return "mode", "a switch that routes needs a port with an interface"
    if config.mode == "route" and any(port.stream for port in config.port):
        return "stream", "a stream has no address to route to: leave it out, or let the mode be bridge"
    if not config.port and not config.cables:
        return "port", "a switch without ports has nothing to do"
    if config.user and os.geteuid() != 0:
        return "user", "only root can become somebody else; leave it out, and give this user CAP_NET_RAW instead"
    try:
        pwd.getpwnam(config.user or "root")
    except KeyError:
        return "user", f"there is no user {config.user!r}"
    return None
