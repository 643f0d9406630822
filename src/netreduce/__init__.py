"""NetReduce: in-network gradient aggregation beneath an untouched RoCE transport."""

__version__ = "0.1.0"
