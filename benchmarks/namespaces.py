"""Hosts on a network: Linux network namespaces, their links shaped on demand, with a NetReduce switch between them.

For benchmarks and tests. Needs root, iproute2 (`ip`, and `tc` to shape links), and a kernel with veth and bridges.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CONTROL_PORT = 7400
TOKEN = "0123456789abcdef0123"
SWITCH_IP, SWITCH_IP6 = "10.80.0.254", "fd80::fe"
SHAPED_BURST_BYTES = 72 * 1024
"""What a shaped link may send back to back: a super-frame of TCP or UDP, with the headers of all its segments."""

_numbers = itertools.count()  # of networks in this process: several may be up at a time


def ip(*arguments: str) -> None:
    """Run iproute2's ip."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def host_ip(number: int) -> str:
    """Address of host `number`."""
    return f"10.80.0.{number + 1}"


def host_ip6(number: int) -> str:
    """IPv6 address of host `number`."""
    return f"fd80::{number + 1}"


class Network:
    """`count` hosts, each with one interface eth0, and a namespace for the switch.

    In `mode` "bridge" the hosts' links end in the switch's namespace, as p0, p1, ..., and so does its own, as sw1. In
    `mode` "route" they end in a bridge of the kernel's, and so does the switch's eth0; hosts reach each other through
    the switch's address. `mode` "kernel" is like "bridge", with a bridge of the kernel's, until `hand_over`.

    With `rate_bps` each host's link carries no more than that, in each direction.
    """

    def __init__(self, count: int, mode: str = "bridge", mtu: int = 4300, rate_bps: int = 0) -> None:
        self.count, self.mode, self.mtu, self.rate_bps = count, mode, mtu, rate_bps
        self._prefix = f"nr{os.getpid()}n{next(_numbers)}"
        self._stack = contextlib.ExitStack()
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        self.switch = self._namespace("s")
        self.hosts = [self._namespace(f"h{i}") for i in range(self.count)]
        middle = self._namespace("b") if self.mode == "route" else self.switch
        for i, host in enumerate(self.hosts):
            self._link(host, "eth0", middle, f"p{i}")
            self._address(host, "eth0", host_ip(i), host_ip6(i))
        self._own, self._peer = ("eth0", "sw") if self.mode == "route" else ("sw0", "sw1")
        self._link(self.switch, self._own, middle, self._peer)
        self._address(self.switch, self._own, SWITCH_IP, SWITCH_IP6)
        self.ports = ["eth0"] if self.mode == "route" else [*(f"p{i}" for i in range(self.count)), "sw1"]
        if self.mode != "bridge":
            self._join(middle, [*(f"p{i}" for i in range(self.count)), self._peer])
        if self.mode == "route":
            for host in self.hosts:
                for network, gateway in (("10.80.0.0/24", SWITCH_IP), ("fd80::/64", SWITCH_IP6)):
                    ip("-n", host, "route", "add", gateway, "dev", "eth0")
                    ip("-n", host, "route", "add", network, "via", gateway)
        if self.mode != "kernel":
            self._turn_offloads_off()

    def _join(self, namespace: str, names: list[str]) -> None:
        """Have the kernel bridge the interfaces `names`."""
        ip("-n", namespace, "link", "add", "br0", "mtu", str(self.mtu), "type", "bridge")
        ip("-n", namespace, "link", "set", "br0", "up")
        for name in names:
            ip("-n", namespace, "link", "set", name, "master", "br0")

    def hand_over(self) -> None:
        """Take the kernel's bridge away, for a NetReduce switch to be started on the same links."""
        ip("-n", self.switch, "link", "del", "br0")
        self.mode = "bridge"
        self._turn_offloads_off()

    def _turn_offloads_off(self) -> None:
        for namespace, name in [(host, "eth0") for host in self.hosts] + [(self.switch, self._own)]:
            self._stack.enter_context(self._offloads_off(namespace, name))

    def _namespace(self, name: str) -> str:
        full = f"{self._prefix}{name}"
        ip("netns", "add", full)
        self._stack.callback(ip, "netns", "del", full)
        ip("-n", full, "link", "set", "lo", "up")
        return full

    def _link(self, namespace: str, name: str, peer_namespace: str, peer: str) -> None:
        ip("link", "add", name, "netns", namespace, "type", "veth", "peer", "name", peer, "netns", peer_namespace)
        for where, what in ((namespace, name), (peer_namespace, peer)):
            ip("-n", where, "link", "set", what, "mtu", str(self.mtu), "up")
            if self.rate_bps and namespace != self.switch:
                self._shape(where, what)

    def _shape(self, namespace: str, name: str) -> None:
        """A token bucket of one super-frame, whatever the MTU, and a queue that a message window fits into."""
        limits = ["burst", str(SHAPED_BURST_BYTES), "limit", str(16 << 20)]
        tbf = ["tc", "-n", namespace, "qdisc", "add", "dev", name, "root", "tbf", "rate", str(self.rate_bps), *limits]
        subprocess.run(tbf, check=True, capture_output=True)

    def _address(self, namespace: str, name: str, address: str, address6: str) -> None:
        """Hosts whose neighbours are reached by a route have an address, but no network."""
        is_routed = self.mode == "route" and namespace != self.switch
        ip("-n", namespace, "addr", "add", f"{address}/{32 if is_routed else 24}", "dev", name)
        ip("-n", namespace, "addr", "add", f"{address6}/{128 if is_routed else 64}", "dev", name, "nodad")

    @contextlib.contextmanager
    def _offloads_off(self, namespace: str, name: str) -> Iterator[None]:
        command = [sys.executable, "-m", "netreduce.runtime.offloads", name]
        helper = self.start(namespace, command, stdin=subprocess.PIPE)
        assert helper.stdout is not None
        assert helper.stdout.readline().strip() == "off"
        yield
        helper.communicate(timeout=60)

    def start(
        self, namespace: str, command: list[str], environment: dict[str, str] | None = None, **options
    ) -> subprocess.Popen[str]:
        """A process in `namespace`; its standard output and errors go to one pipe."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
        return subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command], env=os.environ | (environment or {}), **options
        )

    def start_switch(self, directory: Path, settings: str = "path-mtu = 4096") -> subprocess.Popen[str]:
        """`netreduce switch` on all `ports`, once it is ready."""
        (directory / "token").write_text(TOKEN + "\n")
        ports = "".join(f'[[port]]\ninterface = "{name}"\n' for name in self.ports)
        config = directory / "fabric.toml"
        config.write_text(
            f'name = "{self._prefix}"\nlisten = "{SWITCH_IP}:{CONTROL_PORT}"\ntoken-file = "{directory}/token"\n'
            f'mode = "{self.mode}"\ndrain-s = 5\n{settings}\n{ports}'
        )
        command = [sys.executable, "-m", "netreduce", "switch", "-v", "-c", str(config)]
        switch = self.start(self.switch, command)
        assert switch.stdout is not None
        lines = []
        for line in switch.stdout:
            lines.append(line)
            if "is ready at" in line:
                return switch
        switch.communicate()
        raise AssertionError("".join(lines))

    @contextlib.contextmanager
    def switching(self, directory: Path, path_mtu: int) -> Iterator[subprocess.Popen[str]]:
        """As `start_switch`, until the block ends."""
        switch = self.start_switch(directory, f"path-mtu = {path_mtu}")
        try:
            yield switch
        finally:
            switch.terminate()
            switch.communicate(timeout=20)

    def environment(self, rank: int) -> dict[str, str]:
        """What a rank of the world needs to know on its host."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.count),
            "NETREDUCE_TOKEN": TOKEN,
            "NETREDUCE_SWITCH": f"{SWITCH_IP}:{CONTROL_PORT}",
            "OMP_NUM_THREADS": "1",
        }

    def on_all_hosts(self, command: list[str], limit_s: float, **environment: str) -> list[str]:
        """Run `command` on every host as one rank of the world; their outputs. {rank} in the command is replaced."""
        running = []
        for rank, host in enumerate(self.hosts):
            words = [part.replace("{rank}", str(rank)) for part in command]
            running.append(self.start(host, words, self.environment(rank) | environment))
        outputs = [process.communicate(timeout=limit_s)[0] for process in running]
        assert [process.returncode for process in running] == [0] * self.count, "\n".join(outputs)
        return outputs

    def close(self) -> None:
        """Remove everything."""
        self._stack.close()
