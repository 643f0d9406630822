"""What the switch's core takes a packet: ICRC check, aggregation, splicing, new ICRC, with frames in memory.

A ring's bursts are prepared once and fed again and again; the ring is registered anew before each pass, so that PSNs
and message numbers fit. Beside it stands a roofline from the same run: copying, checking and adding the same bytes
alone, with nothing known of packets, all in one and each by itself. Seconds are the process's own CPU time.

The frames of a default window are 16 MB, which is more than a core's own cache holds: they come from the third-level
cache or from memory. They lie in huge pages, where the kernel grants them, as a user-space switch's packet memory does.
`in_cache` is the same with a window of one message of one burst for each rank. Usage::

    python benchmarks/switch_core.py [--ranks 4] [--mtu 4096] [--dtype float32] [--passes 100] [--json]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from netreduce.compiled import CACHE_LINE_BYTES, compiled, copy_bytes, crc32
from netreduce.switch import RingSpec, Switch
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.control import Endpoint, Geometry
from netreduce.wire.frames import BURST_BYTES_MAX
from netreduce.wire.ina import NUMPY_DTYPES, DataType, InaFlag, ReduceOp, pack_ina
from netreduce.wire.opcodes import Opcode

RING_ID = 1
HUGE_PAGES_FROM_BYTES = 4 * 1024 * 1024
"""From here on NumPy asks for huge pages."""
TARGET_GBPS = 40


def make_spec(ranks: int, geometry: Geometry) -> RingSpec:
    """A ring of `ranks`."""
    endpoints = [
        Endpoint(rank, f"10.0.0.{rank + 1}", f"02:00:00:00:00:{rank + 1:02x}", 100 + rank, 200 + rank, 1000 * rank)
        for rank in range(ranks)
    ]
    return RingSpec(RING_ID, tuple(endpoints), geometry)


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


def burst_packets(mtu: int) -> int:
    """Packets that fill a burst."""
    return BURST_BYTES_MAX // (mtu + 80)


def make_bursts(spec: RingSpec, dtype: DataType) -> list[tuple[int, np.ndarray]]:
    """Port and burst of all messages that the switch can hold, in the order in which they arrive, in one memory."""
    per_burst = burst_packets(spec.geometry.path_mtu)
    bursts = []
    for number in range(2 * spec.geometry.message_window):
        frames = [message_frames(spec, rank, number, dtype) for rank in range(len(spec.endpoints))]
        for start in range(0, spec.geometry.message_packets, per_burst):
            bursts += [(rank, build_burst(of_rank[start : start + per_burst])) for rank, of_rank in enumerate(frames)]
    starts = np.cumsum([0, *(-(-burst.size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES for _, burst in bursts)])
    memory = np.empty(max(starts[-1] + CACHE_LINE_BYTES, HUGE_PAGES_FROM_BYTES), np.uint8)
    memory = memory[-memory.ctypes.data % CACHE_LINE_BYTES :]
    for at, (_, burst) in zip(starts, bursts, strict=False):
        memory[at : at + burst.size] = burst
    return [(port, memory[at : at + burst.size]) for at, (port, burst) in zip(starts, bursts, strict=False)]


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


@compiled
def copy_alone(target: np.ndarray, source: np.ndarray, size: int) -> None:
    """Copy `source` in pieces of `size`."""
    for at in range(0, source.size, size):
        copy_bytes(target, at, source, at, size)


@compiled
def check_alone(source: np.ndarray, size: int) -> int:
    """The CRC of every piece of `size` bytes."""
    check = 0
    for at in range(0, source.size, size):
        check ^= crc32(source[at : at + size], 0)
    return check


@compiled
def add_alone(target: np.ndarray, source: np.ndarray) -> None:
    """Add one array of float32 to another."""
    for i in range(target.size):
        target[i] += source[i]


def bare_seconds(arrays: list[np.ndarray], ranks: int, size: int, packets: int) -> float:
    """CPU seconds of the bare work for as many packets."""
    source, pool, results = arrays
    run = ranks * packets * size
    started = time.process_time()
    for at in range(0, source.size, run):
        bare_work(source[at : at + run], pool[at : at + run], results, ranks, size, packets)
    return time.process_time() - started


def seconds_alone(arrays: list[np.ndarray], size: int) -> list[float]:
    """CPU seconds for copying, checking and adding, each once to every payload."""
    source, pool, _ = arrays
    words = [array.view(np.float32) for array in (pool, source)]
    times = [time.process_time()]
    for work in (lambda: copy_alone(pool, source, size), lambda: check_alone(source, size), lambda: add_alone(*words)):
        work()
        times.append(time.process_time())
    return list(np.diff(times))


def measure(ranks: int, geometry: Geometry, dtype: DataType, passes: int) -> tuple[float, list[float]]:
    """CPU seconds a packet of the switch; of the bare work, and of copying, checking and adding alone: medians.

    All take turns.
    """
    spec = make_spec(ranks, geometry)
    switch = Switch("s0", ranks)
    for endpoint in spec.endpoints:
        switch.attach(endpoint.rank, endpoint.mac, endpoint.ip)
    bursts = make_bursts(spec, dtype)
    messages, packets, mtu = 2 * geometry.message_window, geometry.message_packets, geometry.path_mtu
    run = ranks * packets * mtu
    arrays = [np.ones(messages * run, np.uint8), np.ones(messages * run, np.uint8), np.ones(run, np.uint8)]
    times = [
        [
            switch_seconds(switch, spec, bursts),
            bare_seconds(arrays, ranks, mtu, packets),
            *seconds_alone(arrays, mtu),
        ]
        for _ in range(passes + 1)
    ][1:]
    assert switch.counters()["packets_spliced"] == (passes + 1) * messages * packets * ranks
    seconds, *bare = np.median(times, axis=0) / (messages * packets * ranks)
    return seconds, bare


def report(ranks: int, mtu: int, dtype: DataType, passes: int) -> dict[str, float]:
    """All figures, by name."""
    small = Geometry(message_window=1, message_packets=burst_packets(mtu), path_mtu=mtu)
    seconds, (bare_s, copy_s, check_s, add_s) = measure(ranks, Geometry(path_mtu=mtu), dtype, passes)
    in_cache_s, (in_cache_bare_s, *_) = measure(ranks, small, dtype, passes)
    return {
        "ranks": ranks,
        "mtu": mtu,
        "ns_per_packet": round(seconds * 1e9),
        "bare_ns_per_packet": round(bare_s * 1e9),
        "ratio_to_bare_work": round(seconds / bare_s, 2),
        "copy_alone_ns": round(copy_s * 1e9),
        "crc_alone_ns": round(check_s * 1e9),
        "sum_alone_ns": round(add_s * 1e9),
        "payload_gbps": round(mtu * 8 / seconds / 1e9, 1),
        "target_gbps": TARGET_GBPS,
        "in_cache_ns_per_packet": round(in_cache_s * 1e9),
        "in_cache_ratio_to_bare_work": round(in_cache_s / in_cache_bare_s, 2),
        "in_cache_payload_gbps": round(mtu * 8 / in_cache_s / 1e9, 1),
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
    result = report(options.ranks, options.mtu, DataType[options.dtype.upper()], options.passes)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:>28}  {value:,}")


if __name__ == "__main__":
    main()
