"""Time = alpha + beta x size, fitted to measurements, with the error on measurements that the fit did not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netreduce.errors import ConfigurationError

SAMPLES_MIN = 4


@dataclass(frozen=True)
class Sample:
    """One measured collective: bytes per rank and seconds."""

    size_bytes: int
    time_s: float


@dataclass(frozen=True)
class Fit:
    """alpha_s, and beta in seconds per byte. Errors are relative, of each sample when it was left out of the fit."""

    alpha_s: float
    beta_s_per_byte: float
    median_error: float
    worst_error: float
    samples: int

    def step_s(self, ranks: int) -> float:
        """alpha of one of a ring all-reduce's 2(P-1) steps."""
        return self.alpha_s / (2 * (ranks - 1))

    def capacity(self, ranks: int) -> float:
        """Bytes a second at which a ring all-reduce runs: what nccl-tests calls bus bandwidth, without the latency."""
        return 2 * (ranks - 1) / ranks / self.beta_s_per_byte


def fit(samples: Sequence[Sample]) -> Fit:
    """Least squares of relative errors, neither coefficient below zero. Raises ConfigurationError for too few sizes."""
    sizes = {sample.size_bytes for sample in samples}
    if len(sizes) < SAMPLES_MIN:
        raise ConfigurationError(f"{len(sizes)} different sizes are too few for alpha and beta: measure {SAMPLES_MIN}")
    size = np.array([sample.size_bytes for sample in samples], np.float64)
    time_s = np.array([sample.time_s for sample in samples])
    alpha, beta = _solve(size, time_s)
    if not beta:
        raise ConfigurationError("times do not grow with size: measure larger sizes")
    errors = []
    for left_out in range(len(samples)):
        kept = np.arange(len(samples)) != left_out
        a, b = _solve(size[kept], time_s[kept])
        errors.append(abs(a + b * size[left_out] - time_s[left_out]) / time_s[left_out])
    return Fit(alpha, beta, float(np.median(errors)), float(np.max(errors)), len(samples))


def _solve(size: np.ndarray, time_s: np.ndarray) -> tuple[float, float]:
    columns = np.stack((1 / time_s, size / time_s), axis=1)
    scale = np.abs(columns).max(axis=0)
    found = np.linalg.lstsq(columns / scale, np.ones(len(size)), rcond=None)[0] / scale
    alpha, beta = float(found[0]), float(found[1])
    if alpha < 0:
        return 0.0, float(np.sum(columns[:, 1]) / np.sum(columns[:, 1] ** 2))
    if beta < 0:
        return float(np.sum(columns[:, 0]) / np.sum(columns[:, 0] ** 2)), 0.0
    return alpha, beta
