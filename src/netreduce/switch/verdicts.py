"""What can become of a frame: it is judged, with all bookkeeping, and then the verdict is carried out in one place.

A positive verdict is a `DropReason`. `tables.state` says which ring, connection, message and slot it is about.
"""

FORWARD = 0
"""Send it on as it is."""
KEPT = -1
"""A copy was stored; nothing leaves yet."""
COMPLETE = -2
"""That was the last copy: an outflow of the slot leaves on its connections."""
REPLAY = -3
"""A copy of a slot whose outflow has left already: it leaves again, on this connection."""
IGNORED = -4
"""It is none of a router's business."""
