"""What a forecast is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spectune.domain.interval import Interval
from spectune.domain.record import Record
from spectune.drafter.forecast.forms import DataPoint

SCHEMA_VERSION = 1
Advice = Literal["train more", "change the data", "change the drafter", "stop"]
SPEEDUPS = (1.0, 1.3, 1.5)


class FormRow(Record):
    """One form's own forecast, at the largest size asked for."""

    name: str
    weight: float
    chi2: float
    at_samples: float
    acceptance_length: float


class Forecast(Record):
    """One data size. Intervals are for a draft that would really be trained and measured."""

    num_samples: float
    acceptance_length: Interval
    tok_per_s: Interval | None
    speedup: Interval | None
    train_hours: float | None
    price: float | None


class Needed(Record):
    """What a speedup takes."""

    speedup: float
    acceptance_length: float | None
    """``None``: none is enough, for the time before the first token."""
    possible: bool
    """Within ``K + 1``."""
    num_samples: float | None
    """Median over the forms and their uncertainty; ``None``: most of them never get there."""
    low_samples: float | None
    high_samples: float | None
    chance: float
    """That data alone, up to a thousand times the largest set, gets there."""


class CategoryRow(Record):
    category: str
    acceptance_length: float
    share_of_median: float
    """Its ``L - 1`` over the median of the other categories."""
    growth_per_doubling: float | None
    weak: bool


class CheckedForecast(Record):
    """The largest point, from the others."""

    num_samples: float
    forecast: Interval
    measured: float
    error_frac: float
    inside: bool


class ForecastReport(Record):
    schema_version: int = SCHEMA_VERSION
    num_draft_tokens: int | None
    forms: tuple[FormRow, ...]
    forecasts: tuple[Forecast, ...]
    needed: tuple[Needed, ...]
    categories: tuple[CategoryRow, ...]
    check: CheckedForecast | None
    advice: Advice
    because: str
    train_to_samples: float | None = None
    category: str | None = None
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class SpeedFacts:
    """Of the arm that serves the draft; the step's cost does not depend on how good the draft is."""

    baseline_tok_per_s: float
    step_cost_s: float
    first_token_s: float | None = None
    """Before the first token, by token of the answer: no draft shortens it. ``None``: it is not known apart, and the
    step's cost, taken from whole requests, holds it."""

    def tok_per_s(self, length: Any) -> Any:
        """Speed of whole requests at an acceptance length, which may be a number or an array."""
        return 1 / (self._apart_s + self.step_cost_s / length)

    @property
    def _apart_s(self) -> float:
        """Seconds to the first token, beside the steps of a request; 0 where they were not measured apart."""
        return 0.0 if self.first_token_s is None else self.first_token_s

    def length_for(self, speedup: float) -> float | None:
        """Tokens per step for whole requests at this speedup; ``None``: no number is enough."""
        left_s = 1 / (speedup * self.baseline_tok_per_s) - self._apart_s
        return self.step_cost_s / left_s if left_s > 0 else None


@dataclass(frozen=True)
class CostFacts:
    train_s_per_sample: float | None = None
    data_s_per_sample: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True)
class ForecastRequest:
    points: tuple[DataPoint, ...]
    depth: int | None = None
    """K: the most drafted tokens per step."""
    at_samples: tuple[float, ...] = ()
    speed: SpeedFacts | None = None
    goal_speedup: float = 1.3
    cost: CostFacts = field(default_factory=CostFacts)
    categories: Mapping[str, tuple[DataPoint, ...]] = field(default_factory=dict)
    check_last: bool = False
    seed: int = 0
