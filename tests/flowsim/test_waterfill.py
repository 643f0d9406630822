"""Max-min fairness by its definition, and against plain progressive filling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netreduce.flowsim.waterfill import max_min


def filled_by_hand(
    flows: list[dict[int, float]], capacity: list[float], weight: list[float], bound: list[float]
) -> list[float]:
    """Textbook progressive filling, one bottleneck at a time: rates."""
    rate: dict[int, float] = {}
    room = dict(enumerate(capacity))
    while len(rate) < len(flows):
        waiting = [i for i in range(len(flows)) if i not in rate]
        level = {}
        for link in room:
            demand = sum(flows[i].get(link, 0.0) * weight[i] for i in waiting)
            if demand:
                level[link] = room[link] / demand
        lowest = min([*level.values(), *(bound[i] / weight[i] for i in waiting)])
        stopped = [
            i
            for i in waiting
            if bound[i] / weight[i] <= lowest * (1 + 1e-12)
            or any(link in flows[i] and share <= lowest * (1 + 1e-12) for link, share in level.items())
        ]
        for i in stopped:
            rate[i] = lowest * weight[i]
            for link, use in flows[i].items():
                room[link] -= use * rate[i]
    return [rate[i] for i in range(len(flows))]


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[dict[int, float]], list[float], list[float], list[float]]:
    links = draw(st.integers(1, 7))
    speeds = st.floats(1, 100)
    flow = st.dictionaries(st.integers(0, links - 1), st.sampled_from([1.0, 1.0, 2.0, 1.08]), min_size=1)
    flows = draw(st.lists(flow, min_size=1, max_size=12))
    capacity = draw(st.lists(speeds, min_size=links, max_size=links))
    weight = draw(st.lists(st.sampled_from([1.0, 1.0, 2.0, 0.5]), min_size=len(flows), max_size=len(flows)))
    bounds = st.one_of(st.just(np.inf), speeds)
    bound = draw(st.lists(bounds, min_size=len(flows), max_size=len(flows)))
    return flows, capacity, weight, bound


def solve(flows: list[dict[int, float]], capacity: list[float], weight: list[float], bound: list[float]) -> np.ndarray:
    flow = np.repeat(np.arange(len(flows)), [len(f) for f in flows])
    link = np.concatenate([list(f) for f in flows])
    use = np.concatenate([list(f.values()) for f in flows])
    return max_min(flow, link, use, np.array(capacity), np.array(weight), np.array(bound)) * np.array(weight)


@settings(max_examples=200, deadline=None)
@given(networks())
def test_the_rates_are_those_of_plain_progressive_filling(network):
    assert solve(*network) == pytest.approx(filled_by_hand(*network), rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(networks())
def test_every_flow_has_a_full_link_on_which_no_flow_has_a_higher_level_or_is_at_its_bound(network):
    flows, capacity, weight, bound = network
    rate = solve(*network)
    level = rate / np.array(weight)
    load = [sum(f.get(link, 0.0) * r for f, r in zip(flows, rate, strict=True)) for link in range(len(capacity))]
    assert all(used <= limit * (1 + 1e-9) for used, limit in zip(load, capacity, strict=True))
    for i, flow in enumerate(flows):
        bottleneck = any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and level[i] >= max(level[j] for j, other in enumerate(flows) if link in other) * (1 - 1e-9)
            for link in flow
        )
        assert bottleneck or rate[i] >= bound[i] * (1 - 1e-9)


def test_flows_over_a_dead_link_get_nothing_and_the_others_everything():
    assert solve([{0: 1.0, 1: 1.0}, {1: 1.0}], [0.0, 10.0], [1.0, 1.0], [np.inf, np.inf]).tolist() == [0.0, 10.0]
