"""A ring of RC queue pairs over soft-RoCE devices, in plain pyverbs: it contains no line of netreduce.

Runs inside the guest as ``python3.11 ring_script.py '<json>'``: one process opens all devices, rank r's queue pair
sends to rank r+1, and every rank sends each message with an INA header in front, as a worker of NetReduce would. It
prints one line ``RESULT {...}``. Between "ENDPOINTS" and the first message it waits for a line of input, so that
somebody can register the ring.
"""

import json
import struct
import sys
import time

import pyverbs.enums as e
from pyverbs.wr import SGE, RecvWR, SendWR
from verbs_common import Device

INA_BYTES = 16
UINT8 = 6


class Rank(Device):
    """One device with two queue pairs: one to the successor, one from the predecessor."""

    def __init__(self, rank, options):
        super().__init__(rank, (options["length"] + INA_BYTES) * options["messages"], options["gids"][rank])
        self.rank = rank
        self.completed = 0  # sends and receives, two a message
        self.out, self.into = self.queue_pair(), self.queue_pair()

    def post(self, m, successor, size, carrier):
        """Send message m to the successor: by SEND, or by RDMA WRITE with Immediate."""
        write = carrier == "write"
        opcode = e.IBV_WR_RDMA_WRITE_WITH_IMM if write else e.IBV_WR_SEND
        sge = SGE(self.send_mr.buf + m * size, size, self.send_mr.lkey)
        wr = SendWR(opcode=opcode, num_sge=1, sg=[sge], imm_data=m, send_flags=e.IBV_SEND_SIGNALED)
        if write:
            wr.set_wr_rdma(successor.receive_mr.rkey, successor.receive_mr.buf + m * size)
        self.out.post_send(wr)


def payload(rank, message, options):
    """Whole numbers, or random bytes where the elements are bytes: sums of both are exact."""
    count = options["length"]
    if options["dtype"] == UINT8:
        return bytes((rank * 31 + message * 7 + i * 3) % 256 for i in range(count))
    return struct.pack(f"<{count // 4}f", *[((rank + 1) * 1000 + message * 7 + i) % 4096 for i in range(count // 4)])


def total(parts, options):
    """The elementwise sum, as bytes."""
    if options["dtype"] == UINT8:
        return bytes(sum(column) % 256 for column in zip(*parts, strict=True))
    form = f"<{options['length'] // 4}f"
    return struct.pack(form, *map(sum, zip(*(struct.unpack(form, part) for part in parts), strict=True)))


def header(rank, message, options):
    flags = (1 if message == 0 else 0) | (2 if message == options["messages"] - 1 else 0)
    return struct.pack(">HHIIBBBB", options["ring_id"], rank, message, options["length"], options["dtype"], 1, 1, flags)


def poll(ranks, wanted, deadline):
    """Take completions until every rank has had `wanted` since the start."""
    while any(r.completed < wanted for r in ranks):
        for r in ranks:
            _, completions = r.cq.poll(16)
            for wc in completions:
                if wc.status != e.IBV_WC_SUCCESS:
                    raise SystemExit(f"RESULT {json.dumps({'error': f'rank {r.rank}: status {wc.status}'})}")
                r.completed += 1
        if time.time() > deadline:
            counts = [r.completed for r in ranks]
            raise SystemExit(f"RESULT {json.dumps({'error': f'timeout: {counts} of {wanted}'})}")


def main():
    options = json.loads(sys.argv[1])
    ranks = [Rank(r, options) for r in range(options["ranks"])]
    n, first_psn, size = len(ranks), options["first_psn"], options["length"] + INA_BYTES
    for r in ranks:
        successor, predecessor = ranks[(r.rank + 1) % n], ranks[(r.rank - 1) % n]
        r.connect(r.out, options["gids"][successor.rank], successor.into.qp_num, first_psn, 77, options)
        r.connect(r.into, options["gids"][predecessor.rank], predecessor.out.qp_num, 77, first_psn, options)
    print("ENDPOINTS " + json.dumps([[r.out.qp_num, r.into.qp_num] for r in ranks]), flush=True)
    input()
    before = [r.counters() for r in ranks]
    for r in ranks:
        for m in range(options["messages"]):
            # A WRITE only consumes the receive; pyverbs wants an SGE all the same.
            r.into.post_recv(RecvWR(num_sge=1, sg=[SGE(r.receive_mr.buf + m * size, size, r.receive_mr.lkey)]))
            r.send_mr.write(header(r.rank, m, options) + payload(r.rank, m, options), size, m * size)
    started = time.time()
    deadline = started + options["limit_s"]
    for m in range(options["messages"]):
        for r in ranks:
            r.post(m, ranks[(r.rank + 1) % n], size, options["carrier"])
        poll(ranks, 2 * (m + 2 - options["window"]), deadline)
    poll(ranks, 2 * options["messages"], deadline)
    elapsed = time.time() - started
    wrong = 0
    for m in range(options["messages"]):
        want = total([payload(r.rank, m, options) for r in ranks], options)
        for r in ranks:
            got = r.receive_mr.read(size, m * size)
            wrong += got[INA_BYTES:] != want or got[:INA_BYTES] != header((r.rank - 1) % n, m, options)
    after = [r.counters() for r in ranks]
    changed = [{k: a[k] - b[k] for k in a if a[k] != b[k]} for a, b in zip(after, before, strict=True)]
    print("RESULT " + json.dumps({"wrong": wrong, "seconds": round(elapsed, 2), "counters": changed}), flush=True)


main()
