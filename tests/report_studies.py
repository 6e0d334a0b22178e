"""Studies made up for the tests of the report: every number is chosen here, nothing is measured."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.arm import Arm, Knobs, baseline_arm
from spectune.domain.hypothesis import Hypothesis
from spectune.domain.interval import Interval
from spectune.domain.machine import Machine
from spectune.domain.measurement import LoadResult, RequestRecord
from spectune.domain.study import EngineSettings, PlannedTrial, Study
from spectune.domain.trial import Failure, ServerFacts, Trial, TrialStatus
from spectune.domain.workload import LoadPoint, Prompt, Sampling, Workload

START = datetime(2026, 11, 29, 20, 0, 0, tzinfo=UTC)
SINGLE = LoadPoint.closed(1)
CATEGORIES = ("code", "maths", "chat", "summary", "translation", "structured output")
PHASES_S = {"launch": 0.4, "load": 1.2, "warm-up": 2.0, "measure": 12.0, "stop": 0.3}


def machine(**changes: Any) -> Machine:
    fields: dict[str, Any] = {
        "hostname": "lab-3",
        "os": "Linux 6.8",
        "cpu": "Xeon Platinum 8481C",
        "cores": 2,
        "memory_bytes": 16 * 2**30,
        "gpus": (),
        "python": "3.11.7",
    }
    return Machine(**{**fields, **changes})


def prompts(number: int, *, categories: Sequence[str] = ("code", "chat")) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(prompt_id=f"p{i}", turns=(f"question {i}",), category=categories[i % len(categories)])
        for i in range(number)
    )


def speculative(name: str, *, method: str = "eagle3", length: int = 3, **changes: Any) -> Arm:
    knobs = Knobs(method=method, drafter="draft", num_draft_tokens=length)
    return Arm(**{"name": name, "engine": "llamacpp", "target": "smollm2", "knobs": knobs, **changes})


BASELINE = baseline_arm(engine="llamacpp", target="smollm2")


def study(
    *arms: Arm,
    num_prompts: int = 3,
    loads: tuple[LoadPoint, ...] = (SINGLE,),
    sampling: Sampling | None = None,
    repetitions: int = 1,
    categories: Sequence[str] = ("code", "chat"),
    **changes: Any,
) -> Study:
    every = (BASELINE, *arms)
    fields: dict[str, Any] = {
        "name": "demo",
        "question": "Which draft is fastest here?",
        "created_at": START.isoformat(),
        "spectune_version": "0.1.0",
        "machine": machine(),
        "engine": EngineSettings(name="llamacpp"),
        "arms": every,
        "plan": tuple(PlannedTrial(arm_id=a.arm_id, repetition=r) for r in range(repetitions) for a in every),
        "workload": Workload(
            prompts=prompts(num_prompts, categories=categories), sampling=sampling or Sampling(), loads=loads
        ),
        "warmup_requests": 2,
    }
    return Study(**{**fields, **changes})


def request(prompt: Prompt, tok_per_s: float, **changes: Any) -> RequestRecord:
    """100 output tokens at ``tok_per_s`` end to end, the first after a tenth of the time."""
    latency_s = 100 / tok_per_s
    fields: dict[str, Any] = {
        "prompt_id": prompt.prompt_id,
        "category": prompt.category,
        "start_s": 0.0,
        "ttft_s": latency_s / 10,
        "latency_s": latency_s,
        "prompt_tokens": 20,
        "output_tokens": 100,
        "cached_tokens": 0,
        "chunk_gaps_s": (0.01, 0.01),
        "text": f"the answer to {prompt.prompt_id}",
        "finish_reason": "length",
    }
    return RequestRecord(**{**fields, **changes})


def counts(drafts: int, accepted: int, *, length: int = 3) -> AcceptanceCounts:
    """``accepted`` drafted tokens spread over the positions from the first on."""
    share, rest = [], accepted
    for _ in range(length):
        share.append(min(drafts, rest))
        rest -= share[-1]
    return AcceptanceCounts(
        num_drafts=drafts,
        num_draft_tokens=drafts * length,
        num_accepted_tokens=accepted,
        accepted_per_position=tuple(share),
    )


def load_result(requests: Sequence[RequestRecord], point: LoadPoint = SINGLE, **changes: Any) -> LoadResult:
    known = [r.acceptance for r in requests if r.acceptance is not None]
    fields: dict[str, Any] = {
        "load": point,
        "requests": tuple(requests),
        "duration_s": sum(r.latency_s or 0.0 for r in requests) or 1.0,
        "acceptance": pool_counts(known),
        "acceptance_source": "per-request" if known else None,
        "foreign_tokens": 0,
        "client_cpu_s": 0.01,
        "max_loop_lag_s": 0.001,
    }
    return LoadResult(**{**fields, **changes})


def trial(
    of: Study,
    arm: Arm,
    number: int,
    *,
    speeds: Mapping[str, float] | float | None = None,
    acceptance: AcceptanceCounts | None = None,
    status: TrialStatus = "complete",
    loads: tuple[LoadResult, ...] | None = None,
    repetition: int = 0,
    **changes: Any,
) -> Trial:
    """A trial of ``arm`` that answered every prompt at ``speeds`` (one for all, or by prompt id)."""
    if loads is None and speeds is not None:
        by_prompt = (
            speeds if isinstance(speeds, Mapping) else {p.prompt_id: speeds for p in of.workload.prompts}
        )
        loads = (
            load_result(
                [
                    request(p, by_prompt[p.prompt_id], acceptance=acceptance)
                    for p in of.workload.prompts
                    if p.prompt_id in by_prompt
                ]
            ),
        )
    begun = START + timedelta(seconds=1 + 16 * (number - 1))
    fields: dict[str, Any] = {
        "trial_id": f"{number:04d}-{arm.arm_id}",
        "number": number,
        "arm": arm,
        "arm_id": arm.arm_id,
        "repetition": repetition,
        "workload_hash": of.workload.workload_hash,
        "status": status,
        "hypothesis": hypothesis(),
        "command": ("llama-server", "--model", "smollm2.gguf"),
        "started_at": begun.isoformat(timespec="milliseconds"),
        "ended_at": (begun + timedelta(seconds=16)).isoformat(timespec="milliseconds"),
        "phases_s": PHASES_S,
        "server": ServerFacts(engine="llamacpp", version="b9000"),
        "loads": loads or (),
    }
    return Trial(**{**fields, **changes})


def hypothesis(**changes: Any) -> Hypothesis:
    fields: dict[str, Any] = {
        "compared_with": BASELINE.arm_id,
        "compared_with_name": "baseline",
        "changed": ("method", "drafter"),
        "expectation": "faster",
        "predicted_tok_per_s": Interval(value=110, low=100, high=121, n=1, unit="tok/s"),
        "why": "a draft token costs a tenth of a step",
    }
    return Hypothesis(**{**fields, **changes})


def failed(of: Study, arm: Arm, number: int, *, cause: str = "out of memory", **changes: Any) -> Trial:
    failure = Failure(
        phase="load",
        cause=cause,
        remedy="use a smaller draft",
        exit_code=1,
        log_tail=("loading model", f"error: {cause}"),
    )
    return trial(of, arm, number, **{"status": "failed", "failure": failure, **changes})


def realistic(*, seed: int = 7, num_arms: int | None = None) -> tuple[Study, list[Trial]]:
    """A study as a laptop would give it: interleaved baseline, ngram, EAGLE-3 chains, a dead draft, a failure."""
    rng = random.Random(seed)
    plans: list[tuple[Arm, float, float, float]] = [
        (speculative("ngram", method="ngram", length=8), 1.01, 2.30, 0.22),
        (speculative("eagle3-k1", length=1), 1.08, 1.56, 1.0),
        (speculative("eagle3-k2", length=2), 0.97, 1.78, 1.0),
        (speculative("eagle3-k3", length=3), 0.82, 1.86, 1.0),
        (speculative("eagle3-k4-pmin0.75", length=4, flags={"spec-draft-p-min": 0.75}), 1.16, 2.08, 0.55),
        (speculative("eagle3-random-weights", length=3, flags={"note": "random"}), 0.55, 1.0, 1.0),
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
            for s, length in [(rng.uniform(0.5, 1.4), rng.uniform(1.1, 3.0))]
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
                phases_s={**PHASES_S, "measure": sum(r.latency_s or 0 for r in records) - 8},
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
                "ended_at": broken_trial.started_at,
            }
        )
    )
    return made, trials


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
