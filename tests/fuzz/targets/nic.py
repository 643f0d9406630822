"""A NIC under hostile frames: no byte outside the opened memory, nothing out of sequence, every frame accounted for.

Input: a script of steps. Frames are made for the connection as it stands, then changed, cut or sealed as the script
says; between them the program posts work, time passes, and the queue pair starts anew.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from tests.fuzz.script import Script, changed, sealed, seen
from tests.nic.harness import IPS, MACS, attributes, frames_of, make_end

from netreduce.errors import VerbsError
from netreduce.nic import Nic, NicLimits
from netreduce.nic import verbs as v
from netreduce.trace.events import Event, enable, make_event_log
from netreduce.trace.events import drain as drain_log
from netreduce.units import PS_PER_US
from netreduce.wire.build import build_burst, build_frame
from netreduce.wire.opcodes import OPCODE_ROLES, Opcode, Role
from netreduce.wire.psn import PSN_MASK, psn_distance

STEPS_MAX = 60
MEMORY_BYTES = 4096
GUARD_BYTES = 1024
"""Memory on either side of the opened region that nobody may touch."""
LIMITS = NicLimits(4, 4, 16, 16, 16, 256, psn_window=16, ack_every=4, egress_bytes=1 << 15)
OPCODES = list(Opcode)
FIRST_PSN = PSN_MASK - 3
FATES = (Event.DROPPED, Event.RECEIVED, Event.ACK_RECEIVED, Event.NAK_RECEIVED, Event.CNP_RECEIVED)


class _Bench:
    """One connected queue pair with opened memory between guards, and what must hold after every frame."""

    def __init__(self) -> None:
        self.log = make_event_log(4096)
        enable(self.log)
        self.nic = Nic("fuzzed", MACS[0], IPS[0], limits=LIMITS, events=self.log)
        self.nic.neighbours.update(zip(IPS, MACS, strict=True))
        self.peer = make_end(Nic("peer", MACS[1], IPS[1], limits=LIMITS), 64, 4)
        self.end = make_end(self.nic, 64, 16)
        self.memory = np.zeros(MEMORY_BYTES, np.uint8)
        opened = v.IBV_ACCESS_LOCAL_WRITE | v.IBV_ACCESS_REMOTE_WRITE
        self.at = self.memory.ctypes.data + GUARD_BYTES
        size = MEMORY_BYTES - 2 * GUARD_BYTES
        self.open = v.MR(self.end.pd, size, opened, address=self.at)
        self.local = v.MR(self.end.pd, size, v.IBV_ACCESS_LOCAL_WRITE, address=self.at)
        self.size = size
        self.now_ps = 0
        self.given = 0
        self.posted: Counter[str] = Counter()
        self.completed: list[v.WC] = []
        self.start()

    def start(self) -> None:
        """Connect, from whatever state."""
        self.completions()
        self.end.qp.modify(v.QPAttr(qp_state=v.IBV_QPS_RESET), v.IBV_QP_STATE)
        self.end.qp.to_rts(attributes(self.peer, sq_psn=FIRST_PSN, rq_psn=FIRST_PSN, rnr_retry=2, retry_cnt=2))
        self.posted.clear()
        self.completed.clear()

    @property
    def row(self) -> np.record:
        return self.nic.tables.qp[self.end.qp.qp_num & (LIMITS.queue_pairs - 1)]

    def frame(self, script: Script) -> np.ndarray:
        """A frame for this connection, as the script chooses it."""
        opcode = OPCODES[script.byte() % len(OPCODES)]
        roles = int(OPCODE_ROLES[opcode])
        base = self.row.expected_psn
        if roles & Role.ACK:
            base = FIRST_PSN + int(self.row.acked_packets)
        fields: dict[str, int] = {"psn": int(base + script.signed()) & PSN_MASK}
        fields["ack_request"] = bool(script.byte() & 1)
        size = (0, 1, 16, 256, 256, 255, 300, 200)[script.byte() % 8] if roles & Role.PAYLOAD else 0
        if roles & Role.RETH:
            key = (self.open.rkey, self.local.rkey, self.open.rkey + 1, 0)[script.byte() % 4]
            fields |= {"remote_address": (self.at + 16 * script.signed()) & ((1 << 64) - 1), "rkey": key}
            fields["dma_length"] = script.word()
        if roles & Role.AETH:
            fields["syndrome"] = script.byte()
        payload = bytes([1 + self.given % 255]) * size
        addresses = {"source_ip": IPS[1], "destination_ip": IPS[0], "source_mac": MACS[1], "destination_mac": MACS[0]}
        return build_frame(opcode, payload, destination_qpn=self.end.qp.qp_num, **addresses, **fields)

    def give(self, frame: np.ndarray) -> None:
        """Let one frame arrive, and judge what became of it."""
        if not frame.size:
            return
        before, psn, state = self.memory.copy(), int(self.row.expected_psn), int(self.row.state)
        buffers = int(self.nic.counters()["out_of_buffer"])
        drops = int(self.nic.tables.drops.sum())
        drain_log(self.log)
        self.nic.receive(0, build_burst([frame]), self.now_ps)
        self.given += 1
        events = Counter(int(kind) for kind in drain_log(self.log)[0]["kind"])
        assert int(self.nic.counters()["rcvd_pkts"]) == self.given
        assert int(self.nic.tables.drops.sum()) - drops == events[Event.DROPPED] <= 1
        refused = int(self.row.state) != state or int(self.nic.counters()["out_of_buffer"]) != buffers
        assert any(events[kind] for kind in FATES) or refused, "a frame vanished"
        self.judge_memory(frame, before, psn)

    def judge_memory(self, frame: np.ndarray, before: np.ndarray, psn: int) -> None:
        """Memory changes within the region, by a good packet at the expected PSN alone."""
        wrote = np.flatnonzero(self.memory != before)
        moved = psn_distance(int(self.row.expected_psn), psn)
        assert moved in (0, 1)
        if not wrote.size and not moved:
            return
        packet = seen(frame.tobytes())
        assert packet is not None
        assert packet.icrc_good
        assert packet.psn == psn
        if wrote.size:
            assert moved, "written, but not accepted"
            assert wrote[0] >= GUARD_BYTES
            assert wrote[-1] < MEMORY_BYTES - GUARD_BYTES
            assert wrote.size <= len(packet.payload)

    def post(self, script: Script) -> None:
        """Post a receive, a send or a write, if the queue has room."""
        kind, length = script.byte() % 3, script.word() % self.size
        key = (self.open.lkey, self.local.lkey, self.open.lkey + 1)[script.byte() % 3]
        piece, number = v.SGE(self.at, length, key), len(self.posted)
        try:
            if kind == 0:
                self.end.qp.post_recv(v.RecvWR(number, 1, [piece]))
                self.posted["receives"] += 1
                return
            request = v.SendWR(number, (v.IBV_WR_SEND, v.IBV_WR_RDMA_WRITE)[kind - 1], 1, 0, [piece], 2)
            request.set_wr_rdma(1, 0)
            self.end.qp.post_send(request)
            self.posted["sends"] += 1
        except VerbsError:
            pass  # full, or in a state that takes none

    def pass_time(self, script: Script) -> None:
        """Let time pass; what is sent must be whole."""
        self.now_ps += PS_PER_US * (1 + script.byte()) ** 2
        self.nic.advance(self.now_ps)
        for frame in frames_of(self.nic.egress(0)):
            packet = seen(frame.tobytes())
            assert packet is not None
            assert packet.icrc_good
            assert packet.destination_qpn == self.peer.qp.qp_num

    def completions(self) -> None:
        """No more completions than there were requests; the window is kept."""
        self.completed += self.end.cq.poll(1000)[1]
        assert len(self.completed) <= self.posted.total()
        row = self.row
        assert 0 <= row.acked_packets <= row.sent_packets <= row.posted_packets
        assert row.sq_retired <= row.sq_posted <= row.sq_retired + row.sq_depth
        assert row.rq_retired <= row.rq_posted <= row.rq_retired + row.rq_depth
        assert row.next_packet - row.acked_packets <= LIMITS.psn_window


def check(data: bytes) -> None:
    """Raise AssertionError when a frame does what it must not."""
    script, bench = Script(data), _Bench()
    for _ in range(STEPS_MAX):
        if not script:
            break
        step = script.byte() % 8
        if step < 3:
            bench.give(bench.frame(script))
        elif step == 3:
            bench.give(sealed(changed(bench.frame(script), script)))
        elif step == 4:
            bench.give(changed(bench.frame(script), script))
        elif step == 5:
            bench.post(script)
        elif step == 6:
            bench.pass_time(script)
        else:
            bench.start()
        bench.completions()
    bench.pass_time(Script(b"\xff"))
    bench.completions()
