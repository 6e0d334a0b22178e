"""Which launch a node makes next, decided from the record alone; no cluster is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from report_studies import BASELINE, FAST, SLOW, failed, speculative, study, trial

from spectune.cli.main import main
from spectune.cluster.ray_cluster import Node, largest_kind
from spectune.domain.arm import Arm, baseline_arm
from spectune.domain.study import ClusterSettings, EngineSettings, PlannedTrial, Study
from spectune.domain.trial import Trial
from spectune.errors import BadInput
from spectune.runner.lanes import (
    Lane,
    bundle_for,
    next_baseline,
    open_blocks,
    place_for_noise,
    place_of,
    sets_of,
)
from spectune.runner.parallel import check_divides, check_fits_nodes, gpus_of_arm

ARMS = tuple(speculative(f"arm{i}", length=i + 2) for i in range(6))


def of_cluster(*arms: Arm, **changes: object) -> Study:
    plan = tuple(PlannedTrial(arm_id=arm.arm_id, repetition=0) for arm in arms)
    return study(*arms, **{"cluster": ClusterSettings(), "host": "ray", "plan": plan, **changes})


def walk(of: Study, places: list[str], *, twice: str | None = None) -> dict[str, list[str]]:
    """Nodes take turns until none finds work; the names of what each launched."""
    trials: list[Trial] = []
    queue = open_blocks(of, trials)
    idle: set[str] = set()
    while len(idle) < len(places):
        for place in places:
            lane = Lane.of_node(place, of, trials, twice=place == twice)
            reason = (lane.opening_reason() or lane.again_reason()) if queue else lane.closing_reason()
            if reason is None and not queue:
                idle.add(place)
                continue
            arm = BASELINE if reason is not None else of.arm(queue.pop(0)[0].arm_id)
            number = len(trials) + 1
            repetition = next_baseline(of, trials, []) if reason is not None else 0
            trials.append(trial(of, arm, number, speeds=100.0, node=place, repetition=repetition))
    keys = [(t.arm_id, t.repetition) for t in trials]
    assert len(keys) == len(set(keys))
    return {place: [t.arm.name for t in trials if t.node == place] for place in places}


def test_every_arm_of_a_node_stands_between_baselines_of_that_node() -> None:
    launched = walk(of_cluster(*ARMS), ["a", "b"], twice="a")
    assert launched["a"] == ["baseline", "baseline", "arm1", "arm3", "baseline", "arm5", "baseline"]
    assert launched["b"] == ["baseline", "arm0", "arm2", "baseline", "arm4", "baseline"]


def test_arms_of_one_launch_stay_together_and_ended_ones_are_left_out() -> None:
    one, two = (
        speculative("x", request={"n": 1}),
        speculative("y", request={"n": 2}),
    )
    of = of_cluster(one, SLOW, two)
    assert [[p.arm_id for p in block] for block in open_blocks(of, [])] == [
        [one.arm_id, two.arm_id],
        [SLOW.arm_id],
    ]
    done = [trial(of, one, 1, speeds=1.0), failed(of, SLOW, 2)]
    assert [[p.arm_id for p in block] for block in open_blocks(of, done)] == [[two.arm_id]]
    assert len(open_blocks(of, done, retry_failed=True)) == 2


def test_a_node_whose_baseline_failed_has_none() -> None:
    of = of_cluster(FAST)
    lane = Lane.of_node(
        "a", of, [failed(of, BASELINE, 1, node="a"), trial(of, BASELINE, 2, speeds=1.0, node="b")]
    )
    assert not lane.has_baseline
    assert lane.opening_reason() is not None


def test_noise_is_shown_by_two_baselines_in_a_row_on_one_node() -> None:
    of = of_cluster(FAST)
    rows = [trial(of, BASELINE, 1, speeds=1.0, node="a"), trial(of, BASELINE, 2, speeds=1.0, node="b")]
    assert place_for_noise(of, rows) is None
    assert place_for_noise(of, [*rows, trial(of, BASELINE, 3, speeds=1.0, node="b")]) == "b"


def test_a_trial_asks_for_the_whole_node_unless_told_otherwise() -> None:
    node = {"CPU": 16.0, "GPU": 4.0, "memory": 1e11}
    assert bundle_for(of_cluster(FAST), node) == {"CPU": 16.0, "GPU": 4.0}  # llama.cpp uses what it sees
    shared = of_cluster(FAST, cluster=ClusterSettings(trials_per_node=2, cpus=4))
    assert bundle_for(shared, node) == {"CPU": 4.0, "GPU": 2.0}
    special = of_cluster(FAST, cluster=ClusterSettings(resources={"fast-disk": 1}))
    assert bundle_for(special, node) is None
    assert bundle_for(special, {**node, "fast-disk": 1.0}) == {"CPU": 16.0, "GPU": 4.0, "fast-disk": 1.0}
    assert bundle_for(of_cluster(FAST), {"memory": 1e11}) is None  # a head that offers nothing


def _vllm(**flags: int | bool) -> Study:
    base = baseline_arm(engine="vllm", target="m")
    return of_cluster().model_copy(
        update={"arms": (base,), "engine": EngineSettings(name="vllm", flags=dict(flags))}
    )


def test_gpus_are_what_the_parallel_flags_multiply_to() -> None:
    assert gpus_of_arm(_vllm().arms[0], _vllm()) == 1
    wide = _vllm(**{"tensor-parallel-size": 8, "pipeline_parallel_size": 2})
    assert gpus_of_arm(wide.arms[0], wide) == 16
    assert bundle_for(wide, {"CPU": 64.0, "GPU": 16.0}) == {"CPU": 64.0, "GPU": 16.0}
    short = wide.model_copy(update={"engine": EngineSettings(name="vllm", flags={"tp": 4})})
    assert gpus_of_arm(short.arms[0], short) == 4
    sglang = baseline_arm(engine="sglang", target="m")
    flags: dict[str, int | bool] = {"tp": 8, "dp-size": 8, "enable-dp-attention": True}
    attention = wide.model_copy(
        update={"arms": (sglang,), "engine": EngineSettings(name="sglang", flags=dict(flags))}
    )
    assert gpus_of_arm(sglang, attention) == 8


def test_a_server_that_no_node_can_hold_is_refused_in_words() -> None:
    wide = _vllm(**{"tensor-parallel-size": 8, "pipeline-parallel-size": 2})
    with pytest.raises(
        BadInput, match=r"16 GPUs, and the largest node has 8\. `ray: \{nodes: 2\}` spans more"
    ):
        check_fits_nodes(wide, 8.0)
    check_fits_nodes(wide, 16.0)
    over_two = wide.model_copy(update={"cluster": ClusterSettings(nodes=2)})
    check_fits_nodes(over_two, 8.0)
    with pytest.raises(BadInput, match="16 GPUs, over 2 nodes that is 8 on each, and the largest node has 4"):
        check_fits_nodes(over_two, 4.0)


def test_a_server_over_nodes_asks_each_for_its_share() -> None:
    wide = _vllm(**{"tensor-parallel-size": 8, "pipeline-parallel-size": 2})
    over_two = wide.model_copy(update={"cluster": ClusterSettings(nodes=2, cpus=4)})
    assert bundle_for(over_two, {"CPU": 64.0, "GPU": 8.0}) == {"CPU": 4.0, "GPU": 8.0}
    check_divides(wide.arms[0], wide.engine.flags, nodes=2)
    with pytest.raises(BadInput, match=r"multiply to 16, which cannot be divided over 3 nodes"):
        check_divides(wide.arms[0], wide.engine.flags, nodes=3)


def test_nodes_serve_in_the_sets_that_measured_before() -> None:
    assert sets_of(["a", "b", "c", "d", "e"], 2) == [("a", "b"), ("c", "d")]
    assert sets_of(["a", "b", "c", "d"], 2, before=["c+a", "x+b", "b"]) == [("c", "a"), ("b", "d")]
    assert sets_of(["a"], 2, before=["a+b"]) == []
    assert place_of(("c", "a")) == "c+a"


def test_the_kind_that_most_nodes_are_of_is_used() -> None:
    small = study().machine
    big = small.model_copy(update={"cores": 64})
    nodes = [(Node(str(i), f"n{i}", {}), machine) for i, machine in enumerate((big, small, small))]
    assert [node.name for node, _ in largest_kind(nodes)] == ["n1", "n2"]
    assert largest_kind([]) == []


def test_a_cluster_without_ray_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    path = tmp_path / "study.yaml"
    path.write_text(
        "question: q\nhost: ray\nengine: fake\ntarget: m\narms: [{method: ngram, num_draft_tokens: 2}]\n"
    )
    assert main(["run", str(path)]) == 2
    assert "pip install 'spectune[ray]'" in capsys.readouterr().err
    assert main(["ps", "--host", "ray"]) == 2
    assert "a cluster runs the trials of `spectune run`" in capsys.readouterr().err
