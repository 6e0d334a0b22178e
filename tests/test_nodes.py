"""Trials of several nodes: each against the baseline of its own node, and nodes that differ are named."""

import math
import random
from typing import Any

import pytest
from report_studies import BASELINE, FAST, SLOW, machine, study, trial

from spectune.analysis.summary import summarize
from spectune.exchange.comparison.comparable import comparability
from spectune.exchange.whole_study import LoadedStudy
from spectune.statistics.intervals import SpeedSample, compare_with_baseline
from spectune.statistics.nodes import compare_nodes

PROMPTS = {f"p{i}": 60.0 + i for i in range(8)}


def sample(arm: str, order: int, factor: float, place: str) -> SpeedSample:
    return SpeedSample(arm, order, {p: v * factor for p, v in PROMPTS.items()}, place)


def test_arms_on_a_slow_and_on_a_fast_node_have_their_own_speedups() -> None:
    """Node b is half as fast: set against a's baseline, the better arm would look the slower one."""
    baselines = [sample("base", n, 1.0, "a") for n in (1, 5)] + [sample("base", n, 0.5, "b") for n in (2, 6)]
    arms = [sample("good", 4, 0.5 * 1.3, "b"), sample("poor", 3, 1.1, "a")]
    compared = compare_with_baseline(arms, baselines)
    assert compared["good"].speedup.value == pytest.approx(1.3)
    assert compared["poor"].speedup.value == pytest.approx(1.1)
    noise = compared["good"].trial_noise_frac
    assert noise is not None and noise < 0.01  # the nodes are no noise of launches


def test_an_arm_on_a_node_without_the_baseline_is_not_compared() -> None:
    arms = [sample("one", 2, 1.3, "a"), sample("two", 3, 1.3, "b")]
    assert set(compare_with_baseline(arms, [sample("base", 1, 1.0, "a")])) == {"one"}


def _baselines(rng: random.Random, nodes: dict[str, float], *, launches: int) -> list[SpeedSample]:
    found = []
    for order in range(launches):
        for node, factor in nodes.items():
            shift = factor * math.exp(rng.gauss(0, 0.02))
            speeds = {p: v * shift * math.exp(rng.gauss(0, 0.01)) for p, v in PROMPTS.items()}
            found.append(SpeedSample("base", order, speeds, node))
    return found


def test_equal_nodes_are_seldom_told_apart_and_unequal_ones_are() -> None:
    rng = random.Random(7)
    equal = dict.fromkeys(("a", "b", "c", "d"), 1.0)
    wrong = 0
    for _ in range(300):
        seen = compare_nodes(_baselines(rng, equal, launches=4))
        assert seen is not None
        wrong += bool(seen.is_found)
    assert wrong <= 24  # 5 % promised
    found = compare_nodes(_baselines(rng, {**equal, "c": 0.85}, launches=4))
    assert found is not None and found.is_found
    assert found.slowest == "c"


def _on_nodes(factor_b: float, **changes: Any) -> tuple[Any, list[Any]]:
    of = study(FAST, SLOW, **changes)
    rows = [
        (BASELINE, 1, 100.0, "a"),
        (BASELINE, 2, 100.0 * factor_b, "b"),
        (FAST, 3, 150.0, "a"),
        (SLOW, 4, 80.0 * factor_b, "b"),
        (BASELINE, 5, 101.0, "a"),
        (BASELINE, 6, 101.0 * factor_b, "b"),
    ]
    return of, [
        trial(of, arm, n, speeds=speed, node=node, machine=machine(hostname=node), repetition=n)
        for arm, n, speed, node in rows
    ]


def test_a_slow_node_is_a_finding_and_no_drift() -> None:
    summary = summarize(*_on_nodes(0.6))
    codes = {f.code for f in summary.findings}
    assert "nodes-differ" in codes
    assert "baseline-drift" not in codes
    found = next(f for f in summary.findings if f.code == "nodes-differ")
    assert "66.7% faster on a than on b" in found.message
    by_name = {arm.name: arm for arm in summary.arms}
    slow = by_name["slow"].first
    assert slow is not None and slow.speedup is not None
    assert slow.speedup.value == pytest.approx(0.8, rel=0.01)
    assert [t.node for t in summary.trials[:2]] == ["a", "b"]


def test_equal_nodes_are_not_a_finding() -> None:
    assert "nodes-differ" not in {f.code for f in summarize(*_on_nodes(1.0)).findings}


def test_studies_of_several_nodes_are_compared_by_their_speedups() -> None:
    first, second = (LoadedStudy("x", of, tuple(trials)) for of, trials in (_on_nodes(1.0), _on_nodes(0.9)))
    found = comparability(first, second)
    assert found.basis == "speedup"
    assert next(c for c in found.checks if c.aspect == "machine").first.startswith("2 nodes")


def test_machines_of_one_kind_differ_in_name_only() -> None:
    here = machine()
    assert here.kind == machine(hostname="other", os="Linux 6.9", memory_bytes=16 * 2**30 - 2**20).kind
    assert here.kind != machine(cores=4).kind
    assert here.kind_words == "Xeon Platinum 8481C, 2 cores, 16 GiB, no GPU"
