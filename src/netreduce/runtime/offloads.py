"""Offloads of a network interface that would spoil what a switch in user space sees of it, turned off for a while.

With TCP's segmentation offload a veth pair hands out frames that are longer than any wire takes; so does receive
offload. UDP's stays: `packet_ring.py` cuts such super-frames, and RoCE is faster with them. So do transmit checksums,
which are filled in there, and without which the kernel allows no UDP segmentation. pyroute2 speaks the kernel's
ethtool netlink family, so that the `ethtool` program is not needed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from pyroute2.ethtool import Ethtool
from pyroute2.netlink.exceptions import NetlinkError

from netreduce.errors import ConfigurationError
from netreduce.runtime.interface import interface_index, interface_mtu
from netreduce.wire.control import PATH_MTUS

logger = logging.getLogger("netreduce")

SPOILING = (
    "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
    "tx-generic-segmentation", "rx-gro", "rx-lro", "rx-gro-hw",
)  # fmt: skip
MEMORY = Path("/run/netreduce")
HEADERS_BYTES = 90
"""What RoCEv2 needs of the MTU besides the path MTU: IPv6, UDP, BTH, RETH, immediate data, ICRC and padding."""


def require_mtu(name: str, path_mtu: int) -> None:
    """`ConfigurationError`, with the number to set, when interface `name` cannot carry packets of `path_mtu`."""
    mtu, wanted = interface_mtu(name), path_mtu + HEADERS_BYTES
    if mtu < wanted:
        raise ConfigurationError(
            f"interface {name!r} has MTU {mtu}, a path MTU of {path_mtu} needs {wanted}: "
            f"ip link set {name} mtu {wanted}, or lower path-mtu"
        )


def path_mtu_of(name: str) -> int:
    """The largest path MTU that interface `name` can carry; `ConfigurationError` when even 256 bytes do not fit."""
    require_mtu(name, PATH_MTUS[0])
    return max(size for size in PATH_MTUS if size + HEADERS_BYTES <= interface_mtu(name))


def _memory_of(name: str) -> Path:
    """Where is written down what was turned off at interface `name` of this network namespace."""
    namespace = os.stat("/proc/self/ns/net").st_ino
    return MEMORY / f"{namespace}-{interface_index(name)}-{name}.offloads"


class Offloads:
    """Turns the spoiling offloads of interface `name` off; `restore` turns on again those that were on.

    What a predecessor turned off and could not restore, because it was killed, is restored as well. Interfaces that
    refuse (CAP_NET_ADMIN is missing, or a feature is fixed) are left as they are, with a warning.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._memory = _memory_of(name)
        left = tuple(self._memory.read_text().split()) if self._memory.exists() else ()
        self.turned_off = tuple(dict.fromkeys(left + self._set(SPOILING, False)))
        if self.turned_off:
            logger.info("%s: turned off %s", name, ", ".join(self.turned_off))
            with contextlib.suppress(OSError):  # nothing is lost but the memory of a kill
                MEMORY.mkdir(parents=True, exist_ok=True)
                self._memory.write_text("\n".join(self.turned_off))

    def _set(self, features: tuple[str, ...], enable: bool) -> tuple[str, ...]:
        """Those of `features` that had to be changed, and were."""
        with Ethtool() as ethtool:
            try:
                known = ethtool.get_features(self._name)
                wanted = [
                    name for name in features if name in known.features and known.features[name].enable is not enable
                ]
                for name in wanted:
                    known.features[name].enable = enable
                ethtool.set_features(self._name, known)
            except (NetlinkError, OSError) as error:
                logger.warning("%s: offloads stay as they are (%s)", self._name, error)
                return ()
            after = ethtool.get_features(self._name)
        return tuple(name for name in wanted if after.features[name].enable is enable)

    def restore(self) -> None:
        """Put back what was changed."""
        self._set(self.turned_off, True)
        self.turned_off = ()
        with contextlib.suppress(OSError):
            self._memory.unlink()


def main() -> None:
    """Hold the offloads of the named interfaces off until the standard input ends, however its owner ends.

    The signals that end a service's every process are for its owner: this one goes after it.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    held = [Offloads(name) for name in sys.argv[1:]]
    print("off", flush=True)
    sys.stdin.read()
    for offloads in held:
        offloads.restore()


if __name__ == "__main__":
    main()
