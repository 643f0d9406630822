"""Max-min fair rates by progressive filling, many bottlenecks at a time.

All flows' levels rise together; a link that fills up freezes its flows (Bertsekas and Gallager, Data Networks, section
6.5.2). A link need not be the network's tightest to be frozen now: it is enough that it is the tightest on the way of
each of its own flows, because freezing other flows earlier can only raise what a link offers to the rest.
"""

from __future__ import annotations

import numpy as np

from netreduce.flowsim.flows import Floats, Ints

RELATIVE_TIE = 1e-12
"""Shares that differ by less are the same bottleneck."""


def max_min(flow: Ints, link: Ints, use: Floats, room: Floats, weight: Floats, bound: Floats) -> Floats:
    """Levels (rate / weight) of the max-min fair allocation.

    flow, link, use: one element per crossing, sorted by flow; flows are 0..len(weight)-1, each with at least one
    crossing. room: float64[links], bytes a second that these flows may take together on each link. weight, bound:
    float64[flows]. Returns float64[flows].
    """
    level = np.zeros(len(weight))
    room = room.copy()
    ceiling = bound / weight
    open_flows = np.arange(len(weight))
    per_level = use * weight[flow]
    while len(open_flows):
        demand = np.bincount(link, per_level, len(room))
        share = np.full(len(room), np.inf)
        np.divide(room, demand, out=share, where=demand > 0)
        first = np.concatenate(([0], np.flatnonzero(np.diff(flow)) + 1))
        floor = np.minimum(np.minimum.reduceat(share[link], first), ceiling[open_flows])
        position = np.repeat(np.arange(len(open_flows)), np.diff(np.append(first, len(flow))))
        lowest = np.full(len(room), np.inf)
        np.minimum.at(lowest, link, floor[position])
        tight = lowest >= share * (1 - RELATIVE_TIE)
        frozen = np.logical_or.reduceat(tight[link], first) | (floor >= ceiling[open_flows])
        assert frozen.any(), "progressive filling always finds a bottleneck"
        level[open_flows[frozen]] = floor[frozen]
        gone = frozen[position]
        taken = np.bincount(link[gone], per_level[gone] * floor[position[gone]], len(room))
        room = np.maximum(room - taken, 0.0)
        open_flows = open_flows[~frozen]
        flow, link, per_level = flow[~gone], link[~gone], per_level[~gone]
    return level
