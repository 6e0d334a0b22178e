"""Studies on disk for the exchange tests, drawn at a machine's noise. Nothing in them is measured."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report_studies import BASELINE, load_result, request, speculative, study, trial

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.exchange.whole_study import LoadedStudy
from spectune.store.study_dir import StudyDir, TrialDir

LAUNCH_SD, PROMPT_SD = 0.11, 0.12
"""Of log speed, as on the demo's machine (tests/test_error_rates.py)."""

K3 = speculative("eagle3-k3", length=3)
K5 = speculative("eagle3-k5", length=5)


def drawn(
    rng: random.Random,
    *,
    arms: Sequence[Arm] = (K3, K5),
    launches: int = 3,
    prompts: int = 12,
    speed: float = 1.0,
    gain: float = 1.0,
    acceptance: float = 1.0,
    launch_sd: float = LAUNCH_SD,
    prompt_sd: float = PROMPT_SD,
    shared: bool = False,
    **changes: Any,
) -> LoadedStudy:
    """Baseline, arms, baseline, ...: true speeds times ``speed``, accepted tokens times ``acceptance``.

    ``gain``: by what the arms are faster than plain decoding.
    ``shared``: the arms between two baselines are measured on one server.
    """
    of = study(*arms, num_prompts=prompts, repetitions=launches, **changes)
    base = {p.prompt_id: 60 + 3 * i for i, p in enumerate(of.workload.prompts)}
    order = [arm for _ in range(launches) for arm in (BASELINE, *arms)] + [BASELINE]
    seen: dict[str, int] = {}
    trials = []
    shift, launch = 0.0, 0
    for number, arm in enumerate(order, start=1):
        if not shared or arm is BASELINE or order[number - 2] is BASELINE:
            shift, launch = rng.gauss(0, launch_sd), number
        records = []
        for p in of.workload.prompts:
            tok_per_s = base[p.prompt_id] * speed * math.exp(shift + rng.gauss(0, prompt_sd))
            tok_per_s *= 1.0 if arm is BASELINE else gain
            kept = None if arm is BASELINE else counts_of(rng, arm, acceptance)
            records.append(request(p, tok_per_s, acceptance=kept))
        repetition = seen.get(arm.arm_id, 0)
        seen[arm.arm_id] = repetition + 1
        trials.append(
            trial(of, arm, number, loads=(load_result(records),), repetition=repetition, launch=launch)
        )
    return LoadedStudy("drawn", of, tuple(trials))


def counts_of(rng: random.Random, arm: Arm, acceptance: float) -> AcceptanceCounts:
    """About 50 verify steps, each position kept with a chance of 0.7 given the one before."""
    width, drafts = arm.knobs.num_draft_tokens or 1, 50
    chance = 0.7
    kept = [0] * width
    for _ in range(drafts):
        for i in range(width):
            if rng.random() >= chance:
                break
            if rng.random() < acceptance:
                kept[i] += 1
    kept = [min(kept[: i + 1]) for i in range(width)]
    return AcceptanceCounts(
        num_drafts=drafts,
        num_draft_tokens=drafts * width,
        num_accepted_tokens=sum(kept),
        accepted_per_position=tuple(kept),
    )


def write_study(path: Path, of: Study, trials: Sequence[Trial]) -> Path:
    directory = StudyDir.create(path, study=of, source="question: drawn for a test\n")
    for one in trials:
        folder = TrialDir(directory.trials_path / one.trial_id)
        folder.path.mkdir()
        folder.replace_requests([load.requests for load in one.loads])
        folder.finish(one)
    return path


def written(path: Path, loaded: LoadedStudy) -> str:
    return str(write_study(path, loaded.study, loaded.trials))
