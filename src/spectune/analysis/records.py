"""The summary of a study: what ``spectune report --json`` prints and every other form is drawn from.

Fields may be added, never renamed. ``None`` is unknown. Speeds are end to end
unless the name says decode; a trial's own figures are those of the study's
first load point, ``arms[].loads`` has every load point.
"""

from __future__ import annotations

from pydantic import Field

from spectune.analysis.explain.records import Explanation
from spectune.domain.acceptance import SKIPS_BELOW, AcceptanceCounts
from spectune.domain.arm import Arm, Knobs
from spectune.domain.findings import Finding
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.interval import Interval
from spectune.domain.machine import Machine
from spectune.domain.measurement import AcceptanceSource
from spectune.domain.parity import OutputParity
from spectune.domain.record import Record
from spectune.domain.request_time import RequestTimes
from spectune.domain.study import Import
from spectune.domain.trial import EarlyEnd, Failure, RankRecord, SoakResult, StopProof, TrialStatus
from spectune.domain.workload import LoadPoint, Sampling
from spectune.statistics.intervals import Verdict

REPORT_SCHEMA_VERSION = 1


class CategorySummary(Record):
    """One prompt category of an arm at one load point."""

    category: str
    num_prompts: int
    e2e_tok_per_s: Interval | None
    speedup: Interval | None
    verdict: Verdict | None
    acceptance_length: Interval | None


class ContextSummary(Record):
    """One range of context lengths of an arm at one load point: tokens before the answer, both ends included."""

    min_tokens: int
    max_tokens: int
    num_requests: int
    acceptance_length: Interval | None


class LoadSummary(Record):
    """An arm at one load point, pooled over its complete trials."""

    label: str
    load: LoadPoint
    num_trials: int
    num_requests: int
    num_failed_requests: int
    e2e_tok_per_s: Interval | None
    """Geometric mean over prompts; the interval is the spread over prompts, not over launches. Of a compared arm: plain
    decoding's times the speedup, so that a drift of the machine between launches is in neither."""
    decode_tok_per_s: Interval | None
    drift_correction: float | None = None
    """By which both were multiplied; ``None``: they are as measured."""
    output_tok_per_s: float | None
    """All output tokens / duration."""
    steady_frac: float | None = None
    """At c > 1: the share of the load's time that the figures are of; filling and emptying the server is the rest."""
    median_ttft_s: float | None
    """The ``p99_`` fields are given from 100 values on; of fewer the largest stands for the tail."""
    p99_ttft_s: float | None
    median_tpot_s: float | None
    p99_tpot_s: float | None
    median_itl_s: float | None
    """Between chunks; under speculation a chunk carries several tokens, so compare TPOT instead."""
    p99_itl_s: float | None
    largest_ttft_s: float | None = None
    largest_tpot_s: float | None = None
    largest_itl_s: float | None = None
    acceptance_length: Interval | None
    """Token-weighted: 1 + accepted / verify steps over all requests."""
    request_weighted_acceptance_length: float | None
    acceptance_rate: float | None
    accepted_per_position: tuple[float, ...] | None
    """Marginal: ``[i]`` is the share of verify steps in which position i was kept."""
    conditional_per_position: tuple[float | None, ...] | None
    """``[i]``: chance that position i is kept given that every earlier one was."""
    acceptance_counts: AcceptanceCounts | None
    acceptance_source: AcceptanceSource | None
    tokens_per_decode_step: float | None
    """Output tokens per forward pass after the prompt, passes without a draft included."""
    verify_step_frac: float | None
    """Share of those forward passes that checked a draft."""
    speedup: Interval | None
    """``None`` for the baseline, against which it is defined. For prompts like these: verdicts come from it."""
    these_prompts: Interval | None = None
    """The same ratio for these very prompts: launches alone make it uncertain."""
    verdict: Verdict | None
    more_prompts_needed: int | None = None
    """Of a CANNOT_TELL: so many more would turn it into an answer, with a chance of 80 %."""
    more_launches_needed: int | None = None
    """Of each arm, instead of more prompts; ``None`` past 20 of them."""
    quieter_machine_needed: bool = False
    """Of a CANNOT_TELL: 20 more launches of each arm would not do."""
    trial_noise_frac: float | None
    parity: OutputParity | None
    """Of the baseline: its later trials against its first, the noise floor of parity."""
    output_length_ratio: float | None
    """Output tokens / the baseline's, over the prompts both answered."""
    cached_token_frac: float | None
    """Share of prompt tokens that came from a prefix cache."""
    foreign_tokens: int | None
    first_token_share: float | None = None
    """Of a request's time, before its first token: speculation shortens the rest alone."""
    times: RequestTimes | None = Field(default=None, exclude=True)
    """The same prompt by prompt, against no speculation."""
    categories: tuple[CategorySummary, ...] = ()
    contexts: tuple[ContextSummary, ...] = ()
    """Empty where all contexts are about as long, or requests do not carry their own acceptance."""

    @property
    def skips_passes(self) -> bool:
        """Whether it leaves some forward passes without a draft: then only tokens per pass compare with other arms."""
        return self.verify_step_frac is not None and self.verify_step_frac < SKIPS_BELOW

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens per forward pass, passes without a draft included; ``None``: unknown."""
        if self.acceptance_length is None or self.tokens_per_decode_step is None or not self.verify_step_frac:
            return None
        return self.tokens_per_decode_step if self.skips_passes else self.acceptance_length.value


class ArmSummary(Record):
    """One arm of the study over its repetitions."""

    arm_id: str
    name: str
    is_baseline: bool
    arm: Arm
    status: str
    """``complete`` if any trial is, else the last trial's status, or ``not run``."""
    num_trials: int
    num_complete: int
    cause: str | None
    """Of the last failed trial."""
    step_cost_ratio: float | None = None
    """Cost of a decode step in baseline steps, at the first load point; time before the first token is not in it."""
    break_even_tokens_per_pass: float | None = None
    """Tokens per forward pass at which decoding is as fast as without speculation."""
    break_even_reachable: bool | None = None
    """False: more than its draft length can give. ``None``: unknown."""
    break_even_acceptance_length: float | None = None
    break_even_approximate: bool = False
    loads: tuple[LoadSummary, ...] = ()

    @property
    def first(self) -> LoadSummary | None:
        """The first load point, on which the answer rests."""
        return self.loads[0] if self.loads else None

    @property
    def status_words(self) -> str:
        return {"pruned": "stopped early: slower", "not run": "not launched"}.get(self.status, self.status)


class TrialSummary(Record):
    """One launch. ``speedup`` is this trial's alone, against the baseline trials around it."""

    trial_id: str
    number: int
    arm_id: str
    name: str
    repetition: int
    is_baseline: bool
    arm: Arm
    command: tuple[str, ...]
    env: dict[str, str]
    ranks: tuple[RankRecord, ...] = ()
    """Of a server over several nodes, each with its own command."""
    status: TrialStatus
    cause: str | None
    failure: Failure | None
    node: str | None = None
    """Of a cluster; ``None``: the study's one host."""
    started_at: str
    ended_at: str
    load: str | None
    """The load point the figures belong to."""
    e2e_tok_per_s: Interval | None
    decode_tok_per_s: Interval | None
    output_tok_per_s: float | None
    acceptance_length: Interval | None
    acceptance_source: AcceptanceSource | None
    acceptance_rate: float | None
    accepted_per_position: tuple[float, ...] | None
    speedup: Interval | None
    verdict: Verdict | None
    parity_frac: float | None
    hypothesis: Hypothesis
    phases_s: dict[str, float]
    launch: int
    """Number of the trial that started its server."""
    ended_early: EarlyEnd | None = None
    """Why not every prompt was asked."""
    stop: StopProof | None
    soak: SoakResult | None
    engine_version: str | None
    model: str | None
    effective: Knobs | None
    simulated: bool


class TrialTime(Record):
    """Where one trial's wall time went; ``own_s`` is what no phase explains."""

    trial_id: str
    number: int
    name: str
    wall_s: float
    phases_s: dict[str, float]
    own_s: float
    gap_before_s: float
    """Between the trial before and this one; 0 where the study was paused."""


class NoiseSummary(Record):
    """What the speedup of the typical arm could show, from its paired effects, at the study's level and 80 % chance."""

    launch_frac: float | None
    """Standard deviation of one launch's log speed; ``None``: no arm was launched twice, and it is assumed."""
    detectable_frac: float
    num_launches: int
    """Of that arm, for which ``detectable_frac`` holds."""
    num_prompts: int
    sentence: str


class StudyTime(Record):
    """Where the study's wall time went. ``own_s``: in no phase of any trial, gaps between trials included."""

    wall_s: float
    """First start to last end, pauses left out."""
    phases_s: dict[str, float]
    own_s: float
    own_frac: float | None
    num_pauses: int
    pauses_s: float
    num_ended_early: int = 0
    """Trials that did not need every prompt; ``saved_s`` of measuring they saved, estimated."""
    saved_s: float = 0.0
    trials: tuple[TrialTime, ...]


class StudyFacts(Record):
    """What the study was about and where it ran."""

    name: str
    question: str
    created_at: str
    spectune_version: str
    engine: str
    engine_versions: tuple[str, ...]
    targets: tuple[str, ...]
    machine: Machine
    workload_hash: str
    num_prompts: int
    categories: dict[str, int]
    """Number of prompts per category."""
    api: str
    sampling: Sampling
    loads: tuple[str, ...]
    requests_per_load: int | None
    warmup_requests: int | None
    level: float
    margin: float
    num_planned_trials: int
    num_remaining_trials: int
    skipped_arms: tuple[str, ...]
    host: str = "local"
    repetitions: int = 1
    search: str | None = None
    search_end: str | None = None
    pruned_arms: dict[str, str] = Field(default_factory=dict)
    """Arms that the search left out, and why, by name."""
    imported: Import | None = None
    """Where another tool measured: what it left out, and which of the fields above hold a placeholder."""


class StudySummary(Record):
    """The whole report as data."""

    schema_version: int = REPORT_SCHEMA_VERSION
    headline: str
    simulated: bool
    study: StudyFacts
    baseline_arm_id: str
    best_arm_id: str | None
    """The arm that is FASTER with the largest speedup at the first load point, else the baseline;
    ``None`` while the baseline has not been measured."""
    arms: tuple[ArmSummary, ...]
    trials: tuple[TrialSummary, ...]
    findings: tuple[Finding, ...] = Field(default=())
    time: StudyTime
    noise: NoiseSummary | None = None
    """``None`` until some arm was launched twice."""
    explanation: Explanation | None = None
    """``None`` until the baseline and one arm beside it were measured."""

    def arm(self, arm_id: str) -> ArmSummary:
        for arm in self.arms:
            if arm.arm_id == arm_id:
                return arm
        raise KeyError(arm_id)

    @property
    def baseline(self) -> ArmSummary:
        return self.arm(self.baseline_arm_id)

    @property
    def ranked_arms(self) -> tuple[ArmSummary, ...]:
        """By speedup at the first load point, the baseline at its 1.0; arms without one last."""
        return tuple(sorted(self.arms, key=_rank))


def _rank(arm: ArmSummary) -> tuple[int, float, str]:
    if arm.is_baseline:
        return (0, -1.0, "")
    if arm.first is None or arm.first.speedup is None:
        return (1, 0.0, arm.name)
    return (0, -arm.first.speedup.value, arm.name)
