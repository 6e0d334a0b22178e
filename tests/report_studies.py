"""Studies made up for the tests of the report: every number is chosen here, nothing is measured."""

from __future__ import annotations

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


FAST = speculative("fast", length=3)
SLOW = speculative("slow", length=7)
UNEVEN = {"p0": 50.0, "p1": 100.0, "p2": 200.0}
"""tok/s by prompt; their geometric mean is 100."""


def scaled(factor: float) -> dict[str, float]:
    return {prompt: speed * factor for prompt, speed in UNEVEN.items()}


def bracketed(
    arm: Arm, speeds: Mapping[str, float], *, acceptance: AcceptanceCounts | None = None, **changes: Any
) -> tuple[Study, list[Trial]]:
    """Baseline, arm, baseline."""
    of = study(arm, **changes)
    return of, [
        trial(of, BASELINE, 1, speeds=UNEVEN),
        trial(of, arm, 2, speeds=speeds, acceptance=acceptance),
        trial(of, BASELINE, 3, speeds=UNEVEN, repetition=1),
    ]
