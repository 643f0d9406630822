"""Symmetric flows collapsed: flows that cannot be told apart get the same rate, so one of them stands for all.

Colour refinement finds the classes: a flow's colour is made of its own properties and its links' colours, a link's
colour of its capacity and its flows' colours, until no class splits any more. In such a partition every link of a
class carries equally many flows of each flow class, hence the max-min fair rates are equal within a class, and the
network of classes has the same rates and times as the network itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netreduce.flowsim.flows import Floats, Flows, Ints

Colours = NDArray[np.uint64]

ODD = np.uint64(0x9E3779B97F4A7C15)
SHIFT = np.uint64(29)


@dataclass(frozen=True)
class Collapsed:
    """flows: one per flow class. capacity: float64[link classes]. flow_class: int64[flows]. link_class: int64[links],
    -1 for a link that no flow crosses.
    """

    flows: Flows
    capacity: Floats
    flow_class: Ints
    link_class: Ints

    def per_link(self, per_class: Floats) -> Floats:
        """A value of each link's class for each link; 0 where nothing flows."""
        return np.where(self.link_class >= 0, per_class[self.link_class], 0.0)


def _mixed(values: Colours) -> Colours:
    """Spread bits, so that sums of mixed colours tell multisets apart (64 bits: chance collisions do not happen)."""
    values = values * ODD
    values ^= values >> SHIFT
    return values * ODD


def _bits(values: Floats) -> Colours:
    return _mixed(np.ascontiguousarray(values, np.float64).view(np.uint64))


def collapse(flows: Flows, capacity: Floats) -> Collapsed:
    """The network of classes of `flows` on links of `capacity` (float64[links], bytes a second)."""
    used, link = np.unique(flows.links, return_inverse=True)
    owner, use = flows.owners(), _bits(flows.uses)
    by_link = np.argsort(link, kind="stable")
    link_starts = np.concatenate(([0], np.flatnonzero(np.diff(link[by_link])) + 1))
    properties = (flows.size_bytes, flows.latency_s, flows.weight, flows.bound)
    flow_own = _bits(flows.size_bytes)
    for column in properties[1:]:
        flow_own = _mixed(flow_own ^ _bits(column))
    link_own = _bits(capacity[used])
    flow_colour, link_colour = flow_own, link_own
    classes = (0, 0)
    while True:
        flow_colour = flow_own + np.add.reduceat(_mixed(link_colour[link] ^ use), flows.starts[:-1])
        seen = _mixed(flow_colour[owner] ^ use)[by_link]
        link_colour = link_own + np.add.reduceat(seen, link_starts)
        first_flow, flow_class = np.unique(flow_colour, return_index=True, return_inverse=True)[1:]
        first_link, link_class = np.unique(link_colour, return_index=True, return_inverse=True)[1:]
        if (len(first_flow), len(first_link)) == classes:
            break
        classes = (len(first_flow), len(first_link))
    everywhere = np.full(len(capacity), -1, np.int64)
    everywhere[used] = link_class
    quotient = _quotient(flows, flow_class, link_class[link], first_flow, np.bincount(link_class))
    return Collapsed(quotient, capacity[used[first_link]], flow_class, everywhere)


def _quotient(flows: Flows, flow_class: Ints, crossed: Ints, first_flow: Ints, links_in_class: Ints) -> Flows:
    """One flow per class; its use of a link class is what all flows of its class put on one link of that class."""
    pair = flow_class[flows.owners()] * len(links_in_class) + crossed
    pairs, member = np.unique(pair, return_inverse=True)
    total = np.bincount(member, flows.uses)
    owner, link = np.divmod(pairs, len(links_in_class))
    starts = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(first_flow)))))
    return Flows(
        starts,
        link,
        total / links_in_class[link],
        flows.size_bytes[first_flow],
        flows.latency_s[first_flow],
        flows.weight[first_flow],
        flows.bound[first_flow],
    )
