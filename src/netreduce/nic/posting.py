"""Work requests on their way into the queues; whoever calls has checked that they fit (see queue_pair.py)."""

from __future__ import annotations

from netreduce.compiled import compiled
from netreduce.nic.tables import NicTables, make_ready, note
from netreduce.trace.events import Event


@compiled
def queue_send(
    tables: NicTables,
    row: int,
    wr_id: int,
    opcode: int,
    signaled: int,
    solicited: int,
    count: int,
    length: int,
    immediate: int,
    remote_address: int,
    rkey: int,
) -> None:
    """Post a send of `length` bytes at queue pair `row`, whose `count` elements are in the next slot already."""
    qp = tables.qp[row]
    work = tables.sq[row, qp.sq_posted & qp.sq_mask]
    work.wr_id = wr_id
    work.opcode = opcode
    work.signaled = signaled
    work.solicited = solicited
    work.num_sge = count
    work.length = length
    mtu = max(1, qp.path_mtu)  # 0 before the queue pair was connected: then it fails, and this is flushed
    work.packets = max(1, (length + mtu - 1) // mtu)  # a message of no bytes takes a packet too
    work.first_packet = qp.posted_packets
    work.immediate = immediate
    work.remote_address = remote_address
    work.rkey = rkey
    qp.posted_packets += work.packets
    qp.sq_posted += 1
    note(tables, Event.POSTED.value, qp.qpn, -1, length, opcode)
    make_ready(tables, row)


@compiled
def queue_receive(tables: NicTables, row: int, wr_id: int, count: int, length: int) -> None:
    """Post a receive of up to `length` bytes at queue pair `row`, whose `count` elements are in the next slot."""
    qp = tables.qp[row]
    work = tables.rq[row, qp.rq_posted & qp.rq_mask]
    work.wr_id = wr_id
    work.num_sge = count
    work.length = length
    qp.rq_posted += 1
