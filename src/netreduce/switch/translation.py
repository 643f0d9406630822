"""The Connection Translation Table: what leaves of a slot, when, and on which connections.

Where a whole ring meets there is one *outflow*, the sum: it leaves on every connection. Where only a part of it meets,
as at a leaf with its rack or a spine with its pod, there are two. The sum of the children is partial and leaves on the
one connection that leads out, inside its own frames, whichever child came last. The total comes down inside the one
connection that leads in, the predecessor's of the first child; the table translates that one to all that end below this
switch, itself included, and each of them gets the total inside its own frames.

A total is a copy like any other, behind those of the children. So it is checked, stored and held back as they are, and
a replay is answered from it; no level of switches knows of another.
"""

from __future__ import annotations

import numpy as np

from netreduce.compiled import inlined
from netreduce.switch.tables import NOBODY, SwitchTables

SUM = 0
"""Outflow of a ring, counted from its first: the children's sum, which is the total where the whole ring meets."""
TOTAL = 1
"""What came from above."""


@inlined
def has_left(ring: np.record, outflow: np.record, message: np.record, slot: int, arrived: int) -> bool:
    """Whether the outflow of a slot with `arrived` copies was sent: with `hold` it may wait for an earlier one."""
    if arrived < outflow.arrived:
        return False
    if ring.hold == 0 or message.message < outflow.next_message:
        return True
    return message.message == outflow.next_message and slot < outflow.next_slot


@inlined
def leads_out(ring: np.record, connection: np.record) -> bool:
    """Whether a connection carries a partial sum to the switch above."""
    return ring.child_count < ring.connection_count and connection.outflow == ring.first_outflow + SUM


@inlined
def may_leave(ring: np.record, outflow: np.record, message: np.record, slot: int) -> bool:
    """Whether the outflow of a slot, whose last copy has just come, may be sent now."""
    return ring.hold == 0 or (message.message == outflow.next_message and slot == outflow.next_slot)


@inlined
def next_to_leave(tables: SwitchTables, ring: np.record, outflow: np.record, place: int) -> int:
    """With `hold`: step to the slot after the one that left, which was of the ring's message `place`.

    Returns the place of its message if it has all copies and may leave as well, otherwise `NOBODY`.
    """
    outflow.next_slot += 1
    if outflow.next_slot == tables.messages[ring.first_message + place].packets:
        outflow.next_message += 1
        outflow.next_slot = 0
        place = place + 1 if place + 1 < ring.message_count else 0
    slot = tables.slots[ring.first_slot + place * ring.message_packets + outflow.next_slot]
    if tables.messages[ring.first_message + place].message != outflow.next_message or slot.arrived < outflow.arrived:
        return NOBODY
    return place
