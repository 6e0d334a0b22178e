"""The gate: noise fails it as seldom as stated, true falls are found, what cannot be compared is refused."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path

import pytest
from exchange_studies import K3, K5, drawn, written
from report_studies import failed, machine, speculative

from spectune.cli.main import main
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.workload import Sampling
from spectune.errors import BadInput
from spectune.exchange.comparison.gate import gate
from spectune.exchange.comparison.pairing import Basis
from spectune.exchange.whole_study import LoadedStudy
from spectune.statistics.between import Change, acceptance_changes, fallen, speed_changes, together
from spectune.statistics.multiple import holm

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import gate_days as day_to_day

PAIRS = 500
TWO_ERRORS = 2 * math.sqrt(0.05 * 0.95 / PAIRS)


def failures(
    pairs: int,
    *,
    seed: int,
    launches: int,
    max_slowdown: float,
    prompts: int = 6,
    basis: Basis | None = "tok/s",
    **changes,
) -> int:
    rng = random.Random(seed)
    failed = 0
    for _ in range(pairs):
        old = drawn(rng, launches=launches, prompts=prompts)
        new = drawn(rng, launches=launches, prompts=prompts, **changes)
        failed += not gate(new, old, max_slowdown=max_slowdown, basis=basis).passed
    return failed


@pytest.mark.timeout(900)
@pytest.mark.parametrize("max_slowdown", [0.0, 0.03])
def test_500_pairs_of_equal_studies_fail_as_seldom_as_stated(max_slowdown: float) -> None:
    """Three arms, speed and acceptance, at the demo machine's noise; 0 is the hardest limit."""
    found = failures(PAIRS, seed=1, launches=3, max_slowdown=max_slowdown)
    assert found / PAIRS <= 0.05 + TWO_ERRORS


@pytest.mark.timeout(900)
def test_equal_studies_on_other_machines_fail_as_seldom_as_stated() -> None:
    other = {"machine": machine(cpu="another processor")}
    found = failures(PAIRS, seed=2, launches=3, max_slowdown=0.0, basis=None, **other)
    assert found / PAIRS <= 0.05 + TWO_ERRORS


@pytest.mark.timeout(900)
def test_a_machine_that_is_another_one_each_day_fails_the_gate_as_seldom() -> None:
    """Quiet launches, a level that differs by 5 % from day to day: 60 pairs, where tok/s fail one in five."""
    found = {basis: day_to_day.failures(60, day_sd=0.05, basis=basis, seed=15) for basis in (None, "tok/s")}
    assert found[None] / 60 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 60)
    assert found["tok/s"] / 60 >= 0.2


def test_plain_decoding_that_is_slower_by_itself_is_told_and_not_tested() -> None:
    """Four fifths of everything leave speedups as they were; four fifths of the arms alone do not."""
    rng = random.Random(16)
    quiet = {"launch_sd": 0.005, "prompt_sd": 0.01}
    old = drawn(rng, **quiet)
    all_slower = gate(drawn(rng, speed=0.8, **quiet), old, max_slowdown=0.03)
    assert all_slower.passed
    assert all_slower.plain_decoding[0].ratio == pytest.approx(0.8, abs=0.02)
    assert {c.figure for c in all_slower.checks} == {"speedup", "acceptance length"}
    arms_slower = gate(drawn(rng, gain=0.8, **quiet), old, max_slowdown=0.03)
    assert not arms_slower.passed and arms_slower.line.startswith("FAILED: speedup of ")


def test_without_plain_decoding_in_one_of_them_tok_per_s_are_tested() -> None:
    rng = random.Random(17)
    old, made = drawn(rng), drawn(rng)
    arms = tuple(t for t in made.trials if not t.arm.is_baseline)
    result = gate(LoadedStudy("new", made.study, arms), old, max_slowdown=0.5)
    assert "tok/s" in {c.figure for c in result.checks} and result.plain_decoding == ()
    with pytest.raises(BadInput, match="plain decoding was not measured in both"):
        gate(LoadedStudy("new", made.study, arms), old, max_slowdown=0.5, basis="speedup")


def test_tok_per_s_of_two_machines_are_refused() -> None:
    rng = random.Random(18)
    other = drawn(rng, machine=machine(cpu="another processor"))
    with pytest.raises(BadInput, match="--allow machine"):
        gate(other, drawn(rng), max_slowdown=0.03, basis="tok/s")
    assert gate(other, drawn(rng), max_slowdown=0.03, basis="tok/s", allowed=("machine",)).checks


def test_the_rate_is_not_bought_with_blindness() -> None:
    """Without correction for several figures, and at a limit of 0, the rate of one test is near 5 %."""
    rng = random.Random(3)
    hits = 0
    for _ in range(2000):
        sides = [[{"p": math.exp(rng.gauss(0, 0.11))} for _ in range(4)] for _ in range(2)]
        change = speed_changes({"arm": (sides[0], sides[1])})["arm"]
        p = change.p_below(0.0)
        hits += p is not None and p <= 0.05
    assert hits / 2000 == pytest.approx(0.05, abs=3 * 0.0049)


def test_a_slowdown_of_a_tenth_is_found_with_enough_launches() -> None:
    """40 launches of each arm: (1.65 + 0.84) * 0.115 * sqrt(2 / 40) = 6.4 % for one arm, less for all together."""
    found = failures(20, seed=4, launches=40, max_slowdown=0.03, prompts=4, speed=0.9)
    assert found >= 18


def test_a_slowdown_within_the_limit_is_let_through() -> None:
    found = failures(40, seed=5, launches=20, max_slowdown=0.05, prompts=4, speed=0.97)
    assert found <= 40 * 0.05 + 2 * math.sqrt(40 * 0.05)


def test_on_a_quiet_machine_three_launches_show_it() -> None:
    rng = random.Random(6)
    quiet = {"launch_sd": 0.005, "prompt_sd": 0.01}
    old, new = drawn(rng, **quiet), drawn(rng, speed=0.9, **quiet)
    result = gate(new, old, max_slowdown=0.03, basis="tok/s")
    assert not result.passed
    assert result.line.startswith("FAILED: tok/s of ")
    assert "\n" not in result.line
    held = gate(drawn(rng, **quiet), old, max_slowdown=0.03, figures=("speed",), basis="tok/s")
    assert (held.passed, held.outcome) == (True, "held")


def test_acceptance_that_fell_is_found_without_any_repetition() -> None:
    rng = random.Random(7)
    old = drawn(rng, launches=1, prompts=48)
    new = drawn(rng, launches=1, prompts=48, acceptance=0.7)
    result = gate(new, old, max_slowdown=0.03)
    assert not result.passed
    assert "acceptance length of" in result.line


def test_noise_that_nobody_measured_passes_with_a_word() -> None:
    """One launch of everything: a speed that is a third lower may be the launch."""
    rng = random.Random(8)
    pair = []
    for slower in (1.0, 0.7):
        made = drawn(rng, launches=1, speed=slower, gain=slower)
        pair.append(LoadedStudy("one", made.study, made.trials[:3]))
    for basis in ("speedup", "tok/s"):
        result = gate(pair[1], pair[0], max_slowdown=0.03, figures=("speed",), basis=basis)
        assert (result.passed, result.outcome) == (True, "cannot tell")
        assert "cannot tell" in result.line and "launched twice" in result.line


def test_an_arm_that_fails_now_fails_the_gate() -> None:
    rng = random.Random(9)
    old, made = drawn(rng), drawn(rng)
    trials = [t for t in made.trials if t.arm_id != K3.arm_id]
    broken = [failed(made.study, K3, 90)]
    result = gate(LoadedStudy("new", made.study, (*trials, *broken)), old, max_slowdown=0.5)
    assert not result.passed
    assert "eagle3-k3 was measured in the baseline study and fails now" in result.line


def test_arms_that_are_gone_are_named() -> None:
    rng = random.Random(10)
    result = gate(drawn(rng, arms=(K3,)), drawn(rng, arms=(K3, K5)), max_slowdown=0.5)
    assert result.arms_missing == ("eagle3-k5",)


def test_an_arm_that_was_measured_before_and_is_not_now_may_hide_a_fall() -> None:
    """Interrupted before its launch, or stopped early because it was clearly slower."""
    rng = random.Random(13)
    quiet = {"launch_sd": 0.002, "prompt_sd": 0.002}
    old, made = drawn(rng, **quiet), drawn(rng, **quiet)
    assert gate(made, old, max_slowdown=0.5).outcome == "held"
    rest = tuple(t for t in made.trials if t.arm_id != K3.arm_id)
    pruned = tuple(
        t.model_copy(update={"status": "pruned"}) if t.arm_id == K3.arm_id else t for t in made.trials
    )
    for trials in (rest, pruned):
        result = gate(LoadedStudy("new", made.study, trials), old, max_slowdown=0.5)
        assert (result.passed, result.outcome) == (True, "cannot tell")
        assert result.not_compared == (
            "speedup of eagle3-k3 at c=1",
            "acceptance length of eagle3-k3 at c=1",
        )
        assert "cannot tell" in result.line and "speedup of eagle3-k3 at c=1" in result.line
    assert gate(LoadedStudy("new", made.study, rest), old, max_slowdown=0.5).arms_missing == ()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sampling": Sampling(max_tokens=512)}, "sampling differs"),
        ({"arms": (speculative("k3", target="another"),)}, "target differs"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_difference(changes, word: str) -> None:
    rng = random.Random(11)
    with pytest.raises(BadInput, match=word):
        gate(drawn(rng, **changes), drawn(rng), max_slowdown=0.03)


def test_holm_by_hand() -> None:
    # Three tests: 0.01 * 3, max(0.03, 0.02 * 2), max(0.04, 0.2).
    assert holm([0.2, 0.01, 0.02]) == pytest.approx([0.2, 0.03, 0.04])
    assert holm([]) == []


def test_a_change_by_hand() -> None:
    """Two launches on each side at log 0, 0.2 and -0.1, 0.1: difference -0.1, variance 0.02 of 2 degrees."""
    old = [{"p": 1.0}, {"p": math.exp(0.2)}]
    new = [{"p": math.exp(-0.1)}, {"p": math.exp(0.1)}]
    change = speed_changes({"a": (old, new)})["a"]
    assert change.log_ratio == pytest.approx(-0.1)
    assert change.error == pytest.approx(math.sqrt(0.02))
    assert change.degrees == 2


def test_equal_acceptance_has_not_fallen_by_a_rounding() -> None:
    """Greedy launches repeat each other; the mean of 3 equal logarithms and that of 7 differ in the last digit."""
    rng = random.Random(2)
    for _ in range(100):
        launch = {}
        for i in range(8):
            drafts = rng.randint(20, 60)
            kept = rng.randint(0, 3 * drafts)
            launch[f"p{i}"] = AcceptanceCounts(
                num_drafts=drafts, num_draft_tokens=3 * drafts, num_accepted_tokens=kept
            )
        for old, new in ((3, 7), (7, 3), (5, 11), (3, 11), (2, 2)):
            (change,) = acceptance_changes({"arm": ([launch] * old, [launch] * new)}).values()
            assert change.log_ratio == pytest.approx(0, abs=1e-12)
            (p_fell,) = fallen([change], max_fall=0.0, alpha=0.05)
            assert p_fell is not None and p_fell > 0.3
            (p_fell,) = fallen([change], max_fall=0.03, alpha=0.05)
            assert p_fell == pytest.approx(1)


def test_arms_that_shared_their_launches_tell_of_noise_once() -> None:
    """Three arms on the same two servers have the degrees of one: two launches on each side."""
    launches = [{"p": 1.0}, {"p": 1.2}]
    arms = dict.fromkeys("abc", (launches, launches))
    apart = speed_changes(arms)["a"]
    shared = speed_changes(arms, numbers=dict.fromkeys("abc", ((1, 2), (1, 2))))["a"]
    assert (apart.degrees, shared.degrees) == (pytest.approx(6), pytest.approx(2))
    assert apart.error == pytest.approx(shared.error)


@pytest.mark.timeout(900)
def test_studies_whose_arms_share_servers_fail_as_seldom_as_stated() -> None:
    """Every arm of a round on one server: its shift is in all of them, and no average takes it out."""
    rng = random.Random(14)
    failed = sum(
        not gate(
            drawn(rng, prompts=4, shared=True),
            drawn(rng, prompts=4, shared=True),
            max_slowdown=0.0,
            basis="tok/s",
        ).passed
        for _ in range(PAIRS)
    )
    assert failed / PAIRS <= 0.05 + TWO_ERRORS


def test_all_arms_together_see_what_no_single_one_shows() -> None:
    changes = [Change(f"arm{i}", -0.06, 0.035, 30.0, 5, 5, 5) for i in range(8)]
    whole = together("all", changes, independent=True)
    assert whole is not None
    values = fallen([*changes, whole], max_fall=0.02, alpha=0.05)
    assert all(p is not None and p > 0.05 for p in values[:-1])
    assert values[-1] is not None and values[-1] <= 0.05
    apart = together("all", changes, independent=False)
    assert apart is not None and apart.error == pytest.approx(0.035)


class TestCommand:
    def test_exit_codes_and_one_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rng = random.Random(12)
        quiet = {"launch_sd": 0.005, "prompt_sd": 0.01}
        old = written(tmp_path / "old", drawn(rng, **quiet))
        same = written(tmp_path / "same", drawn(rng, **quiet))
        slow = written(tmp_path / "slow", drawn(rng, gain=0.8, **quiet))
        assert main(["gate", same, "--against", old, "--max-slowdown", "3%"]) == 0
        assert capsys.readouterr().out.startswith("passed")
        assert main(["gate", slow, "--against", old, "--max-slowdown", "0.03"]) == 1
        out = capsys.readouterr().out
        assert out.startswith("FAILED") and out.count("\n") == 1
        assert main(["gate", slow, "--against", old, "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert document["passed"] is False and document["checks"][0]["figure"]

    def test_wrong_values_are_bad_input(self, tmp_path: Path) -> None:
        rng = random.Random(13)
        old = written(tmp_path / "old", drawn(rng))
        with pytest.raises(SystemExit) as stop:
            main(["gate", old, "--against", old, "--max-slowdown", "110%"])
        assert stop.value.code == 2
        assert main(["gate", old, "--against", old]) == 2
        assert main(["gate", old, "--against", str(tmp_path)]) == 2
