"""The forecast: held-out points, public anchors, coverage by simulation, and one of four answers."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import curve_fit

from spectune.cli.drafter.data_args import add_data_commands
from spectune.cli.drafter.forecast import forecast_command
from spectune.drafter.forecast.curve import make_forecast, predicted_lengths
from spectune.drafter.forecast.forms import RUN_TO_RUN_FRAC, DataPoint, fit_curve
from spectune.drafter.forecast.records import CostFacts, ForecastReport, ForecastRequest, SpeedFacts
from spectune.errors import BadInput

MEASURED = (DataPoint(45_000, 1.620), DataPoint(139_000, 1.777), DataPoint(426_000, 1.857))
"""Answer tokens and acceptance length at K=3 of three drafts for SmolLM2-135M, one run each (our own prototype)."""


def along(curve: Callable[[float], float], *sizes: float) -> tuple[DataPoint, ...]:
    return tuple(DataPoint(size, curve(size)) for size in sizes)


def report(points, **more) -> ForecastReport:
    return make_forecast(ForecastRequest(tuple(points), **more))


def forecast_cli(capsys, *arguments: str) -> dict:
    parser = argparse.ArgumentParser()
    add_data_commands(parser.add_subparsers(dest="drafter_command"))
    assert forecast_command(parser.parse_args(["forecast", *arguments, "--json"])) == 0
    return json.loads(capsys.readouterr().out)


# Fits


def test_a_fit_is_that_of_scipy() -> None:
    points = (DataPoint(1_000, 1.40), DataPoint(3_000, 1.55), DataPoint(9_000, 1.71), DataPoint(27_000, 1.88))
    n, y = np.array([p.num_samples for p in points]), np.array([p.acceptance_length - 1 for p in points])
    sd = np.array([p.total_sd for p in points])
    fits = {fit.form.name: fit for fit in fit_curve(points, depth=None, num_draws=5).fits}
    (a, b), _ = curve_fit(lambda n, a, b: a * n**b, n, y, p0=(0.05, 0.2), sigma=sd)
    assert fits["power"].length(270_000) == pytest.approx(1 + a * 270_000**b, rel=2e-3)
    (c, h), _ = curve_fit(lambda n, c, h: c * n / (n + h), n, y, p0=(1, 2_000), sigma=sd)
    assert fits["saturating"].length(270_000) == pytest.approx(1 + c * 270_000 / (270_000 + h), rel=2e-3)
    (u, v), _ = curve_fit(lambda n, u, v: u + v * np.log(n), n, y, sigma=sd)
    assert fits["logarithmic"].length(270_000) == pytest.approx(1 + u + v * np.log(270_000), rel=2e-3)


def test_three_points_rule_no_form_out() -> None:
    weights = {form.name: form.weight for form in report(MEASURED, depth=3).forms}
    assert set(weights) == {"power", "logarithmic", "saturating", "bounded power", "power deficit"}
    assert sum(weights.values()) == pytest.approx(1) and min(weights.values()) >= 0.05
    assert max(weights, key=lambda name: weights[name]) == "saturating"  # 0.62, 0.78, 0.86 bend that much


@pytest.mark.parametrize("size", [2.0, 5e4, 1e9])
def test_no_forecast_leaves_the_possible(size: float) -> None:
    draws = fit_curve(along(lambda n: 1 + 0.3 * (n / 1e3) ** 0.4, 1e3, 3e3, 9e3), depth=3).draws(size)
    assert draws.min() >= 1 and draws.max() <= 4


_TRUTHS: dict[str, Callable[[float], float]] = {
    "power": lambda n: 1 + 0.3 * (n / 1e3) ** 0.22,
    "logarithmic": lambda n: 1.5 + 0.14 * float(np.log(n / 1e3)),
    "saturating": lambda n: 1 + 1.6 * n / (n + 3e3),
    "deficit": lambda n: 2.9 - 1.5 * (n / 1e3) ** -0.35,
    "flat": lambda n: 1.9,
}


@pytest.mark.parametrize("name", _TRUTHS)
def test_intervals_hold_what_a_further_draft_measures_whatever_the_true_form(name: str) -> None:
    truth, rng, hits = _TRUTHS[name], np.random.default_rng(1), 0
    for seed in range(16):
        noisy = [
            DataPoint(n, truth(n) + rng.normal() * RUN_TO_RUN_FRAC * (truth(n) - 1)) for n in (1e3, 3e3, 9e3)
        ]
        curve = fit_curve(noisy, depth=4, seed=seed, num_draws=120)
        measured = truth(9e4) + rng.normal() * RUN_TO_RUN_FRAC * (truth(9e4) - 1)
        low, high = np.quantile(predicted_lengths(curve, 9e4, seed=seed), (0.025, 0.975))
        hits += low <= measured <= high
    assert hits >= 13  # 15.2 expected at 95 %; fewer than 13 has a chance below 1 %


def test_the_interval_widens_with_distance() -> None:
    rows = report(along(_TRUTHS["logarithmic"], 1e3, 3e3, 9e3), at_samples=(9e3, 9e4, 9e5)).forecasts
    widths = [row.acceptance_length.half_width for row in rows]
    assert widths == sorted(widths) and widths[2] > 3 * widths[0]


# Measured and published points


def test_the_largest_of_our_own_three_drafts_is_forecast_from_the_two_smaller_ones() -> None:
    check = report(MEASURED, depth=3, check_last=True).check
    assert check is not None and check.inside and check.measured == 1.857
    assert abs(check.error_frac) < 0.06


@pytest.mark.parametrize(
    ("at_2k", "at_11k"), [(1.95, 3.22), (2.11, 4.27), (2.61, 4.74)], ids=["MT-Bench", "HumanEval", "GSM8K"]
)
def test_public_anchors_of_specforge_lie_inside(at_2k: float, at_11k: float) -> None:
    """SpecForge pull request 870: 2 k and 11.4 k conversations; the latter "about 60 % of the reference" of 11 times
    the tokens. A draft of seven tokens, so at most 8 per step.
    """
    curve = fit_curve((DataPoint(2_000, at_2k), DataPoint(11_400, at_11k)), depth=7)
    low, high = np.quantile(predicted_lengths(curve, 11 * 11_400, seed=0), (0.025, 0.975))
    assert low <= at_11k / 0.6 <= high


def test_public_anchor_five_thousand_samples_are_a_demonstration_and_500_000_a_drafter() -> None:
    """speculators 751 and 1135: 100 k samples gave 3.15 tokens per step; 5 k is called a demonstration."""
    points = (DataPoint(5_000, 1.9), DataPoint(20_000, 2.5), DataPoint(100_000, 3.15))
    found = report(points, depth=7, at_samples=(500_000.0,), speed=SpeedFacts(100, 0.028), goal_speedup=1.3)
    assert found.advice == "train more"  # 1.12x now, 1.3x needs 3.64
    assert found.train_to_samples is not None and 150_000 < found.train_to_samples < 1_500_000


# Speed and the answer


def test_speed_is_length_over_step_cost_and_break_even_their_product() -> None:
    found = report(MEASURED, depth=3, speed=SpeedFacts(baseline_tok_per_s=50, step_cost_s=0.036))
    row = found.forecasts[0]
    assert row.tok_per_s is not None and row.speedup is not None
    assert row.tok_per_s.value == pytest.approx(row.acceptance_length.value / 0.036)
    assert row.speedup.value == pytest.approx(row.acceptance_length.value / 0.036 / 50)
    assert {need.speedup: need.acceptance_length for need in found.needed} == pytest.approx(
        {1.0: 1.8, 1.3: 2.34, 1.5: 2.7}
    )


def test_a_goal_that_more_data_reaches_says_how_much() -> None:
    truth = _TRUTHS["logarithmic"]
    found = report(along(truth, 1e3, 3e3, 9e3), depth=4, speed=SpeedFacts(100, truth(45e3) / 100 / 1.3))
    assert found.advice == "train more"
    assert found.train_to_samples == pytest.approx(45e3, rel=0.35)


def test_a_goal_beyond_every_draft_kept_asks_for_another_drafter() -> None:
    found = report(MEASURED, depth=3, speed=SpeedFacts(50, 3.5 / 50))
    assert found.advice == "change the drafter"
    assert "4.55 tokens per step, and 3 drafted tokens give at most 4" in found.because


def test_a_draft_that_has_stopped_learning_short_of_the_goal_asks_for_another_drafter() -> None:
    found = report(along(_TRUTHS["flat"], 1e3, 3e3, 9e3), depth=4, speed=SpeedFacts(50, 2.5 / 50))
    assert found.advice == "change the drafter"


def test_a_goal_that_is_reached_is_a_reason_to_stop() -> None:
    found = report(along(_TRUTHS["flat"], 1e3, 3e3, 9e3), depth=4, speed=SpeedFacts(50, 1.2 / 50))
    assert found.advice == "stop" and "1.58x is already reached" in found.because


def test_points_that_fall_are_no_reason_to_train_more() -> None:
    falling = (DataPoint(100, 1.8), DataPoint(300, 1.6), DataPoint(900, 1.4))
    found = report(falling, depth=3)
    assert found.advice == "stop"
    assert (
        "1.80 tokens per step with 100 samples and 1.40 with 900: that is no effect of more data"
        in found.because
    )
    assert any("these points contradict" in line for line in found.assumptions)
    noisy = (DataPoint(100, 1.50), DataPoint(300, 1.61), DataPoint(900, 1.60))
    assert "no effect of more data" not in report(noisy, depth=3).because


def test_a_weak_category_is_named_as_in_the_public_case() -> None:
    """Kimi-K2.5 after 300 k samples without Chinese: CEval 1.482 beside 2.6 to 3.3."""
    others = {"MTBench": 2.624, "GSM8K": 3.123, "HumanEval": 3.242, "MATH500": 3.323, "MMStar": 2.566}
    points = along(lambda n: 1 + 1.7 * (n / 3e5) ** 0.1, 3e4, 1e5, 3e5)
    categories = {name: (DataPoint(3e5, value),) for name, value in {**others, "CEval": 1.482}.items()}
    found = report(points, depth=3, categories=categories, speed=SpeedFacts(100, 0.025))
    assert (found.advice, found.category) == ("change the data", "CEval")
    balanced = {name: rows for name, rows in categories.items() if name != "CEval"}
    assert report(points, depth=3, categories=balanced, speed=SpeedFacts(100, 0.025)).category is None


def test_cost_counts_training_on_all_and_answering_what_is_missing() -> None:
    cost = CostFacts(train_s_per_sample=0.36, data_s_per_sample=0.72, price_per_hour=2.0)
    (row,) = report(along(_TRUTHS["power"], 1e3, 3e3, 1e4), at_samples=(1e5,), cost=cost).forecasts
    assert row.train_hours == pytest.approx(10 + 18)  # 100,000 x 0.36 s, 90,000 x 0.72 s
    assert row.price == pytest.approx(56)


def test_the_same_seed_gives_the_same_report() -> None:
    assert report(MEASURED, depth=3) == report(MEASURED, depth=3)


# The command


def test_points_typed_in_and_evaluations_give_the_same_answer(tmp_path: Path, capsys) -> None:
    files = []
    for point in MEASURED:
        drafts = 10_000
        counts = {"num_drafts": drafts, "num_accepted_tokens": round((point.acceptance_length - 1) * drafts)}
        chain = {
            "num_draft_tokens": 3,
            "counts": counts,
            "acceptance_length": None,
            "by_category": {"code": counts},
        }
        path = tmp_path / f"{point.num_samples}.json"
        path.write_text(
            json.dumps({"schema_version": 1, "chains": [{**chain, "num_draft_tokens": 1}, chain]})
        )
        files.append(f"{point.num_samples}={path}")
    typed = [f"--point={p.num_samples}={p.acceptance_length}" for p in MEASURED]
    from_files = forecast_cli(capsys, *files)
    from_points = forecast_cli(capsys, *typed, "--num-draft-tokens", "3")
    for own, other in zip(from_files["forecasts"], from_points["forecasts"], strict=True):
        for key in ("value", "low", "high"):
            assert own["acceptance_length"][key] == pytest.approx(other["acceptance_length"][key], rel=1e-6)
    assert [row["category"] for row in from_files["categories"]] == ["code"]


def evaluation(path: Path, lengths: dict[int, float], **settings) -> Path:
    chains = [
        {"num_draft_tokens": k, "acceptance_length": {"value": length}} for k, length in lengths.items()
    ]
    path.write_text(json.dumps({"chains": chains, **settings}))
    return path


def test_files_of_other_depths_give_the_most_drafted_tokens_that_all_have(tmp_path: Path, capsys) -> None:
    deep = [evaluation(tmp_path / f"{n}", {1: 1.3 + n / 99, 2: 1.5 + n / 99, 3: 1.6}) for n in (1, 3)]
    short = evaluation(tmp_path / "9", {1: 1.4, 2: 1.6})
    files = [f"{n}={path}" for n, path in zip((1, 3, 9), [*deep, short], strict=True)]
    found = forecast_cli(capsys, *files)
    typed = [f"--point={n}={length}" for n, length in ((1, 1.5 + 1 / 99), (3, 1.5 + 3 / 99), (9, 1.6))]
    assert found["num_draft_tokens"] == 2
    assert found["forecasts"] == forecast_cli(capsys, *typed, "--num-draft-tokens", "2")["forecasts"]
    with pytest.raises(BadInput, match="9: no chain of 3 drafted tokens; it has 1, 2"):
        forecast_cli(capsys, *files, "--num-draft-tokens", "3")


def test_an_evaluated_length_has_the_error_of_its_t_interval(tmp_path: Path, capsys) -> None:
    points = ((1_000, 1.05), (3_000, 1.2), (9_000, 1.3))
    files, typed = [], []
    for n, length in points:
        # Of 8 prompts with a standard error of 0.04: t is 2.3646 with 7 degrees of freedom (tables).
        ends = {"low": max(1.0, length - 2.3646 * 0.04), "high": length + 2.3646 * 0.04}
        chain = {"num_draft_tokens": 3, "acceptance_length": {"value": length, **ends, "level": 0.95, "n": 8}}
        (tmp_path / f"{n}.json").write_text(json.dumps({"chains": [chain]}))
        files.append(f"{n}={tmp_path / f'{n}.json'}")
        typed.append(f"--point={n}={length}+-0.04")
    found = forecast_cli(capsys, *files)["forecasts"]
    wanted = forecast_cli(capsys, *typed, "--num-draft-tokens", "3")["forecasts"]
    for own, other in zip(found, wanted, strict=True):
        for key in ("value", "low", "high"):
            assert own["acceptance_length"][key] == pytest.approx(other["acceptance_length"][key], rel=1e-3)


def test_files_that_were_evaluated_otherwise_do_not_compare(tmp_path: Path, capsys) -> None:
    files = [
        f"{n}={evaluation(tmp_path / str(n), {3: 1.5}, temperature=0.0 if n < 9 else 0.8)}" for n in (1, 3, 9)
    ]
    with pytest.raises(
        BadInput, match=r"9: temperature is 0.8, and 0.0 in .*1: their lengths do not compare"
    ):
        forecast_cli(capsys, *files)


def test_a_step_is_priced_by_an_arm_that_drafts_as_many_tokens(tmp_path: Path, capsys) -> None:
    rows = [
        {"arm": f"k{k}", "concurrency": 1, "step_cost_s": s, "e2e_tok_per_s": 60 - k}
        | {"perfect_acceptance_tok_per_s": (k + 1) / s}
        for k, s in ((1, 0.03), (3, 0.036))
    ]
    path = tmp_path / "explain.json"
    path.write_text(json.dumps({"baseline_tok_per_s": {"1": 50.0}, "rows": rows}))
    typed = [*(f"--point={p.num_samples}={p.acceptance_length}" for p in MEASURED), "--explain", str(path)]
    found = forecast_cli(capsys, *typed, "--num-draft-tokens", "3")  # not the fastest arm, k1
    assert found["needed"][0]["acceptance_length"] == pytest.approx(50 * 0.036)
    with pytest.raises(BadInput, match=r"of 3 drafted tokens per step, and no arm drafts as many: k1 \(1\)"):
        forecast_cli(capsys, *typed, "--num-draft-tokens", "3", "--arm", "k1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-draft-tokens", "65"], "--num-draft-tokens: must be from 1 to 64, got 65"),
        (["--baseline-tok-s", "1e308", "--step-cost-s", "1"], "--baseline-tok-s: must be from 1e-09 to 1e"),
        (["--goal", "nan"], "--goal: must be from"),
        (["--train-s-per-sample", "1e300"], "--train-s-per-sample: must be from"),
    ],
)
def test_numbers_that_nothing_has_are_refused(words: list[str], message: str, capsys) -> None:
    typed = [f"--point={p.num_samples}={p.acceptance_length}" for p in MEASURED]
    with pytest.raises(BadInput, match=message):
        forecast_cli(capsys, *typed, *words)


def test_speed_comes_from_explain(tmp_path: Path, capsys) -> None:
    rows = [
        {"arm": "baseline", "is_baseline": True, "concurrency": 1, "step_cost_s": 0.02, "e2e_tok_per_s": 50},
        {"arm": "k3", "is_baseline": False, "concurrency": 1, "step_cost_s": 0.036, "e2e_tok_per_s": 51},
        {"arm": "k6", "is_baseline": False, "concurrency": 1, "step_cost_s": 0.060, "e2e_tok_per_s": 40},
        {"arm": "k3", "is_baseline": False, "concurrency": 8, "step_cost_s": 0.5, "e2e_tok_per_s": 99},
    ]
    lookup = {"arm": "ngram", "is_baseline": False, "has_drafter": False, "concurrency": 1}
    rows.append({**lookup, "step_cost_s": 0.025, "e2e_tok_per_s": 60})  # the fastest, and nothing to train
    path = tmp_path / "explain.json"
    path.write_text(json.dumps({"baseline_tok_per_s": {"1": 50.0, "8": 90.0}, "rows": rows}))
    typed = [f"--point={p.num_samples}={p.acceptance_length}" for p in MEASURED]
    assert forecast_cli(capsys, *typed, "--explain", str(path))["needed"][0][
        "acceptance_length"
    ] == pytest.approx(1.8)
    other = forecast_cli(capsys, *typed, "--explain", str(path), "--arm", "k6")
    assert other["needed"][0]["acceptance_length"] == pytest.approx(3.0)
    path.write_text(
        json.dumps({"first_concurrency": 8, "baseline_tok_per_s": {"1": 50.0, "8": 90.0}, "rows": rows})
    )
    at_eight = forecast_cli(capsys, *typed, "--explain", str(path))
    assert at_eight["needed"][0]["acceptance_length"] == pytest.approx(45.0)
    with pytest.raises(BadInput, match="no arm 'k9' with a step cost; it has k3, k6, ngram"):
        forecast_cli(capsys, *typed, "--explain", str(path), "--arm", "k9")


_POINTS = ("--point=100=1.2", "--point=300=1.4", "--point=900=1.5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--point", "1000=1.9", "--point", "2000=2"], "at least three data sizes, got 2"),
        (["--point", "1000:1.9"], "SAMPLES=LENGTH"),
        (["--point", "1=1.9", "--point", "2=2", "--point", "3=0.7"], "counts the bonus token"),
        (
            ["--point", "1=1.9", "--point", "2=2", "--point", "3=4.7", "--num-draft-tokens", "3"],
            "K \\+ 1 = 4",
        ),
        (["--point", "1=nan"], "got '1=nan'"),
        (["--point", "1=1.9", "--point", "2=2", "--point", "3=66"], "from 1 to 65"),
        (
            ["--point", "1000=1.5", "--point", "1001=1.6", "--point", "1400=1.7"],
            "from 1,000 to 1,400: the largest",
        ),
        (["eval.json"], "give the training samples too, e.g. 1000=eval.json"),
        (["1000=/nowhere/eval.json"], "cannot be read as JSON"),
        (["--point", "1=1", "--baseline-tok-s", "50"], "belong together"),
        (["--category-point", "1000=1.9"], "CATEGORY:SAMPLES=LENGTH"),
        ([*_POINTS, "--category-point", "code:1000=0.5"], "code:1000=0.5: an acceptance length counts"),
        ([*_POINTS, "--price-per-hour", "5"], "needs --train-s-per-sample"),
        (["--point", "1e-300=1.2"], "of at least 1 sample, got '1e-300=1.2'"),
        (["--point", "1e300=1.2"], "got '1e300=1.2'"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(BadInput, match=message):
        forecast_cli(capsys, *arguments)


@pytest.mark.parametrize(
    ("flag", "content", "message"),
    [
        ("--explain", '{"rows": 3}', "no arm with a drafter and a step cost"),
        (
            "--explain",
            '{"rows": [{"arm": "a", "step_cost_s": 0.1, "e2e_tok_per_s": 9}], "baseline_tok_per_s": {"1": 0}}',
            "no baseline speed at concurrency 1",
        ),
        ("--explain", '{"rows": [{"arm": "a", "step_cost_s": -1}]}', "no arm with a drafter and a step cost"),
        ("1000=", '{"chains": 3}', "no chains in it"),
        (
            "1000=",
            '{"chains": [{"num_draft_tokens": 3, "acceptance_length": {"value": Infinity}}]}',
            "no acceptance length at 3 drafted tokens",
        ),
    ],
)
def test_a_file_of_another_kind_is_one_clear_error(
    flag: str, content: str, message: str, tmp_path: Path, capsys
) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    given = [flag, str(file)] if flag.startswith("--") else [f"{flag}{file}"]
    with pytest.raises(BadInput, match=f"{file}: {message}"):
        forecast_cli(capsys, *_POINTS, *given)


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999999", "x", "2147483648"])
def test_a_seed_that_no_generator_takes_is_refused(seed: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        forecast_cli(capsys, *_POINTS, "--seed", seed)
    assert ended.value.code == 2
    assert "must be a whole number from 0 to 2147483647" in capsys.readouterr().err
