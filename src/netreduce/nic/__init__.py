"""The RoCEv2 NIC: verbs above, frames below, and nothing of rings or aggregation."""
