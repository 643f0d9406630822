"""A Linux guest with unmodified soft-RoCE (rdma_rxe) devices, one per virtual NIC, for the interoperability tests.

QEMU runs it without acceleration and without privileges. Each NIC is a Unix stream socket (``-netdev stream``), so that
a process of ours is the only network it has. Commands go in and come out over its serial console.
"""

from __future__ import annotations

import ipaddress
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.interop.image import build, compile_python, pack

BOOT_LIMIT_S = 100
"""It takes 5 s on an idle machine, 30 s on a crowded one."""
CPU = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+lahf_lm"
"""x86-64-v2, as NumPy's wheels want it."""
VLAN = 5
HOST_IP = "10.0.0.254"
READY, DONE = "GUEST-READY", "GUEST-DONE"


def guest_ip(number: int) -> str:
    """Address of the guest's device rxe`number`."""
    return f"10.0.0.{number + 1}"


def guest_vlan_ip(number: int) -> str:
    """Address of the guest's device rxe`number` within the VLAN."""
    return f"10.5.0.{number + 1}"


def guest_ipv6(number: int) -> str:
    """IPv6 address of the guest's device rxe`number`."""
    return f"fd00::{number + 1}"


def guest_vlan_ipv6(number: int) -> str:
    """IPv6 address of the guest's device rxe`number` within the VLAN."""
    return f"fd05::{number + 1}"


def guest_table(number: int) -> int:
    """The routing table of what the guest's device rxe`number` sends."""
    return 100 + number


def guest_gid(ip: str) -> str:
    """The GID of an address, with all its digits."""
    return ipaddress.IPv6Address(ip if ":" in ip else f"::ffff:{ip}").exploded


def guest_mac(number: int) -> str:
    """MAC address of the guest's device rxe`number`."""
    return f"52:54:00:00:00:{number + 1:02x}"


class Guest:
    """One boot: NIC i connects to the listening Unix socket at ``sockets[i]``. `files` lie in its working directory.

    At the socket `host` is a network stack of QEMU's, which hands what is sent to `HOST_IP` to this machine's loopback.
    """

    def __init__(
        self, sockets: Sequence[Path], host: Path, files: dict[str, str], *, mtu: int = 4300, setup: str = ""
    ) -> None:
        kernel, base = build()
        self._directory = Path(tempfile.mkdtemp(prefix="netreduce-guest-"))
        job = self._directory / "root" / "job"
        job.mkdir(parents=True)
        for name, text in {**files, "network.sh": self._network(len(sockets), mtu) + setup}.items():
            (job / name).parent.mkdir(parents=True, exist_ok=True)
            (job / name).write_text(text)
        compile_python(job)
        initrd = self._directory / "initrd.gz"
        initrd.write_bytes(base.read_bytes() + pack(self._directory / "root"))
        command = ["qemu-system-x86_64", "-accel", "tcg", "-machine", "pc", "-cpu", CPU, "-m", "768"]
        command += ["-nodefaults", "-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"]
        command += ["-kernel", str(kernel), "-initrd", str(initrd)]
        command += ["-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on"]
        for i, path in enumerate(sockets):
            command += ["-netdev", f"stream,id=n{i},server=off,addr.type=unix,addr.path={path}"]
            command += ["-device", f"virtio-net-pci,netdev=n{i},mac={guest_mac(i)},romfile="]
        command += ["-netdev", f"stream,id=host,server=off,addr.type=unix,addr.path={host}"]
        command += ["-netdev", f"user,id=stack,ipv6=off,net=10.0.0.0/24,host={HOST_IP},dns=10.0.0.253"]
        for side in ("host", "stack"):
            command += ["-netdev", f"hubport,id={side}-port,hubid=1,netdev={side}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        )
        self._pending = b""
        self.console: list[str] = []

    @staticmethod
    def _network(count: int, mtu: int) -> str:
        """Each NIC as if it were a host of its own: what goes from one of the guest's addresses to another leaves it.

        The kernel looks into its table of local addresses only for what comes in, and picks the way out by the source.
        Without that, RDMA over IPv6 takes a peer for itself and sends nothing, and so does the RDMA CM.
        """
        lines = []
        for i in range(count):
            table, vlan = guest_table(i), f"eth{i}.{VLAN}"
            lines += [
                f"link set eth{i} mtu {mtu}",
                f"addr add {guest_ip(i)}/24 dev eth{i}",
                f"addr add {guest_ipv6(i)}/64 dev eth{i} nodad",
                f"link set eth{i} up",
                f"link add link eth{i} name {vlan} type vlan id {VLAN}",
                f"addr add {guest_vlan_ip(i)}/24 dev {vlan}",
                f"addr add {guest_vlan_ipv6(i)}/64 dev {vlan} nodad",
                f"link set {vlan} up",
                f"route add 10.0.0.0/24 dev eth{i} table {table}",
                f"rule add pref {table} from {guest_ip(i)} lookup {table}",
                *[f"{v} rule add pref 1 iif {dev} lookup local" for v in ("-4", "-6") for dev in (f"eth{i}", vlan)],
            ]
        lines += ["rule add pref 2 to 127.0.0.0/8 lookup local", "-4 rule del pref 0", "-6 rule del pref 0"]
        commands = [f"/usr/bin/ip {line}" for line in lines]
        commands += [f"/usr/bin/rdma link add rxe{i} type rxe netdev eth{i}" for i in range(count)]
        commands += [f"ping -c 1 -W 1 -I eth{i} {guest_ip((i + 1) % count)} > /dev/null" for i in range(count)]
        return "\n".join(commands) + "\n"

    def wait_until_ready(self) -> None:
        """Return when it takes commands."""
        self._read_until(READY, BOOT_LIMIT_S, None)

    def run(self, command: str, limit_s: float, answer: Callable[[str], str | None] | None = None) -> list[str]:
        """The lines that a shell command writes. `answer` sees each and may give a line for its standard input.

        AssertionError when the command fails or takes too long.
        """
        self._write(command)
        lines = self._read_until(DONE, limit_s, answer)
        assert lines[-1].split() == [DONE, "0"], "\n".join(lines[-20:])
        return lines[:-1]

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def _read_until(self, mark: str, limit_s: float, answer: Callable[[str], str | None] | None) -> list[str]:
        deadline = time.monotonic() + limit_s
        lines: list[str] = []
        while not (lines and lines[-1].startswith(mark)):
            line = self._next_line(deadline)
            lines.append(line)
            reply = answer(line) if answer is not None else None
            if reply is not None:
                self._write(reply)
        return lines

    def _next_line(self, deadline: float) -> str:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the guest said nothing more in time:\n" + "\n".join(self.console[-30:])
            data = os.read(descriptor, 65536)
            assert data, "the guest ended:\n" + "\n".join(self.console[-30:])
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        self.console.append(line.decode(errors="replace").rstrip("\r"))
        return self.console[-1]

    def close(self) -> None:
        """Pull the plug."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        shutil.rmtree(self._directory, ignore_errors=True)
