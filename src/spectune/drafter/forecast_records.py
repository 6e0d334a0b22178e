"""What a forecast is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spectune.domain.interval import Interval
from spectune.domain.record import Record
from spectune.drafter.forecast_forms import DataPoint

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
    acceptance_length: float
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

    @property
    def break_even_length(self) -> float:
        return self.step_cost_s * self.baseline_tok_per_s


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
