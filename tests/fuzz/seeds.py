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
from tests.fuzz.targets.door import OUTSIDE_MAC, TOKEN

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
    """A whole burst, and a stream."""
    frames = [build_frame(opcode, b"") for opcode in (Opcode.SEND_ONLY, Opcode.ACKNOWLEDGE)]
    yield b"\0" + build_burst(frames, 5).tobytes()
    yield b"\1" + b"".join(struct.pack(">I", frame.size) + frame.tobytes() for frame in frames)


def _endpoint(rank: int) -> control.Endpoint:
    ip, mac = ADDRESSES[rank]
    return control.Endpoint(rank, ip, mac, 16 + rank, 32 + rank, 7)


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


def nic_seeds() -> Iterator[bytes]:
    """A receive and a send are posted, each opcode arrives, time passes; messages of several packets; all at once."""
    posted = bytes([5, 0, 2, 0, 0, 5, 1, 1, 0, 0, 6, 1])
    scripts = []
    for number, opcode in enumerate(Opcode):
        roles = OPCODE_ROLES[opcode]
        one = bytes([0, number, 0, 1, *([3] if roles & Role.PAYLOAD else [])])
        one += bytes([0, 0, 1, 0]) if roles & Role.RETH else b""
        one += bytes([0]) if roles & Role.AETH else b""
        scripts.append(one)
        yield posted + one + b"\6\1"
    for chosen in ((0, 1, 2), (6, 7, 8), (6, 7, 9), (4, 5, 4), (10, 11, 10)):
        yield posted + b"".join(scripts[i] for i in chosen) + b"\6\1"
    yield posted + b"".join(script + b"\7" for script in scripts)
    for syndrome in (0x1F, 0x60, 0x61, 0x62, 0x63, 0x21, 0xFF):
        answer = bytes([0, list(Opcode).index(Opcode.ACKNOWLEDGE), 0, 0, syndrome])
        yield posted + answer * 4 + b"\6\xff" * 4


def switch_seeds() -> Iterator[bytes]:
    """All messages in windows, acknowledged; replays; lost first packets; the wrong port; changes of each header."""
    for policy in (b"\0", b"\1"):
        windows = b""
        for first in range(0, 8, 2):  # messages of two packets
            windows += bytes([7, 0 + 2 * 2, first, 7, 1 + 2 * 2, first, 6, 0, 6, 1])
        yield policy + windows
        yield policy + bytes([7, 4, 0, 7, 4, 0, 7, 5, 0, 7, 5, 0]) + windows
        yield policy + bytes([7, 2, 1, 7, 3, 1]) + windows
        yield policy + b"".join(bytes([0, rank, 0, port]) for rank in range(2) for port in range(3)) + windows
        for at in (0, 6, 14, 23, 34, 42, 43, 47, 50, 54, 58, 62, 66, 67, 68, 69, 70):
            yield policy + bytes([2, 0, 0, 1, at, 1, 0]) + windows
            yield policy + b"".join(bytes([2, rank, 0, 1, at, 2, 0]) for rank in range(2)) + windows
        yield policy + bytes([5, 0, 0x1F, 5, 5, 1, 0x60, 0, 5, 1, 0x21, 1]) + windows


def ina_seeds() -> Iterator[bytes]:
    """The truth, and each field wrong."""
    for elements in (188, 1, 60):
        truth = pack_ina(7, 0, 0, 4 * elements, DataType.FLOAT32, ReduceOp.SUM, InaFlag.START | InaFlag.END)
        for first in (0, 1):
            yield bytes([elements - 1, first]) + truth
            for at in range(len(truth)):
                yield bytes([elements - 1, first]) + truth[:at] + bytes([truth[at] + 1]) + truth[at + 1 :]


def door_seeds() -> Iterator[bytes]:
    """Greetings of every kind, with and without the token, and what observers may ask."""
    geometry, endpoints = (
        control.Geometry(message_packets=2, path_mtu=256),
        (control.Endpoint(0, "10.9.0.1", "", 1, 2, 3),),
    )
    mine = (control.Endpoint(0, "10.9.0.1", OUTSIDE_MAC, 1, 2, 3),)
    present = control.Present("w", OUTSIDE_MAC, "10.9.0.1", TOKEN)
    observer = control.Hello(-1, "o", 1, TOKEN)
    asked: list[control.Message] = [control.StatisticsRequest(), control.RingsRequest()]
    asked += [control.Register(endpoints, geometry), control.Register(mine, geometry, 5), control.Unregister(5)]
    joins = [control.Join("g", 1, mine[0], geometry), control.Ready(1), control.Leave(1)]
    for who, greeting, rest in (
        (0, present, joins),
        (0, observer, asked),
        (2, control.Hello(-1, "o", 1), asked),
        (2, control.Attach("w"), []),
        (0, control.Present("w", "zz", "10.9.0.1", TOKEN), []),
        (1, control.Present("w", OUTSIDE_MAC, "nowhere", TOKEN), []),
        (0, control.Hello(0, "w", 1, TOKEN), []),
        (1, control.Hello(-1, "o", 1, "guess"), asked),
    ):
        yield b"\n".join(bytes([who + 48]) + control.encode(message) for message in (greeting, *rest))
    yield b"2" + control.encode(control.Attach("w")) + b"\n2" + bytes(64)
    yield b"0{}\n1\xff\xff\xff\xff\n3nonsense\n4\xff\xff\xff\xff"


SEEDS = {
    "burst": burst_seeds,
    "capture": capture_seeds,
    "control": control_seeds,
    "door": door_seeds,
    "frame": frame_seeds,
    "ina": ina_seeds,
    "nic": nic_seeds,
    "switch": switch_seeds,
}


def main() -> None:
    """Write all."""
    for target, seeds in SEEDS.items():
        folder = WORK / "found" / target
        folder.mkdir(parents=True, exist_ok=True)
        for data in seeds():
            (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
