"""Ends a measurement whose remaining prompts are not worth their time: clearly worse, or known well enough."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import NormalDist

from spectune.analysis.pooling import end_to_end, speed_by_prompt
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.measurement import RequestRecord
from spectune.domain.study import PlannedTrial, Study
from spectune.domain.trial import EarlyEnd, Trial
from spectune.statistics.sequential import (
    Expected,
    PooledNoise,
    Verdict,
    WorthStopping,
    pool_noise,
    standard_error,
)

EndsEarly = Callable[[Sequence[RequestRecord]], EarlyEnd | None]
"""Given the requests of the first load point that have ended: why to end there, or ``None``."""

LEAST_PROMPTS, BLOCK = 4, 2
LEAST_EXPECTED_LOG_SD = 0.03
"""A prediction is not trusted further than this against prompts."""
ENOUGH_MARGINS = 1.5
"""Of a study's margin: the standard error with which a search loses little (chosen on drawn surfaces)."""


def enough_log_sd(study: Study) -> float:
    """Standard error of a log ratio to plain decoding that the search needs: half of ``precision`` if that is less."""
    wanted = ENOUGH_MARGINS * math.log1p(study.margin)
    return wanted if study.precision is None else min(wanted, math.log1p(study.precision) / 2)


def stop_rule(
    study: Study,
    trials: Sequence[Trial],
    planned: PlannedTrial,
    *,
    hypothesis: Hypothesis | None = None,
    launch_log_sd: float,
) -> EndsEarly | None:
    """The rule for the next trial; ``None`` where it is always measured to its end.

    The baseline is: every comparison needs it whole; and so is imposed acceptance, whose cost is wanted and not
    its speed. ``worse`` is against the
    fastest complete trial of another arm on the same prompts, with every category among them. ``enough`` ends
    the first trial of an arm alone, and no repetition; in a ``predict`` search,
    one request at a time: of several in flight, those that end first are the fast ones.
    """
    prompts = len(study.workload.prompts)
    if planned.arm_id == study.baseline.arm_id or study.search is None or prompts < 2 * LEAST_PROMPTS:
        return None
    if study.arm(planned.arm_id).is_synthetic:
        return None
    if study.workload.requests_at(study.workload.loads[0]) != prompts:
        return None
    whole = [t for t in trials if t.status == "complete" and t.soak is None and not t.arm.is_synthetic]
    plain = [t for t in whole if t.arm_id == study.baseline.arm_id]
    if not plain:
        return None
    predicts = study.search == "predict"
    may_be_enough = predicts and planned.repetition == 0 and study.workload.loads[0].shape == "single"
    rule = WorthStopping(
        num_prompts=prompts,
        block=BLOCK,
        least=LEAST_PROMPTS,
        launch_log_sd=launch_log_sd,
        precision=enough_log_sd(study) if may_be_enough else None,
    )
    return _Rule(study, planned.arm_id, whole, plain, rule, hypothesis if predicts else None).ends_early


@dataclass(frozen=True)
class _Sight:
    """What earlier trials tell: the fastest arm, its speeds, and how ratios scatter."""

    name: str
    speeds: Mapping[str, float]
    log_ratio: float
    """Of the fastest arm to plain decoding."""
    noise: PooledNoise | None


class _Rule:
    def __init__(
        self,
        study: Study,
        arm_id: str,
        whole: Sequence[Trial],
        plain: Sequence[Trial],
        rule: WorthStopping,
        hypothesis: Hypothesis | None,
    ) -> None:
        self._study, self._rule = study, rule
        self._plain = plain[-1]
        self._plain_speeds = speed_by_prompt(self._plain.loads[:1])
        before = {t.trial_id: speed_by_prompt(_before(t, plain).loads[:1]) for t in whole}
        to_plain = {t.trial_id: _log_ratios(t, before[t.trial_id]) for t in whole}
        others = [t for t in whole if t.arm_id != study.baseline.arm_id]
        self._noise_to_plain = pool_noise([to_plain[t.trial_id] for t in others])
        best = max(whole, key=lambda t: _mean(to_plain[t.trial_id]))
        self._reference = (
            None if best.arm_id == arm_id else _sight(best, whole, _mean(to_plain[best.trial_id]))
        )
        self._expected = _expected(hypothesis, self._reference)

    def ends_early(self, records: Sequence[RequestRecord]) -> EarlyEnd | None:
        speeds = _whole_prompts(self._study, records)
        to_plain = _paired(speeds, self._plain_speeds)
        reference = self._reference
        to_reference = [] if reference is None else _paired(speeds, reference.speeds)
        verdict = self._rule.verdict(
            to_reference,
            to_plain,
            pooled=None if reference is None else reference.noise,
            pooled_to_baseline=self._noise_to_plain,
            expected=self._expected,
            most_pairs=None if reference is None else len(reference.speeds),
        )
        if verdict == "worse" and reference is not None and _is_varied(self._study, speeds):
            return self._end("worse", self._worse(to_reference, reference), records, to_plain)
        if verdict == "enough" and _is_balanced(self._study, speeds):
            return self._end("enough", self._enough(to_plain), records, to_plain)
        return None

    def _worse(self, logs: Sequence[float], reference: _Sight) -> str:
        bound = self._rule.upper_bound(logs, reference.noise)
        worth = self._rule.worth_of_the_rest(
            logs, pooled=reference.noise, expected=self._expected, most_pairs=len(reference.speeds)
        )
        assert bound is not None and worth is not None
        guess = "" if self._expected is None else ", with what was expected of it"
        return (
            f"stopped after {len(logs)} of {self._rule.num_prompts} prompts: at most {math.exp(bound):.2f}x of "
            f"{reference.name} on the same prompts (95%); the rest would make the winner {worth[1]:.2%} faster on "
            f"average{guess}"
        )

    def _enough(self, logs: Sequence[float]) -> str:
        error = standard_error(logs, self._noise_to_plain)
        assert error is not None and self._rule.precision is not None
        return (
            f"enough after {len(logs)} of {self._rule.num_prompts} prompts: {math.exp(_mean(logs)):.2f}x of plain "
            f"decoding with a standard error of {math.expm1(error):.1%} from prompts, and the search needs "
            f"{math.expm1(self._rule.precision):.1%}"
        )

    def _end(
        self, verdict: Verdict, reason: str, records: Sequence[RequestRecord], to_plain: Sequence[float]
    ) -> EarlyEnd:
        asked = {record.prompt_id for record in records}
        return EarlyEnd(
            verdict=verdict,
            reason=reason,
            num_prompts=len(asked),
            of_prompts=self._rule.num_prompts,
            saved_s=self._saved_s(verdict, asked, to_plain),
        )

    def _saved_s(self, verdict: Verdict, asked: Set[str], to_plain: Sequence[float]) -> float | None:
        """``worse`` leaves out the other load points too."""
        first, *others = self._plain.loads
        all_s = math.fsum(r.latency_s or 0.0 for r in first.completed)
        if not to_plain or not all_s:
            return None
        left_s = math.fsum(r.latency_s or 0.0 for r in first.completed if r.prompt_id not in asked)
        plain_s = first.duration_s * left_s / all_s
        plain_s += math.fsum(load.duration_s for load in others) if verdict == "worse" else 0.0
        return round(plain_s / math.exp(_mean(to_plain)), 3)


def _sight(best: Trial, whole: Sequence[Trial], log_ratio: float) -> _Sight:
    speeds = speed_by_prompt(best.loads[:1])
    noise = pool_noise([_log_ratios(t, speeds) for t in whole if t is not best])
    return _Sight(best.arm.name, speeds, log_ratio, noise)


def _expected(hypothesis: Hypothesis | None, reference: _Sight | None) -> Expected | None:
    """Of the log ratio to the reference, from what was predicted against plain decoding."""
    predicted = None if hypothesis is None else hypothesis.predicted_speedup
    if reference is None or predicted is None or not predicted.low or not predicted.high:
        return None
    reach = NormalDist().inv_cdf((1 + predicted.level) / 2)
    sd = math.log(predicted.high / predicted.low) / 2 / reach
    return Expected(math.log(predicted.value) - reference.log_ratio, max(sd, LEAST_EXPECTED_LOG_SD))


def _before(trial: Trial, plain: Sequence[Trial]) -> Trial:
    """The launch of plain decoding before a trial, or the first one."""
    return next((t for t in reversed(plain) if t.number <= trial.number), plain[0])


def _whole_prompts(study: Study, records: Sequence[RequestRecord]) -> dict[str, float]:
    """Speed of every prompt whose turns have all been answered."""
    turns = {p.prompt_id: len(p.turns) for p in study.workload.prompts}
    logs: dict[str, list[float]] = {}
    for record in records:
        speed = end_to_end(record)
        if record.ok and speed:
            logs.setdefault(record.prompt_id, []).append(math.log(speed))
    return {p: math.exp(_mean(logs[p])) for p in logs if len(logs[p]) == turns.get(p)}


def _is_varied(study: Study, prompts: Mapping[str, float]) -> bool:
    """Whether every category is among these prompts, or half of the prompts are.

    A drafter may be worth nothing on code and much on summaries: prompts of one kind scatter too
    little to tell of another.
    """
    categories = {p.prompt_id: p.category for p in study.workload.prompts}
    seen = {categories[p] for p in prompts}
    return seen == set(categories.values()) or 2 * len(prompts) >= len(categories)


def _is_balanced(study: Study, prompts: Mapping[str, float]) -> bool:
    """Whether every category has its share of these prompts, to less than one prompt."""
    categories = {p.prompt_id: p.category for p in study.workload.prompts}
    whole, seen = Counter(categories.values()), Counter(categories[p] for p in prompts)
    share = len(prompts) / len(categories)
    return all(abs(seen[category] - count * share) < 1 for category, count in whole.items())


def _paired(speeds: Mapping[str, float], reference: Mapping[str, float]) -> list[float]:
    return [math.log(speed / reference[p]) for p, speed in speeds.items() if p in reference]


def _log_ratios(trial: Trial, reference: Mapping[str, float]) -> list[float]:
    return _paired(speed_by_prompt(trial.loads[:1]), reference)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
