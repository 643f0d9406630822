"""The verbs API of the embedded NIC, with pyverbs' names: a script reads the same against either.

Differences: `Context` takes the `Nic`; nothing blocks, so `Context.get_async_event` gives None if there is none; errors
are `netreduce.errors.VerbsError`. RDMA READ, atomics and shared receive queues are not supported.
"""

from netreduce.nic.attributes import (
    GID,
    SGE,
    WC,
    AHAttr,
    AsyncEvent,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    wc_status_to_str,
)
from netreduce.nic.device import CQ, MR, PD, Context
from netreduce.nic.enums import *  # noqa: F403  (the IBV_* constants; `enums.__all__` lists them)
from netreduce.nic.enums import __all__ as _constants
from netreduce.nic.queue_pair import QP

__all__ = [
    "AHAttr",
    "AsyncEvent",
    "CQ",
    "Context",
    "GID",
    "GlobalRoute",
    "MR",
    "PD",
    "QP",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "RecvWR",
    "SGE",
    "SendWR",
    "WC",
    "wc_status_to_str",
    *_constants,
]
