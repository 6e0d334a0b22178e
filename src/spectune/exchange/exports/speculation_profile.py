"""``speculation_profile.json``, schema 1.0, as NVIDIA's ``specdec_bench`` writes it (Model-Optimizer, examples).

https://github.com/NVIDIA/Model-Optimizer/blob/main/examples/specdec_bench/specdec_bench/speculation_profile.py

It describes a draft: per draft position the conditional rate (that it is kept
given that all before it were) and the marginal one (that it and all before it
are). ``mean_accept_length`` is per verify step, bonus included;
``mean_accept_length_per_request`` weighs requests alike. The histogram's keys
are tokens per step, from 1. Ours is under ``spectune``.
"""

from __future__ import annotations

import itertools
from typing import Any

from spectune.analysis.records import ArmSummary, LoadSummary
from spectune.analysis.words import one_line
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm
from spectune.errors import BadInput
from spectune.exchange.whole_study import LoadedStudy

SCHEMA_VERSION = "1.0"
TOLERANCE = 0.02
_CHAIN_METHODS = frozenset({"eagle", "eagle3", "draft_model"})
"""Of spectune's methods, those whose shorter drafts are beginnings of longer ones, as the schema's own list has it."""


def speculation_profile(loaded: LoadedStudy, arm: Arm) -> dict[str, Any]:
    """Of the arm's first load point. ``BadInput`` where its acceptance by position is not known."""
    summary = loaded.summary_of(arm)
    load, counts = summary.first, summary.first.acceptance_counts if summary.first else None
    if load is None or counts is None or not counts.num_drafts:
        raise BadInput(
            f"{loaded.place}: the acceptance of {one_line(arm.name)} was not measured; "
            "a profile needs verify steps and accepted tokens (name another arm with --arm)"
        )
    histogram = histogram_of(counts)
    if histogram is None or counts.accepted_per_position is None:
        raise BadInput(
            f"{loaded.place}: the engine gave the acceptance of {one_line(arm.name)} without positions; "
            "a profile is made of them"
        )
    num_draft_tokens = max(arm.knobs.num_draft_tokens or 0, len(counts.accepted_per_position))
    marginal = _padded(counts.marginal_acceptance or (), num_draft_tokens)
    conditional = _padded([c or 0.0 for c in counts.conditional_acceptance or ()], num_draft_tokens)
    mean = counts.acceptance_length or 1.0
    chain = arm.knobs.method in _CHAIN_METHODS and (arm.knobs.topk or 1) == 1
    return {
        "schema_version": SCHEMA_VERSION,
        "measured": not loaded.summary.simulated,
        "method": arm.knobs.method,
        "draft_checkpoint": None if arm.knobs.drafter is None else {"id": checkpoint_id(arm.knobs.drafter)},
        "target_model": {"id": checkpoint_id(arm.target)},
        "num_speculative_tokens": num_draft_tokens,
        "block_size": None,
        "max_supported_k": num_draft_tokens,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [round(x, 6) for x in conditional],
        "marginal_accept_rates": [round(x, 6) for x in marginal],
        "mean_accept_length": round(mean, 6),
        "mean_accept_length_per_request": _rounded(load.request_weighted_acceptance_length),
        "accept_length_model": "chain_analytic" if chain else "measured_per_k",
        "accept_length_by_k": _by_length(loaded, arm),
        "acceptance_length_histogram": {str(tokens): steps for tokens, steps in histogram.items()},
        "per_category": _per_category(load),
        "measurement_conditions": _conditions(loaded, load),
        "validation": {
            "mean_consistency": _consistency(mean, marginal),
            "marginal_monotonicity": _monotonicity(marginal),
        },
        "spectune": _ours(loaded, summary, load),
    }


def histogram_of(counts: AcceptanceCounts) -> dict[int, int] | None:
    """Tokens per verify step -> steps, from the steps in which each position was kept; ``None`` if they rise."""
    if counts.accepted_per_position is None or not counts.num_drafts:
        return None
    kept = (counts.num_drafts, *counts.accepted_per_position, 0)
    steps = [before - after for before, after in itertools.pairwise(kept)]
    return None if min(steps) < 0 else {i + 1: n for i, n in enumerate(steps) if n}


def checkpoint_id(path: str) -> str:
    """``org/model``: the last two parts, since a profile is published and folders are nobody's business."""
    parts = [part for part in path.replace("\\", "/").split("/") if part]
    return "/".join(parts[-2:])


def _padded(values: Any, length: int) -> list[float]:
    found = [float(v) for v in values][:length]
    return found + [0.0] * (length - len(found))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _by_length(loaded: LoadedStudy, arm: Arm) -> dict[str, float]:
    """Every measured chain length of this draft in the study, by the number of drafted tokens."""
    found = {}
    for other in loaded.summary.arms:
        knobs = other.arm.knobs
        alike = (knobs.method, knobs.drafter, knobs.topk or 1) == (
            arm.knobs.method,
            arm.knobs.drafter,
            arm.knobs.topk or 1,
        )
        counts = other.first.acceptance_counts if other.first else None
        if alike and knobs.num_draft_tokens and counts is not None and counts.acceptance_length is not None:
            same_arm = other.arm_id == arm.arm_id
            if same_arm or str(knobs.num_draft_tokens) not in found:
                found[str(knobs.num_draft_tokens)] = round(counts.acceptance_length, 6)
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _per_category(load: LoadSummary) -> dict[str, Any] | None:
    known = {
        c.category: {"mean_accept_length": round(c.acceptance_length.value, 6), "num_prompts": c.num_prompts}
        for c in load.categories
        if c.acceptance_length is not None
    }
    return known or None


def _conditions(loaded: LoadedStudy, load: LoadSummary) -> dict[str, Any]:
    study, facts = loaded.study, loaded.summary.study
    gpus = study.machine.gpus
    return {
        "dataset": f"workload {facts.workload_hash}, {facts.num_prompts} prompts",
        "num_requests": load.num_requests,
        "concurrency": load.load.concurrency,
        "request_rate": load.load.request_rate,
        "temperature": study.workload.sampling.temperature,
        "output_length": study.workload.sampling.max_tokens,
        "engine": study.engine.name,
        "engine_version": ", ".join(facts.engine_versions) or None,
        "gpu": ", ".join(gpus) if gpus else None,
        "num_gpus": None if gpus is None else len(gpus),
    }


def _consistency(mean: float, marginal: list[float]) -> dict[str, Any]:
    """The mean must be one more than the sum of the marginals, or positions are missing."""
    implied = 1 + sum(marginal)
    delta = abs(implied - mean)
    return {
        "implied_mean_accept_length": round(implied, 6),
        "reported_mean_accept_length": round(mean, 6),
        "abs_delta": round(delta, 6),
        "tolerance": TOLERANCE,
        "passed": delta <= TOLERANCE,
    }


def _monotonicity(marginal: list[float]) -> dict[str, Any]:
    violations = [
        {"position": i, "value": marginal[i], "previous": marginal[i - 1]}
        for i in range(1, len(marginal))
        if marginal[i] > marginal[i - 1] + 1e-9
    ]
    return {"passed": not violations, "violations": violations}


def _ours(loaded: LoadedStudy, arm: ArmSummary, load: LoadSummary) -> dict[str, Any]:
    length, speedup = load.acceptance_length, load.speedup
    return {
        "study": loaded.study.name,
        "arm": arm.name,
        "arm_id": arm.arm_id,
        "acceptance_length": None if length is None else length.model_dump(mode="json"),
        "acceptance_source": load.acceptance_source,
        "break_even_acceptance_length": arm.break_even_acceptance_length,
        "speedup": None if speedup is None else speedup.model_dump(mode="json"),
        "num_launches": load.num_trials,
        "simulated": loaded.summary.simulated,
    }
