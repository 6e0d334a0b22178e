"""``spectune plan``: launches by hand, limits, and the finish of a simulated cluster without the formula."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from exchange_studies import drawn, write_study
from report_studies import BASELINE, FAST, SLOW, study, trial

from spectune.cli.main import main
from spectune.cluster.capacity import plan_capacity
from spectune.models.cluster_time import ClusterWork, LaunchTimes, cluster_time

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "plan_cluster.py"


def exact(seconds: float) -> LaunchTimes:
    return LaunchTimes(seconds, 0.0, 1000)


def test_one_node_by_hand() -> None:
    """Twelve arms, the baseline first and after every two: 12 x 30 s + 7 x 40 s, and 5 s for the worker."""
    work = ClusterWork(num_arm_launches=12, arm=exact(30.0), baseline=exact(40.0))
    found = cluster_time(work, nodes=1)
    assert found.launches == 19
    assert found.finish_s is not None
    assert found.finish_s.value == pytest.approx(12 * 30 + 7 * 40 + 5)
    assert found.node_hours == pytest.approx((12 * 30 + 7 * 40 + 5) / 3600)


def test_four_equal_nodes_by_hand() -> None:
    """Three arms each, between baselines: first, after two, last."""
    work = ClusterWork(num_arm_launches=12, arm=exact(30.0), baseline=exact(40.0))
    found = cluster_time(work, nodes=4)
    assert found.launches == 12 + 4 * 3
    assert found.finish_s is not None
    assert found.finish_s.value == pytest.approx(3 * 30 + 3 * 40 + 5)


def test_more_nodes_than_arms_find_no_work() -> None:
    work = ClusterWork(num_arm_launches=3, arm=exact(30.0), baseline=exact(40.0))
    found = cluster_time(work, nodes=64)
    assert found.lanes == 3
    assert found.finish_s is not None
    assert found.finish_s.value == pytest.approx(30 + 2 * 40 + 5)


def test_nodes_that_never_come_back_may_not_suffice() -> None:
    work = ClusterWork(
        num_arm_launches=100, arm=exact(30.0), baseline=exact(40.0), lost_frac=0.1, repair_s=None
    )
    found = cluster_time(work, nodes=2)
    assert found.finish_s is None
    assert found.never is not None and "all 2 nodes are gone" in found.never


def test_an_assumption_has_no_interval() -> None:
    work = ClusterWork(num_arm_launches=5, arm=LaunchTimes(30.0), baseline=LaunchTimes(40.0))
    found = cluster_time(work, nodes=2).finish_s
    assert found is not None and found.low is None and found.high is None


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plan_cluster", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plan_cluster"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("nodes", "arms", "lost_frac", "repair_s"),
    [(64, 500, 0.02, 600.0), (4, 6, 0.0, 600.0), (64, 100, 0.02, None)],
)
def test_the_plan_is_within_a_tenth_of_a_simulated_finish(
    simulation: ModuleType, nodes: int, arms: int, lost_frac: float, repair_s: float | None
) -> None:
    """64 nodes x 2,000 launches of arms with 2 % failures, and two others; times of launches known."""
    world = simulation.World(repair_s=repair_s)
    trials = [(f"arm{a}", r) for r in range(4) for a in range(arms)]
    for seed in range(2):
        rng = random.Random(seed)
        happened = simulation.simulate(
            trials, nodes=nodes, world=world, lost_frac=lost_frac, baseline_every=2, rng=rng
        )
        work = ClusterWork(
            num_arm_launches=len(trials),
            arm=simulation._true_times(world, trials),
            baseline=LaunchTimes(world.baseline_s, world.launch_cv * world.baseline_s, 1000),
            lost_frac=lost_frac,
            repair_s=repair_s,
        )
        plan = cluster_time(work, nodes=nodes)
        assert plan.finish_s is not None and plan.node_hours is not None
        assert plan.finish_s.value == pytest.approx(happened.finish_s, rel=0.10)
        assert plan.launches == pytest.approx(happened.launches, rel=0.05)
        assert plan.node_hours * 3600 == pytest.approx(happened.held_s, rel=0.10)
        assert set(happened.measured.values()) == {1}


def test_times_come_from_the_record_and_failed_launches_count() -> None:
    of = study(FAST, SLOW, repetitions=2, noise_floor=True)
    rows: list[Any] = []
    for number, (arm, seconds, status) in enumerate(
        [
            (BASELINE, 20.0, "complete"),
            (FAST, 10.0, "complete"),
            (BASELINE, 22.0, "complete"),
            (SLOW, 4.0, "failed"),
            (BASELINE, 24.0, "complete"),
        ],
        start=1,
    ):
        phases = {"launch": 1.0, "measure": seconds - 1.0}
        rows.append(
            trial(of, arm, number, speeds=1.0, status=status, phases_s=phases, repetition=number // 3)
        )
    found = plan_capacity(of, [], nodes=[1], recorded=rows)
    assert found.arm_launches == 4
    # These records start 16 s after each other: 6 s and 12 s passed between two of them (longer ones overlap).
    assert found.baseline_launch_s.mean_s == pytest.approx((20 + 22 + 24) / 3 + 9)
    assert found.arm_launch_s.n == 2
    assert found.arm_launch_s.mean_s == pytest.approx((10 + 4) / 2 + 9)
    assert "1 of them failed" in found.basis
    left = plan_capacity(of, rows, nodes=[1])
    assert left.arm_launches == 2  # repetition 0 of `fast` is done; a failed arm is not tried again


def test_the_command_says_what_it_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "question: q\nengine: fake\ntarget: m\nhost: ray\nnoise_floor: false\nrepetitions: 2\n"
        "arms: [{method: ngram, num_draft_tokens: 2}, {method: ngram, num_draft_tokens: 3}]\n"
    )
    assert main(["plan", str(path), "--nodes", "1,2", "--launch-s", "60", "--measure-s", "30", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    one, two = document["plans"]
    assert one["finish_s"]["value"] == pytest.approx(4 * 90 + 3 * 90 + 5)
    assert two["finish_s"]["value"] == pytest.approx(2 * 90 + 2 * 90 + 5)
    assert one["finish_s"]["low"] is None
    assert "times given for launch and measurement; no interval" in document["basis"]
    path.write_text(f"{path.read_text()}ray: {{trials_per_node: 2}}\n")  # so that a node does the work of two
    times = ["--launch-s", "60", "--measure-s", "30"]
    assert main(["plan", str(path), "--nodes", "1,4", *times, "--json"]) == 0
    shared, idle = json.loads(capsys.readouterr().out)["plans"]
    assert (shared["nodes"], shared["finish_s"]) == (1, two["finish_s"])
    assert shared["node_hours"] == pytest.approx(two["node_hours"] / 2)
    assert (idle["nodes"], idle["lanes"]) == (4, 4)
    assert main(["plan", str(path), "--nodes", "1,4", *times]) == 0
    assert "of 4 nodes only 2 find work" in capsys.readouterr().out
    assert main(["plan", str(path), "--failures", "2%", "--dir", str(tmp_path / "none")]) == 0
    assert "with a node lost under 2.0% of the launches" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["plan", str(path), "--nodes", "0"])
    assert "whole numbers from 1 to 100000" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "no.yaml")]) == 2


def test_a_name_in_a_record_steers_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = drawn(random.Random(1), launches=1, prompts=2)
    of = made.study.model_copy(update={"name": "a\x1b[31m\nb"})
    assert main(["plan", str(write_study(tmp_path / "study", of, made.trials))]) == 0
    assert capsys.readouterr().out.startswith("study a b: 0 launches")


def test_times_known_for_certain_leave_what_the_formula_itself_is_off_by() -> None:
    """Two percent of the finish as standard deviation: 1.645 times that on each side at 90 %."""
    work = ClusterWork(num_arm_launches=12, arm=exact(30.0), baseline=exact(40.0))
    finish = cluster_time(work, nodes=1).finish_s
    assert finish is not None and finish.low is not None and finish.high is not None
    assert (finish.high - finish.low) / 2 / finish.value == pytest.approx(1.645 * 0.02, rel=0.02)
