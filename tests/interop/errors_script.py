"""What the RDMA provider says when something is wrong with the host: a line for each error. Runs in the guest."""

import os
import resource

import numpy as np

from netreduce.errors import NetReduceError
from netreduce.nic import verbs as v
from netreduce.runtime import rdma
from netreduce.runtime.rdma_ports import rdma_ports

NOBODY = 65534
PORT = rdma_ports()[0]
GID = next(gid for gid in PORT.gids if gid.address == "10.0.0.1")


def connect(path_mtu, ip):
    """Open the device and connect a queue pair."""
    context = rdma.Context(PORT, GID)
    cq = rdma.CQ(context, 16)
    qp = rdma.QP(rdma.PD(context), v.QPInitAttr(scq=cq, rcq=cq))
    route = v.GlobalRoute(dgid=v.GID(ip))
    attr = v.QPAttr(path_mtu=path_mtu, dest_qp_num=17, ah_attr=v.AHAttr(gr=route), max_dest_rd_atomic=1)
    qp.to_init(attr)
    qp.to_rtr(attr)


def with_small_mtu():
    os.system("/usr/bin/ip link set eth0 mtu 1500")
    try:
        connect(v.IBV_MTU_4096, "10.0.0.2")
    finally:
        os.system("/usr/bin/ip link set eth0 mtu 4300")


def with_little_memory_to_lock():
    os.setuid(NOBODY)  # whom the limit concerns
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 18, 1 << 18))
    memory = np.ones(1 << 20, np.uint8)
    pd = rdma.PD(rdma.Context(PORT, GID))
    rdma.MR(pd, memory.nbytes, v.IBV_ACCESS_LOCAL_WRITE, memory.ctypes.data)


def main():
    for attempt in (with_small_mtu, lambda: connect(v.IBV_MTU_1024, "10.99.0.1"), with_little_memory_to_lock):
        try:
            attempt()
        except NetReduceError as error:
            print(error, flush=True)


main()
