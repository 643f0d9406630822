"""PSN arithmetic against Python's whole numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import U24

from netreduce.wire.psn import PSN_HALF, PSN_MASK, psn_add, psn_distance


@given(U24, st.integers(-PSN_HALF, PSN_HALF - 1))
def test_distance_undoes_addition(psn: int, count: int) -> None:
    later = psn_add(psn, count)
    assert later == (psn + count) % (1 << 24)
    assert psn_distance(later, psn) == count


@given(U24, U24)
def test_distances_are_antisymmetric_but_for_the_one_half_way_round(a: int, b: int) -> None:
    if psn_distance(a, b) != -PSN_HALF:
        assert psn_distance(a, b) == -psn_distance(b, a)


@pytest.mark.parametrize(
    ("later", "earlier", "distance"),
    [(0, PSN_MASK, 1), (PSN_MASK, 0, -1), (PSN_HALF - 1, 0, PSN_HALF - 1), (PSN_HALF, 0, -PSN_HALF), (5, 5, 0)],
)
def test_the_edges_of_the_circle(later: int, earlier: int, distance: int) -> None:
    assert psn_distance(later, earlier) == distance
