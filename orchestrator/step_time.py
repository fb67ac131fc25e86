"""Time per step as a function of k at one concurrency: a Gaussian process over measured points. Pure.

What is regressed is ln(time per step / the baseline's). A straight line in k with a smooth bend, shared by the
datasets, which differ by a small line of their own (prefill weighs more the fewer steps a request takes); on top each k
has something for itself (tiles of a kernel, say), so nothing here supposes a monotone or single-peaked curve.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Prior standard deviations; x is the share k / the largest k.
LEVEL_SD, SLOPE_SD, CURVE_SD = 1.0, 1.0, 1.0
BEND_SD, BEND_LENGTH = 0.15, 0.35
DATASET_LEVEL_SD, DATASET_SLOPE_SD = 0.08, 0.12
CELL_SD = 0.015
"""What one k has for itself on one workload."""
ROUGHNESS_SD = (0.015, 0.03, 0.06, 0.12)
"""What one k has for itself at one concurrency, on all datasets: each weighed by how well it explains the points."""
ROUGHNESS_PRIOR = (0.3, 0.4, 0.2, 0.1)
FIXED_COST_SHARE = (0.5, 0.3)
"""Mean and sd of the part of ln(time at the largest k) that speculation costs before its first token: unknown until
a second k is measured, but between none and all of it."""
LEAST_ANCHOR_SD = 0.1


class Point(NamedTuple):
    """A measured time per step."""

    k: int
    dataset: str
    log_time: float
    variance: float
    """Of `log_time`, from noise between blocks and visits."""


class StepTime:
    """The fit at one concurrency, once per roughness. `points` must not be empty."""

    def __init__(self, points: Sequence[Point], largest_k: int) -> None:
        self._known = [*points, _anchor(points)]
        self._largest_k = largest_k
        self._shared, self._same_k = _covariance(self._known, self._known, largest_k)
        values = np.array([point.log_time for point in self._known])
        self._inverses, self._weighted, logs = [], [], []
        for sd in ROUGHNESS_SD:
            inner = self._shared + sd**2 * self._same_k + np.diag([point.variance for point in self._known])
            inverse = np.linalg.inv(inner)
            self._inverses.append(inverse)
            self._weighted.append(inverse @ values)
            logs.append(-0.5 * (values @ inverse @ values + np.linalg.slogdet(inner)[1]))
        self.log_likelihoods: Floats = np.array(logs)
        """One per roughness."""

    def at(self, k: int, dataset: str, weights: Floats) -> tuple[float, float]:
        """Mean and variance of ln(time per step / the baseline's), mixed over roughnesses with `weights`."""
        wanted = [Point(k, dataset, 0.0, 0.0)]
        shared, same_k = (part[:, 0] for part in _covariance(self._known, wanted, self._largest_k))
        own = float(_covariance(wanted, wanted, self._largest_k)[0][0, 0])
        means, variances = [], []
        for sd, inverse, weighted in zip(ROUGHNESS_SD, self._inverses, self._weighted, strict=True):
            cross = shared + sd**2 * same_k
            means.append(float(cross @ weighted))
            variances.append(max(0.0, own + sd**2 - float(cross @ inverse @ cross)))
        mean = float(weights @ means)
        return mean, float(weights @ (np.array(variances) + (np.array(means) - mean) ** 2))


def roughness_weights(fits: Sequence[StepTime]) -> Floats:
    """Probability of each roughness over all concurrencies together: it is the machine's."""
    logs = np.log(ROUGHNESS_PRIOR) + sum(fit.log_likelihoods for fit in fits)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _anchor(points: Sequence[Point]) -> Point:
    """Where the line starts at k = 0: all that is known before a second k is measured."""
    largest = max(point.k for point in points)
    top = float(np.mean([point.log_time for point in points if point.k == largest]))
    mean, sd = FIXED_COST_SHARE
    return Point(0, "", mean * top, max(sd * abs(top), LEAST_ANCHOR_SD) ** 2)


def _covariance(left: Sequence[Point], right: Sequence[Point], largest_k: int) -> tuple[Floats, Floats]:
    """Without roughness, and where roughness counts: 1 at equal k."""
    x = np.array([point.k for point in left])[:, None] / largest_k
    y = np.array([point.k for point in right])[None, :] / largest_k
    same = np.array([point.dataset for point in left])[:, None] == np.array([point.dataset for point in right])[None, :]
    same_k = (x == y).astype(np.float64)
    smooth = BEND_SD**2 * np.exp(-0.5 * ((x - y) / BEND_LENGTH) ** 2)
    curved = CURVE_SD**2 * np.log1p(largest_k * x) * np.log1p(largest_k * y) / np.log1p(largest_k) ** 2
    own = DATASET_LEVEL_SD**2 + DATASET_SLOPE_SD**2 * x * y + CELL_SD**2 * same_k
    return LEVEL_SD**2 + SLOPE_SD**2 * x * y + curved + smooth + same * own, same_k
