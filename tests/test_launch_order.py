"""The order of planned launches: what stands around what, and what a drift of the machine does to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from report_studies import FAST, SLOW, UNEVEN, load_result, request, speculative, study, trial

from spectune.analysis.summary import summarize
from spectune.domain.arm import Arm
from spectune.domain.study import LaunchOrder, Study
from spectune.domain.trial import Trial
from spectune.errors import StudyFileError
from spectune.runner.order import plan_trials
from spectune.runner.plan import resolve_study
from spectune.runner.schedule import remaining
from spectune.runner.search import SearchEnd, next_launch
from spectune.study_file.load import load_study_file

TRUE = {"baseline": 1.0, "fast": 1.3, "slow": 0.8, "third": 1.1}
THIRD = speculative("third", length=5)
DRIFT = -0.013
"""Of the log speed, per launch."""


def words(order: LaunchOrder, *, repetitions: int, names: str = "Bxy", **more: bool) -> str:
    plan = plan_trials(names, repetitions=repetitions, baseline_every=2, order=order, **more)
    return " ".join(f"{p.arm_id}{p.repetition}" for p in plan)


def planned(order: LaunchOrder, *, repetitions: int = 2, arms: Sequence[Arm] = (FAST, SLOW, THIRD)) -> Study:
    of = study(*arms, order=order)
    ids = {arm.arm_id: arm.launch_id for arm in of.arms}
    plan = plan_trials(list(ids), repetitions=repetitions, baseline_every=2, order=order, launch_ids=ids)
    return of.model_copy(update={"plan": tuple(plan)})


def drifting(of: Study) -> list[Trial]:
    """Every launch of the plan, each slower than the one before by the same share."""
    return [
        trial(
            of,
            arm := of.arm(p.arm_id),
            number,
            speeds={q: s * TRUE[arm.name] * math.exp(DRIFT * number) for q, s in UNEVEN.items()},
            repetition=p.repetition,
        )
        for number, p in enumerate(of.plan, start=1)
    ]


def errors_of(of: Study, trials: Sequence[Trial]) -> dict[str, float]:
    """Of the log speedup."""
    return {
        arm.name: math.log(arm.first.speedup.value / TRUE[arm.name])
        for arm in summarize(of, trials).arms
        if arm.first is not None and arm.first.speedup is not None
    }


def test_each_pair_of_repetitions_stands_between_two_baselines() -> None:
    assert words("abba", repetitions=2) == "B0 x0 x1 B1 B2 y0 y1 B3"
    assert words("abba", repetitions=4, names="Bx") == "B0 x0 x1 B1 B2 x2 x3 B3"


def test_an_odd_last_repetition_is_baseline_and_arm() -> None:
    assert words("abba", repetitions=1) == "B0 x0 B1 y0"
    assert words("abba", repetitions=3) == "B0 x0 x1 B1 B2 y0 y1 B3 B4 x2 B5 y2"


def test_the_noise_floors_second_launch_opens_the_first_block() -> None:
    assert words("abba", repetitions=2, names="Bx", noise_floor=True) == "B0 B1 x0 x1 B2"


def test_interleaved_is_as_it_was() -> None:
    assert words("interleaved", repetitions=2) == "B0 x0 y0 B1 y1 x1 B2"
    assert words("interleaved", repetitions=1, noise_floor=True) == "B0 B1 x0 y0 B2"


def test_arms_of_one_launch_stand_together_and_count_as_one() -> None:
    def order(kind: LaunchOrder) -> str:
        launches = {"x": "one", "y": "y", "z": "one", "w": "w"}
        plan = plan_trials("Bxyzw", repetitions=2, baseline_every=2, order=kind, launch_ids=launches)
        return " ".join(f"{p.arm_id}{p.repetition}" for p in plan)

    assert order("interleaved") == "B0 x0 z0 y0 B1 w0 B2 w1 y1 B3 z1 x1 B4"
    assert order("abba") == "B0 x0 z0 z1 x1 B1 B2 y0 y1 B3 B4 w0 w1 B5"


def test_a_linear_drift_cancels_for_arms_that_share_their_launches() -> None:
    """Each trial a step later than the one before, on the same server or not."""
    other = FAST.model_copy(update={"name": "third", "request": {"speculative.n_max": 2}})
    of = planned("abba", arms=(FAST, SLOW, other))
    starts: dict[tuple[str, int], int] = {}
    trials = []
    for made in drifting(of):
        first = starts.setdefault((made.arm.launch_id, made.repetition), made.number)
        trials.append(made.model_copy(update={"launch": made.number if made.arm.is_baseline else first}))
    assert [t.launch_number for t in trials] == [1, 2, 2, 4, 4, 6, 7, 8, 9, 10]
    assert errors_of(of, trials) == pytest.approx({"fast": 0, "slow": 0, "third": 0}, abs=1e-12)


def test_a_linear_drift_cancels_in_abba_and_not_in_every_other_order() -> None:
    of = planned("abba")
    assert errors_of(of, drifting(of)) == pytest.approx({"fast": 0, "slow": 0, "third": 0}, abs=1e-12)
    # Three arms, baselines around each two: `fast` runs one launch after a baseline and two before the next, then
    # between two: (-0.5 + 0) / 2 launches of drift are left.
    of = planned("interleaved")
    assert errors_of(of, drifting(of))["fast"] == pytest.approx(-0.25 * DRIFT, abs=1e-12)


@pytest.mark.parametrize("done", [1, 2, 3, 4, 7])
def test_a_study_stopped_in_a_block_goes_on_with_it(done: int) -> None:
    of = planned("abba")
    trials = drifting(of)[:done]
    assert tuple(remaining(of, trials)) == of.plan[done:]


@pytest.mark.parametrize("search", ["predict", "one-factor", "grid"])
def test_an_arm_whose_answers_are_empty_is_not_launched_for_ever(search: str) -> None:
    of = study(FAST, SLOW, num_prompts=2, search=search, noise_floor=False)
    trials: list[Trial] = []
    for number in range(1, 12):
        answer = next_launch(of, trials)
        if isinstance(answer, SearchEnd):
            break
        arm = of.arm(answer.planned.arm_id)
        empty = [request(p, 50.0, output_tokens=0) for p in of.workload.prompts]
        loads = None if arm.is_baseline else (load_result(empty),)
        speeds = 50.0 if arm.is_baseline else None
        repetition = answer.planned.repetition
        trials.append(trial(of, arm, number, speeds=speeds, loads=loads, repetition=repetition))
    names = [t.arm.name for t in trials if not t.arm.is_baseline]
    assert sorted(names) == ["fast", "slow"]


@pytest.mark.parametrize("search", ["predict", "one-factor", "grid"])
def test_an_arm_of_imposed_acceptance_is_launched_once(search: str) -> None:
    imposed = speculative("imposed", length=5, synthetic_acceptance_length=2.0)
    of = study(FAST, imposed, num_prompts=2, search=search, noise_floor=False)
    trials: list[Trial] = []
    for number in range(1, 12):
        answer = next_launch(of, trials)
        if isinstance(answer, SearchEnd):
            break
        arm, repetition = of.arm(answer.planned.arm_id), answer.planned.repetition
        trials.append(trial(of, arm, number, speeds=50.0 + number, repetition=repetition))
    names = [t.arm.name for t in trials if not t.arm.is_baseline]
    assert sorted(names) == ["fast", "imposed"]


def test_a_search_of_arrivals_alone_has_nothing_to_search_for(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    text = "question: q\nengine: fake\ntarget: m\ndrafter: d\nfactors: {method: [eagle3], num_draft_tokens: [1, 2]}\n"
    path.write_text(f"{text}workload: {{request_rate: [2]}}\n", encoding="utf-8")
    spec, _, document = load_study_file(path)
    with pytest.raises(StudyFileError, match=r"line 6: workload.request_rate: .* `search: all`"):
        resolve_study(spec, document, path=path, machine=study().machine)
    path.write_text(f"{text}workload: {{request_rate: [2], concurrency: [1]}}\n", encoding="utf-8")
    spec, _, document = load_study_file(path)
    assert resolve_study(spec, document, path=path, machine=study().machine).search == "predict"


def test_a_search_has_no_such_order(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    text = (
        "question: q\nengine: fake\ntarget: m\ndrafter: d\norder: abba\n"
        "factors: {method: [eagle3], num_draft_tokens: [1, 2]}\n"
    )
    path.write_text(text, encoding="utf-8")
    spec, _, document = load_study_file(path)
    with pytest.raises(StudyFileError, match="abba needs `search: all`"):
        resolve_study(spec, document, path=path, machine=study().machine)
    path.write_text(text + "search: all\nrepetitions: 2\nnoise_floor: false\n", encoding="utf-8")
    spec, _, document = load_study_file(path)
    made = resolve_study(spec, document, path=path, machine=study().machine)
    names = [made.arm(p.arm_id).name for p in made.plan]
    assert names == [
        "baseline",
        "eagle3-k1",
        "eagle3-k1",
        "baseline",
        "baseline",
        "eagle3-k2",
        "eagle3-k2",
        "baseline",
    ]
    assert made.order == "abba"
    assert Study.model_validate({**made.model_dump(), "order": "interleaved"}).order == "interleaved"
