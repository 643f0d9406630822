"""The guest's kernel and initramfs: Debian's stock kernel with its stock modules, and what the tests run in it.

`build` downloads Debian packages with apt-get and wheels with pip once, and keeps the result in a cache directory.
"""

from __future__ import annotations

import compileall
import gzip
import hashlib
import lzma
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

CACHE = Path(os.environ.get("NETREDUCE_GUEST_CACHE", Path.home() / ".cache" / "netreduce-guest"))
PACKAGES = (
    "busybox-static", "python3-pyverbs", "ibverbs-providers", "ibverbs-utils", "rdmacm-utils", "perftest", "iproute2",
    "libstdc++6",
)  # fmt: skip
WHEELS = ("numpy", "ml_dtypes", "msgspec", "isal")
"""What our communicator needs over RDMA devices: not Numba, for nothing is compiled."""
WHEEL_TAGS = ("--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64")
GUEST_CACHE_TAG = "cpython-311"
LEFT_OUT_OF_WHEELS = re.compile(r"/(tests|f2py|include)/|\.(pyi|a|pxd|h|c)$")
MODULES = (
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "crc32_generic",
    "ib_core",
    "ib_uverbs",
    "ib_cm",
    "iw_cm",
    "configfs",
    "rdma_cm",
    "rdma_ucm",
    "udp_tunnel",
    "ip6_udp_tunnel",
    "rdma_rxe",
    "llc",
    "stp",
    "mrp",
    "garp",
    "8021q",
)
PROGRAMS = (
    "bin/busybox",
    "usr/bin/python3.11",
    "bin/ip",
    "usr/bin/rdma",
    "usr/bin/ibv_devinfo",
    "usr/bin/ibv_rc_pingpong",
    "usr/bin/ib_write_bw",
    "usr/bin/ib_send_bw",
    "usr/bin/rping",
)
LOADED_LATE = ("lib/x86_64-linux-gnu/libgcc_s.so.1",)
"""Libraries that no program names, but that the C library loads when a thread ends."""
PYTHON_MODULES_LEFT_OUT = {
    "test", "idlelib", "lib2to3", "tkinter", "ensurepip", "distutils", "pydoc_data", "__pycache__",
}  # fmt: skip
SKIPPED_PACKAGES = re.compile(
    "perl|debconf|dpkg|tar|init-system|gcc-1|media-types|passwd|adduser|login|kmod|udev|systemd|mawk|gawk|base-files|"
    "cdebconf"
)
"""Parts of the closure of dependencies that a guest without package management does without."""

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /run
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/ LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu
for m in $(cat /modules.order); do insmod /modules/$m.ko 2>/dev/null; done
for f in all default; do
  echo 0 > /proc/sys/net/ipv4/conf/$f/rp_filter
  echo 1 > /proc/sys/net/ipv4/conf/$f/accept_local
  echo 1 > /proc/sys/net/ipv4/conf/$f/arp_ignore
  echo 2 > /proc/sys/net/ipv4/conf/$f/arp_announce
done
/usr/bin/ip link set lo up
sh /job/network.sh
cd /job
stty -echo
echo GUEST-READY
while read -r line; do
  sh -c "$line"
  echo "GUEST-DONE $?"
done
poweroff -f
"""


def missing_tools() -> list[str]:
    """The host programs that are needed and not there."""
    names = ("qemu-system-x86_64", "apt-get", "dpkg-deb", "cpio", "readelf")
    return [name for name in names if shutil.which(name) is None]


def _run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def _package_closure() -> list[str]:
    flags = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    text = _run("apt-cache", "depends", "--recurse", *flags, *PACKAGES)
    names = {line for line in text.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", line)}
    return sorted(name for name in names if not SKIPPED_PACKAGES.match(name))


def _kernel_package() -> str:
    match = re.search(r"Depends: (linux-image-\S+-amd64)", _run("apt-cache", "depends", "linux-image-amd64"))
    if match is None:
        raise RuntimeError("apt-cache knows no kernel behind linux-image-amd64: run apt-get update")
    return match[1]


def _download(names: Iterable[str], into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    have = {path.name.split("_")[0] for path in into.glob("*.deb")}
    wanted = [name for name in names if name not in have]
    if wanted:
        _run("apt-get", "download", "-q", *wanted, cwd=into)


def _download_wheels(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    have = {path.name.split("-")[0] for path in into.glob("*.whl")}
    wanted = [name for name in WHEELS if name not in have]
    if wanted:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *WHEEL_TAGS]
        _run(*pip, "-d", str(into), *wanted)


def _unpack_wheels(wheels: Path, target: Path) -> list[Path]:
    """Unpack them into the guest's Python path; the shared objects among what they hold."""
    place = target / "usr/lib/python3/dist-packages"
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not LEFT_OUT_OF_WHEELS.search(name)]
            archive.extractall(place, names)
    return [path for path in place.rglob("*.so*") if path.is_file()]


def _vmlinux(vmlinuz: Path) -> bytes:
    """The uncompressed kernel inside a bzImage: booting it directly spares the guest the slow unpacking."""
    data = vmlinuz.read_bytes()
    start = data.index(b"\xfd7zXZ\x00")
    return lzma.LZMADecompressor().decompress(data[start:])


def _libraries(root: Path, programs: Iterable[Path]) -> set[Path]:
    """Shared libraries within `root` that `programs` need, directly or not."""
    places = [root / "lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu", root / "lib64"]
    found: set[Path] = set()
    queue = list(programs)
    while queue:
        output = _run("readelf", "-d", "-l", str(queue.pop()))
        names = re.findall(r"Shared library: \[(\S+)\]", output) + re.findall(r"interpreter: \S*/(\S+)\]", output)
        for name in names:
            path = next((place / name for place in places if (place / name).exists()), None)
            if path is not None and path not in found:
                found.add(path)
                queue.append(path)
    return found


def _copy(source: Path, root: Path, target: Path) -> None:
    destination = target / source.relative_to(root)
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, destination)


def _stage(root: Path, kernel_root: Path, wheels: Path, target: Path) -> None:
    """Choose from the unpacked packages what the guest needs."""
    programs = [root / name for name in PROGRAMS if (root / name).exists()]
    providers = list((root / "usr/lib/x86_64-linux-gnu/libibverbs").glob("librxe*"))
    python_root = root / "usr/lib/python3"
    extensions = list(python_root.rglob("*.so"))
    dynload = list((root / "usr/lib/python3.11/lib-dynload").glob("*.so"))
    binaries = {*programs, *providers, *extensions, *dynload, *(root / name for name in LOADED_LATE)}
    from_wheels = _unpack_wheels(wheels, target)
    for path in binaries | _libraries(root, [*binaries, *from_wheels]):
        _copy(path, root, target)
    shutil.move(target / "bin/ip", target / "usr/bin/ip")  # away from busybox's applet of the same name
    for directory in (root / "usr/lib/python3.11", python_root / "dist-packages"):
        for path in directory.rglob("*.py"):
            if not PYTHON_MODULES_LEFT_OUT & set(path.parts):
                _copy(path, root, target)
    compile_python(target)
    modules = {path.name.removesuffix(".ko"): path for path in kernel_root.rglob("*.ko")}
    (target / "modules").mkdir()
    order = [name for name in MODULES if name in modules]
    for name in order:
        shutil.copy(modules[name], target / "modules")
    (target / "modules.order").write_text("\n".join(order) + "\n")
    drivers = target / "etc/libibverbs.d"
    drivers.mkdir(parents=True)
    (drivers / "rxe.driver").write_text("driver rxe\n")
    (target / "init").write_text(INIT)
    (target / "init").chmod(0o755)
    (target / "job").mkdir()
    if not (target / "lib64").exists():
        loader = next((target / "lib/x86_64-linux-gnu").glob("ld-linux*"))
        (target / "lib64").mkdir()
        shutil.copy(loader, target / "lib64")


def compile_python(directory: Path) -> None:
    """Spare the slow guest compiling: that halves the time of its imports. Only if this is the guest's Python, too."""
    if sys.implementation.cache_tag == GUEST_CACHE_TAG:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(directory, quiet=2, invalidation_mode=mode)


def pack(directory: Path) -> bytes:
    """A compressed cpio archive of what is in `directory`; the kernel unpacks several in a row."""
    names = "\n".join(str(path.relative_to(directory)) for path in sorted(directory.rglob("*")))
    command = ["cpio", "-o", "-H", "newc", "-R", "0:0"]
    packed = subprocess.run(command, cwd=directory, input=names.encode(), capture_output=True, check=True)
    return gzip.compress(packed.stdout, 6)


def build() -> tuple[Path, Path]:
    """Paths of the guest's kernel and base initramfs, built on first use (110 MB of downloads, about a minute)."""
    kernel_name = _kernel_package()
    key = hashlib.sha256((kernel_name + Path(__file__).read_text()).encode()).hexdigest()[:12]
    place = CACHE / key
    kernel, initrd = place / "vmlinux", place / "initrd.gz"
    if initrd.exists():
        return kernel, initrd
    debs = CACHE / "debs"
    _download([kernel_name], CACHE / "kernel")
    _download(_package_closure(), debs)
    _download_wheels(CACHE / "wheels")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        root, kernel_root, target = (Path(scratch) / name for name in ("root", "kernel", "target"))
        for directory in (root, kernel_root, target):
            directory.mkdir()
        for deb in sorted(debs.glob("*.deb")):
            _run("dpkg-deb", "-x", str(deb), str(root))
        for deb in (CACHE / "kernel").glob(f"{kernel_name}_*.deb"):
            _run("dpkg-deb", "-x", str(deb), str(kernel_root))
        kernel.write_bytes(_vmlinux(next((kernel_root / "boot").glob("vmlinuz-*"))))
        _stage(root, kernel_root, CACHE / "wheels", target)
        partial = initrd.with_suffix(".part")
        partial.write_bytes(pack(target))
        partial.rename(initrd)
    return kernel, initrd
