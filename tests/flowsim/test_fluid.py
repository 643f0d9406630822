"""The incremental solve is a full solve, and time passes as arithmetic says."""

import numpy as np
import pytest

from netreduce.flowsim.checks import ConservationError
from netreduce.flowsim.flows import coupled, routed
from netreduce.flowsim.fluid import Fluid
from netreduce.flowsim.waterfill import max_min


def full_solve(fluid: Fluid) -> np.ndarray:
    weight = fluid.flows["weight"]
    level = max_min(
        fluid.crossings["flow"],
        fluid.crossings["link"],
        fluid.crossings["use"],
        fluid.capacity,
        weight,
        fluid.flows["bound"],
    )
    return level * weight


@pytest.mark.parametrize("seed", range(8))
def test_rates_after_every_arrival_and_departure_are_those_of_a_full_solve(seed):
    generator = np.random.default_rng(seed)
    links = 20
    fluid = Fluid(generator.uniform(1, 10, links))
    for _ in range(60):
        if generator.random() < 0.6 or not len(fluid):
            reach = int(generator.integers(1, 5))
            chosen = generator.permutation(links)[:reach]
            bound = float(generator.choice([np.inf, 1.5]))
            fluid.add(
                coupled(chosen, float(generator.uniform(1, 30)), weight=float(generator.choice([1, 2])), bound=bound)
            )
        else:
            fluid.advance(fluid.next_end_s())
            assert len(fluid.finish())
        if len(fluid):
            assert fluid.rates() == pytest.approx(full_solve(fluid), rel=1e-9)
    while len(fluid):
        fluid.advance(fluid.next_end_s())
        fluid.finish()
        if len(fluid):
            assert fluid.rates() == pytest.approx(full_solve(fluid), rel=1e-9)
    fluid.check()


def test_flows_apart_from_a_change_are_not_solved_again():
    fluid = Fluid(np.array([10.0, 10.0]))
    fluid.add(routed(np.array([[0]]), 100.0))
    solves = fluid.solves
    before = fluid.flows["since_s"][0]
    fluid.advance(1.0)
    fluid.add(routed(np.array([[1]]), 100.0))
    assert fluid.solves == solves + 1
    assert fluid.flows["since_s"][0] == before


def test_a_newcomer_on_a_link_that_was_not_full_takes_its_share_from_those_who_have_more():
    # The first flow takes 9 of 10; the second one brings the link to its limit and must get half of it.
    fluid = Fluid(np.array([10.0, 9.0]))
    fluid.add(routed(np.array([[0, 1]]), 100.0))
    assert fluid.rates().tolist() == [9.0]
    fluid.add(routed(np.array([[0, -1]]), 100.0))
    assert fluid.rates().tolist() == [5.0, 5.0]


def test_a_broken_book_is_an_error_that_names_the_link():
    fluid = Fluid(np.array([10.0]))
    fluid.add(routed(np.array([[0]]), 100.0))
    fluid.carried_bytes[0] = 7.0
    fluid.advance(10.0)
    fluid.finish()
    with pytest.raises(ConservationError, match="link 0 carried 107"):
        fluid.check()
