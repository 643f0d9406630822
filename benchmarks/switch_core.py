"""What the switch's core takes a packet: ICRC check, aggregation, splicing, new ICRC, with frames in memory.

A ring's bursts are prepared once and fed again and again; the ring is registered anew before each pass, so that PSNs
and message numbers fit. Beside it stands a roofline from the same run: copying, checking and adding the same bytes
alone, with nothing known of packets. Seconds are the process's own CPU time. Usage::

    python benchmarks/switch_core.py [--ranks 4] [--mtu 4096] [--dtype float32] [--passes 100] [--json]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from netreduce.compiled import compiled, copy_bytes, crc32
from netreduce.switch import RingSpec, Switch
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.control import Endpoint, Geometry
from netreduce.wire.frames import BURST_BYTES_MAX
from netreduce.wire.ina import NUMPY_DTYPES, DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.opcodes import Opcode

RING_ID = 1
TARGET_GBPS = 40


def make_spec(ranks: int, mtu: int) -> RingSpec:
    """A ring of `ranks` with default window and message length."""
    endpoints = [
        Endpoint(rank, f"10.0.0.{rank + 1}", f"02:00:00:00:00:{rank + 1:02x}", 100 + rank, 200 + rank, 1000 * rank)
        for rank in range(ranks)
    ]
    return RingSpec(RING_ID, tuple(endpoints), Geometry(path_mtu=mtu))


def message_frames(spec: RingSpec, rank: int, number: int, dtype: DataType) -> list[np.ndarray]:
    """The frames of one full message."""
    geometry, here = spec.geometry, spec.endpoints[rank]
    there = spec.endpoints[(rank + 1) % len(spec.endpoints)]
    size, packets = geometry.message_data_bytes, geometry.message_packets
    data = np.arange(size // NUMPY_DTYPES[dtype].itemsize).astype(NUMPY_DTYPES[dtype]).tobytes()
    body = pack_ina(RING_ID, rank, number, size, dtype, ReduceOp.SUM, InaFlag(0)) + data
    opcodes = [Opcode.SEND_FIRST, *[Opcode.SEND_MIDDLE] * (packets - 2), Opcode.SEND_LAST]
    return [
        build_frame(
            opcode,
            body[i * geometry.path_mtu : (i + 1) * geometry.path_mtu],
            source_ip=here.ip,
            destination_ip=there.ip,
            source_mac=here.mac,
            destination_mac=there.mac,
            destination_qpn=there.predecessor_qpn,
            psn=here.first_psn + number * packets + i,
        )
        for i, opcode in enumerate(opcodes)
    ]


def make_bursts(spec: RingSpec, dtype: DataType) -> list[tuple[int, np.ndarray]]:
    """Port and burst of all messages that the switch can hold, in the order in which they arrive."""
    per_burst = BURST_BYTES_MAX // (spec.geometry.path_mtu + 80)
    bursts = []
    for number in range(2 * spec.geometry.message_window):
        frames = [message_frames(spec, rank, number, dtype) for rank in range(len(spec.endpoints))]
        for start in range(0, spec.geometry.message_packets, per_burst):
            bursts += [(rank, build_burst(of_rank[start : start + per_burst])) for rank, of_rank in enumerate(frames)]
    return bursts


def switch_seconds(switch: Switch, spec: RingSpec, bursts: list[tuple[int, np.ndarray]]) -> float:
    """CPU seconds that the switch takes for all bursts; what leaves is thrown away after each."""
    switch.register_ring(spec)
    queued_frames = switch.tables.egress_state.view(np.ndarray)["frames"]
    started = time.process_time()
    for port, burst in bursts:
        switch.receive(port, burst, 0)
        queued_frames[:] = 0
    seconds = time.process_time() - started
    switch.unregister_ring(RING_ID)
    return seconds


@compiled
def bare_work(source: np.ndarray, pool: np.ndarray, results: np.ndarray, ranks: int, size: int, count: int) -> int:
    """For `count` slots: check and copy the bytes of every rank, add them as float32, copy and check every result."""
    check = 0
    for i in range(ranks * count):
        check ^= crc32(source[i * size : (i + 1) * size], 0)
        copy_bytes(pool, i * size, source, i * size, size)
    for slot in range(count):
        total = pool[slot * size : (slot + 1) * size].view(np.float32)
        for rank in range(1, ranks):
            at = (rank * count + slot) * size
            part = pool[at : at + size].view(np.float32)
            for i in range(total.size):
                total[i] += part[i]
        for rank in range(ranks):
            at = (rank * count + slot) * size
            copy_bytes(results, at, pool, slot * size, size)
            check ^= crc32(results[at : at + size], 0)
    return check


def bare_seconds(arrays: list[np.ndarray], ranks: int, size: int, packets: int, messages: int) -> float:
    """CPU seconds of the bare work for as many packets."""
    source, pool, results = arrays
    run = ranks * packets * size
    started = time.process_time()
    for at in range(0, messages * run, run):
        bare_work(source[at : at + run], pool[at : at + run], results, ranks, size, packets)
    return time.process_time() - started


def measure(ranks: int, mtu: int, dtype: DataType, passes: int) -> dict[str, float]:
    """The median pass of the switch and of the bare work, in turn."""
    spec = make_spec(ranks, mtu)
    switch = Switch("s0", ranks)
    for endpoint in spec.endpoints:
        switch.attach(endpoint.rank, endpoint.mac, endpoint.ip)
    bursts = make_bursts(spec, dtype)
    messages, packets = 2 * spec.geometry.message_window, spec.geometry.message_packets
    run = ranks * packets * mtu
    arrays = [np.zeros(messages * run, np.uint8), np.zeros(messages * run, np.uint8), np.zeros(run, np.uint8)]
    times = [
        (switch_seconds(switch, spec, bursts), bare_seconds(arrays, ranks, mtu, packets, messages))
        for _ in range(passes + 1)
    ][1:]
    assert switch.counters()["packets_spliced"] == (passes + 1) * messages * packets * ranks
    seconds, bare_s = np.median(times, axis=0)
    count = messages * packets * ranks
    return {
        "ranks": ranks,
        "mtu": mtu,
        "ns_per_packet": round(seconds / count * 1e9),
        "bare_ns_per_packet": round(bare_s / count * 1e9),
        "ratio_to_bare_work": round(seconds / bare_s, 2),
        "payload_gbps": round(count * mtu * 8 / seconds / 1e9, 1),
        "target_gbps": TARGET_GBPS,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mtu", type=int, default=4096)
    parser.add_argument("--dtype", default="float32", choices=[dtype.name.lower() for dtype in DataType])
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = measure(options.ranks, options.mtu, DataType[options.dtype.upper()], options.passes)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:>24}  {value:,}")


if __name__ == "__main__":
    main()
