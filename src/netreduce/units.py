"""Units of the project: time is integer picoseconds, because a byte at 100 Gb/s takes exactly 80 of them."""

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_MS = 1_000_000_000
PS_PER_S = 1_000_000_000_000

NEVER_PS = (1 << 63) - 1
"""The time of a timer that is not armed."""

KIB = 1024
MIB = 1024 * KIB
GBPS = 1_000_000_000


def serialization_ps(length_bytes: int, rate_bps: int) -> int:
    """Time that `length_bytes` occupy a line of `rate_bps`, in picoseconds, rounded up."""
    return -(-length_bytes * 8 * PS_PER_S // rate_bps)
