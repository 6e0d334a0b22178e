"""The noise floor first, and launches beyond the plan until speedups are known well enough."""

from __future__ import annotations

import math
import random
import re

import pytest
from report_studies import BASELINE, FAST, SLOW, study, trial

from spectune.analysis.noise import describe_equal_launches
from spectune.analysis.summary import summarize
from spectune.analysis.words import percent
from spectune.domain.findings import Finding
from spectune.domain.interval import Interval
from spectune.domain.study import Budget, Study
from spectune.domain.trial import Trial
from spectune.runner.plan import plan_trials
from spectune.runner.precision import MAX_LAUNCHES, launch_for_precision
from spectune.statistics.intervals import Comparison
from spectune.statistics.sample_size import MoreNeeded, more_for_precision

SPEED = {"baseline": 100.0, "fast": 120.0, "slow": 80.0}


def simulate(of: Study, *, launch_sd: float, seed: int = 3) -> list[Trial]:
    """The plan, then what precision asks for; each launch off by ``launch_sd``, each prompt by 1 %."""
    rng = random.Random(seed)
    trials: list[Trial] = []

    def launch(arm_id: str, repetition: int) -> None:
        arm = of.arm(arm_id)
        shift = rng.gauss(0, launch_sd)
        speeds = {
            p.prompt_id: SPEED[arm.name] * math.exp(shift + rng.gauss(0, 0.01)) for p in of.workload.prompts
        }
        trials.append(trial(of, arm, len(trials) + 1, speeds=speeds, repetition=repetition))

    for planned in of.plan:
        launch(planned.arm_id, planned.repetition)
    while (asked := launch_for_precision(of, trials)) is not None:
        launch(asked.arm_id, asked.repetition)
    return trials


def planned(*arms: object, precision: float | None, budget: int | None = None) -> Study:
    made = study(FAST, SLOW, num_prompts=12, precision=precision, noise_floor=True)
    ids = [arm.arm_id for arm in made.arms]
    plan = tuple(plan_trials(ids, repetitions=1, baseline_every=2, noise_floor=True))
    return made.model_copy(update={"plan": plan, "budget": Budget(max_trials=budget)})


def half_widths(of: Study, trials: list[Trial]) -> list[float]:
    found = []
    for arm in summarize(of, trials).arms:
        speedup = arm.first.speedup if arm.first else None
        if speedup is not None:
            assert speedup.low is not None
            assert speedup.high is not None
            found.append(math.sqrt(speedup.high / speedup.low) - 1)
    return found


class TestPrecision:
    def test_launches_go_on_until_every_speedup_is_known_so_well(self) -> None:
        of = planned(precision=0.05)
        trials = simulate(of, launch_sd=0.02)
        assert len(trials) > len(of.plan)
        assert all(half <= 0.05 for half in half_widths(of, trials))

    def test_every_further_launch_stands_between_two_of_the_baseline(self) -> None:
        of = planned(precision=0.05)
        trials = simulate(of, launch_sd=0.02)
        names = [t.arm.name for t in trials]
        extra = names[len(of.plan) :]
        assert {"baseline"} < set(extra)
        for index, name in enumerate(names):
            if index >= len(of.plan) and name != "baseline":
                assert names[index - 1] == "baseline"
        assert len({(t.arm_id, t.repetition) for t in trials}) == len(trials), (
            "no launch is repeated by number"
        )

    def test_without_a_wish_nothing_is_added(self) -> None:
        of = planned(precision=None)
        assert len(simulate(of, launch_sd=0.02)) == len(of.plan)

    def test_a_budget_ends_it(self) -> None:
        assert len(simulate(planned(precision=0.001, budget=9), launch_sd=0.02)) == 9

    def test_noise_that_does_not_average_out_ends_it(self) -> None:
        of = planned(precision=0.0001)
        trials = simulate(of, launch_sd=0.05)
        assert sum(t.arm_id == FAST.arm_id for t in trials) == MAX_LAUNCHES

    def test_a_search_cares_for_its_winner_alone(self) -> None:
        of = planned(precision=0.01)
        trials = simulate(planned(precision=None), launch_sd=0.03)
        asked = launch_for_precision(of, trials, among=[SLOW.arm_id])
        assert asked is not None
        assert asked.arm_id in {SLOW.arm_id, BASELINE.arm_id}
        assert "slow" in (asked.reason or "")


class TestWhatIsSaid:
    def findings(self, of: Study, trials: list[Trial]) -> dict[str, Finding]:
        found = summarize(of, trials).findings
        return {f.subject: f for f in found if f.code == "precision-not-reached"}

    def test_a_precision_that_the_budget_cut_off_says_what_was_reached_and_what_it_takes(self) -> None:
        of = planned(precision=0.02, budget=9)
        trials = simulate(of, launch_sd=0.02)
        found = self.findings(of, trials)
        reached = dict(zip(("fast", "slow"), half_widths(of, trials), strict=True))
        assert set(found) == {name for name, half in reached.items() if half > 0.02} == {"fast", "slow"}
        for name, half in reached.items():
            launches = sum(t.arm.name == name for t in trials)
            message = found[name].message
            assert f"known within {percent(half)} after {launches} launches, wanted 2 %" in message
            assert re.search(r"about \d+ more launch(es)? of it", message)
        assert "max_trials" in (found["fast"].remedy or "")

    def test_nothing_is_said_where_it_was_reached_or_not_asked_for(self) -> None:
        for precision in (0.05, None):
            of = planned(precision=precision)
            assert self.findings(of, simulate(of, launch_sd=0.005)) == {}

    def test_how_much_more_it_takes_is_what_can_be_worked_out_by_hand(self) -> None:
        """Normal quantile 1.95996, wanted ln 1.02 = 0.0198026. Variance 0.0004 from 4 launches must fall to
        0.0198026^2 / 1.95996^2 = 0.00010208: 0.0016 / 0.00010208 = 15.7, so 16 launches, 12 more. Of 12 prompts:
        0.00035 * 12 / (0.00010208 - 0.00005) = 80.6, so 81, 69 more; launches alone are 0.00005."""
        speedup = Interval(value=1.1, low=1.058, high=1.144, n=12, unit="x baseline")
        known = Comparison(
            arm_id="a",
            speedup=speedup,
            verdict="FASTER",
            num_prompts=12,
            num_trials=4,
            num_baseline_trials=5,
            trial_noise_frac=0.01,
            degrees=1e7,
            prompt_log_var=0.00035,
            launch_log_var=0.00005,
        )
        assert more_for_precision(known, precision=0.02) == MoreNeeded(more_prompts=69, more_launches=12)
        noisier = known.model_copy(update={"launch_log_var": 0.0002})
        assert more_for_precision(noisier, precision=0.02).more_prompts is None

    def test_a_search_is_measured_by_its_winner_alone(self) -> None:
        of = planned(precision=0.001, budget=9)
        trials = simulate(of, launch_sd=0.02)
        assert set(self.findings(of.model_copy(update={"search": "predict"}), trials)) == {"fast"}


class TestNoiseFloor:
    def test_the_baseline_is_launched_twice_at_first(self) -> None:
        plan = list(plan_trials(["b", "x", "y"], repetitions=2, baseline_every=2, noise_floor=True))
        assert [(p.arm_id, p.repetition) for p in plan][:3] == [("b", 0), ("b", 1), ("x", 0)]
        assert len({(p.arm_id, p.repetition) for p in plan}) == len(plan)

    def test_two_equal_launches_are_told_by_what_they_differ_by(self) -> None:
        """110 against 100 tok/s for each of four prompts: 10 %, and nothing is promised of arms."""
        of = study(FAST, num_prompts=4)
        twice = [trial(of, BASELINE, 1, speeds=100.0), trial(of, BASELINE, 2, speeds=110.0, repetition=1)]
        told = "two equal launches of plain decoding differ by 10 % over all prompts, one prompt typically by 10 %"
        assert describe_equal_launches(of, twice) == told
        assert describe_equal_launches(of, twice[:1]) == "noise floor unknown"
        assert summarize(of, twice).noise is None

    def test_it_is_stated_as_what_paired_speedups_can_tell_apart(self) -> None:
        for level in (0.95, 0.99):
            of = planned(precision=None).model_copy(update={"level": level})
            trials = simulate(of, launch_sd=0.02)
            found = summarize(of, trials).noise
            assert found is not None
            assert f"{100 * found.detectable_frac:.2g} % apart with 12 prompts" in found.sentence

    def test_launches_minutes_apart_that_differ_by_a_factor_leave_paired_speedups_alone(self) -> None:
        """The machine halves its speed on the way; the arm beside it always gains 20 %."""
        of = study(FAST, num_prompts=4, repetitions=4)
        trials = []
        for i in range(9):
            arm, gain = (FAST, 1.2) if i % 2 else (BASELINE, 1.0)
            speed = 100.0 * gain * math.exp(-0.08 * i)
            trials.append(trial(of, arm, i + 1, speeds=speed, repetition=i // 2))
        noise = summarize(of, trials).noise
        assert noise is not None and noise.detectable_frac < 0.2

    def test_one_launch_of_each_arm_has_an_assumed_noise(self) -> None:
        of = study(FAST, num_prompts=4)
        once = [trial(of, BASELINE, 1, speeds=100.0), trial(of, FAST, 2, speeds=120.0)]
        noise = summarize(of, once).noise
        assert noise is not None and noise.launch_frac is None
        assert "taken to differ by 15 %, since no arm was launched twice" in noise.sentence

    @pytest.mark.parametrize("launch_sd", [0.3, 1.0])
    def test_no_percentage_is_stated_beyond_a_factor_of_two(self, launch_sd: float) -> None:
        of = planned(precision=None)
        noise = summarize(of, simulate(of, launch_sd=launch_sd)).noise
        assert noise is not None and noise.detectable_frac > 1
        assert noise.sentence.startswith("this study has too much noise to tell a speedup from none")
