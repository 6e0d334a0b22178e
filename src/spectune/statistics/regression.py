"""Bayesian linear regression with a smooth discrepancy, in closed form and without a matrix library.

``y = X beta + f + e``: ``beta`` has independent normal priors, ``f`` is a
zero-mean Gaussian process over the same inputs (what no straight line says:
cliffs), ``e`` is noise of known size per observation. The posterior is that of
a Gaussian process whose kernel is the sum (Rasmussen and Williams 2006,
section 2.7). A search holds tens of observations, so plain Python is enough;
the factor of a larger matrix, of a report of hundreds of launches, is numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

Vector = Sequence[float]
Kernel = Callable[[int, int], float]

_JITTER = 1e-12
_LARGE = 48
"""From this size on numpy is faster, its import and the copying included."""


def cholesky(matrix: Sequence[Vector]) -> list[list[float]]:
    """Lower factor of a positive definite matrix; raises ``ValueError`` if it is not."""
    n = len(matrix)
    if n >= _LARGE:
        return _cholesky_of_large(matrix)
    lower = [[0.0] * n for _ in range(n)]
    for i in range(n):
        row = lower[i]
        for j in range(i + 1):
            other = lower[j]
            left = matrix[i][j] - sum(map(mul, row[:j], other))
            if i == j:
                if left <= 0:
                    raise ValueError("matrix is not positive definite")
                row[i] = math.sqrt(left)
            else:
                row[j] = left / other[j]
    return lower


def _cholesky_of_large(matrix: Sequence[Vector]) -> list[list[float]]:
    """Column by column, and without BLAS: its threads wait for each other on a machine that is busy measuring."""
    import numpy as np

    n = len(matrix)
    lower = np.zeros((n, n))
    for i, row in enumerate(matrix):
        lower[i, : i + 1] = row[: i + 1]
    for j in range(n):
        column = lower[j:, j]
        column -= np.einsum("ij,j->i", lower[j:, :j], lower[j, :j])
        if column[0] <= 0:
            raise ValueError("matrix is not positive definite")
        column /= math.sqrt(column[0])
    found: list[list[float]] = lower.tolist()
    return found


def forward(lower: Sequence[Vector], right: Vector) -> list[float]:
    """``x`` of ``lower x = right``."""
    x: list[float] = []
    for i, row in enumerate(lower):
        x.append((right[i] - sum(map(mul, row, x))) / row[i])
    return x


def backward(lower: Sequence[Vector], right: Vector) -> list[float]:
    """``x`` of ``lower^T x = right``."""
    n = len(lower)
    x = [0.0] * n
    for i in range(n - 1, -1, -1):
        x[i] = (right[i] - sum(lower[k][i] * x[k] for k in range(i + 1, n))) / lower[i][i]
    return x


@dataclass(frozen=True)
class Prior:
    """Independent normal priors of the coefficients."""

    means: tuple[float, ...]
    sds: tuple[float, ...]

    def mean(self, features: Vector) -> float:
        return float(sum(map(mul, self.means, features)))

    def scaled(self, features: Vector) -> list[float]:
        """``features`` times the prior variances: its product with other features is their covariance."""
        return [s * s * x for s, x in zip(self.sds, features, strict=True)]

    def covariance(self, a: Vector, b: Vector) -> float:
        return float(sum(map(mul, self.scaled(a), b)))

    def gram(self, rows: Sequence[Vector]) -> list[list[float]]:
        """Covariances of ``rows`` under this prior, with what keeps a factor of them defined."""
        found = []
        for i, row in enumerate(rows):
            scaled = self.scaled(row)
            found.append([sum(map(mul, scaled, rows[j])) if j <= i else 0.0 for j in range(len(rows))])
            found[i][i] += _JITTER
        return found


@dataclass(frozen=True)
class Posterior:
    """What the observations say about the coefficients and about any new point."""

    prior: Prior
    rows: tuple[Vector, ...]
    lower: Sequence[Vector]
    weights: Vector
    """Inverse covariance times the residuals from the prior mean."""
    log_evidence: float

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Posterior means."""
        return tuple(
            m + s * s * math.fsum(row[i] * w for row, w in zip(self.rows, self.weights, strict=True))
            for i, (m, s) in enumerate(zip(self.prior.means, self.prior.sds, strict=True))
        )

    def coefficient_sd(self, index: int) -> float:
        s = self.prior.sds[index]
        solved = forward(self.lower, [s * s * row[index] for row in self.rows])
        return math.sqrt(max(0.0, s * s - math.fsum(v * v for v in solved)))

    def combination(self, features: Vector) -> tuple[float, float]:
        """Mean and standard deviation of ``features . beta``, without the discrepancy."""
        scaled = self.prior.scaled(features)
        cross = [sum(map(mul, scaled, row)) for row in self.rows]
        solved = [sum(map(mul, scaled, row)) for row in self._solved_rows]
        return self._given(self.prior.mean(features), sum(map(mul, scaled, features)), cross, solved)

    @cached_property
    def _solved_rows(self) -> list[tuple[float, ...]]:
        """Inverse of ``lower`` times the rows: any combination of coefficients is one of these columns."""
        return list(
            zip(*(forward(self.lower, column) for column in zip(*self.rows, strict=True)), strict=True)
        )

    def predict(self, features: Vector, *, discrepancy: Vector, variance: float) -> tuple[float, float]:
        """Mean and standard deviation at a new point.

        ``discrepancy[i]`` is its discrepancy covariance with observation i and
        ``variance`` its own discrepancy variance.
        """
        scaled = self.prior.scaled(features)
        cross = [sum(map(mul, scaled, row)) + d for row, d in zip(self.rows, discrepancy, strict=True)]
        return self._at(self.prior.mean(features), sum(map(mul, scaled, features)) + variance, cross)

    def _at(self, mean: float, variance: float, cross: Vector) -> tuple[float, float]:
        return self._given(mean, variance, cross, forward(self.lower, cross))

    def _given(self, mean: float, variance: float, cross: Vector, solved: Vector) -> tuple[float, float]:
        shift = sum(map(mul, cross, self.weights))
        return mean + shift, math.sqrt(max(0.0, variance - sum(map(mul, solved, solved))))


def fit(
    rows: Sequence[Vector], values: Vector, *, prior: Prior, noise_sds: Vector, discrepancy: Kernel
) -> Posterior:
    """Posterior given observations; ``discrepancy(i, j)`` is the covariance of f at rows i and j."""
    covariance = prior.gram(rows)
    for i, row in enumerate(covariance):
        for j in range(i + 1):
            row[j] += discrepancy(i, j)
        row[i] += noise_sds[i] ** 2
    return fit_covariance(rows, values, prior=prior, covariance=covariance)


def fit_covariance(
    rows: Sequence[Vector], values: Vector, *, prior: Prior, covariance: Sequence[Vector]
) -> Posterior:
    """Posterior given the whole covariance of the observations (its lower half is read)."""
    n = len(rows)
    lower = cholesky(covariance)
    left = [v - prior.mean(row) for v, row in zip(values, rows, strict=True)]
    half = forward(lower, left)
    evidence = -0.5 * math.fsum(h * h for h in half) - math.fsum(math.log(lower[i][i]) for i in range(n))
    return Posterior(
        prior=prior,
        rows=tuple(rows),
        lower=lower,
        weights=backward(lower, half),
        log_evidence=evidence - 0.5 * n * math.log(2 * math.pi),
    )
