"""The verbs API of the embedded NIC, with pyverbs' names: a script reads the same against either.

Differences: `Context` takes the `Nic`; nothing blocks, so `Context.get_async_event` gives None if there is none;
`QP.query` gives the attributes alone; errors are `netreduce.errors.VerbsError`. RDMA READ, atomics and shared receive
queues are not supported.
"""

from netreduce.nic.attributes import *  # noqa: F403
from netreduce.nic.device import *  # noqa: F403
from netreduce.nic.enums import *  # noqa: F403
from netreduce.nic.queue_pair import *  # noqa: F403
