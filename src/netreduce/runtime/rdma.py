"""The verbs provider over pyverbs: RDMA devices of the kernel, from soft-RoCE to ConnectX, for `netreduce.collectives`.

The classes take the records of `netreduce.nic.verbs` and hand pyverbs its own. Where the two differ: pyverbs wants an
element in every work request and GIDs with all their digits, has immediate data in network byte order, and frees the
memory of work requests and elements only when they are closed.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import resource
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pyverbs import cq, device, mr, pd, qp
from pyverbs import wr as work
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.fork import fork_init
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

from netreduce.errors import ConfigurationError, VerbsError
from netreduce.nic.verbs import (
    IBV_WC_WITH_IMM,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    SGE,
    WC,
    QPAttr,
    QPInitAttr,
    RecvWR,
    SendWR,
)
from netreduce.runtime.interface import interface_mac
from netreduce.runtime.rdma_ports import HEADERS_BYTES, Gid, RdmaPort
from netreduce.units import KIB, MIB

_WRITES = (IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM)
_COPIED = (
    "qp_state", "cur_qp_state", "port_num", "path_mtu", "qp_access_flags", "pkey_index", "rq_psn", "sq_psn",
    "dest_qp_num", "max_rd_atomic", "max_dest_rd_atomic", "min_rnr_timer", "timeout", "retry_cnt", "rnr_retry",
)  # fmt: skip
"""Attributes of a queue pair that are the same for both."""


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    """pyverbs' errors become `VerbsError`: `what` could not be done, and why."""
    try:
        yield
    except PyverbsError as error:
        raise VerbsError(f"{what}: {error}") from error


class Context:
    """An open device, used at one port by one of its GIDs.

    `ConfigurationError` when it cannot be opened.
    """

    def __init__(self, port: RdmaPort, gid: Gid) -> None:
        self.port = port
        self.gid = gid
        self.ip = gid.address
        self.mac = interface_mac(gid.interface)
        self.verbs = sys.modules[__name__]
        self.registered_bytes = 0
        fork_init()  # before anything else, so that the pages of registered memory survive a data loader's fork
        try:
            self.inner = device.Context(name=port.device)
            self.path_mtu = 128 << self.inner.query_port(port.number).active_mtu
        except PyverbsError as error:
            raise ConfigurationError(
                f"RDMA device {port.device} cannot be opened ({error}): may this user use /dev/infiniband?"
            ) from error

    def require_path_mtu(self, path_mtu: int) -> None:
        """`VerbsError`, with the number to set, when the port cannot carry packets of `path_mtu`."""
        if path_mtu > self.path_mtu:
            raise VerbsError(
                f"{self.port} has an active MTU of {self.path_mtu}, the ring a path MTU of {path_mtu}: "
                f"ip link set {self.gid.interface} mtu {path_mtu + HEADERS_BYTES}, or a smaller path MTU"
            )

    def close(self) -> None:
        """Close the device and what was made from it."""
        self.inner.close()


class PD:
    """A protection domain."""

    def __init__(self, creator: Context) -> None:
        self.context = creator
        self.verbs = creator.verbs
        with _refusals(f"protection domain of {creator.port}"):
            self.inner = pd.PD(creator.inner)

    def close(self) -> None:
        """Deallocate it."""
        self.inner.close()


class MR:
    """`length` bytes at `address`, pinned until it is closed. `VerbsError` says which limit to raise."""

    def __init__(self, creator: PD, length: int, access: int, address: int) -> None:
        self._context = creator.context
        self._length = length
        try:
            self._inner = mr.MR(creator.inner, length, int(access), address=address)
        except PyverbsRDMAError as error:
            raise VerbsError(self._refusal(error)) from error
        self._context.registered_bytes += length
        self.lkey, self.rkey = self._inner.lkey, self._inner.rkey

    def _refusal(self, error: PyverbsRDMAError) -> str:
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        needed = self._context.registered_bytes + self._length
        if error.error_code != errno.ENOMEM or limit == resource.RLIM_INFINITY or needed <= limit:
            return f"{self._context.port} does not register {self._length} bytes: {error}"
        wanted_kib = -(-2 * needed // MIB) * (MIB // KIB)  # room for another one of each
        return (
            f"{self._context.port} cannot pin {needed // KIB:,} KiB, this process may lock {limit // KIB:,}: "
            f"ulimit -l {wanted_kib} or unlimited (docker: --ulimit memlock=-1)"
        )

    def close(self) -> None:
        """Deregister it: the device cannot reach the memory any more."""
        if self._length:
            self._context.registered_bytes -= self._length
            self._length = 0
            self._inner.close()


class CQ:
    """A completion queue for `cqe` completions."""

    def __init__(self, context: Context, cqe: int) -> None:
        with _refusals(f"completion queue of {cqe} entries on {context.port}"):
            self.inner = cq.CQ(context.inner, cqe)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Up to `num_entries` completions, oldest first, and their number."""
        with _refusals("polling a completion queue"):
            count, found = self.inner.poll(num_entries)
        return count, [self._converted(one) for one in found] if count else []

    @staticmethod
    def _converted(one: Any) -> WC:
        immediate = socket.ntohl(one.imm_data) if one.wc_flags & IBV_WC_WITH_IMM else 0
        return WC(one.wr_id, one.status, one.opcode, one.byte_len, immediate, one.qp_num, one.src_qp, one.wc_flags)

    def close(self) -> None:
        """Destroy it."""
        self.inner.close()


class QP:
    """A Reliable Connection queue pair."""

    def __init__(self, creator: PD, init_attr: QPInitAttr) -> None:
        self._context = creator.context
        cap = init_attr.cap
        capacity = qp.QPCap(
            max_send_wr=cap.max_send_wr, max_recv_wr=cap.max_recv_wr, max_send_sge=cap.max_send_sge,
            max_recv_sge=cap.max_recv_sge, max_inline_data=cap.max_inline_data,
        )  # fmt: skip
        attributes = qp.QPInitAttr(
            qp_type=int(init_attr.qp_type), scq=init_attr.scq.inner, rcq=init_attr.rcq.inner, cap=capacity,
            sq_sig_all=init_attr.sq_sig_all,
        )  # fmt: skip
        with _refusals(f"queue pair on {creator.context.port}"):
            self._inner = qp.QP(creator.inner, attributes)
        self.qp_num = int(self._inner.qp_num)

    def _converted(self, attr: QPAttr) -> Any:
        converted = qp.QPAttr()
        for name in _COPIED:
            setattr(converted, name, int(getattr(attr, name)))
        if attr.ah_attr is not None and attr.ah_attr.gr is not None:
            self._context.require_path_mtu(128 << attr.path_mtu)
            converted.ah_attr = self._address(attr.ah_attr.gr)
        return converted

    def _address(self, route: Any) -> Any:
        ip = ipaddress.ip_address(route.dgid.gid)
        full = ipaddress.IPv6Address(f"::ffff:{ip}" if ip.version == 4 else str(ip)).exploded
        gr = GlobalRoute(
            dgid=GID(full), flow_label=route.flow_label, sgid_index=self._context.gid.entry,
            hop_limit=route.hop_limit, traffic_class=route.traffic_class,
        )  # fmt: skip
        return AHAttr(is_global=1, port_num=self._context.port.number, gr=gr)

    def to_init(self, attr: QPAttr) -> None:
        """RESET to INIT."""
        with _refusals("moving a queue pair to INIT"):
            self._inner.to_init(self._converted(attr))

    def to_rtr(self, attr: QPAttr) -> None:
        """INIT to RTR; the kernel asks for the peer's MAC address meanwhile."""
        converted = self._converted(attr)
        with _refusals(f"{self._context.port} ({self._context.ip}) finds no way to {_peer(attr)}"):
            self._inner.to_rtr(converted)

    def to_rts(self, attr: QPAttr) -> None:
        """RTR to RTS."""
        with _refusals("moving a queue pair to RTS"):
            self._inner.to_rts(self._converted(attr))

    def modify(self, attr: QPAttr, mask: int) -> None:
        """Set the attributes in `mask`."""
        with _refusals("modifying a queue pair"):
            self._inner.modify(self._converted(attr), int(mask))

    def post_send(self, wr: SendWR) -> None:
        """Queue a send work request."""
        with _elements(wr.sg) as elements, _refusals("posting a send"):
            immediate, flags = socket.htonl(wr.imm_data), int(wr.send_flags)
            request = work.SendWR(wr.wr_id, int(wr.opcode), len(elements), immediate, elements, flags)
            request.num_sge = wr.num_sge
            if wr.opcode in _WRITES:
                request.set_wr_rdma(wr.rkey, wr.remote_addr)
            self._inner.post_send(request)
            request.close()

    def post_recv(self, wr: RecvWR) -> None:
        """Queue a receive work request."""
        with _elements(wr.sg) as elements, _refusals("posting a receive"):
            request = work.RecvWR(wr.wr_id, len(elements), elements)
            request.num_sge = wr.num_sge
            self._inner.post_recv(request)
            request.close()

    def close(self) -> None:
        """Destroy it."""
        self._inner.close()


def _peer(attr: QPAttr) -> str:
    return attr.ah_attr.gr.dgid.gid if attr.ah_attr is not None and attr.ah_attr.gr is not None else "its peer"


@contextlib.contextmanager
def _elements(sg: Sequence[SGE] | None) -> Iterator[list[Any]]:
    """pyverbs' scatter-gather elements, for as long as they are needed; one that is not meant where there is none."""
    elements = [work.SGE(sge.addr, sge.length, sge.lkey) for sge in sg or ()] or [work.SGE(0, 0, 0)]
    yield elements
    for element in elements:
        element.close()
