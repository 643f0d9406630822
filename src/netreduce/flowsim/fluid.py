"""The state of the fluid: which flows are under way, their rates, and when the next one ends.

Rates are max-min fair at every instant. When flows come or go, only the flows that can feel it are solved again: those
that hang together with the change through links that are full. The rest keep their rates, unless a link fills up on
which one of them takes more than its share; then it joins and the solve is repeated, so that the result is the one that
a full solve gives.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netreduce.flowsim.checks import check_capacity, check_carried
from netreduce.flowsim.flows import Floats, Flows, Ints
from netreduce.flowsim.waterfill import max_min

FULL = 1 - 1e-9
"""A link whose load is at least this part of its capacity counts as full. Generous: it only widens the solve."""
HIGHER = 1 + 1e-9
"""A level must exceed another by this factor to be unfair to it."""
SIMULTANEOUS = 1e-12
"""Flows that end within this part of the current time of each other end together."""
INSTANT_S = 1e-21
"""The same near time zero."""

Mask = NDArray[np.bool_]

FLOW = np.dtype(
    [
        ("id", np.int64),
        ("remaining_bytes", np.float64),  # at since_s
        ("since_s", np.float64),  # when the level was set
        ("end_s", np.float64),  # if the level stays
        ("level", np.float64),  # rate / weight
        ("weight", np.float64),
        ("bound", np.float64),
    ]
)
CROSSING = np.dtype([("flow", np.int64), ("link", np.int64), ("use", np.float64)])


class Fluid:
    """Flows under way on links of `capacity`, float64[links] in bytes a second. Time is in seconds and only grows."""

    def __init__(self, capacity: Floats) -> None:
        self.capacity = capacity
        self.load = np.zeros(len(capacity))
        self.carried_bytes = np.zeros(len(capacity))
        self.now_s = 0.0
        self.solves = 0
        self.flows = np.empty(0, FLOW)
        self.crossings = np.empty(0, CROSSING)  # sorted by position of the flow in `flows`
        self._offered_bytes = np.zeros(len(capacity))
        self._next_id = 0

    def __len__(self) -> int:
        return len(self.flows)

    def rates(self) -> Floats:
        """Payload bytes a second of each flow under way, in the order of `flows`."""
        return self.flows["level"] * self.flows["weight"]

    def next_end_s(self) -> float:
        """When the next flow ends if nothing changes; inf when nothing flows or everything is stopped."""
        return float(self.flows["end_s"].min()) if len(self.flows) else np.inf

    def advance(self, now_s: float) -> None:
        """Let time pass. The caller stops at every `next_end_s`."""
        assert now_s >= self.now_s
        assert now_s <= self.next_end_s() * (1 + SIMULTANEOUS)
        self.carried_bytes += self.load * (now_s - self.now_s)
        self.now_s = now_s

    def add(self, new: Flows) -> Ints:
        """Start flows now; returns their ids, int64[len(new)]."""
        owners = new.owners()
        self._offered_bytes += np.bincount(new.links, new.uses * new.size_bytes[owners], len(self.capacity))
        rows = np.zeros(len(new), FLOW)
        rows["id"] = self._next_id + np.arange(len(new))
        rows["remaining_bytes"], rows["weight"], rows["bound"] = new.size_bytes, new.weight, new.bound
        rows["since_s"], rows["end_s"] = self.now_s, np.inf
        crossings = np.empty(len(new.links), CROSSING)
        crossings["flow"], crossings["link"], crossings["use"] = owners + len(self.flows), new.links, new.uses
        members = np.zeros(len(self.flows) + len(new), bool)
        members[len(self.flows) :] = True
        self._next_id += len(new)
        self.flows = np.concatenate((self.flows, rows))
        self.crossings = np.concatenate((self.crossings, crossings))
        self._settle(self._mask_of(new.links), members)
        return rows["id"]

    def finish(self) -> Ints:
        """Remove the flows that end now; returns their ids, empty if none does."""
        ended = self.flows["end_s"] <= self.now_s * (1 + SIMULTANEOUS) + INSTANT_S
        if not ended.any():
            return np.empty(0, np.int64)
        ids = self.flows["id"][ended]
        going = ended[self.crossings["flow"]]
        touched = self._mask_of(self.crossings["link"][going])
        self.flows, self.crossings = self.flows[~ended], self.crossings[~going]
        self.crossings["flow"] = (np.cumsum(~ended) - 1)[self.crossings["flow"]]
        self._settle(touched, np.zeros(len(self.flows), bool))
        return ids

    def check(self) -> None:
        """When nothing flows any more: each link carried what was offered to it. Raises ConservationError."""
        assert not len(self.flows)
        check_carried(self.carried_bytes, self._offered_bytes)

    def _mask_of(self, links: Ints) -> Mask:
        mask = np.zeros(len(self.capacity), bool)
        mask[links] = True
        return mask

    def _settle(self, touched: Mask, members: Mask) -> None:
        """Solve again the flows `members` and all that feel a change on the `touched` links."""
        full = self.load >= self.capacity * FULL
        members = self._connected(members, touched & full, full)
        while True:
            level = self._solve(members)
            unfair = self._wronged_by(members, level)
            if not unfair.any():
                break
            members = self._connected(members | unfair, np.zeros_like(full), full)
        self._apply(members, level, touched)

    def _connected(self, members: Mask, hot: Mask, full: Mask) -> Mask:
        """Everything that hangs together with `members` and the `hot` links through full links."""
        flow, link = self.crossings["flow"], self.crossings["link"]
        members = members.copy()
        count = -1
        while True:
            hot[link[members[flow]]] = True
            hot &= full
            members[flow[hot[link]]] = True
            reached = int(members.sum())
            if reached == count:
                return members
            count = reached

    def _solve(self, members: Mask) -> Floats:
        """Levels of the member flows (in order), given that the others keep theirs."""
        inside = members[self.crossings["flow"]]
        if not inside.any():
            return np.empty(0)
        self.solves += 1
        solved = self.crossings[inside]
        used, local = np.unique(solved["link"], return_inverse=True)
        room = self.capacity[used]
        if len(solved) < len(self.crossings):
            others = self.crossings[~inside]
            taken = np.bincount(others["link"], others["use"] * self.rates()[others["flow"]], len(self.capacity))
            room = np.maximum(room - taken[used], 0.0)
        position = (np.cumsum(members) - 1)[solved["flow"]]
        chosen = self.flows[members]
        return max_min(position, local, solved["use"], room, chosen["weight"], chosen["bound"])

    def _wronged_by(self, members: Mask, level: Floats) -> Mask:
        """Flows outside that take more than every member does on a link that is now full."""
        unfair = np.zeros(len(members), bool)
        if members.all():
            return unfair
        levels = self.flows["level"].copy()
        levels[members] = level
        flow, link = self.crossings["flow"], self.crossings["link"]
        load = np.bincount(link, self.crossings["use"] * (levels * self.flows["weight"])[flow], len(self.capacity))
        inside = members[flow]
        filled = self._mask_of(link[inside]) & (load >= self.capacity * FULL)
        highest = np.where(filled, 0.0, np.inf)
        np.maximum.at(highest, link[inside], levels[flow[inside]])
        unfair[flow[~inside & (levels[flow] > highest[link] * HIGHER)]] = True
        return unfair

    def _apply(self, members: Mask, level: Floats, touched: Mask) -> None:
        """Book what flowed until now, then let the members go on at their new levels."""
        rows = self.flows[members]
        spent = (self.now_s - rows["since_s"]) * rows["level"] * rows["weight"]
        rows["remaining_bytes"] = np.maximum(rows["remaining_bytes"] - spent, 0.0)
        rows["since_s"], rows["level"] = self.now_s, level
        left_s = np.full(len(rows), np.inf)
        np.divide(rows["remaining_bytes"], level * rows["weight"], out=left_s, where=level > 0)
        left_s[rows["remaining_bytes"] == 0] = 0.0
        rows["end_s"] = self.now_s + left_s
        self.flows[members] = rows
        touched = touched | self._mask_of(self.crossings["link"][members[self.crossings["flow"]]])
        moved = self.crossings[touched[self.crossings["link"]]]
        load = np.bincount(moved["link"], moved["use"] * self.rates()[moved["flow"]], len(self.capacity))
        self.load = np.where(touched, load, self.load)
        check_capacity(self.load, self.capacity)
