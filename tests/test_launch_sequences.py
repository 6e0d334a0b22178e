"""Which launches a study makes, in which order and why: recorded for one host, and for one and four nodes of a cluster.

What is measured is made up here, so that a sequence is decided by spectune alone.
``python tests/test_launch_sequences.py`` writes the recording anew.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import pytest
from exchange_studies import write_study
from fake_cluster import FakeCluster
from report_studies import counts, failed, hypothesis, speculative, study, trial

from spectune.cluster.schedule import ClusterSchedule
from spectune.cluster.study import run_on_cluster
from spectune.domain.arm import Arm
from spectune.domain.study import Budget, ClusterSettings, PlannedTrial, Study
from spectune.domain.trial import SoakResult, StopProof, Trial
from spectune.hosts.local import local_host
from spectune.hosts.machine_facts import read_machine
from spectune.runner.events import TrialStart
from spectune.runner.launch import ModelPaths, Place
from spectune.runner.order import plan_trials
from spectune.runner.quiet import Patience
from spectune.runner.study import run_study
from spectune.runner.trial import TrialTask
from spectune.store.study_dir import StudyDir

RECORDING = Path(__file__).parent / "data" / "launch-sequences.json"
WHERE = ("host", "one node", "four nodes")
MODELS = ModelPaths(dict.fromkeys(["smollm2", "draft"], "model.gguf"))

ACCEPTED = {
    "k1": 0.7,
    "k2": 0.6,
    "k3": 0.7,
    "k4": 0.5,
    "k5": 0.65,
    "k7": 0.3,
    "one": 0.7,
    "two": 0.65,
    "dead": 0.0,
}
ARMS = [speculative(f"k{length}", length=length) for length in (1, 3, 5, 7)]
SHARED = [
    speculative("k3", length=3),
    speculative("one", length=3, request={"speculative.n_max": 1}),
    speculative("k5", length=5),
    speculative("two", length=3, request={"speculative.n_max": 2}),
]
BROKEN = [speculative("k1", length=1), speculative("broken", length=3), speculative("k2", length=2)]


def planned(*arms: Arm, order: str = "interleaved", repetitions: int = 2, **changes: Any) -> Study:
    of = study(*arms, order=order, repetitions=repetitions, num_prompts=6, **changes)
    ids = {arm.arm_id: arm.launch_id for arm in of.arms}
    plan = plan_trials(
        list(ids),
        repetitions=repetitions,
        baseline_every=of.baseline_every,
        noise_floor=of.noise_floor,
        order=order,  # type: ignore[arg-type]
        launch_ids=ids,
    )
    return of.model_copy(update={"plan": tuple(plan)})


def searching(*arms: Arm, search: str = "predict", **changes: Any) -> Study:
    return study(*arms, search=search, num_prompts=6, **{"plan": (), **changes})


STUDIES: dict[str, Study] = {
    "interleaved": planned(*ARMS, noise_floor=True, baseline_every=2),
    "abba": planned(*ARMS[:3], order="abba", repetitions=3, noise_floor=False),
    "arms that share a server": planned(*SHARED, noise_floor=True),
    "an arm that fails": planned(*BROKEN, noise_floor=False),
    "six launches at most": planned(*ARMS, noise_floor=True, budget=Budget(max_trials=6)),
    "until it is precise": planned(*ARMS[:2], precision=0.05, noise_floor=False),
    "a soak": planned(*ARMS[:2], repetitions=1, soak_s=30.0, noise_floor=False),
    "predict": searching(*ARMS, repetitions=2),
    "predict, shared servers": searching(*SHARED, repetitions=2),
    "grid": searching(*ARMS, search="grid", repetitions=1, noise_floor=False),
    "one factor at a time": searching(*BROKEN, search="one-factor", repetitions=2),
    "predict, five launches at most": searching(*ARMS, repetitions=2, budget=Budget(max_trials=5)),
    "predict, precise": searching(*ARMS[:2], precision=0.05, repetitions=1),
    "plain decoding fails": planned(*ARMS[:1], noise_floor=False),
}


class MadeUp:
    """In place of ``run_trial``: a record at a speed that the arm, the repetition and the prompt decide."""

    def __init__(self, *, plain_fails: bool) -> None:
        self._plain_fails = plain_fails
        self._kept: dict[str, tuple[str, int]] = {}

    async def __call__(
        self, task: TrialTask, place: Place, *, judge: Any = None, keeps: Any = None, ends_early: Any = None
    ) -> Trial:
        study, arm, number, repetition = task.study, task.arm, task.number, task.repetition
        await asyncio.sleep(0)
        owner = place.owner
        shares, launch = self._kept.pop(owner, ("", number))
        launch = launch if shares == f"{arm.launch_id}/{repetition}" and not arm.is_baseline else number
        more: dict[str, Any] = {
            "trial_id": task.folder.path.name,
            "launch": launch,
            "hypothesis": task.hypothesis,
        }
        stopped = StopProof(took_s=0.1)
        if task.is_soak:
            soak_s = study.soak_s or 0.0
            soak = SoakResult(
                asked_s=soak_s,
                ran_s=soak_s,
                num_requests=9,
                num_failed=0,
                first_tok_per_s=50.0,
                last_tok_per_s=50.0,
            )
            made = trial(study, arm, number, repetition=repetition, soak=soak, stop=stopped, **more)
        elif arm.name == "broken" or (self._plain_fails and arm.is_baseline):
            made = failed(study, arm, number, repetition=repetition, stop=stopped, **more)
        else:
            made = trial(
                study,
                arm,
                number,
                repetition=repetition,
                speeds=speeds(study, arm, repetition),
                acceptance=accepted(arm),
                **more,
            )
            if judge is not None:
                made = made.model_copy(update={"hypothesis": judge(made.loads, number)})
            if keeps is not None and keeps(made):
                self._kept[owner] = (f"{arm.launch_id}/{repetition}", launch)
            else:
                made = made.model_copy(update={"stop": stopped})
        task.folder.replace_requests([load.requests for load in made.loads])
        task.folder.finish(made)
        return made


def drafts(arm: Arm) -> int:
    return int((arm.request or {}).get("speculative.n_max", arm.knobs.num_draft_tokens or 0))


def accepted(arm: Arm) -> Any:
    if arm.is_baseline:
        return None
    length = drafts(arm)
    kept = sum(ACCEPTED[arm.name] ** position for position in range(1, length + 1))
    return counts(40, round(40 * kept), length=length)


def speeds(of: Study, arm: Arm, repetition: int) -> Mapping[str, float]:
    tokens = 1.0 if arm.is_baseline else 1 + accepted(arm).num_accepted_tokens / 40
    cost = 1.0 if arm.is_baseline else 1.1 + 0.08 * drafts(arm)

    def shake(*parts: object, size: float) -> float:
        return math.exp(size * (crc32(repr(parts).encode()) / 2**31 - 1))

    launch = shake(arm.name, repetition, size=0.02)
    return {
        p.prompt_id: 60.0 * tokens / cost * launch * shake(arm.name, repetition, p.prompt_id, size=0.02)
        for p in of.workload.prompts
    }


class Told:
    """Everything that a run says, but for how long ago something was."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_trial_start(self, start: TrialStart) -> None:
        at = f" on {start.node}" if start.node else ""
        self.lines.append(f"{start.position} of {start.total}: {start.arm.name}/{start.repetition}{at}")

    def on_message(self, text: str) -> None:
        if not text.startswith(("this machine can tell", "two equal launches of plain decoding differ")):
            self.lines.append(re.sub(r"ended .* ago", "ended some time ago", text))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_args, **_named: None


def of_case(name: str, where: str) -> Study:
    of = STUDIES[name]
    if where == "host":
        return of
    return of.model_copy(
        update={"cluster": ClusterSettings(cpus=1.0), "host": "ray", "machine": read_machine()}
    )


def sequence(folder: Path, name: str, where: str) -> dict[str, Any]:
    """What the run says, its trials and what stands in the study afterwards."""
    told = Told()
    directory = StudyDir(write_study(folder / "s", of_case(name, where), []))
    made_up = MadeUp(plain_fails=name == "plain decoding fails")

    async def nobody() -> None:
        return None

    async def scenario() -> str:
        async with asyncio.timeout(100):
            if where == "one node":
                cluster: Any = FakeCluster(["a"])
                return (await run_on_cluster(directory, cluster=cluster, watcher=told)).reason  # type: ignore[arg-type]
            outcome = await run_study(
                directory,
                models=MODELS,
                watcher=told,  # type: ignore[arg-type]
                host=local_host(folder / "home"),
                patience=Patience(look=nobody),
            )
            return outcome.reason

    with ExitStack() as doubles:
        for module in ("runner.study", "cluster.node"):
            doubles.enter_context(mock.patch(f"spectune.{module}.run_trial", made_up))
        doubles.enter_context(mock.patch("spectune.cluster.node.models_here", nothing_to_fetch))
        doubles.enter_context(mock.patch("spectune.runner.study.lacking_by_version", nothing_lacks))
        doubles.enter_context(mock.patch.dict("os.environ", {"SPECTUNE_HOME": str(folder / "home")}))
        try:
            reason = asyncio.run(scenario())
        except Exception as error:  # noqa: BLE001 - how a run ends is part of what is recorded
            reason = f"{type(error).__name__}: {error}".splitlines()[0].replace(str(folder), "FOLDER")
    return {"reason": reason, "told": told.lines, **record_of(directory)}


def turns(folder: Path, name: str) -> dict[str, Any]:
    """Four nodes that take work and end it in turns, each launch as long as the others."""
    told = Told()
    directory = StudyDir(write_study(folder / "s", of_case(name, "four nodes"), []))
    made_up = MadeUp(plain_fails=name == "plain decoding fails")
    work = ClusterSchedule(directory, retry_failed=False, findings={}, on_message=told.on_message)
    blocks: dict[str, list[PlannedTrial]] = {}

    async def scenario() -> None:
        while True:
            for place in "abcd":
                if place not in blocks and work.wants_lane(place, list(blocks)):
                    work.noise_place = work.noise_place or (place if work.study.noise_floor else None)
                    blocks[place] = []
            for place in [*blocks]:
                if not blocks[place]:
                    blocks[place] = list(work.take(place))
                if not blocks[place]:
                    work.put_back(place)
                    del blocks[place]
                    continue
                planned = blocks[place].pop(0)
                number, trial_folder = directory.new_trial(planned.arm_id)
                task = TrialTask(
                    work.study.arm(planned.arm_id),
                    repetition=planned.repetition,
                    number=number,
                    study=work.study,
                    hypothesis=hypothesis(),
                    folder=trial_folder,
                    models=MODELS,
                    watcher=told,  # type: ignore[arg-type]
                )
                keeps = (lambda _trial: True) if blocks[place] else None
                made = await made_up(task, mock.Mock(owner=place), keeps=keeps)
                made = made.model_copy(update={"node": place})
                trial_folder.finish(made)
                work.count(made, planned, place)
            if not blocks:
                return

    asyncio.run(scenario())
    return {"told": told.lines, **record_of(directory)}


def record_of(directory: StudyDir) -> dict[str, Any]:
    after = directory.read_study()
    names = {arm.arm_id: arm.name for arm in after.arms}
    return {
        "trials": [
            f"{t.number} {t.arm.name}/{t.repetition} {t.status}, launch {t.launch_number}"
            f"{'' if t.node is None else f' on {t.node}'}{'' if t.soak is None else ', soak'}"
            for t in sorted(directory.read_trials(), key=lambda t: t.number)
        ],
        "plan": [
            f"{names[p.arm_id]}/{p.repetition}{f': {p.reason}' if p.reason else ''}" for p in after.plan
        ],
        "search_end": after.search_end,
    }


async def nothing_to_fetch(_study: Study) -> ModelPaths:
    return MODELS


async def nothing_lacks(_study: Study) -> set[str]:
    return set()


def made_now(folder: Path, name: str, where: str) -> dict[str, Any]:
    return turns(folder, name) if where == "four nodes" else sequence(folder, name, where)


CASES = [
    (name, where)
    for name in STUDIES
    for where in WHERE
    if (name, where) != ("plain decoding fails", "four nodes")
]


@pytest.mark.parametrize(("name", "where"), CASES)
def test_a_study_makes_the_recorded_launches(name: str, where: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORDING.read_text(encoding="utf-8"))
    assert made_now(tmp_path, name, where) == recorded[f"{name}, {where}"]


if __name__ == "__main__":
    found = {}
    for each, place in CASES:
        with tempfile.TemporaryDirectory() as made:
            found[f"{each}, {place}"] = made_now(Path(made), each, place)
    RECORDING.parent.mkdir(exist_ok=True)
    RECORDING.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
