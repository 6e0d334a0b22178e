"""A study as a laptop would give it, drawn at random from a seed; nothing in it is measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta

from report_studies import (
    BASELINE,
    PHASES_S,
    START,
    counts,
    failed,
    hypothesis,
    load_result,
    request,
    speculative,
    study,
    trial,
)

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm
from spectune.domain.study import Study
from spectune.domain.trial import Trial

CATEGORIES = ("code", "maths", "chat", "summary", "translation", "structured output")


def realistic(*, seed: int = 7, num_arms: int | None = None) -> tuple[Study, list[Trial]]:
    """A study as a laptop would give it: interleaved baseline, ngram, EAGLE-3 chains, a dead draft, a failure."""
    rng = random.Random(seed)
    plans: list[tuple[Arm, float, float, float]] = [
        (speculative("ngram", method="ngram", length=8), 1.01, 2.30, 0.22),
        (speculative("eagle3-k1", length=1), 1.08, 1.56, 1.0),
        (speculative("eagle3-k2", length=2), 0.97, 1.78, 1.0),
        (speculative("eagle3-k3", length=3), 0.45, 1.86, 1.0),
        (speculative("eagle3-k4-pmin0.75", length=4, flags={"spec-draft-p-min": 0.75}), 2.0, 2.08, 0.55),
        (speculative("eagle3-random-weights", length=3, flags={"note": "random"}), 0.3, 1.0, 1.0),
    ]
    if num_arms is not None:
        plans = [
            (
                speculative(f"eagle3-{i:03d}", length=1 + i % 7, flags={"spec-draft-p-min": i / 1000}),
                s,
                length,
                1.0,
            )
            for i in range(num_arms)
            for s, length in [(rng.uniform(0.3, 3.0), rng.uniform(1.1, 3.0))]
        ]
    broken = speculative("eagle3-k9-flash", length=9, flags={"flash-attn": True})
    made = study(
        *(p[0] for p in plans),
        broken,
        num_prompts=18,
        categories=CATEGORIES,
        name="SmolLM2 on two cores",
        question="Which speculative configuration is fastest on this laptop, and why?",
    )
    likes = {
        "code": 1.12,
        "maths": 1.02,
        "chat": 0.93,
        "summary": 0.98,
        "translation": 0.9,
        "structured output": 1.08,
    }
    own_speed = {p.prompt_id: 84 * rng.lognormvariate(0, 0.06) for p in made.workload.prompts}
    order: list[tuple[Arm, float, float, float]] = []
    for index, plan in enumerate(plans):
        order += [(BASELINE, 1.0, 0.0, 0.0)] if index % 3 == 0 else []
        order.append(plan)
    order.append((BASELINE, 1.0, 0.0, 0.0))
    trials: list[Trial] = []
    repeated: dict[str, int] = {}
    for number, (arm, speedup, length, frac) in enumerate(order, start=1):
        drift = rng.lognormvariate(0, 0.02)
        records = []
        for i, p in enumerate(made.workload.prompts):
            taste = likes[p.category or "chat"] if arm is not BASELINE else 1.0
            speed = own_speed[p.prompt_id] * drift * speedup * taste * rng.lognormvariate(0, 0.025)
            acceptance = None
            if length:
                steps = round(99 / (1 + frac * (length - 1)))
                drafts = max(1, round(steps * frac))
                width = arm.knobs.num_draft_tokens or 1
                acceptance = decaying(drafts, (length - 1) * (2 * taste - 1 if length > 1 else 0), width)
            text = f"answer {i}: " + "all work and no play makes a dull draft. " * 3
            if arm is not BASELINE and rng.random() < 0.06:
                text = text[:40] + "something else entirely, and then it goes on differently"
            latency = 100 / speed
            ttft = latency * (0.05 if arm is BASELINE else 0.07)
            chunks = 99 if not acceptance else max(1, 99 - acceptance.num_accepted_tokens)
            gap = (latency - ttft) / chunks
            gaps = tuple(gap * rng.lognormvariate(0, 0.15) for _ in range(chunks))
            records.append(
                request(
                    p,
                    speed,
                    acceptance=acceptance,
                    text=text,
                    ttft_s=ttft,
                    chunk_gaps_s=gaps,
                    start_s=float(i),
                )
            )
        repetition = repeated.get(arm.arm_id, 0)
        repeated[arm.arm_id] = repetition + 1
        judged = hypothesis(
            verdict=None
            if arm is BASELINE
            else rng.choice(["confirmed", "confirmed", "refuted", "undecided"]),
            observed=None if arm is BASELINE else f"{speedup:.2f}x baseline, predicted 110 tok/s",
            expectation="reference" if arm is BASELINE else "faster",
            compared_with_name=None if arm is BASELINE else "baseline",
            changed=() if arm is BASELINE else ("method", "drafter", "num_draft_tokens"),
            predicted_tok_per_s=None if arm is BASELINE else hypothesis().predicted_tok_per_s,
            why="plain decoding: every speedup is defined against it"
            if arm is BASELINE
            else "from eagle3-k1: acceptance length 1.78 at 2 drafted tokens, step cost 1.61 baseline steps",
        )
        trials.append(
            trial(
                made,
                arm,
                number,
                loads=(load_result(records),),
                repetition=repetition,
                hypothesis=judged,
                phases_s={**PHASES_S, "measure": sum(r.latency_s or 0 for r in records)},
            )
        )
    log = ("llama_model_loader: loaded meta data", "sched_reserve: reserving ...") * 3
    broken_trial = failed(made, broken, len(trials) + 1, cause="failed to create draft context")
    assert broken_trial.failure is not None
    more = broken_trial.failure.model_copy(
        update={"log_tail": (*log, "error: failed to create draft context")}
    )
    trials.append(
        broken_trial.model_copy(
            update={
                "failure": more,
                "phases_s": {"launch": 0.4, "load": 1.1},
            }
        )
    )
    return made, _on_a_clock(trials)


def _on_a_clock(trials: Sequence[Trial], *, own_s: float = 0.15, gap_s: float = 0.05) -> list[Trial]:
    """The trials one after the other: each lasts its phases and ``own_s``."""
    now, placed = START, []
    for one in trials:
        end = now + timedelta(seconds=sum(one.phases_s.values()) + own_s)
        placed.append(
            one.model_copy(
                update={
                    "started_at": now.isoformat(timespec="milliseconds"),
                    "ended_at": end.isoformat(timespec="milliseconds"),
                }
            )
        )
        now = end + timedelta(seconds=gap_s)
    return placed


def decaying(drafts: int, kept_per_step: float, length: int) -> AcceptanceCounts:
    """Positions that are kept with a geometrically falling share, ``kept_per_step`` in all."""
    if kept_per_step <= 0:
        return counts(drafts, 0, length=length)
    ratio = 0.52
    total = sum(ratio**i for i in range(length))
    share = [min(drafts, round(drafts * kept_per_step * ratio**i / total)) for i in range(length)]
    return AcceptanceCounts(
        num_drafts=drafts,
        num_draft_tokens=drafts * length,
        num_accepted_tokens=sum(share),
        accepted_per_position=tuple(share),
    )
