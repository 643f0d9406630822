"""One soft-RoCE device that talks with a NIC outside the guest, in plain pyverbs.

``python3.11 peer_script.py '<json>'`` prints its queue pair and buffer as ``PEER {...}``, reads those of the other side
as a line of JSON, sends the plan's messages (kind and size), receives the same from the other side, and prints
``RESULT {...}``. Both buffers hold the messages in a row.
"""

import json
import sys
import time

import pyverbs.enums as e
from pyverbs.wr import SGE, RecvWR, SendWR
from verbs_common import Device

OPCODES = {
    "send": e.IBV_WR_SEND,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_with_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
}


def pattern(message, side, size):
    """What message number `message` of the guest (side 0) or of the other side (1) carries."""
    return bytes((message * 37 + side * 101 + i * 3) % 256 for i in range(size))


def main():
    options = json.loads(sys.argv[1])
    plan = options["plan"]
    total = sum(size for _, size in plan)
    device = Device(0, total, options["gid"])
    qp = device.queue_pair()
    mine = {"qpn": qp.qp_num, "address": device.receive_mr.buf, "rkey": device.receive_mr.rkey}
    print("PEER " + json.dumps(mine), flush=True)
    peer = json.loads(input())
    device.connect(qp, options["peer_gid"], peer["qpn"], options["psns"][0], options["psns"][1], options)
    before = device.counters()
    offset, incoming = 0, 0
    for m, (kind, size) in enumerate(plan):
        if kind != "write":
            qp.post_recv(RecvWR(num_sge=1, sg=[SGE(device.receive_mr.buf + offset, size, device.receive_mr.lkey)]))
            incoming += 1
        device.send_mr.write(pattern(m, 0, size), size, offset)
        offset += size
    print("RECEIVING", flush=True)
    input()
    offset = 0
    for m, (kind, size) in enumerate(plan):
        sge = SGE(device.send_mr.buf + offset, size, device.send_mr.lkey)
        wr = SendWR(opcode=OPCODES[kind], num_sge=1, sg=[sge], imm_data=m, send_flags=e.IBV_SEND_SIGNALED)
        if kind != "send":
            wr.set_wr_rdma(peer["rkey"], peer["address"] + offset)
        qp.post_send(wr)
        offset += size
    completed, deadline = 0, time.time() + options["limit_s"]
    while completed < len(plan) + incoming and time.time() < deadline:
        _, completions = device.cq.poll(16)
        completed += sum(wc.status == e.IBV_WC_SUCCESS for wc in completions)
    wrong, offset = 0, 0
    for m, (_, size) in enumerate(plan):
        wrong += device.receive_mr.read(size, offset) != pattern(m, 1, size)
        offset += size
    after = device.counters()
    changed = {k: after[k] - before[k] for k in after if after[k] != before[k]}
    missing = len(plan) + incoming - completed
    print("RESULT " + json.dumps({"wrong": wrong, "missing": missing, "counters": changed}), flush=True)


main()
