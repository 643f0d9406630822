"""What can become of a frame: it is judged, with all bookkeeping, and then the verdict is carried out in one place.

A positive verdict is a `DropReason`. `tables.state` says which ring, connection, message and slot it is about.
"""

FORWARD = 0
"""Send it on as it is."""
KEPT = -1
"""A rank's copy was stored; nothing leaves yet."""
COMPLETE = -2
"""That was the last copy: the sum leaves on every connection."""
IGNORED = -4
"""It is none of a router's business."""
REPLAY = -3
"""A copy of a slot that is complete already: the sum leaves again, on this connection."""
