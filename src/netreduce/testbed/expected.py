"""What a run should take and carry at best, in closed form: the flow simulator's formulas, with these packets' headers.

With P workers on H machines of n, M bytes, B_i inside and B_e between machines: flat ring 2(P-1) a + 2(P-1)/P
M/min(B_i, B_e); leaders' ring 2(H-1) a + 2(H-1)/H M/B_e + 4(n-1)/n M/B_i; Parallel NetReduce a + M/B_e + 2(n-1)/n
M/B_i. Clears to send, acknowledgements and the windows' waiting come on top in a run.
"""

from __future__ import annotations

from dataclasses import replace

from netreduce.fabric.line import OVERHEAD_BYTES
from netreduce.flowsim import aggregators
from netreduce.flowsim.closed_forms import closed_form_s
from netreduce.flowsim.cluster import Cluster, Inside
from netreduce.flowsim.fabrics import single_switch
from netreduce.flowsim.packets import roce
from netreduce.flowsim.schemes import SCHEMES
from netreduce.flowsim.traffic import Settings
from netreduce.testbed.hardware import WAYS, Case
from netreduce.units import PS_PER_S


def closed_form_ps(case: Case) -> float | None:
    """Picoseconds; None for a way that has no closed form."""
    hardware, name = case.hardware, WAYS[case.way].scheme
    if not name:
        return None
    packets = roce(hardware.geometry.path_mtu)
    detour_ps = hardware.detour_ps if WAYS[case.way].spliced else 0
    fabric = single_switch(
        hardware.machines,
        capacity=hardware.port_bps / 8,
        latency_s=(hardware.between_ps + detour_ps) / 2 / PS_PER_S,
    )
    inside = Inside(
        hardware.gpus,
        hardware.inside_bps / 8 / packets.tax() if hardware.gpus > 1 else 1.0,
        hardware.inside_delay_ps / 2 / PS_PER_S,
    )
    scheme = SCHEMES[name]
    if scheme.aggregator is not None:
        scheme = replace(scheme, aggregator=aggregators.netreduce(payload_bytes=hardware.geometry.path_mtu))
    closed_s = closed_form_s(scheme, Cluster(fabric, inside), case.size_bytes, Settings(packets))
    return None if closed_s is None else closed_s * PS_PER_S


def payload_bytes(case: Case) -> dict[str, float]:
    """Bytes of the buffer that cross the busiest link out of a worker, into one, and each way at a machine's port."""
    hardware, size = case.hardware, case.size_bytes
    machines, gpus, workers = hardware.machines, hardware.gpus, hardware.workers
    around = 2 * (workers - 1) / workers * size
    out_of_worker, into_worker, across = {
        "ring": (around, around, around if machines > 1 else 0.0),
        "leaders": (
            *2 * ((2 * (gpus - 1) / gpus + (gpus - 1) / gpus + 2 * (machines - 1) / machines) * size,),
            2 * (machines - 1) / machines * size,
        ),
        "netreduce": (size, size, gpus * size),
        "parallel": (*2 * ((2 * (gpus - 1) + 1) / gpus * size,), size),
        "plain": (size, size, size),
    }[case.way]
    if gpus == 1:
        out_of_worker = into_worker = across
    return {"out": out_of_worker, "in": into_worker, "across": across}


def wire_bytes(case: Case) -> float:
    """Frame bytes on all links together, about: for telling how far a run is."""
    hardware, found = case.hardware, payload_bytes(case)
    ends = hardware.workers * (found["out"] + found["in"])
    hops = 2 if hardware.middlebox is not None and WAYS[case.way].spliced else 1
    crossing = 2 * hops * hardware.machines * found["across"]
    payload = crossing if hardware.gpus == 1 else ends + crossing
    return payload * (roce(hardware.geometry.path_mtu).tax() - OVERHEAD_BYTES / hardware.geometry.path_mtu)
