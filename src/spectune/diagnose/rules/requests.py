"""What request records of a study say beyond its report: acceptance by category and by prompt length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spectune.diagnose.rules.acceptance import FALLS_WITH_CONTEXT
from spectune.diagnose.verdict import NotChecked, is_lookup
from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.findings import Finding
from spectune.domain.measurement import RequestRecord
from spectune.domain.trial import Trial
from spectune.findings.catalogue import finding_kind

MIN_STEPS = 100
CATEGORY_SHARE = 0.5
"""Kimi-K2.5's draft: C-Eval keeps 0.48 tokens per step where the lowest other set keeps 1.57."""

CATEGORY = finding_kind("category-far-below-others")


def trial_findings(trial: Trial, skipped: NotChecked) -> Iterator[Finding]:
    """Findings over one trial's own requests."""
    if trial.arm.is_baseline or is_lookup(trial.arm.knobs.method):
        return
    records = [r for load in trial.loads for r in load.completed if r.acceptance is not None]
    subject = f"{trial.arm.name} (trial {trial.trial_id})"
    if not records:
        if trial.status == "complete":
            skipped.add(f"{subject}: acceptance by category and prompt length (no request carries counts)")
        return
    yield from _by_category(subject, records)
    yield from _by_prompt_length(subject, records)


def _pooled(
    records: Sequence[RequestRecord], key: Callable[[RequestRecord], object]
) -> dict[object, AcceptanceCounts]:
    parts: dict[object, list[AcceptanceCounts]] = {}
    for record in records:
        if record.acceptance is not None and (name := key(record)) is not None:
            parts.setdefault(name, []).append(record.acceptance)
    pooled = {name: pool_counts(counts) for name, counts in parts.items()}
    return {
        name: c
        for name, c in pooled.items()
        if c is not None and c.acceptance_length is not None and (c.num_drafts or 0) >= MIN_STEPS
    }


def _kept(counts: AcceptanceCounts) -> float:
    length = counts.acceptance_length
    assert length is not None  # only such are pooled
    return length - 1


def _by_category(subject: str, records: Sequence[RequestRecord]) -> Iterator[Finding]:
    pooled = _pooled(records, lambda r: r.category)
    if len(pooled) < 3:
        return
    ranked = sorted(pooled.items(), key=lambda item: _kept(item[1]))
    (worst, low), (_, next_low) = ranked[0], ranked[1]
    if _kept(low) < CATEGORY_SHARE * _kept(next_low):
        yield CATEGORY.found(
            subject,
            f"{worst}: acceptance length {1 + _kept(low):.2f}, the next lowest {1 + _kept(next_low):.2f}",
            evidence=[(str(name), f"acceptance length {1 + _kept(c):.2f}") for name, c in ranked[:12]],
        )


def _by_prompt_length(subject: str, records: Sequence[RequestRecord]) -> Iterator[Finding]:
    pooled = _pooled(records, lambda r: r.prompt_tokens.bit_length() if r.prompt_tokens else None)
    lengths = sorted(pooled.items(), key=lambda item: int(str(item[0])))
    for i in range(1, len(lengths)):
        best = max(_kept(c) for _, c in lengths[:i])
        if best >= 0.3 and all(_kept(c) < 0.5 * best for _, c in lengths[i:]):
            bits = int(str(lengths[i][0]))
            yield FALLS_WITH_CONTEXT.found(
                subject,
                f"acceptance length {1 + best:.2f} with short prompts, {1 + _kept(lengths[i][1]):.2f} from "
                f"{2 ** (bits - 1)} prompt tokens on",
                evidence=[
                    (
                        f"{2 ** (int(str(b)) - 1)} prompt tokens and more",
                        f"acceptance length {1 + _kept(c):.2f}",
                    )
                    for b, c in lengths
                ],
            )
            return
