"""First inputs of targets, made from what the product itself writes: a fuzzer does not guess a capture's magic.

python -m tests.fuzz.seeds       # writes them to .fuzz/found, from where minimise.py takes what is worth keeping
"""

from __future__ import annotations

import hashlib
import io
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.fuzz.fuzz import WORK
from tests.fuzz.targets.control import ADDRESSES

from netreduce.wire import control
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.ina import DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.opcodes import OPCODE_ROLES, Opcode, Role
from netreduce.wire.pcap import Direction, PcapWriter

INA = pack_ina(1, 0, 0, 24, DataType.FLOAT32, ReduceOp.SUM, InaFlag.START | InaFlag.END)


def _frames() -> Iterator[bytes]:
    for opcode in Opcode:
        payload = INA + bytes(24) if OPCODE_ROLES[opcode] & Role.PAYLOAD else b""
        yield build_frame(opcode, payload).tobytes()
    yield build_frame(Opcode.SEND_ONLY, b"abc", vlan=5, source_ip="fd00::1", destination_ip="fd00::2").tobytes()
    yield bytes.fromhex("ffffffffffff020000000001 0806 0001080006040001 020000000001 0a000001 000000000000 0a000002")


def frame_seeds() -> Iterator[bytes]:
    """Each opcode, sealed and not."""
    for frame in _frames():
        yield b"\0" + frame
        yield b"\1" + frame


def capture_seeds() -> Iterator[bytes]:
    """pcapng of ours, with two interfaces; pcap of either byte order and unit."""
    frames = list(_frames())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.pcapng"
        with PcapWriter(path, ["eth0", "eth1"], epoch_ns=10**18) as writer:
            arrays = [build_frame(opcode, b"") for opcode in (Opcode.SEND_ONLY, Opcode.ACKNOWLEDGE)]
            writer.write_burst(0, Direction.INBOUND, build_burst(arrays, 10**6))
            writer.write_burst(1, Direction.OUTBOUND, build_burst(arrays, 10**7))
        yield path.read_bytes()
    for order, magic in (("<", 0xA1B2C3D4), (">", 0xA1B23C4D)):
        file = io.BytesIO()
        file.write(struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(frames[:8]):
            file.write(struct.pack(order + "IIII", number, 1000, len(frame), len(frame)) + frame)
        yield file.getvalue()


def burst_seeds() -> Iterator[bytes]:
    """Whole bursts, a stream, packets of the kernel."""
    frames = [build_frame(opcode, b"") for opcode in (Opcode.SEND_ONLY, Opcode.ACKNOWLEDGE)]
    yield b"\0" + build_burst(frames, 5).tobytes()
    yield b"\1" + b"".join(struct.pack(">I", frame.size) + frame.tobytes() for frame in frames)
    yield b"\2" + bytes([60] * 1) + bytes(16) + struct.pack("<IIIHHHH", 0x50, 60, 60, 0, 14, 5, 0x8100) + bytes(68)


def _endpoint(rank: int) -> control.Endpoint:
    ip, mac = ADDRESSES[rank]
    return control.Endpoint(rank, ip, mac, 16 + rank, 32 + rank, 7, (0,) * 3, (0,) * 3, (0,) * 3, (0,) * 3)


def control_seeds() -> Iterator[bytes]:
    """A group's whole life, one that is not complete, and every message once."""
    geometry = control.Geometry(message_packets=4, path_mtu=256)
    joins = [(rank, control.Join("g", 3, _endpoint(rank), geometry)) for rank in range(3)]
    life: list[tuple[int, control.Message]] = [*joins]
    life += [(rank, control.Ready(1)) for rank in range(3)] + [(0, control.StatisticsRequest())]
    life += [(1, control.Mismatch(1, -1, 0, "a", 1, "b")), (2, control.Report({"sent_pkts": 5}))]
    life += [(rank, control.Leave(1)) for rank in range(3)]
    lines = [bytes([port + 48]) + control.encode(message) for port, message in life]
    yield b"\n".join(lines)
    yield b"\n".join([*lines[:2], b"1lost", *lines[:5], b"2lost"])
    yield b"\n".join(b"0" + control.encode(message) for message in _one_of_each())


def _one_of_each() -> Iterator[control.Message]:
    for kind in control.Message.__args__:
        fields = {field.name: _example(field.name) for field in msgspec.structs.fields(kind) if field.required}
        yield kind(**fields)


def _example(name: str) -> object:
    geometry, endpoints = control.Geometry(), (_endpoint(0), _endpoint(1))
    known: dict[str, object] = {"endpoint": _endpoint(0), "geometry": geometry, "endpoints": endpoints}
    known |= {"missing_ranks": (1,), "counters": {"x": 1}, "workers": {}, "rings": {}, "ports": {}, "waiting_s": 1.0}
    texts = ("worker", "mac", "ip", "group", "reason", "description_a", "description_b")
    return known.get(name, "text" if name in texts else 1)


SEEDS = {"frame": frame_seeds, "capture": capture_seeds, "burst": burst_seeds, "control": control_seeds}


def main() -> None:
    """Write all."""
    for target, seeds in SEEDS.items():
        folder = WORK / "found" / target
        folder.mkdir(parents=True, exist_ok=True)
        for data in seeds():
            (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
