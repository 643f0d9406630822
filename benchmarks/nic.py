"""What one core sends and what it receives: two NICs, frames in memory, 256 KiB messages of two elements each.

Sending is `advance` (headers, gather, ICRC) and the ACKs taken; receiving is `receive` (parse, ICRC, scatter) and the
ACKs made. Posting is measured apart, with making the work requests. Seconds are the thread's CPU time, since a shared
machine's clock measures its neighbours. A copy of the same bytes and their CRC stand beside it. Usage::

    python benchmarks/nic.py [--mtu 4096] [--messages 2000] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict

import numpy as np
from isal import isal_zlib

from netreduce.nic import Nic
from netreduce.nic import verbs as v
from netreduce.wire.frames import BURST_BYTES_MAX, queue_burst_end, queue_release

MESSAGE_BYTES = 256 * 1024
BATCH = 4
HEADER_BYTES = 16


class Host:
    """A NIC with one queue pair and one registered buffer."""

    def __init__(self, number: int) -> None:
        self.nic = Nic(f"host{number}", f"02:4e:52:00:00:0{number}", f"10.78.0.{number}")
        context = v.Context(self.nic)
        pd = v.PD(context)
        self.cq = v.CQ(context, 64)
        cap = v.QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2)
        self.qp = v.QP(pd, v.QPInitAttr(v.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        self.memory = np.zeros(BATCH * MESSAGE_BYTES, np.uint8)
        self.mr = v.MR(pd, self.memory.size, v.IBV_ACCESS_LOCAL_WRITE, address=self.memory.ctypes.data)

    def connect(self, peer: Host, mtu: int) -> None:
        """To RTS."""
        self.nic.neighbours[peer.nic.ip] = peer.nic.mac
        route = v.AHAttr(gr=v.GlobalRoute(dgid=v.GID(peer.nic.ip)))
        self.qp.to_rts(
            v.QPAttr(path_mtu=v.Mtu(mtu.bit_length() - 8), dest_qp_num=peer.qp.qp_num, ah_attr=route, timeout=14)
        )

    def elements(self, index: int) -> list[v.SGE]:
        """Message `index` as a short header and the rest, as an aggregated message is."""
        address, key = self.mr.buf + index * MESSAGE_BYTES, self.mr.lkey
        return [v.SGE(address, HEADER_BYTES, key), v.SGE(address + HEADER_BYTES, MESSAGE_BYTES - HEADER_BYTES, key)]


def carry(sender: Host, receiver: Host, spent: dict[str, float], reading: str, making: str) -> bool:
    """Everything that waits in the sender's egress queue; whether there was anything."""
    queue = sender.nic.egress(0)
    was_empty = queue.state[0].frames == 0
    while queue.state[0].frames:
        end = int(queue_burst_end(queue.data, queue.state[0], BURST_BYTES_MAX))
        burst = queue.data[int(queue.state[0].head) : end]
        start = time.thread_time()
        receiver.nic.receive(0, burst, 0)
        middle = time.thread_time()
        receiver.nic.advance(0)
        spent[reading] += middle - start
        spent[making] += time.thread_time() - middle
        queue_release(queue.data, queue.state[0], end)
    return not was_empty


def transfer(a: Host, b: Host, spent: dict[str, float]) -> None:
    """One batch of messages from a to b."""
    start = time.thread_time()
    for i in range(BATCH):
        b.qp.post_recv(v.RecvWR(i, 2, b.elements(i)))
    middle = time.thread_time()
    for i in range(BATCH):
        a.qp.post_send(v.SendWR(i, v.IBV_WR_SEND, 2, 0, a.elements(i)))
    spent["post_recv"] += middle - start
    spent["post_send"] += time.thread_time() - middle
    start = time.thread_time()
    a.nic.advance(0)
    spent["send"] += time.thread_time() - start
    while carry(a, b, spent, "receive", "receive") | carry(b, a, spent, "send", "send"):
        pass
    start = time.thread_time()
    polled = a.cq.poll(BATCH)[0] + b.cq.poll(BATCH)[0]
    spent["poll"] += time.thread_time() - start
    assert polled == 2 * BATCH


def roofline_gbps(a: Host, b: Host) -> dict[str, float]:
    """Gb/s of a copy of the messages, and of their CRC."""
    rates = {}
    for name, work in (
        ("copy", lambda: np.copyto(b.memory, a.memory)),
        ("crc", lambda: isal_zlib.crc32(a.memory)),
    ):
        work()
        start = time.thread_time()
        for _ in range(50):
            work()
        rates[name] = 50 * a.memory.size * 8 / 1e9 / (time.thread_time() - start)
    return rates


def measure(mtu: int, messages: int) -> dict[str, float]:
    """Gb/s sent, received, copied and checked; microseconds a message of the verbs calls."""
    a, b = Host(1), Host(2)
    a.connect(b, mtu)
    b.connect(a, mtu)
    a.memory[:] = np.random.default_rng(1).integers(0, 256, a.memory.size, np.uint8)
    transfer(a, b, defaultdict(float))
    assert np.array_equal(a.memory, b.memory)
    spent: dict[str, float] = defaultdict(float)
    batches = max(1, messages // BATCH)
    for _ in range(batches):
        transfer(a, b, spent)
    gigabits = batches * BATCH * MESSAGE_BYTES * 8 / 1e9
    figures = {f"{name}_gbps": gigabits / spent[name] for name in ("send", "receive")}
    figures |= {f"{name}_gbps": rate for name, rate in roofline_gbps(a, b).items()}
    return figures | {f"{name}_us": spent[name] / batches / BATCH * 1e6 for name in ("post_send", "post_recv", "poll")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mtu", type=int, default=4096, choices=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(arguments.mtu, arguments.messages)
    if arguments.json:
        print(json.dumps({"mtu": arguments.mtu, **figures}))
        return
    for name, value in figures.items():
        quantity, unit = name.rsplit("_", 1)
        print(f"{quantity:<10} {value:8.1f} {'Gb/s' if unit == 'gbps' else 'us a message'}")


if __name__ == "__main__":
    main()
