"""NetReduce, gloo and Open MPI in turn on the same links: hosts are network namespaces, their links veth pairs.

With ``--rate`` links are shaped, the same both ways for everybody, by a token bucket at each end: the case that
NetReduce is for. ``--rate 0`` leaves them unshaped: the worst case for a switch in software. gloo and Open MPI get the
kernel's bridge and all its offloads; then `netreduce switch` takes the bridge's place. Every sum is checked. Needs
root, iproute2, and for MPI ``apt-get install openmpi-bin libopenmpi-dev`` and ``pip install 'netreduce[bench]'``;
without these, MPI is left out. Usage::

    python benchmarks/shaped_links.py [--hosts 4,8] [--mtu 9000,1500] [--rate 500M] [--sizes 1,8,64] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.namespaces import Network, host_ip  # noqa: E402 (a script of this folder, run from anywhere)

from netreduce.units import MIB  # noqa: E402

WORKER = str(ROOT / "benchmarks" / "link_worker.py")
PATH_MTUS = {9000: 4096, 1500: 1024}
HEADER_BYTES = 14 + 20 + 8 + 12 + 4
"""Ethernet, IPv4, UDP, BTH and ICRC around the payload of a packet, as the token bucket counts them."""
SECONDS_PER_SIZE = 1.0
RUNS_MIN, RUNS_MAX = 2, 10
LIMIT_S = 280
TARGETS = {4: 1.40, 8: 1.65}
SEGMENT_BYTES = 1448 / 1514
"""What of a TCP packet on a link of MTU 1500 is payload: for the crossover."""
LIBRARIES = ("gloo", "mpi", "netreduce")


def plan(sizes: list[int], hosts: int, rate_bps: int) -> list[str]:
    """How often each size is run: for about a second, by what a ring needs at best."""
    entries = []
    for size_bytes in sizes:
        expected_s = size_bytes * 8 * 2 * (hosts - 1) / hosts / (rate_bps or 4e9)
        entries.append(f"{size_bytes}:{max(RUNS_MIN, min(RUNS_MAX, round(SECONDS_PER_SIZE / expected_s)))}")
    return entries


def limit_seconds(size_bytes: int, path_mtu: int, rate_bps: int) -> float:
    """What the link takes to carry the payload once, in packets of `path_mtu`."""
    return size_bytes * 8 * (path_mtu + HEADER_BYTES) / path_mtu / rate_bps


def summarise(outputs: list[str]) -> list[dict[str, Any]]:
    """From the lines of all ranks: per size the median of the slowest rank's seconds, and mean CPU seconds per GB."""
    lines = [json.loads(line) for output in outputs for line in re.findall(r"\{.*?\}", output)]  # mpirun joins some
    rows = []
    for size_bytes in dict.fromkeys(line["size"] for line in lines):
        ranks = [line for line in lines if line["size"] == size_bytes]
        slowest = [max(seconds) for seconds in zip(*(line["seconds"] for line in ranks), strict=True)]
        gigabytes = size_bytes * len(slowest) / 1e9
        seconds = statistics.median(slowest)
        rows.append(
            {
                "size": size_bytes,
                "seconds": seconds,
                "algbw_gbps": size_bytes * 8 / seconds / 1e9,
                "worker_cpu_s_per_gb": statistics.mean(line["cpu_seconds"] for line in ranks) / gigabytes,
                "runs": len(slowest),
            }
        )
    return rows


def run_gloo(network: Network, entries: list[str]) -> list[str]:
    """All ranks' output."""
    command = [sys.executable, WORKER, "gloo", *entries]
    return network.on_all_hosts(
        command, LIMIT_S, MASTER_ADDR=host_ip(0), MASTER_PORT="29600", GLOO_SOCKET_IFNAME="eth0"
    )


def run_mpi(network: Network, entries: list[str], directory: Path) -> list[str]:
    """All ranks' output. mpirun starts its daemons by something that looks like ssh and enters namespaces."""
    agent = directory / "agent"
    by_address = "".join(f"{host_ip(i)}) space={host} ;;\n" for i, host in enumerate(network.hosts))
    agent.write_text(f'#!/bin/sh\ncase "$1" in\n{by_address}esac\nshift\nexec ip netns exec "$space" sh -c "$*"\n')
    agent.chmod(0o755)
    settings = {
        "plm_rsh_agent": str(agent), "plm_rsh_no_tree_spawn": "1", "btl": "tcp,self", "pml": "ob1",
        "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0", "hwloc_base_binding_policy": "none",
        "mpi_yield_when_idle": "1",
    }  # fmt: skip
    command = ["mpirun", "--allow-run-as-root", "-H", ",".join(f"{host_ip(i)}:1" for i in range(network.count))]
    for name, value in settings.items():
        command += ["--mca", name, value]
    command += ["-x", "PYTHONPATH", sys.executable, WORKER, "mpi", *entries]
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    process = network.start(network.hosts[0], command, variables)
    output, _ = process.communicate(timeout=LIMIT_S)
    if process.returncode:
        raise SystemExit(f"mpirun failed:\n{output}")
    return [output]


def process_cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_netreduce(network: Network, entries: list[str], directory: Path, path_mtu: int) -> tuple[list[str], float]:
    """All ranks' output, and the switch's CPU seconds."""
    with network.switching(directory, path_mtu) as switch:
        before = process_cpu_seconds(switch.pid)
        outputs = network.on_all_hosts([sys.executable, WORKER, "netreduce", *entries], LIMIT_S)
        return outputs, process_cpu_seconds(switch.pid) - before


def measure(hosts: int, mtu: int, rate_bps: int, sizes: list[int], libraries: list[str]) -> dict[str, Any]:
    """One network, all libraries in turn."""
    entries = plan(sizes, hosts, rate_bps)
    found: dict[str, Any] = {"hosts": hosts, "mtu": mtu, "path_mtu": PATH_MTUS[mtu], "rate_bps": rate_bps}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        network = Network(hosts, "kernel", mtu, rate_bps)
        try:
            if "gloo" in libraries:
                found["gloo"] = summarise(run_gloo(network, entries))
            if "mpi" in libraries:
                found["mpi"] = summarise(run_mpi(network, entries, directory))
            network.hand_over()
            outputs, switch_cpu_s = run_netreduce(network, entries, directory, PATH_MTUS[mtu])
            found["netreduce"] = summarise(outputs)
        finally:
            network.close()
    gigabytes = sum(row["size"] * (row["runs"] + 1) for row in found["netreduce"]) / 1e9
    found["switch_cpu_s_per_gb"] = switch_cpu_s / gigabytes
    return found


def rate_text(rate_bps: int) -> str:
    """Such as ``500 Mb/s``."""
    return "unshaped" if not rate_bps else f"{rate_bps / 1e6:g} Mb/s"


def report(found: dict[str, Any]) -> None:
    """The table of one network."""
    hosts, rate_bps = found["hosts"], found["rate_bps"]
    others = [name for name in ("gloo", "mpi") if name in found]
    target = TARGETS.get(hosts)
    print(f"\n{hosts} hosts, MTU {found['mtu']}, path MTU {found['path_mtu']}, {rate_text(rate_bps)}")
    print("| MiB | netreduce, Gb/s | time / limit |" + "".join(f" {name}, Gb/s | x {name} |" for name in others))
    print("|--:|--:|--:|" + "--:|--:|" * len(others))
    for i, row in enumerate(found["netreduce"]):
        line = f"| {row['size'] / MIB:g} | {row['algbw_gbps']:.3f} | "
        if rate_bps:
            line += f"{row['seconds'] / limit_seconds(row['size'], found['path_mtu'], rate_bps):.3f}"
        for name in others:
            other = found[name][i]
            line += f" | {other['algbw_gbps']:.3f} | {other['seconds'] / row['seconds']:.2f}"
        print(line + " |")
    if rate_bps and target:
        print(f"targets: at most 1.050 of the limit, at least {target:.2f} x as fast as the others")
    worker = {name: found[name][-1]["worker_cpu_s_per_gb"] for name in (*others, "netreduce")}
    print("CPU s per GB and worker: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in worker.items()), end="")
    print(f"; in the switch {found['switch_cpu_s_per_gb']:.2f}")
    if not rate_bps and "gloo" in found:
        ours, gloo = (found[name][-1]["algbw_gbps"] for name in ("netreduce", "gloo"))
        crossover = ours * 2 * (hosts - 1) / hosts / SEGMENT_BYTES
        print(f"{ours / gloo:.2f} of gloo's algbw; on links of less than {crossover:.2f} Gb/s NetReduce is faster,")
        print("where a ring's 2(P-1)/P bytes take longer than the switch needs")


def machine() -> dict[str, object]:
    """Where this was measured."""
    return {"cpu": platform.processor(), "cores": os.cpu_count(), "kernel": platform.release()}


def size_list(text: str) -> list[int]:
    """Comma-separated numbers."""
    return [int(part) for part in text.split(",")]


def rate(text: str) -> int:
    """Bits per second, such as 500M or 1G; 0 for unshaped."""
    factor = {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}.get(text[-1].upper())
    return int(float(text[:-1]) * factor) if factor else int(text)


def main() -> None:
    """Measure all networks, print as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=size_list, default=[4, 8], help="comma-separated")
    parser.add_argument("--mtu", type=size_list, default=[9000, 1500], help=f"of {sorted(PATH_MTUS)}")
    parser.add_argument("--rate", type=rate, default=rate("200M"), help="of every link; 0: unshaped (default 200M)")
    parser.add_argument("--sizes", type=size_list, default=[1, 8, 64], help="MiB of float32")
    parser.add_argument("--without", nargs="*", default=[], choices=LIBRARIES[:2], help="leave these out")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: sudo ...")
    libraries = [name for name in LIBRARIES if name not in options.without]
    if "mpi" in libraries and not (shutil.which("mpirun") and find_spec("mpi4py")):
        print("without MPI: apt-get install openmpi-bin libopenmpi-dev, pip install 'netreduce[bench]'")
        libraries.remove("mpi")
    results = []
    for hosts in options.hosts:
        for mtu in options.mtu:
            results.append(measure(hosts, mtu, options.rate, [size * MIB for size in options.sizes], libraries))
            report(results[-1])
            sys.stdout.flush()
    if options.json:
        found = {"command": sys.argv, "machine": machine(), "results": results}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
