"""What a program hands to verbs calls and gets back from them: plain records with pyverbs' names and argument order."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from netreduce.errors import VerbsError
from netreduce.nic.enums import Mtu, QpState, QpType, SendFlag, WcStatus, WrOpcode
from netreduce.wire.packet import IPV4_MAPPED

__all__ = [
    "GID", "SGE", "WC", "AHAttr", "AsyncEvent", "GlobalRoute", "QPAttr", "QPCap", "QPInitAttr", "RecvWR", "SendWR",
    "wc_status_to_str",
]  # fmt: skip
"""What `verbs` offers of this module."""


class GID:
    """A port's address: an IPv4 address, or an IPv6 address that stands for one (``::ffff:10.78.0.2``)."""

    def __init__(self, val: str) -> None:
        self.gid = val

    @property
    def ipv4(self) -> str:
        """The IPv4 address in dotted form; `VerbsError` if there is none."""
        try:
            address = ipaddress.ip_address(self.gid)
        except ValueError as error:
            raise VerbsError(f"GID {self.gid!r} is not an IP address") from error
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else address
        if mapped is None:
            raise VerbsError(f"GID {self.gid} has no IPv4 address; this NIC speaks RoCEv2 over IPv4")
        return str(mapped)


@dataclass
class GlobalRoute:
    """Where packets go, in terms of the network."""

    dgid: GID
    flow_label: int = 0
    sgid_index: int = 0
    hop_limit: int = 64
    traffic_class: int = 0


@dataclass
class AHAttr:
    """An address handle's attributes. RoCE always has a global route; the first four are InfiniBand's."""

    dlid: int = 0
    sl: int = 0
    src_path_bits: int = 0
    static_rate: int = 0
    is_global: int = 1
    port_num: int = 1
    gr: GlobalRoute | None = None


@dataclass
class QPCap:
    """Capacities of a queue pair."""

    max_send_wr: int = 1
    max_recv_wr: int = 10
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0


@dataclass
class QPInitAttr:
    """What a queue pair is created with. `sq_sig_all` makes every send work request complete visibly.

    `scq` and `rcq` are completion queues of the provider that makes the queue pair.
    """

    qp_type: int = QpType.IBV_QPT_RC
    qp_context: object = None
    scq: Any = None
    rcq: Any = None
    srq: None = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: int = 1


@dataclass
class QPAttr:
    """Attributes of a queue pair, set by `QP.modify`.

    `timeout` stands for 4.096 us x 2^timeout (0: no timer), `rnr_retry` 7 for ever, `min_rnr_timer` for an entry of
    the specification's table (12: 0.64 ms).
    """

    qp_state: int = QpState.IBV_QPS_RESET
    cur_qp_state: int = QpState.IBV_QPS_RESET
    port_num: int = 1
    path_mtu: int = Mtu.IBV_MTU_1024
    qp_access_flags: int = 0
    pkey_index: int = 0
    rq_psn: int = 0
    sq_psn: int = 0
    dest_qp_num: int = 0
    ah_attr: AHAttr | None = None
    max_rd_atomic: int = 0
    max_dest_rd_atomic: int = 0
    min_rnr_timer: int = 0
    timeout: int = 0
    retry_cnt: int = 0
    rnr_retry: int = 0
    sq_draining: int = 0
    cap: QPCap = field(default_factory=QPCap)


class SGE:
    """A piece of registered memory."""

    __slots__ = ("addr", "length", "lkey")

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        self.addr = addr
        self.length = length
        self.lkey = lkey


class SendWR:
    """A send work request. `imm_data` is the number that lies big-endian on the wire."""

    __slots__ = ("imm_data", "num_sge", "opcode", "remote_addr", "rkey", "send_flags", "sg", "wr_id")

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = WrOpcode.IBV_WR_SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = SendFlag.IBV_SEND_SIGNALED,
    ) -> None:
        self.wr_id = wr_id
        self.opcode = opcode
        self.num_sge = num_sge
        self.imm_data = imm_data
        self.sg = sg
        self.send_flags = send_flags
        self.rkey = 0
        self.remote_addr = 0

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Where an RDMA WRITE goes."""
        self.rkey = rkey
        self.remote_addr = addr


class RecvWR:
    """A receive work request."""

    __slots__ = ("num_sge", "sg", "wr_id")

    def __init__(self, wr_id: int = 0, num_sge: int = 0, sg: Sequence[SGE] | None = None) -> None:
        self.wr_id = wr_id
        self.num_sge = num_sge
        self.sg = sg


class WC(NamedTuple):
    """A work completion. The fields' order is that of `tables.CQE_FIELDS`."""

    wr_id: int
    status: int
    opcode: int
    byte_len: int
    imm_data: int
    qp_num: int
    src_qp: int
    wc_flags: int


class AsyncEvent(NamedTuple):
    """An asynchronous event; `element` is the QPN or the completion queue's number that it is about."""

    event_type: int
    element: int


def wc_status_to_str(status: int) -> str:
    """The verbs name of a completion status; of one that only other NICs give, its number."""
    return WcStatus(status).name if status in WcStatus._value2member_map_ else f"work completion status {status}"


def ip_to_number(ip: str) -> int:
    """Low half of the IPv4-mapped IPv6 address, as the packet table holds addresses."""
    return IPV4_MAPPED | int(ipaddress.IPv4Address(ip))
