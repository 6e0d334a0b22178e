"""Studies whose servers span nodes: what is refused, run, recorded and planned. No Ray: real servers, one machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_cluster import FakeCluster
from test_cluster_run import STUDY, Told, made, names_by_node, nothing_left, run

from spectune.check.check import check_study
from spectune.check.sources import Sources
from spectune.cluster.capacity import plan_capacity
from spectune.domain.study import Study
from spectune.errors import BadInput, StudyFileError
from spectune.exchange.exports.serving import serving_of
from spectune.exchange.whole_study import LoadedStudy
from spectune.store.study_dir import read_trial


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ray": {"nodes": 0}}, "ray.nodes: .*greater than or equal to 1"),
        ({"ray": {"nodes": True}}, "ray.nodes: a number is wanted"),
        (
            {"ray": {"nodes": 2, "trials_per_node": 2}},
            "over 2 nodes has them to itself: leave out trials_per_node",
        ),
        ({"ray": {"nodes": 3, "max_nodes": 2}}, "max_nodes: 2 are fewer than the 3 nodes"),
        ({"ray": {"nodes": 2}, "host": "local"}, "ray: is for `host: ray`"),
        ({"ray": {"nodes": 2}, "host": "me@there"}, "ray: is for `host: ray`"),
        (
            {"ray": {"nodes": 2}, "engine": "llamacpp"},
            "ray.nodes: 2 nodes for a server: llama.cpp spans nodes only",
        ),
        (
            {"ray": {"nodes": 2}, "engine": "vllm"},
            "arm baseline: its parallel flags multiply to 1, .* over 2 nodes",
        ),
    ],
)
def test_bad_nodes_are_one_clear_error(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    document = yaml.safe_load(STUDY.replace("SPEED", "400")) | changes
    if document["engine"] in ("llamacpp", "vllm"):
        document["arms"] = [{"method": "ngram", "num_draft_tokens": 2}]
    with pytest.raises(StudyFileError, match=words) as raised:
        made(tmp_path, yaml.safe_dump(document))
    assert len([p for p in raised.value.problems if "nodes" in p.message or "nodes" in p.where]) <= 2


def test_a_study_on_sets_of_nodes_records_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTUNE_HOME", str(tmp_path / "home"))
    document = yaml.safe_load(STUDY.replace("SPEED", "400")) | {"ray": {"nodes": 2}}
    document["arms"] = document["arms"][:1]
    directory, told = made(tmp_path, yaml.safe_dump(document)), Told()
    cluster = FakeCluster(["a", "b", "c"])
    outcome = asyncio.run(run(directory, cluster, told))
    assert outcome.reason == "done"
    assert names_by_node(outcome.trials) == {"a+b": ["baseline", "good", "baseline"]}, told.lines
    assert cluster.reserved == [("a", "b")]
    assert asyncio.run(nothing_left(tmp_path / "home"))
    for path in directory.trial_paths():
        trial = read_trial(path)
        assert trial is not None
        assert [(r.rank, r.node, r.log) for r in trial.ranks] == [
            (0, "a", "server.log"),
            (1, "b", "server-rank1.log"),
        ]
        assert all(r.stop is not None and "launch" in r.phases_s for r in trial.ranks)
        assert trial.ranks[0].command == trial.command
        assert "--node-rank 1" in " ".join(trial.ranks[1].command)
        assert "joined" in (path / trial.ranks[1].log).read_text()
        assert len(json.loads((path / "plan.json").read_text())["ranks"]) == 2
    report = (directory.path / "report.md").read_text()
    assert report.index("# on a (rank 0)") < report.index("# on b (rank 1)")
    assert "--node-rank 1" in (directory.path / "report.html").read_text()
    with pytest.raises(BadInput, match="one server over the nodes a and b"):
        loaded = LoadedStudy("here", directory.read_study(), outcome.trials)
        serving_of(loaded, loaded.study.arms[1], host="127.0.0.1", port=8000)


def vllm_study(tmp_path: Path, **flags: Any) -> Study:
    document = yaml.safe_load(STUDY.replace("SPEED", "400"))
    document |= {"engine": {"name": "vllm", "flags": flags}, "ray": {"nodes": 2}}
    document["arms"] = [{"method": "ngram", "num_draft_tokens": k} for k in (2, 3, 4)]
    return made(tmp_path, yaml.safe_dump(document)).read_study()


@pytest.mark.parametrize(("gpus", "codes"), [(4, ["too-few-gpus"]), (8, [])])
def test_check_counts_the_gpus_of_all_nodes(tmp_path: Path, gpus: int, codes: list[str]) -> None:
    study = vllm_study(tmp_path, **{"tensor-parallel-size": 8, "pipeline-parallel-size": 2})
    machine = study.machine.model_copy(update={"gpus": ("H100, 1",) * gpus})
    sources = Sources(home=tmp_path, network=False, files_here=False)
    result = check_study(study.model_copy(update={"machine": machine}), sources)
    assert [f.code for f in result.errors()] == codes
    assert all("--nnodes" in launch["command"] for launch in result.facts["launches"])


def test_plan_counts_sets_of_nodes(tmp_path: Path) -> None:
    study = vllm_study(tmp_path, **{"tensor-parallel-size": 2})
    one, two, five = plan_capacity(study, [], nodes=[1, 2, 5], launch_s=90.0, measure_s=10.0).times
    assert one.never == "a server spans 2 nodes: fewer serve nothing"
    assert (two.nodes, two.lanes, five.nodes, five.lanes) == (2, 1, 5, 2)
    # Three arms and three launches of plain decoding, 100 s each, and 5 s for the workers, of two nodes.
    assert two.node_hours == pytest.approx(2 * 605 / 3600, rel=0.01)
