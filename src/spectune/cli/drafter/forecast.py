"""``spectune drafter forecast``: points typed in or from evaluations, and the answer."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectune.cli.output import show, show_json
from spectune.domain.interval import Interval
from spectune.drafter.forecast.curve import make_forecast
from spectune.drafter.forecast.forms import DataPoint
from spectune.drafter.forecast.records import (
    CostFacts,
    Forecast,
    ForecastReport,
    ForecastRequest,
    Needed,
    SpeedFacts,
)
from spectune.engines.json_bodies import as_dict, as_int
from spectune.errors import BadInput
from spectune.statistics.intervals import t_quantile

_MAX_FILE_BYTES = 200_000_000
_MAX_SAMPLES = 1e15
_FLOAT_MAX = 1e300
_LEAST, _MOST = 1e-9, 1e9
"""Of speeds, seconds, prices and goals."""
_EVALUATED_ALIKE = ("temperature", "proposals", "answers", "num_prompts")


def forecast_command(args: argparse.Namespace) -> int:
    """0 once there is an answer, whichever it is."""
    points = [parse_point("--point", text) for text in args.point]
    categories: dict[str, list[DataPoint]] = {}
    for text in args.category_point:
        name, colon, rest = text.rpartition(":")
        if not colon or not name:
            raise BadInput(f"--category-point: CATEGORY:SAMPLES=LENGTH, e.g. code:1000=1.9, got {text!r}")
        categories.setdefault(name, []).append(parse_point("--category-point", rest))
    depth = _read_evaluations(args.evaluations, args.num_draft_tokens, points, categories)
    request = ForecastRequest(
        points=tuple(points),
        depth=depth,
        at_samples=tuple(_number(part, "--at") for part in (args.at or "").split(",") if part.strip()),
        speed=_speed(args, depth),
        goal_speedup=_positive("--goal", args.goal) or 1.3,
        cost=CostFacts(
            train_s_per_sample=_positive("--train-s-per-sample", args.train_s_per_sample),
            data_s_per_sample=_positive("--data-s-per-sample", args.data_s_per_sample),
            price_per_hour=_positive("--price-per-hour", args.price_per_hour),
        ),
        categories={name: tuple(rows) for name, rows in categories.items()},
        check_last=args.check_last,
        seed=args.seed,
    )
    cost = request.cost
    if cost.price_per_hour is not None and cost.train_s_per_sample is None and cost.data_s_per_sample is None:
        raise BadInput("--price-per-hour: needs --train-s-per-sample, --data-s-per-sample, or both")
    report = make_forecast(request)
    if args.json:
        show_json(report.model_dump_json(indent=1) + "\n")
    else:
        show(forecast_lines(report))
    return 0


def parse_point(flag: str, text: str) -> DataPoint:
    """``1000=1.9`` or ``1000=1.9+-0.02``."""
    samples, equals, rest = text.partition("=")
    length, sign, error = rest.partition("+-")
    try:
        values = float(samples), float(length), float(error) if sign else None
    except ValueError:
        values = math.nan, math.nan, None
    n, value, sd = values
    sd_is_usable = sd is None or 0 <= sd < 10
    if not equals or not (1 <= n < _MAX_SAMPLES and math.isfinite(value)) or not sd_is_usable:
        raise BadInput(
            f"{flag}: SAMPLES=LENGTH, e.g. 1000=1.9 or 1000=1.9+-0.02, of at least 1 sample, got {text!r}"
        )
    return DataPoint(n, value, sd)


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value < _MAX_SAMPLES:
        raise BadInput(f"{where}: a number of samples from 1 to {_MAX_SAMPLES:g}, got {text!r}")
    return value


def _positive(flag: str, value: float | None) -> float | None:
    if value is not None and not _LEAST <= value <= _MOST:
        raise BadInput(f"{flag}: must be from {_LEAST:g} to {_MOST:g}, got {value:g}")
    return value


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise BadInput(f"{path}: larger than {_MAX_FILE_BYTES // 1_000_000} MB: not a report of spectune")
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadInput(f"{path}: not a report of spectune")
    return body


def _read_evaluations(
    texts: Sequence[str],
    asked: int | None,
    points: list[DataPoint],
    categories: dict[str, list[DataPoint]],
) -> int | None:
    """Adds one chain of each file, of as many drafted tokens in all: ``asked``, else 3, else the most they share."""
    if not texts:
        return asked
    read = [_Evaluated.read(text) for text in texts]
    for one in read[1:]:
        one.check_alike(read[0])
    shared = set.intersection(*(set(one.chains) for one in read))
    depth = asked or (3 if 3 in shared else max(shared, default=None))
    for one in read:
        chain = None if depth is None else one.chains.get(depth)
        if depth is None or chain is None:
            wanted = "that all files share" if depth is None else f"of {depth} drafted tokens"
            raise BadInput(f"{one.path}: no chain {wanted}; it has {', '.join(map(str, sorted(one.chains)))}")
        one.add(chain, depth, points, categories)
    return depth


@dataclass(frozen=True)
class _Evaluated:
    """One file of ``drafter evaluate --json``."""

    path: Path
    num_samples: float
    body: Mapping[str, Any]
    chains: Mapping[int, Mapping[str, Any]]

    @classmethod
    def read(cls, text: str) -> _Evaluated:
        """``1000=eval-1k.json``."""
        samples, equals, file = text.partition("=")
        if not equals:
            raise BadInput(f"{text}: give the training samples too, e.g. 1000={text}")
        path, num_samples = Path(file), _number(samples, text)
        body = _read_json(path)
        rows = map(as_dict, _list(body.get("chains")))
        chains = {k: row for row in rows if (k := as_int(row.get("num_draft_tokens"))) is not None}
        if not chains:
            raise BadInput(f"{path}: no chains in it; give the output of `spectune drafter evaluate --json`")
        return cls(path, num_samples, body, chains)

    def check_alike(self, first: _Evaluated) -> None:
        """Lengths on other prompts, or at another temperature, differ for other reasons than data."""
        for name in _EVALUATED_ALIKE:
            here, there = self.body.get(name), first.body.get(name)
            if None not in (here, there) and here != there:
                raise BadInput(
                    f"{self.path}: {name} is {here!r}, and {there!r} in {first.path}: their lengths do not compare; "
                    "evaluate all drafts alike"
                )

    def add(
        self,
        chain: Mapping[str, Any],
        depth: int,
        points: list[DataPoint],
        categories: dict[str, list[DataPoint]],
    ) -> None:
        interval = as_dict(chain.get("acceptance_length"))
        length = _float(interval.get("value")) or _length(as_dict(chain.get("counts")))
        if length is None:
            raise BadInput(
                f"{self.path}: no acceptance length at {depth} drafted tokens: no step was evaluated"
            )
        points.append(DataPoint(self.num_samples, length, _standard_error(interval)))
        for name, counts in as_dict(chain.get("by_category")).items():
            value = _length(as_dict(counts))
            if value is not None:
                categories.setdefault(name, []).append(DataPoint(self.num_samples, value))


def _standard_error(interval: Mapping[str, Any]) -> float | None:
    """Of an evaluated length: from the upper end of its t interval, since the lower one is cut off at 1."""
    value, high = _float(interval.get("value")), _float(interval.get("high"))
    prompts, level = as_int(interval.get("n")), _float(interval.get("level"))
    if value is None or high is None or high <= value or prompts is None or prompts < 2:
        return None
    if level is None or not 0 < level < 1:
        return None
    return (high - value) / t_quantile((1 + level) / 2, prompts - 1)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _float(value: Any) -> float | None:
    """A finite number, as Python's reader of JSON also takes ``NaN`` and ``Infinity``."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= _FLOAT_MAX else None


def _length(counts: Mapping[str, Any]) -> float | None:
    steps, kept = as_int(counts.get("num_drafts")), as_int(counts.get("num_accepted_tokens"))
    return 1 + kept / steps if steps and kept is not None else None


def _speed(args: argparse.Namespace, depth: int | None) -> SpeedFacts | None:
    if args.explain:
        return _from_explain(Path(args.explain), args.arm, depth)
    baseline = _positive("--baseline-tok-s", args.baseline_tok_s)
    step = _positive("--step-cost-s", args.step_cost_s)
    if (baseline is None) != (step is None):
        raise BadInput("--baseline-tok-s and --step-cost-s belong together: speed needs both")
    return None if baseline is None or step is None else SpeedFacts(baseline, step)


def _from_explain(path: Path, arm: str | None, depth: int | None) -> SpeedFacts:
    """The named arm, or the fastest with a drafter (n-grams have none to train), at the load of the answer.

    Of those that draft ``depth`` tokens, where that is known: a step of another number has another cost.
    """
    body = _read_json(path)
    rows = [as_dict(row) for row in _list(body.get("rows"))]
    usable = [row for row in rows if not row.get("is_baseline") and (_float(row.get("step_cost_s")) or 0) > 0]
    names = ", ".join(dict.fromkeys(str(row.get("arm")) for row in usable))
    if arm is None:
        usable = [row for row in usable if row.get("has_drafter", True)]
    else:
        usable = [row for row in usable if row.get("arm") == arm]
    if not usable:
        if arm is not None and names:
            problem = f"no arm {arm!r} with a step cost; it has {names}"
        else:
            problem = "no arm with a drafter and a step cost"
        raise BadInput(f"{path}: {problem}; give the output of `spectune explain --json`")
    usable = _of_depth(path, usable, depth)
    measured = {as_int(row.get("concurrency")) or 1 for row in usable}
    first = as_int(body.get("first_concurrency"))
    first = min(measured) if first not in measured else first
    here = [row for row in usable if (as_int(row.get("concurrency")) or 1) == first]
    speeds = [(speed, row) for row in here if (speed := _float(row.get("e2e_tok_per_s"))) is not None]
    if not speeds:
        raise BadInput(f"{path}: no arm with a speed; give the output of `spectune explain --json`")
    best = max(speeds, key=lambda pair: pair[0])[1]
    baseline = _float(as_dict(body.get("baseline_tok_per_s")).get(str(first)))
    step = _float(best.get("step_cost_s"))
    if baseline is None or baseline <= 0 or step is None:
        raise BadInput(f"{path}: no baseline speed at concurrency {first}")
    return SpeedFacts(baseline, step, _float(best.get("first_token_s")))


def _of_depth(path: Path, rows: list[Mapping[str, Any]], depth: int | None) -> list[Mapping[str, Any]]:
    """Raises ``BadInput`` if every row is known to draft another number of tokens."""
    drafted = {str(row.get("arm")): _num_drafted(row) for row in rows}
    fitting = [row for row in rows if depth is None or drafted[str(row.get("arm"))] in (None, depth)]
    if not fitting:
        has = ", ".join(f"{name} ({number})" for name, number in drafted.items())
        raise BadInput(
            f"{path}: the lengths are of {depth} drafted tokens per step, and no arm drafts as many: {has}; a step's "
            "cost goes with its number: give --num-draft-tokens as the arm has it"
        )
    return fitting


def _num_drafted(row: Mapping[str, Any]) -> int | None:
    """From the most tokens that a step gives, one of them the target's own."""
    most = _float(row.get("most_tokens_per_pass"))
    if most is None:  # written before there was such a field: of the speed at which all of them are kept
        perfect, step_s = _float(row.get("perfect_acceptance_tok_per_s")), _float(row.get("step_cost_s"))
        most = None if perfect is None or step_s is None else perfect * step_s
    return None if most is None else round(most) - 1


def forecast_lines(report: ForecastReport) -> list[str]:
    """The answer first, then what it stands on."""
    lines = [f"{report.advice}: {report.because}"]
    lines += [_forecast_line(row) for row in report.forecasts]
    lines += [_needed_line(row) for row in report.needed]
    if report.check is not None:
        check = report.check
        verdict = "inside" if check.inside else "OUTSIDE"
        lines.append(
            f"check: {check.num_samples:,.0f} samples, forecast from the smaller sizes {_words(check.forecast)}, "
            f"measured {check.measured:.3f} ({check.error_frac:+.1%}, {verdict})"
        )
    for form in report.forms:
        lines.append(
            f"form {form.name}: {form.acceptance_length:.2f} at {form.at_samples:,.0f} samples, "
            f"weight {form.weight:.2f}"
        )
    for category in report.categories:
        mark = "  <- weak" if category.weak else ""
        growth = (
            ""
            if category.growth_per_doubling is None
            else f", {category.growth_per_doubling:+.3f} per doubling"
        )
        lines.append(f"category {category.category}: {category.acceptance_length:.2f}{growth}{mark}")
    lines += [f"assumed: {assumption}" for assumption in report.assumptions]
    return lines


def _words(interval: Interval, digits: int = 2) -> str:
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _forecast_line(row: Forecast) -> str:
    parts = [f"{row.num_samples:,.0f} samples: {_words(row.acceptance_length)} tokens per step"]
    if row.tok_per_s is not None and row.speedup is not None:
        parts.append(f"{_words(row.tok_per_s, 1)} tok/s, {_words(row.speedup)}x")
    if row.train_hours is not None:
        price = "" if row.price is None else f" for {row.price:,.2f}"
        parts.append(f"{row.train_hours:,.1f} h{price}")
    return ", ".join(parts)


def _needed_line(row: Needed) -> str:
    if row.acceptance_length is None:
        return f"{row.speedup:g}x is out of reach of any draft: the time before the first token alone is too long"
    text = f"{row.speedup:g}x needs {row.acceptance_length:.2f} tokens per step: "
    if not row.possible:
        return text + "more than every draft kept would give"
    if row.num_samples is None:
        return text + f"most likely out of reach of data alone (chance {row.chance:.0%})"
    low = "" if row.low_samples is None else f"{row.low_samples:,.0f}"
    high = "beyond" if row.high_samples is None else f"{row.high_samples:,.0f}"
    return text + f"about {row.num_samples:,.0f} samples [{low} to {high}], chance {row.chance:.0%}"
