"""Two NICs and a wire that is a for-loop, with hooks for what goes wrong on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from netreduce.nic import Nic, NicLimits
from netreduce.nic import verbs as v
from netreduce.trace.events import enable, make_event_log
from netreduce.units import NEVER_PS, PS_PER_US
from netreduce.wire.build import build_burst, build_frame, burst_frames
from netreduce.wire.frames import FrameQueue, queue_burst_end, queue_release
from netreduce.wire.opcodes import Opcode
from netreduce.wire.packet import make_packet_table, parse_packet

Frame = np.ndarray
Hook = Callable[[Frame], list[Frame]]
"""What the wire makes of one frame: nothing (lost), itself, several."""

SMALL = NicLimits(
    queue_pairs=16, completion_queues=16, memory_regions=64, send_depth=64, receive_depth=64, completion_depth=256
)
IPS = ("10.78.0.1", "10.78.0.2")
MACS = ("02:4e:52:00:00:01", "02:4e:52:00:00:02")


def frames_of(queue: FrameQueue) -> list[Frame]:
    """Take all frames out of a queue, as copies."""
    frames = []
    while queue.state[0].frames:
        end = int(queue_burst_end(queue.data, queue.state[0], queue.data.size))
        burst = queue.data[int(queue.state[0].head) : end]
        frames += [frame.copy() for _, frame in burst_frames(burst)]
        queue_release(queue.data, queue.state[0], end)
    return frames


def parsed(frame: Frame) -> np.record:
    """The fields of one frame."""
    packet = make_packet_table()
    assert parse_packet(frame, packet[0]) == 0
    return packet[0]


@dataclass
class Wire:
    """Two NICs, time, and what each direction does to frames. `history` keeps (from, frame) of all that was sent."""

    nics: tuple[Nic, Nic]
    hooks: list[Hook] = field(default_factory=lambda: [lambda frame: [frame], lambda frame: [frame]])
    delay_ps: int = PS_PER_US
    now_ps: int = 0
    history: list[tuple[int, Frame]] = field(default_factory=list)

    def step(self) -> bool:
        """Carry what waits, else go to the next timer. False if nothing is left to happen."""
        for nic in self.nics:
            nic.advance(self.now_ps)
        carried = [frames_of(nic.egress(0)) for nic in self.nics]
        if not any(carried):
            due = min(nic.next_timer_ps() for nic in self.nics)
            if due == NEVER_PS:
                return False
            self.now_ps = max(self.now_ps, due)
            return True
        self.now_ps += self.delay_ps
        for sender, frames in enumerate(carried):
            self.history += [(sender, frame) for frame in frames]
            arriving = [copy for frame in frames for copy in self.hooks[sender](frame)]
            if arriving:
                self.nics[1 - sender].receive(0, build_burst(arriving), self.now_ps)
        return True

    def run(self, until_ps: int = NEVER_PS, steps: int = 10_000) -> None:
        """Step until nothing is left to happen, or `until_ps`."""
        for _ in range(steps):
            if self.now_ps >= until_ps or not self.step():
                return
        raise AssertionError(f"still busy after {steps} steps\n" + "\n".join(nic.describe() for nic in self.nics))

    def sent(self, sender: int) -> list[np.record]:
        """The packets that `sender` put on the wire, parsed."""
        return [parsed(frame) for origin, frame in self.history if origin == sender]


def make_wire(limits: NicLimits = SMALL) -> Wire:
    """Two NICs that know each other, with their event logs on."""
    logs = [make_event_log(4096) for _ in range(2)]
    for log in logs:
        enable(log)
    a, b = (
        Nic(name, mac, ip, limits=limits, events=log) for name, mac, ip, log in zip("ab", MACS, IPS, logs, strict=True)
    )
    for nic in (a, b):
        nic.neighbours.update(zip(IPS, MACS, strict=True))
    return Wire((a, b))


@dataclass
class End:
    """One end of a connection: a queue pair with its own domain, queues and a registered buffer."""

    nic: Nic
    context: v.Context
    pd: v.PD
    cq: v.CQ
    qp: v.QP
    memory: np.ndarray
    mr: v.MR

    def sge(self, offset: int, length: int) -> v.SGE:
        """A piece of the buffer."""
        return v.SGE(self.mr.buf + offset, length, self.mr.lkey)

    def receive(self, wr_id: int, offset: int, length: int) -> None:
        """Post a receive into the buffer."""
        self.qp.post_recv(v.RecvWR(wr_id, 1, [self.sge(offset, length)]))

    def send(self, wr_id: int, offset: int, length: int, opcode: int = v.IBV_WR_SEND, imm: int = 0) -> None:
        """Post a send from the buffer."""
        self.qp.post_send(v.SendWR(wr_id, opcode, 1, imm, [self.sge(offset, length)]))

    def write(self, wr_id: int, offset: int, length: int, peer: End, peer_offset: int, imm: int | None = None) -> None:
        """Post an RDMA WRITE into the peer's buffer."""
        opcode = v.IBV_WR_RDMA_WRITE if imm is None else v.IBV_WR_RDMA_WRITE_WITH_IMM
        wr = v.SendWR(wr_id, opcode, 1, imm or 0, [self.sge(offset, length)])
        wr.set_wr_rdma(peer.mr.rkey, peer.mr.buf + peer_offset)
        self.qp.post_send(wr)

    def completions(self) -> list[v.WC]:
        """All completions that wait."""
        return self.cq.poll(1000)[1]

    def statuses(self) -> list[tuple[int, str]]:
        """(wr_id, status name) of all completions that wait."""
        return [(wc.wr_id, v.wc_status_to_str(wc.status)) for wc in self.completions()]


RW = v.IBV_ACCESS_LOCAL_WRITE | v.IBV_ACCESS_REMOTE_WRITE


def make_end(nic: Nic, memory_bytes: int = 1 << 16, depth: int = 32, signal_all: int = 0) -> End:
    """A queue pair in RESET with all it needs."""
    context = v.Context(nic)
    pd = v.PD(context)
    cq = v.CQ(context, 256)
    cap = v.QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=4, max_recv_sge=4, max_inline_data=64)
    qp = v.QP(pd, v.QPInitAttr(v.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=signal_all))
    memory = np.zeros(memory_bytes, np.uint8)
    return End(nic, context, pd, cq, qp, memory, v.MR(pd, memory_bytes, RW, address=memory.ctypes.data))


def attributes(peer: End, **changes: int) -> v.QPAttr:
    """Attributes to connect to `peer`, good for most tests."""
    attr = v.QPAttr(
        path_mtu=v.IBV_MTU_256,
        qp_access_flags=RW,
        dest_qp_num=peer.qp.qp_num,
        ah_attr=v.AHAttr(gr=v.GlobalRoute(dgid=v.GID(f"::ffff:{peer.nic.ip}"))),
        min_rnr_timer=12,
        timeout=14,
        retry_cnt=7,
        rnr_retry=7,
    )
    for name, value in changes.items():
        setattr(attr, name, value)
    return attr


def connect(wire: Wire, psns: tuple[int, int] = (0, 0x123456), **changes: int) -> tuple[End, End]:
    """A connection between the two NICs, in RTS; `psns` are the first ones that each end sends."""
    a, b = make_end(wire.nics[0]), make_end(wire.nics[1])
    a.qp.to_rts(attributes(b, sq_psn=psns[0], rq_psn=psns[1], **changes))
    b.qp.to_rts(attributes(a, sq_psn=psns[1], rq_psn=psns[0], **changes))
    return a, b


def fill(end: End, seed: int) -> None:
    """Random bytes into the buffer."""
    end.memory[:] = np.random.default_rng(seed).integers(0, 256, end.memory.size, np.uint8)


def lose(*which: int) -> Hook:
    """Lose the frames with these numbers, counted from 0."""
    seen = iter(range(1 << 30))
    return lambda frame: [] if next(seen) in which else [frame]


def answer_to(end: End, psn: int, syndrome: int = 0x1F, opcode: int = Opcode.ACKNOWLEDGE) -> Frame:
    """An answer from the other NIC."""
    return build_frame(
        opcode,
        source_ip=IPS[1],
        destination_ip=IPS[0],
        source_mac=MACS[1],
        destination_mac=MACS[0],
        destination_qpn=end.qp.qp_num,
        psn=psn,
        syndrome=syndrome,
    )
