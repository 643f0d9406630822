"""Queue pairs for collectives: how they are made and brought to RTS. Attributes are NCCL's but for the timer."""

from __future__ import annotations

from netreduce.collectives.provider import CQ, PD, QP
from netreduce.nic.verbs import (
    GID,
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_MTU_256,
    IBV_MTU_512,
    IBV_MTU_1024,
    IBV_MTU_2048,
    IBV_MTU_4096,
    IBV_QPT_RC,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
)

ACK_TIMEOUT = 17
"""4.096 us x 2^17 = 0.54 s until a retransmission, seven times: a peer may be silent for 4 seconds."""
RETRY_COUNT = 7
RNR_RETRY = 7  # for ever: whoever waits for a slow rank is bounded by the group's timeout instead
MIN_RNR_TIMER = 12  # 0.64 ms

PATH_MTUS = {256: IBV_MTU_256, 512: IBV_MTU_512, 1024: IBV_MTU_1024, 2048: IBV_MTU_2048, 4096: IBV_MTU_4096}


def make_queue_pair(pd: PD, cq: CQ, *, send_depth: int, receive_depth: int, sges: int = 1) -> QP:
    """An RC queue pair in RESET whose completions all go to `cq`; only flagged sends complete visibly."""
    capacity = QPCap(max_send_wr=send_depth, max_recv_wr=receive_depth, max_send_sge=sges, max_recv_sge=sges)
    return pd.verbs.QP(pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=cq, rcq=cq, cap=capacity, sq_sig_all=0))


def connect_queue_pair(
    qp: QP, *, ip: str, qpn: int, send_psn: int, receive_psn: int, path_mtu: int, ack_timeout: int
) -> None:
    """Bring `qp` from RESET to RTS, towards queue pair `qpn` of the NIC at `ip`."""
    attributes = QPAttr(
        port_num=1,
        path_mtu=PATH_MTUS[path_mtu],
        qp_access_flags=IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        rq_psn=receive_psn,
        sq_psn=send_psn,
        dest_qp_num=qpn,
        ah_attr=AHAttr(gr=GlobalRoute(dgid=GID(ip))),
        max_rd_atomic=1,
        max_dest_rd_atomic=1,
        min_rnr_timer=MIN_RNR_TIMER,
        timeout=ack_timeout,
        retry_cnt=RETRY_COUNT,
        rnr_retry=RNR_RETRY,
    )
    qp.to_init(attributes)
    qp.to_rtr(attributes)
    qp.to_rts(attributes)
