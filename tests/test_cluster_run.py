"""A study on several nodes: what is launched where, and what a lost node costs. Servers are real, Ray is not needed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_cluster import FakeCluster
from report_studies import trial

from spectune.api.progress import ProgressView
from spectune.cluster.study import run_on_cluster
from spectune.domain.study import ClusterSettings
from spectune.domain.trial import Trial
from spectune.errors import BadInput, EnvironmentFailed
from spectune.hosts.local import local_host
from spectune.hosts.machine_facts import read_machine
from spectune.runner.continues import check_continues
from spectune.runner.events import TrialStart
from spectune.runner.plan import resolve_study
from spectune.runner.schedule import StudyOutcome, is_finished
from spectune.store.study_dir import StudyDir
from spectune.study_file.load import load_study_file

STUDY = """\
question: Which fake drafter pays?
host: ray
engine: {name: fake, flags: {tokens-per-s: SPEED, draft-cost: 0.1}}
target: m
arms:
  - {name: good, method: eagle3, drafter: d, num_draft_tokens: 3, flags: {accept: "0.8"}}
  - {name: fair, method: eagle3, drafter: d, num_draft_tokens: 2, flags: {accept: "0.5"}}
  - {name: dead, method: eagle3, drafter: d, num_draft_tokens: 2, flags: {accept: "0.0"}}
workload: {prompts: builtin, num_prompts: 4, max_tokens: 20, ignore_eos: true, warmup_requests: 1}
noise_floor: false
"""


class Told(ProgressView):
    """What the driver says, as it says it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.positions: list[int] = []

    def on_trial_start(self, start: TrialStart) -> None:
        self.positions.append(start.position)

    def on_message(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECTUNE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made(tmp_path: Path, text: str) -> StudyDir:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    spec, source, document = load_study_file(path)
    study = resolve_study(spec, document, path=path, machine=read_machine())
    return StudyDir.create(tmp_path / "s", study=study, source=source)


async def run(directory: StudyDir, cluster: FakeCluster, told: Told) -> StudyOutcome:
    async with asyncio.timeout(250):
        return await run_on_cluster(directory, cluster=cluster, watcher=told)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)


async def nothing_left(home: Path) -> bool:
    return await local_host(home).servers() == []


def names_by_node(trials: tuple[Trial, ...]) -> dict[str | None, list[str]]:
    nodes = dict.fromkeys(t.node for t in trials)
    return {node: [t.arm.name for t in trials if t.node == node] for node in nodes}


def test_a_lost_node_has_its_trial_repeated_elsewhere_and_nothing_else(tmp_path: Path, home: Path) -> None:
    directory, told = made(tmp_path, STUDY.replace("SPEED", "60")), Told()
    cluster = FakeCluster(["a", "b"])

    async def scenario() -> StudyOutcome:
        running = asyncio.ensure_future(run(directory, cluster, told))
        await until(
            lambda: any("0002-" in p.name and (p / "trial.json").exists() for p in folders(directory))
        )
        await until(lambda: len(folders(directory)) >= 4)
        victim = "b"
        await cluster.kill(victim)
        outcome = await running
        assert await nothing_left(home)
        return outcome

    outcome = asyncio.run(scenario())
    assert outcome.reason == "done"
    counted = Counter(t.arm.name for t in outcome.trials if t.arm.name != "baseline")
    assert counted == {"good": 1, "fair": 1, "dead": 1}
    assert all(t.status == "complete" and t.machine is not None for t in outcome.trials)
    by_node = names_by_node(outcome.trials)
    assert by_node["a"][0] == by_node["b"][0] == by_node["a"][-1] == "baseline"
    unfinished = [p for p in folders(directory) if not (p / "trial.json").exists()]
    assert len(unfinished) == 1
    assert any(line.startswith("lost: b: the node is gone") for line in told.lines)
    assert told.positions[:2] == [1, 2], "both nodes began with a launch of their own"
    study = directory.read_study()
    assert is_finished(study, directory.read_trials())
    assert {(p.arm_id, p.repetition) for p in study.plan} == {
        (t.arm_id, t.repetition) for t in outcome.trials
    }


def folders(directory: StudyDir) -> list[Path]:
    return directory.trial_paths()


def test_nodes_of_another_kind_or_another_spectune_are_not_used(tmp_path: Path, home: Path) -> None:
    """And without any other the study ends in words, with nothing launched."""
    directory, told = made(tmp_path, STUDY.replace("SPEED", "400")), Told()
    odd = read_machine().model_copy(update={"cpu": "another processor"})
    cluster = FakeCluster(["odd", "old"], machines={"odd": odd}, digests={"old": "0123"})
    with pytest.raises(EnvironmentFailed, match=r"no node of the cluster can go on") as raised:
        asyncio.run(run(directory, cluster, told))
    assert "odd: it is another kind of machine (another processor" in str(raised.value)
    assert "old: another spectune is installed there" in str(raised.value)
    assert folders(directory) == []


def test_a_study_does_not_go_on_on_nodes_of_another_kind(tmp_path: Path) -> None:
    directory = made(tmp_path, STUDY.replace("SPEED", "400"))
    study = directory.read_study()
    number, folder = directory.new_trial(study.baseline.arm_id)
    record = trial(study, study.baseline, number, node="a", machine=study.machine)
    folder.finish(record.model_copy(update={"trial_id": folder.path.name}))
    check_continues(directory, study.model_copy(update={"host": "ray://head:10001"}))  # the same cluster
    wider = study.model_copy(update={"cluster": ClusterSettings(nodes=2)})
    with pytest.raises(BadInput, match=r"with `ray.nodes` 1, not 2"):
        check_continues(directory, wider)
    other = study.machine.model_copy(update={"cores": 99})
    with pytest.raises(BadInput, match=r"measured on nodes of another kind .* 99 cores"):
        check_continues(directory, study.model_copy(update={"machine": other}))


def test_an_arm_under_which_every_worker_dies_fails_and_the_study_goes_on(tmp_path: Path, home: Path) -> None:
    text = "".join(line for line in STUDY.splitlines(keepends=True) if "name: dead" not in line)
    directory, told = made(tmp_path, text.replace("SPEED", "400")), Told()
    cluster = FakeCluster(["a"])

    async def scenario() -> StudyOutcome:
        running = asyncio.ensure_future(run(directory, cluster, told))
        poison = next(a for a in directory.read_study().arms if a.name == "fair").arm_id
        seen: set[str] = set()
        while not running.done():
            await asyncio.sleep(0.02)
            for path in folders(directory):
                if (
                    path.name.endswith(poison)
                    and path.name not in seen
                    and not (path / "trial.json").exists()
                ):
                    seen.add(path.name)
                    await cluster.crash("a")
        return await running

    outcome = asyncio.run(scenario())
    by_name = {t.arm.name: t for t in outcome.trials}
    assert by_name["fair"].status == "failed"
    assert by_name["fair"].failure is not None
    assert "was lost 3 times" in by_name["fair"].failure.cause
    assert by_name["good"].status == "complete"
    assert outcome.any_failed
