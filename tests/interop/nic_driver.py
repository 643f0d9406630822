"""Our NIC on a cable of the hub's switch, driven by a thread, and what it exchanges with the guest's peer_script.py."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
from tests.interop.guest import Guest, guest_gid, guest_ip, guest_mac

from netreduce.nic import Nic
from netreduce.nic import verbs as v
from netreduce.runtime.cable import Outlet, make_burst_buffer
from netreduce.runtime.clock import Clock
from netreduce.runtime.plug import plug_in

OPCODES = {
    "send": v.IBV_WR_SEND,
    "write": v.IBV_WR_RDMA_WRITE,
    "write_with_imm": v.IBV_WR_RDMA_WRITE_WITH_IMM,
}
PLAN = [(kind, size) for size in (1, 1023, 5001, 20_000) for kind in OPCODES]
"""Messages that each side sends."""
OFFSETS = np.cumsum([0, *(size for _, size in PLAN)])
PSNS = (0xFFFFF8, 77)
"""First PSNs of the guest, which wrap, and ours."""
LIMIT_S = 60
RW = v.IBV_ACCESS_LOCAL_WRITE | v.IBV_ACCESS_REMOTE_WRITE


def pattern(message: int, side: int, size: int) -> np.ndarray:
    """What message number `message` of the guest (side 0) or of ours (1) carries; peer_script.py has it, too."""
    return ((message * 37 + side * 101 + np.arange(size) * 3) % 256).astype(np.uint8)


class PluggedNic:
    """A NIC that takes the addresses that the switch gives it. Hold `lock` to post to it."""

    def __init__(self, address: str) -> None:
        plug = plug_in(address, "our NIC")
        self._cable, self._channel, attached = plug.cable, plug.channel, plug.attached
        self._clock = Clock(attached.epoch_ns)
        self.nic = Nic("our NIC", attached.mac, attached.ip)
        self._outlet = Outlet(self._cable, self.nic.egress(0))
        self._buffer = make_burst_buffer()
        self._ended = False
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            with self.lock:
                burst = self._cable.receive(self._buffer)
                now_ps = self._clock.now_ps()
                if burst is not None:
                    self.nic.receive(0, burst, now_ps)
                self.nic.advance(now_ps)
                self._outlet.send()
            if burst is None:
                time.sleep(0.0005)

    def __enter__(self) -> PluggedNic:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()
        self._cable.close()
        self._channel.close()


class End:
    """Our end of a connection with rxe0."""

    def __init__(self, nic: Nic) -> None:
        nic.neighbours[guest_ip(0)] = guest_mac(0)
        context = v.Context(nic)
        self._pd = v.PD(context)
        self._cq = v.CQ(context, 256)
        cap = v.QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=2, max_recv_sge=2)
        self.qp = v.QP(self._pd, v.QPInitAttr(v.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap))
        self.received = np.zeros(OFFSETS[-1], np.uint8)
        self._sent = np.concatenate([pattern(m, 1, size) for m, (_, size) in enumerate(PLAN)])
        self.mr = v.MR(self._pd, self.received.size, RW, address=self.received.ctypes.data)
        self._send_mr = v.MR(self._pd, self._sent.size, RW, address=self._sent.ctypes.data)

    def connect(self, peer_qpn: int, path_mtu: int, timeout: int) -> None:
        """Bring the queue pair to RTS, receives posted."""
        attr = v.QPAttr(
            path_mtu={1024: v.IBV_MTU_1024, 4096: v.IBV_MTU_4096}[path_mtu], qp_access_flags=RW, dest_qp_num=peer_qpn,
            ah_attr=v.AHAttr(gr=v.GlobalRoute(dgid=v.GID(f"::ffff:{guest_ip(0)}"))), min_rnr_timer=12, timeout=timeout,
            retry_cnt=7, rnr_retry=7, sq_psn=PSNS[1], rq_psn=PSNS[0],
        )  # fmt: skip
        self.qp.to_rts(attr)
        for m, (kind, size) in enumerate(PLAN):
            if kind != "write":
                sge = v.SGE(self.mr.buf + int(OFFSETS[m]), size, self.mr.lkey)
                self.qp.post_recv(v.RecvWR(m, 1, [sge]))

    def send(self, remote: dict[str, int]) -> None:
        """Post all messages of the plan."""
        for m, (kind, size) in enumerate(PLAN):
            sge = v.SGE(self._send_mr.buf + int(OFFSETS[m]), size, self._send_mr.lkey)
            wr = v.SendWR(m, OPCODES[kind], 1, m, [sge], v.IBV_SEND_SIGNALED)
            if kind != "send":
                wr.set_wr_rdma(remote["rkey"], remote["address"] + int(OFFSETS[m]))
            self.qp.post_send(wr)

    def statuses(self) -> list[int]:
        """Statuses of all completions so far."""
        return [completion.status for completion in self._cq.poll(256)[1]]


def exchange(guest: Guest, peer: PluggedNic, path_mtu: int, timeout: int) -> dict:
    """Messages of every kind and size both ways between rxe0 and our NIC; what the guest's script says.

    What reached our memory, and our completions, are checked here.
    """
    with peer.lock:
        end = End(peer.nic)
    options = {
        "gid": guest_gid(guest_ip(0)), "peer_gid": guest_gid(peer.nic.ip), "path_mtu": path_mtu, "timeout": timeout,
        "psns": PSNS, "plan": PLAN, "limit_s": LIMIT_S,
    }  # fmt: skip
    remote: dict[str, int] = {}

    def answer(line: str) -> str | None:
        with peer.lock:
            if line.startswith("PEER "):
                remote.update(json.loads(line.removeprefix("PEER ")))
                end.connect(remote["qpn"], path_mtu, timeout)
                return json.dumps({"qpn": end.qp.qp_num, "address": end.mr.buf, "rkey": end.mr.rkey})
            if line.startswith("RECEIVING"):
                end.send(remote)
                return "go"
        return None

    lines = guest.run(f"python3.11 peer_script.py '{json.dumps(options)}'", LIMIT_S + 30, answer)
    with peer.lock:
        assert end.statuses() == [v.IBV_WC_SUCCESS] * (len(PLAN) + sum(kind != "write" for kind, _ in PLAN))
    for m, (kind, size) in enumerate(PLAN):
        got = end.received[OFFSETS[m] : OFFSETS[m] + size]
        np.testing.assert_array_equal(got, pattern(m, 0, size), err_msg=f"message {m}, {kind} of {size} bytes")
    return json.loads(lines[-1].removeprefix("RESULT "))
