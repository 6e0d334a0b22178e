"""A row per arm, load point and prompt: how fast each prompt was, against plain decoding, and how much was kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from spectune.analysis.pooling import load_of, speed_by_prompt, tokens_by_prompt
from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.workload import LoadPoint
from spectune.exchange.whole_study import LoadedStudy
from spectune.statistics.launches import SpeedSample, pair_trial


def prompt_rows(loaded: LoadedStudy) -> Iterable[dict[str, Any]]:
    """The geometric mean of ``speedup`` over an arm's prompts is the arm's own speedup."""
    baseline_id = loaded.study.baseline.arm_id
    for point in loaded.study.workload.loads:
        samples = _samples(loaded, point)
        baselines = sorted(samples.get(baseline_id, ()), key=lambda s: s.order)
        for arm in loaded.summary.arms:
            launches = samples.get(arm.arm_id, [])
            speedups = {} if arm.is_baseline else _speedups(launches, baselines)
            for row in _rows_of_arm(loaded, arm.arm_id, point, launches):
                yield {
                    "study": loaded.study.name,
                    "arm": arm.name,
                    "arm_id": arm.arm_id,
                    "is_baseline": arm.is_baseline,
                    "load": point.label,
                    **row,
                    "speedup": speedups.get(row["prompt_id"]),
                }


def _samples(loaded: LoadedStudy, point: LoadPoint) -> dict[str, list[SpeedSample]]:
    """Of each arm, every launch's speeds by prompt."""
    found: dict[str, list[SpeedSample]] = {}
    for trial in loaded.results:
        load = load_of(trial, point)
        speeds = {} if load is None else speed_by_prompt([load])
        if speeds:
            sample = SpeedSample(
                trial.arm_id, trial.launch_number, speeds, loaded.stretches[trial.launch_number]
            )
            found.setdefault(trial.arm_id, []).append(sample)
    return found


def _speedups(launches: Sequence[SpeedSample], baselines: Sequence[SpeedSample]) -> dict[str, float]:
    """By prompt: each launch against the baseline launches before and after it, as the report compares."""
    if not baselines:
        return {}
    logs: dict[str, list[float]] = {}
    for launch in launches:
        for prompt, value in pair_trial(launch, baselines).logs.items():
            logs.setdefault(prompt, []).append(value)
    return {prompt: math.exp(math.fsum(values) / len(values)) for prompt, values in logs.items()}


def _rows_of_arm(
    loaded: LoadedStudy, arm_id: str, point: LoadPoint, launches: Sequence[SpeedSample]
) -> Iterable[dict[str, Any]]:
    trials = [t for t in loaded.results if t.arm_id == arm_id]
    loads = [load for t in trials if (load := load_of(t, point)) is not None]
    tokens = tokens_by_prompt(loads)
    seen = (s for s in loaded.summary.arm(arm_id).loads if s.load == point)
    drift = next((s.drift_correction for s in seen if s.drift_correction is not None), 1.0)
    categories = {p.prompt_id: p.category for p in loaded.study.workload.prompts}
    for prompt in dict.fromkeys(p for launch in launches for p in launch.speed_by_prompt):
        speeds = [math.log(s.speed_by_prompt[prompt]) for s in launches if prompt in s.speed_by_prompt]
        requests = [r for load in loads for r in load.completed if r.prompt_id == prompt]
        counts = _pooled([r.acceptance for r in requests])
        yield {
            "prompt_id": prompt,
            "category": categories.get(prompt),
            "num_launches": len(speeds),
            "output_tokens": tokens.get(prompt),
            "e2e_tok_per_s": drift * math.exp(math.fsum(speeds) / len(speeds)),
            "num_drafts": None if counts is None else counts.num_drafts,
            "num_accepted_tokens": None if counts is None else counts.num_accepted_tokens,
            "acceptance_length": _length(counts),
        }


def _pooled(parts: Sequence[AcceptanceCounts | None]) -> AcceptanceCounts | None:
    """``None`` unless every request has its counts: a part would stand for the whole."""
    known = [part for part in parts if part is not None]
    return pool_counts(known) if known and len(known) == len(parts) else None


def _length(counts: AcceptanceCounts | None) -> float | None:
    if counts is None or not counts.num_drafts:
        return None
    return 1 + counts.num_accepted_tokens / counts.num_drafts
