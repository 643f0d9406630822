"""Memory regions: keys, bounds and rights, and the copies between memory and packets (IBA vol. 1, section 10.6).

Every packet's bytes are checked against the region's row at the time of the copy, as the hardware does; so a region
may be deregistered, or a queue pair destroyed, at any time.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import compiled, copy_bytes, memory_at
from netreduce.nic.enums import WcStatus
from netreduce.nic.tables import KEY_INDEX_SHIFT, NicTables

OWN_MEMORY = -1
"""Key of the NIC's own memory (inline data), which needs no check."""


@compiled
def may_access(tables: NicTables, pd: int, key: int, address: int, length: int, access: int) -> bool:
    """Whether `key` opens `length` bytes at `address` with all rights in `access`, in protection domain `pd`."""
    index = key >> KEY_INDEX_SHIFT
    if index < 0 or index >= tables.mr.size:
        return False
    region = tables.mr[index]
    if region.valid == 0 or region.key != key or region.pd != pd or region.access & access != access:
        return False
    # In this order nothing overflows, whatever address a peer may send.
    return address >= region.address and address - region.address <= region.length - length


@compiled
def copy_elements(
    tables: NicTables,
    pd: int,
    elements: np.ndarray,
    count: int,
    offset: int,
    data: np.ndarray,
    at: int,
    length: int,
    write_access: int,
) -> int:
    """Copy `length` bytes between `data` from `at` on and a scatter-gather list from byte `offset` of it on.

    Gathers into `data` if `write_access` is 0, else scatters from it, for which regions must grant that access.
    Returns a `WcStatus`; nothing promises that an earlier part was not copied.
    """
    for i in range(count):
        element = elements[i]
        if offset >= element.length:
            offset -= element.length
            continue
        part = min(element.length - offset, length)
        if part > 0:
            address = element.address + offset
            if element.key != OWN_MEMORY and not may_access(tables, pd, element.key, address, part, write_access):
                return WcStatus.IBV_WC_LOC_PROT_ERR.value
            if write_access:
                copy_bytes(memory_at(address, part), 0, data, at, part)
            else:
                copy_bytes(data, at, memory_at(address, part), 0, part)
        at += part
        length -= part
        offset = 0
        if length == 0:
            return WcStatus.IBV_WC_SUCCESS.value
    return WcStatus.IBV_WC_SUCCESS.value if length == 0 else WcStatus.IBV_WC_LOC_LEN_ERR.value
