"""`netreduce doctor`: what this machine can do, what is missing, and what to type about it."""

from __future__ import annotations

import json
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from netreduce.cli.doctor_rdma import check_memlock, rdma_checks
from netreduce.cli.findings import Check

PYTHON_MIN = (3, 10)
BUFFER_BYTES_WANTED = 212_992
"""Linux's default limit of socket buffers: it holds a burst on its way and one that follows."""
CAP_NET_RAW = 13
FAST_CPU_FLAGS = ("avx2", "pclmulqdq", "f16c")
ROOT = Path("/")


def check_python() -> Check:
    """The interpreter."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info < PYTHON_MIN:
        return Check("Python", "missing", found, "install Python 3.10 or later")
    return Check("Python", "ok", found)


def check_package(name: str, needed_for: str, install: str) -> Check:
    """A Python package; `needed_for` is empty for one that nothing works without."""
    try:
        return Check(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        text = f"not installed; needed for {needed_for}" if needed_for else "not installed"
        return Check(name, "note" if needed_for else "missing", text, f"pip install {install}")


def check_cpu(root: Path = ROOT) -> Check:
    """Instruction sets that sums and checksums use."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return Check("CPU", "note", platform.machine(), "no /proc/cpuinfo: is this Linux?")
    flags = next((line.split() for line in text.splitlines() if line.startswith(("flags", "Features"))), [])
    count = text.count("processor\t")
    missing = [flag for flag in FAST_CPU_FLAGS if flag not in flags] if platform.machine() == "x86_64" else []
    if missing:
        advice = "works, but slower: run on a CPU of 2013 or later, or let the virtual machine see the host's CPU"
        return Check("CPU", "note", f"{count} x {platform.machine()}, without {', '.join(missing)}", advice)
    return Check("CPU", "ok", f"{count} x {platform.machine()}")


def check_compiled() -> Check:
    """Whether a start needs to compile."""
    try:
        from netreduce.compiled import CACHE_DIRECTORY
        from netreduce.runtime.warmup import is_compiled
    except ImportError as error:
        return Check("compiled data path", "missing", f"cannot be loaded: {error}", "pip install netreduce")
    if is_compiled():
        return Check("compiled data path", "ok", str(CACHE_DIRECTORY))
    return Check("compiled data path", "note", "not yet", "nothing: the first run compiles, in about a minute")


def check_sockets() -> Check:
    """Cables are Unix SOCK_SEQPACKET sockets."""
    try:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (OSError, AttributeError) as error:
        return Check("local cables", "missing", f"no SOCK_SEQPACKET sockets: {error}", "run on Linux")
    near.close()
    far.close()
    return Check("local cables", "ok", "Unix SOCK_SEQPACKET sockets")


def check_socket_buffers(root: Path = ROOT) -> Check:
    """The kernel's limit for cable buffers."""
    try:
        limit = int((root / "proc/sys/net/core/wmem_max").read_text())
    except (OSError, ValueError):
        return Check("socket buffers", "note", "limit unknown (network namespace without it)", "")
    found = f"up to {limit:,} bytes a cable (net.core.wmem_max)"
    if limit < BUFFER_BYTES_WANTED:
        return Check("socket buffers", "note", found, f"sudo sysctl -w net.core.wmem_max={4 << 20}")
    return Check("socket buffers", "ok", found)


def check_raw_sockets(root: Path = ROOT) -> Check:
    """CAP_NET_RAW, for real interfaces."""
    try:
        status = (root / "proc/self/status").read_text()
        effective = int(next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1], 16)
    except (OSError, StopIteration, ValueError):
        effective = 0
    if effective >> CAP_NET_RAW & 1:
        return Check("raw sockets", "ok", "CAP_NET_RAW is there")
    found = "no CAP_NET_RAW: the default (local cables) works, real interfaces do not"
    return Check("raw sockets", "note", found, "for real interfaces: run as root, or docker run --cap-add NET_RAW")


def check_interfaces(root: Path = ROOT) -> Check:
    """Network interfaces that are up."""
    names = []
    for path in sorted((root / "sys/class/net").glob("*")):
        try:
            state, mtu = (path / "operstate").read_text().strip(), (path / "mtu").read_text().strip()
        except OSError:
            continue
        if state != "down":
            names.append(f"{path.name} (MTU {mtu})")
    return Check("interfaces", "ok" if names else "note", ", ".join(names) or "none")


def check_tshark() -> Check:
    """Wireshark's command line, to look at captures from outside."""
    path = shutil.which("tshark")
    if path:
        return Check("tshark", "ok", path)
    return Check("tshark", "note", "not installed; only for a second opinion on captures", "apt-get install tshark")


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    lambda: check_package("numpy", "", "numpy"),
    lambda: check_package("numba", "", "numba"),
    lambda: check_package("isal", "", "isal"),
    lambda: check_package("torch", "init_process_group", "'netreduce[torch]'"),
    check_cpu,
    check_compiled,
    check_sockets,
    check_socket_buffers,
    check_memlock,
    check_raw_sockets,
    check_interfaces,
    check_tshark,
)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    switch: Annotated[
        str, typer.Option(envvar="NETREDUCE_SWITCH", help="Tell which NIC a worker here uses for this switch.")
    ] = "",
    provider: Annotated[
        str, typer.Option(envvar="NETREDUCE_PROVIDER", help="Whose NIC it shall be: auto, embedded or rdma.")
    ] = "auto",
) -> None:
    """Tell what this machine can do, what is missing, and what to type.

    The exit code is 1 when something that everything needs is missing.
    """
    checks = [*(check() for check in CHECKS), *rdma_checks(switch, provider)]
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            typer.echo(f"{check.status:8} {check.name:20} {check.found}")
            if check.advice:
                typer.echo(f"{'':8} {'':20} -> {check.advice}")
    if any(check.status == "missing" for check in checks):
        raise typer.Exit(1)
