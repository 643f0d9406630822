"""The fit finds what made the data, and its held-out error tells when alpha and beta do not describe them."""

import numpy as np
import pytest

from netreduce.errors import ConfigurationError
from netreduce.flowsim.plan.calibration import Sample, fit

SIZES = [1 << shift for shift in range(10, 31, 2)]


def line(alpha_s: float, beta: float, noise: float = 0.0) -> list[Sample]:
    generator = np.random.default_rng(5)
    return [Sample(size, (alpha_s + beta * size) * (1 + noise * generator.standard_normal())) for size in SIZES]


def test_exact_data_give_their_own_alpha_and_beta():
    found = fit(line(40e-6, 1e-10))
    assert found.alpha_s == pytest.approx(40e-6)
    assert found.beta_s_per_byte == pytest.approx(1e-10)
    assert found.worst_error < 1e-9
    assert found.step_s(8) == pytest.approx(40e-6 / 14)
    assert found.capacity(8) == pytest.approx(1.75e10)


def test_noise_of_two_per_cent_is_about_the_held_out_error():
    found = fit(line(40e-6, 1e-10, 0.02))
    assert found.alpha_s == pytest.approx(40e-6, rel=0.05)
    assert 0.005 < found.median_error < 0.04


def test_a_curve_that_is_no_line_has_a_large_held_out_error():
    bent = [Sample(size, 1e-5 + 2e-7 * size**0.6) for size in SIZES]
    assert fit(bent).worst_error > 0.3


def test_coefficients_below_zero_are_refused():
    assert fit([Sample(size, 1e-9 * size**1.2) for size in SIZES]).alpha_s == 0.0
    with pytest.raises(ConfigurationError, match="do not grow with size"):
        fit([Sample(size, 1 / size) for size in SIZES])


def test_three_sizes_are_too_few():
    with pytest.raises(ConfigurationError, match="3 different sizes are too few"):
        fit([Sample(size, 1.0) for size in (1, 2, 4, 4)])
