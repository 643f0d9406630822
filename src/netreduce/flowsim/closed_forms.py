"""Closed forms of all-reduce times, for clusters whose links are all alike: printed beside the simulated times, as a
check.

With P ranks on H machines of n each, M bytes, B_i inside and B_e between machines, they are, step by step, the usual
cost models: flat ring 2(P-1) a + 2(P-1)/P M/min(B_i, B_e), leaders' ring 2(H-1) a + 2(H-1)/H M/B_e + 4(n-1)/n M/B_i,
Parallel NetReduce a + M/B_e + 2(n-1)/n M/B_i. The paper (ASPLOS 2023, section 5) describes them in words; the
equations are ours.
"""

from __future__ import annotations

import numpy as np

from netreduce.flowsim.cluster import Cluster
from netreduce.flowsim.schemes import Scheme
from netreduce.flowsim.traffic import Settings


def closed_form_s(scheme: Scheme, cluster: Cluster, size_bytes: int, settings: Settings) -> float | None:
    """Seconds, or None where no closed form holds (links that differ, a fabric with less than full bisection, a tree).

    Chunks count as if they were divisible at will.
    """
    if scheme.name not in ("ring", "leaders", "hierarchical", "netreduce", "parallel") or not _uniform(cluster):
        return None
    if scheme.name in ("ring", "netreduce") and cluster.ports_per_machine > 1:
        return None
    workers, machines = cluster.inside.workers, cluster.machine_count
    ranks, tax = cluster.worker_count, settings.packets.tax()
    inside_s, between_s = _step_latencies(cluster, settings.step_s)
    per_byte_inside = 1 / cluster.inside.capacity
    per_byte_between = tax * workers / (cluster.fabric_capacity() * cluster.ports_per_machine)

    def step(size: float) -> float:
        return inside_s + size * per_byte_inside if workers > 1 else 0.0

    within = 2 * (workers - 1) * step(size_bytes / workers)
    across = 2 * (machines - 1) * (between_s + size_bytes / workers / machines * per_byte_between)
    if scheme.name == "ring":
        chunk = size_bytes / ranks
        one_port = between_s + chunk * tax / cluster.fabric_capacity() if machines > 1 else 0.0
        return 2 * (ranks - 1) * max(step(chunk), one_port)
    if scheme.name == "leaders":
        collecting = 2 * step(size_bytes * (workers - 1) / workers) if workers > 1 else 0.0
        share = size_bytes / machines * tax / cluster.fabric_capacity()
        return within + collecting + 2 * (machines - 1) * (between_s + share)
    if scheme.name == "hierarchical":
        return within + across
    assert scheme.aggregator is not None
    ring_of_all = np.arange(0, ranks, workers if scheme.parallel_rings else 1)
    once_s = cluster.tree(ring_of_all, 0).latency_s + settings.step_s
    tax = scheme.aggregator.packets.tax() if settings.packets.header_bytes else 1.0
    carried = size_bytes if scheme.parallel_rings else size_bytes * workers
    in_network = once_s + carried * tax / (cluster.fabric_capacity() * cluster.ports_per_machine)
    return in_network + (within if scheme.parallel_rings else 0.0)


def _uniform(cluster: Cluster) -> bool:
    """Whether all network links are alike."""
    return bool(np.ptp(cluster.links.capacity[cluster.offset :]) == 0)


def _step_latencies(cluster: Cluster, step_s: float) -> tuple[float, float]:
    """Latency of a step between neighbours of a ring, inside a machine and between machines (the longest of these)."""
    machines = cluster.machine_count
    first = np.arange(0, cluster.worker_count, cluster.inside.workers)
    between = cluster.latency_s(cluster.routes(first, np.roll(first, -1))) if machines > 1 else np.zeros(1)
    return 2 * cluster.inside.latency_s + step_s, float(between.max()) + step_s
