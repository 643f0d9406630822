"""What the scripts inside the guest share: opening a soft-RoCE device and connecting a queue pair, in plain pyverbs."""

import os

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
MTU = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}


class Device:
    """rxe<number>, with a completion queue, and two registered buffers of `size` bytes."""

    def __init__(self, number, size, gid):
        self.number = number
        self.context = Context(name=f"rxe{number}")
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 512)
        self.send_mr, self.receive_mr = MR(self.pd, size, ACCESS), MR(self.pd, size, ACCESS)
        self.gid_index = next(i for i in range(8) if gid_text(self.context.query_gid(1, i)) == gid)

    def queue_pair(self):
        """A queue pair of the Reliable Connection service."""
        cap = QPCap(max_send_wr=256, max_recv_wr=256, max_send_sge=2, max_recv_sge=2)
        return QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))

    def connect(self, qp, peer_gid, peer_qpn, send_psn, receive_psn, options):
        """Bring `qp` to RTS."""
        attr = QPAttr()
        attr.qp_state, attr.pkey_index, attr.port_num, attr.qp_access_flags = e.IBV_QPS_INIT, 0, 1, ACCESS
        route = GlobalRoute(dgid=GID(peer_gid), sgid_index=self.gid_index, hop_limit=64)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attr.path_mtu, attr.dest_qp_num = MTU[options["path_mtu"]], peer_qpn
        attr.rq_psn, attr.sq_psn = receive_psn, send_psn
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, options["timeout"], 7, 7
        qp.to_init(attr)
        qp.to_rtr(attr)
        qp.to_rts(attr)

    def counters(self):
        """The device's hardware counters."""
        base = f"/sys/class/infiniband/rxe{self.number}/ports/1/hw_counters"
        return {name: int(open(f"{base}/{name}").read()) for name in os.listdir(base) if name != "lifespan"}


def gid_text(gid):
    """A GID with all its digits."""
    return ":".join(group.zfill(4) for group in str(gid).split(":"))
