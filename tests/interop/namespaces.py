"""Hosts on a network: Linux network namespaces, each with a veth pair to a namespace where a switch runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CONTROL_PORT = 7400
TOKEN = "0123456789abcdef0123"
SWITCH_IP = "10.80.0.254"
MTU = 4300


def require_root() -> None:
    """Skip where namespaces cannot be made; fail where ``CI=true``."""
    reason = ""
    if os.geteuid() != 0:
        reason = "network namespaces need root"
    elif shutil.which("ip") is None:
        reason = "ip is not installed: apt-get install iproute2"
    elif subprocess.run(["ip", "netns", "add", "nrprobe"], capture_output=True).returncode:
        reason = "network namespaces cannot be made here"
    else:
        subprocess.run(["ip", "netns", "del", "nrprobe"], check=True)
    if reason and os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def host_ip(number: int) -> str:
    """Address of host `number`."""
    return f"10.80.0.{number + 1}"


class Network:
    """`count` hosts and a switch. Host i's interface is eth0; the switch's are p0, p1, ... and sw1, whose peer is sw0.

    sw0 is the switch's own address on the network that it bridges.
    """

    def __init__(self, count: int) -> None:
        self._prefix = f"nr{os.getpid()}"
        self.count = count
        self._stack = contextlib.ExitStack()
        self.switch = self._namespace("s")
        self.hosts = [self._namespace(f"h{i}") for i in range(count)]
        for i, host in enumerate(self.hosts):
            ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", f"p{i}", "netns", self.switch)
            self._bring_up(host, "eth0", host_ip(i))
            self._bring_up(self.switch, f"p{i}")
        ip("-n", self.switch, "link", "add", "sw0", "type", "veth", "peer", "name", "sw1")
        self._bring_up(self.switch, "sw0", SWITCH_IP)
        self._bring_up(self.switch, "sw1")
        for namespace, name in [(host, "eth0") for host in self.hosts] + [(self.switch, "sw0")]:
            self._stack.enter_context(self._offloads_off(namespace, name))

    def _namespace(self, name: str) -> str:
        full = f"{self._prefix}{name}"
        ip("netns", "add", full)
        self._stack.callback(ip, "netns", "del", full)
        ip("-n", full, "link", "set", "lo", "up")
        return full

    def _bring_up(self, namespace: str, name: str, address: str = "") -> None:
        if address:
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", name)
        ip("-n", namespace, "link", "set", name, "mtu", str(MTU), "up")

    @contextlib.contextmanager
    def _offloads_off(self, namespace: str, name: str) -> Iterator[None]:
        helper = self.start(
            namespace, [sys.executable, "-m", "netreduce.runtime.offloads", name], stdin=subprocess.PIPE
        )
        assert helper.stdout is not None
        assert helper.stdout.readline().strip() == "off"
        yield
        helper.communicate(timeout=10)

    def start(
        self, namespace: str, command: list[str], environment: dict[str, str] | None = None, **options
    ) -> subprocess.Popen[str]:
        """A process in `namespace`; its standard output and errors go to one pipe."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
        return subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command], env=os.environ | (environment or {}), **options
        )

    def start_switch(self, directory: Path, settings: str = "") -> subprocess.Popen[str]:
        """`netreduce switch` on p0, p1, ... and sw1, once it is ready."""
        (directory / "token").write_text(TOKEN + "\n")
        ports = "".join(f'[[port]]\ninterface = "{name}"\n' for name in [*(f"p{i}" for i in range(self.count)), "sw1"])
        config = directory / "fabric.toml"
        config.write_text(
            f'name = "{self._prefix}"\nlisten = "{SWITCH_IP}:{CONTROL_PORT}"\ntoken-file = "{directory}/token"\n'
            f"path-mtu = 4096\ndrain-s = 5\n{settings}\n{ports}"
        )
        command = [sys.executable, "-m", "netreduce", "switch", "-v", "-c", str(config)]
        switch = self.start(self.switch, command)
        assert switch.stdout is not None
        lines = []
        for line in switch.stdout:
            lines.append(line)
            if "is ready at" in line:
                return switch
        raise AssertionError("".join(lines))

    def on_all_hosts(self, command: list[str], limit_s: float, **environment: str) -> list[str]:
        """Run `command` on every host as one rank of the world; their outputs. {rank} in the command is replaced."""
        running = []
        for rank, host in enumerate(self.hosts):
            variables = {"RANK": str(rank), "WORLD_SIZE": str(self.count), "NETREDUCE_TOKEN": TOKEN}
            variables |= {"NETREDUCE_SWITCH": f"{SWITCH_IP}:{CONTROL_PORT}", "OMP_NUM_THREADS": "1"} | environment
            running.append(self.start(host, [part.replace("{rank}", str(rank)) for part in command], variables))
        outputs = [process.communicate(timeout=limit_s)[0] for process in running]
        assert [process.returncode for process in running] == [0] * self.count, "\n".join(outputs)
        return outputs

    def close(self) -> None:
        """Remove everything."""
        self._stack.close()


def ip(*arguments: str) -> None:
    """Run iproute2's ip."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
