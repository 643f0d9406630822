"""Queue pairs: creating and modifying them, and posting work. The object is a view on its row of the tables."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from netreduce.compiled import memory_at
from netreduce.errors import VerbsError
from netreduce.nic.attributes import SGE, QPAttr, QPInitAttr, RecvWR, SendWR, ip_to_number
from netreduce.nic.device import PD, Resource
from netreduce.nic.enums import QpAttrMask, QpState, QpType, SendFlag, WrOpcode
from netreduce.nic.memory import OWN_MEMORY
from netreduce.nic.tables import (
    INLINE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    QP_FIELDS,
    SGE_FIELDS,
    SGE_MAX,
    TEMPLATE_BYTES,
    plain,
    words,
)
from netreduce.nic.transitions import LIMITS, TRANSITIONS, check_transition
from netreduce.wire.build import build_frame
from netreduce.wire.opcodes import Opcode

__all__ = ["QP"]

ACK_TIMEOUT_UNIT_PS = 4_096_000
"""The local ACK timeout is 4.096 us times two to the power of the attribute (IBA vol. 1, section 9.9.2.1.1)."""
ECN_MASK = 3
ECN_CAPABLE = 2
"""ECT(0): switches may mark congestion instead of dropping."""
UDP_PORT_FIRST = 0xC000
UDP_PORT_MASK = 0x3FFF
"""Source ports 49152 to 65535 spread connections over equal paths (RoCEv2 annex A17.9.2)."""
# Plain numbers for the calls made per message: operators of IntFlag members take microseconds.
_SEND_STATES = frozenset(map(int, (QpState.IBV_QPS_RTS, QpState.IBV_QPS_SQD, QpState.IBV_QPS_ERR)))
_OPCODES = frozenset(range(WrOpcode.IBV_WR_SEND_WITH_IMM + 1))
_SIGNALED, _SOLICITED, _INLINE = map(
    int, (SendFlag.IBV_SEND_SIGNALED, SendFlag.IBV_SEND_SOLICITED, SendFlag.IBV_SEND_INLINE)
)
_RESET, _ERR = int(QpState.IBV_QPS_RESET), int(QpState.IBV_QPS_ERR)
_STATE = QP_FIELDS.index("state")
_SQ_MASK, _SQ_POSTED, _SQ_RETIRED = map(QP_FIELDS.index, ("sq_mask", "sq_posted", "sq_retired"))
_RQ_MASK, _RQ_POSTED, _RQ_RETIRED = map(QP_FIELDS.index, ("rq_mask", "rq_posted", "rq_retired"))
_ELEMENT = struct.Struct(f"={len(SGE_FIELDS)}q")
_ELEMENTS_BYTES = SGE_MAX * _ELEMENT.size
_IDENTITY = ("qpn", "pd", "send_cq", "receive_cq", "ready", "sq_depth", "sq_mask", "rq_depth", "rq_mask")
"""What a queue pair keeps when it goes back to RESET."""


class QP(Resource):
    """A Reliable Connection queue pair in protection domain `creator`."""

    def __init__(self, creator: PD, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None:
        super().__init__()
        nic = creator.nic
        cap, limits = init_attr.cap, nic.limits
        if init_attr.qp_type != QpType.IBV_QPT_RC:
            raise VerbsError(f"queue pair of type {init_attr.qp_type}; only IBV_QPT_RC is supported")
        if init_attr.scq is None or init_attr.rcq is None:
            raise VerbsError("a queue pair needs scq and rcq")
        for name, value, most in (
            ("max_send_wr", cap.max_send_wr, limits.send_depth),
            ("max_recv_wr", cap.max_recv_wr, limits.receive_depth),
            ("max_send_sge", cap.max_send_sge, SGE_MAX),
            ("max_recv_sge", cap.max_recv_sge, SGE_MAX),
            ("max_inline_data", cap.max_inline_data, INLINE_BYTES_MAX),
        ):
            if not 0 <= value <= most:
                raise VerbsError(f"{name} is {value}, 0 to {most} are possible")
        self._belongs_to(creator, init_attr.scq, init_attr.rcq)
        self._nic = nic
        self._cap = cap
        self._signal_all = bool(init_attr.sq_sig_all)
        self.qp_num = nic.allocate_qpn()
        self.row = self.qp_num % limits.queue_pairs
        tables = nic.tables
        self._qp = qp = plain(tables.qp)[self.row]
        self._words = words(tables.qp[self.row : self.row + 1])
        self._sq_sge, self._rq_sge = words(tables.sq_sge[self.row]), words(tables.rq_sge[self.row])
        qp["qpn"], qp["pd"] = self.qp_num, creator.number
        qp["send_cq"], qp["receive_cq"] = init_attr.scq.row, init_attr.rcq.row
        qp["sq_depth"], qp["sq_mask"] = cap.max_send_wr, _ring_size(cap.max_send_wr) - 1
        qp["rq_depth"], qp["rq_mask"] = cap.max_recv_wr, _ring_size(cap.max_recv_wr) - 1
        self._reset()
        if qp_attr is not None:
            self.to_rts(qp_attr)

    @property
    def qp_state(self) -> QpState:
        """The state it is in now; errors move it too."""
        return QpState(int(self._qp["state"]))

    def query(self) -> QPAttr:
        """State and numbers of the moment. `sq_draining` is 1 while packets are unacknowledged in SQD."""
        qp = self._qp
        unacked = qp["next_packet"] != qp["acked_packets"]
        return QPAttr(
            qp_state=self.qp_state,
            cur_qp_state=self.qp_state,
            qp_access_flags=int(qp["access"]),
            rq_psn=int(qp["expected_psn"]),
            sq_psn=int((qp["first_psn"] + qp["next_packet"]) % (1 << 24)),
            dest_qp_num=int(qp["destination_qpn"]),
            min_rnr_timer=int(qp["min_rnr_timer"]),
            retry_cnt=int(qp["retry_cnt"]),
            rnr_retry=int(qp["rnr_retry"]),
            sq_draining=int(self.qp_state is QpState.IBV_QPS_SQD and bool(unacked)),
            cap=self._cap,
        )

    def to_init(self, attr: QPAttr) -> None:
        """RESET to INIT: receives may be posted."""
        self._move(attr, QpState.IBV_QPS_INIT)

    def to_rtr(self, attr: QPAttr) -> None:
        """INIT (or RESET, through INIT) to RTR: connected, receives."""
        if self.qp_state is QpState.IBV_QPS_RESET:
            self.to_init(attr)
        self._move(attr, QpState.IBV_QPS_RTR)

    def to_rts(self, attr: QPAttr) -> None:
        """RTR (or RESET or INIT, through it) to RTS: sends."""
        if self.qp_state in (QpState.IBV_QPS_RESET, QpState.IBV_QPS_INIT):
            self.to_rtr(attr)
        self._move(attr, QpState.IBV_QPS_RTS)

    def _move(self, attr: QPAttr, new: QpState) -> None:
        attr.qp_state = new
        required, _ = TRANSITIONS.get((self.qp_state, new), (QpAttrMask(0), None))
        self.modify(attr, required | QpAttrMask.IBV_QP_STATE)

    def modify(self, attr: QPAttr, mask: int) -> None:
        """Set the attributes in `mask` (`IBV_QP_*`); a wrong transition or value raises and changes nothing."""
        mask = QpAttrMask(mask)
        current = self.qp_state
        new = QpState(attr.qp_state) if mask & QpAttrMask.IBV_QP_STATE else current
        check_transition(current, new, mask)
        for bit, (name, least, most) in LIMITS.items():
            value = getattr(attr, name)
            if mask & bit and not least <= value <= most:
                raise VerbsError(f"{name} is {value}, {least} to {most} are possible")
        if mask & QpAttrMask.IBV_QP_AV:
            self._connect(attr)
        self._set(attr, mask)
        if new is QpState.IBV_QPS_RESET:
            self._reset()
        self._qp["state"] = new
        if new is QpState.IBV_QPS_ERR:
            self._nic.disarm(self.row)
        self._qp["drained"] = 0
        self._nic.make_ready(self.row)

    def _set(self, attr: QPAttr, mask: QpAttrMask) -> None:
        qp = self._qp
        if mask & QpAttrMask.IBV_QP_ACCESS_FLAGS:
            qp["access"] = attr.qp_access_flags
        if mask & QpAttrMask.IBV_QP_PATH_MTU:
            qp["path_mtu"] = 128 << attr.path_mtu
        if mask & QpAttrMask.IBV_QP_RQ_PSN:
            qp["expected_psn"] = attr.rq_psn
        if mask & QpAttrMask.IBV_QP_SQ_PSN:
            qp["first_psn"] = attr.sq_psn
        if mask & QpAttrMask.IBV_QP_MIN_RNR_TIMER:
            qp["min_rnr_timer"] = attr.min_rnr_timer
        if mask & QpAttrMask.IBV_QP_TIMEOUT:
            qp["timeout_ps"] = ACK_TIMEOUT_UNIT_PS << attr.timeout if attr.timeout else 0
        if mask & QpAttrMask.IBV_QP_RETRY_CNT:
            qp["retry_cnt"] = qp["retries_left"] = attr.retry_cnt
        if mask & QpAttrMask.IBV_QP_RNR_RETRY:
            qp["rnr_retry"] = qp["rnr_retries_left"] = attr.rnr_retry

    def _connect(self, attr: QPAttr) -> None:
        """Resolve the peer's address and prepare the headers that all packets share."""
        route = attr.ah_attr.gr if attr.ah_attr else None
        if route is None:
            raise VerbsError("IBV_QP_AV needs ah_attr with a global route: AHAttr(gr=GlobalRoute(dgid=GID(...)))")
        ip = route.dgid.ipv4
        if ip not in self._nic.neighbours:
            raise VerbsError(f"{self._nic.name} knows no MAC address of {ip}; add it to Nic.neighbours")
        self._qp["peer_ip"] = ip_to_number(ip)
        self._qp["destination_qpn"] = attr.dest_qp_num
        route_of_packets = build_frame(
            Opcode.SEND_ONLY,
            source_mac=self._nic.mac,
            destination_mac=self._nic.neighbours[ip],
            source_ip=self._nic.ip,
            destination_ip=ip,
            traffic_class=(route.traffic_class & ~ECN_MASK) | ECN_CAPABLE,
            hop_limit=route.hop_limit,
            udp_source_port=UDP_PORT_FIRST | ((self.qp_num ^ attr.dest_qp_num) & UDP_PORT_MASK),
            destination_qpn=attr.dest_qp_num,
        )
        self._nic.tables.template[self.row] = route_of_packets[:TEMPLATE_BYTES]

    def _reset(self) -> None:
        for name in QP_FIELDS:
            if name not in _IDENTITY:
                self._qp[name] = 0
        self._nic.disarm(self.row)

    def post_send(self, wr: SendWR) -> None:
        """Queue a send work request.

        Raises `VerbsError` in a state that cannot send, with a full queue, too many elements, too many bytes, or an
        operation that is not supported. A wrong lkey shows as the completion IBV_WC_LOC_PROT_ERR.
        """
        qp = self._words
        posted = qp[_SQ_POSTED]
        if qp[_STATE] not in _SEND_STATES:
            raise VerbsError(f"queue pair {self.qp_num:#x} cannot send in state {self.qp_state.name}")
        if posted - qp[_SQ_RETIRED] >= self._cap.max_send_wr:
            raise VerbsError(f"send queue of {self.qp_num:#x} is full: {self._cap.max_send_wr} work requests")
        if wr.opcode not in _OPCODES:
            raise VerbsError(
                f"{WrOpcode(wr.opcode).name} is not supported; SEND and RDMA WRITE are, with and without immediate"
            )
        slot = posted & qp[_SQ_MASK]
        flags = int(wr.send_flags)
        if flags & _INLINE:
            length = self._store_inline(slot, wr)
            count = 1
        else:
            count = wr.num_sge
            length = self._store(self._sq_sge, slot, wr.sg, count, self._cap.max_send_sge)
        if length > MESSAGE_BYTES_MAX:
            raise VerbsError(f"message of {length} bytes, at most {MESSAGE_BYTES_MAX} are possible")
        signaled = 1 if self._signal_all or flags & _SIGNALED else 0
        solicited = 1 if flags & _SOLICITED else 0
        self._nic.queue_send(
            self._nic.tables, self.row, wr.wr_id, wr.opcode, signaled, solicited, count, length,
            wr.imm_data, wr.remote_addr, wr.rkey,
        )  # fmt: skip

    def post_recv(self, wr: RecvWR) -> None:
        """Queue a receive work request. Raises `VerbsError` in RESET, with a full queue or too many elements."""
        qp = self._words
        posted, state = qp[_RQ_POSTED], qp[_STATE]
        if state == _RESET:
            raise VerbsError(f"queue pair {self.qp_num:#x} cannot post a receive in state {self.qp_state.name}")
        if posted - qp[_RQ_RETIRED] >= self._cap.max_recv_wr:
            raise VerbsError(f"receive queue of {self.qp_num:#x} is full: {self._cap.max_recv_wr} work requests")
        slot = posted & qp[_RQ_MASK]
        length = self._store(self._rq_sge, slot, wr.sg, wr.num_sge, self._cap.max_recv_sge)
        self._nic.queue_receive(self._nic.tables, self.row, wr.wr_id, wr.num_sge, length)
        if state == _ERR:
            self._nic.make_ready(self.row)

    def _store(self, elements: memoryview, slot: int, sg: Sequence[SGE] | None, count: int, most: int) -> int:
        """Write a scatter-gather list into its slot; its bytes."""
        if count > most:
            raise VerbsError(f"{count} scatter-gather elements, queue pair {self.qp_num:#x} was made for {most}")
        length = 0
        for i in range(count):
            sge = sg[i]
            at = slot * _ELEMENTS_BYTES + i * _ELEMENT.size
            _ELEMENT.pack_into(elements, at, sge.addr, sge.length, sge.lkey)
            length += sge.length
        return length

    def _store_inline(self, slot: int, wr: SendWR) -> int:
        """Copy the data of an inline send, whose memory may be used again at once; its bytes."""
        sg = (wr.sg or ())[: wr.num_sge]
        length = sum(sge.length for sge in sg)
        if length > self._cap.max_inline_data:
            raise VerbsError(f"{length} bytes inline, queue pair {self.qp_num:#x} allows {self._cap.max_inline_data}")
        buffer = self._nic.inline[self.row, slot]
        at = 0
        for sge in sg:
            buffer[at : at + sge.length] = memory_at(sge.addr, sge.length)
            at += sge.length
        _ELEMENT.pack_into(self._sq_sge, slot * _ELEMENTS_BYTES, buffer.ctypes.data, length, OWN_MEMORY)
        return length

    def _release(self) -> None:
        self._reset()
        self._qp["qpn"] = 0


def _ring_size(entries: int) -> int:
    """The least power of two that holds `entries`."""
    return 1 << max(entries - 1, 0).bit_length()
