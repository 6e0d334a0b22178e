"""The benchmarks run as documented, on one curve."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
# InferenceX golden_al_distribution (Apache-2.0), one of its curves.
CURVES = "# source\nmodel,mode,k1,k2,k3,k4,k5,k6,k7,k8\nglm5.2_mtp,thinking_on,1.84,2.5,2.99,3.33,3.61,3.78,3.91,4.06\n"


def run(tmp_path: Path, script: str, *args: str) -> dict[str, object]:
    curves = tmp_path / "curves.csv"
    curves.write_text(CURVES, encoding="utf-8")
    argv = [sys.executable, str(BENCHMARKS / script), "--curves", str(curves), "--json", *args]
    reply = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    found: dict[str, object] = json.loads(reply.stdout)
    return found


def test_regret_of_predict_is_below_that_of_the_same_launches_at_random(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        "search_regret.py",
        "--seeds",
        "4",
        "--space",
        "chain",
        "--strategies",
        "predict,random,grid,oracle",
    )
    table = found["spaces"]["chain"]["strategies"]  # type: ignore[index]
    assert table["predict"]["max_launches"] <= 4
    assert table["predict"]["mean_regret"] <= 0.01
    assert table["oracle"]["max_launches"] == 4
    assert table["oracle"]["mean_regret"] < table["predict"]["mean_regret"]
    assert table["predict"]["mean_regret"] < table["random"]["mean_regret"]
    assert table["predict"]["mean_regret"] < table["grid"]["mean_regret"]


@pytest.mark.parametrize("strategy", ["predict"])
def test_sixty_and_more_trees_are_searched_in_ten_launches(tmp_path: Path, strategy: str) -> None:
    found = run(tmp_path, "search_regret.py", "--seeds", "1", "--space", "tree", "--strategies", strategy)
    space = found["spaces"]["tree"]  # type: ignore[index]
    assert space["legal_arms"] >= 60
    assert space["strategies"][strategy]["max_launches"] <= 10
    assert space["strategies"][strategy]["mean_regret"] <= 0.03


def test_a_search_is_measured_at_the_launches_and_the_first_probe_asked_for(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        "search_regret.py",
        *("--seeds", "1", "--space", "chain", "--strategies", "predict", "--launches", "2"),
        *("--first-share", "0.125"),
    )
    chain = found["spaces"]["chain"]  # type: ignore[index]
    assert chain["budget_launches"] == chain["strategies"]["predict"]["max_launches"] == 2
    # Two launches are plain decoding and one token alone; this curve keeps 3.3 of 4, so most cost curves want more.
    assert chain["strategies"]["predict"]["mean_regret"] > 0.2
    assert chain["strategies"]["predict"]["share_above_5_percent"] > 0.5


def test_fewer_launches_than_plain_decoding_and_one_more_are_refused() -> None:
    argv = [sys.executable, str(BENCHMARKS / "search_regret.py"), "--drawn", "1", "--launches", "1"]
    reply = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert reply.returncode == 2 and "at least 2" in reply.stderr


def test_early_stopping_saves_time_and_keeps_the_winner(tmp_path: Path) -> None:
    found = run(tmp_path, "early_stopping.py", "--seeds", "3", "--space", "chain")
    for strategy, least_saved in (("grid", 0.4), ("predict", 0.3)):
        rules = found["spaces"]["chain"][strategy]["rules"]  # type: ignore[index]
        assert rules["none"]["mean_saved_frac"] == 0
        assert rules["worse or enough"]["mean_saved_frac"] > least_saved
        assert rules["worse or enough"]["mean_saved_frac"] >= rules["worse"]["mean_saved_frac"]
        assert rules["worse or enough"]["mean_regret"] <= rules["none"]["mean_regret"] + 0.01


def test_drawn_surfaces_are_searched_too(tmp_path: Path) -> None:
    script = str(BENCHMARKS / "search_regret.py")
    argv = [sys.executable, script, "--drawn", "3", "--seeds", "1", "--json"]
    reply = subprocess.run(
        [*argv, "--strategies", "predict,full grid + model"], capture_output=True, text=True, check=True
    )
    spaces = json.loads(reply.stdout)["spaces"]
    assert spaces["chain"]["strategies"]["full grid + model"]["mean_regret"] < 0.02
    assert spaces["tree"]["strategies"]["predict"]["max_launches"] <= 10


def test_the_estimate_of_a_search_is_what_it_takes_whatever_the_number_of_arms() -> None:
    """Grids of 5 to 81 arms; a share of the arms, as the estimate once was, is off by a third in half of them."""
    script = str(BENCHMARKS / "search_launches.py")
    argv = [sys.executable, script, "--grids", "16", "--most-arms", "82", "--json"]
    found = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    rows = found["rows"]
    assert min(row["arms"] for row in rows) <= 10 and max(row["arms"] for row in rows) >= 80
    assert found["median_error_frac"] < 0.2
    assert all(row["estimate"] <= 2 * row["launches"] <= 4 * row["estimate"] for row in rows)


def test_the_bound_of_a_plan_is_what_can_be_worked_out_by_hand() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    from search_bound import worst_case

    lengths = (1.0, 1.8, 2.4, 2.8)
    # One launch of three: k = 3 costs 1.1 without a cliff, 2.1 behind one at 2 or 3. At 3, k = 2 would be
    # 2.4 / 1.0667 = 2.25 against the 2.8 / 2.1 = 1.3333 of k = 3 (regret 40.7 %); launching k = 2 loses
    # 2.4 / 2.0667 against 1.8 / 1.0333 at 2 (33.3 %); k = 1 loses 1.8 / 1.0333 against 2.8 / 1.1 (31.6 %).
    found = worst_case(lengths, slope=0.1 / 3, size=1.0, cliffs=1, launches=1)
    assert found == pytest.approx(1 - (1.8 / (1 + 0.1 / 3)) / (2.8 / 1.1), abs=1e-6)
    assert worst_case(lengths, slope=0.1 / 3, size=1.0, cliffs=1, launches=3) == 0
