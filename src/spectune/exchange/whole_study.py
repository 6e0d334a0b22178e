"""A study directory read whole, for commands that look at several."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from spectune.analysis.arms import comparable_trials
from spectune.analysis.pooling import load_of, speed_by_prompt
from spectune.analysis.records import ArmSummary, StudySummary
from spectune.analysis.stretches import stretch_places
from spectune.analysis.summary import summarize
from spectune.analysis.words import one_line
from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.arm import Arm
from spectune.domain.measurement import LoadResult
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.domain.workload import LoadPoint, Prompt
from spectune.errors import BadInput
from spectune.store.opening import open_study
from spectune.store.places import same_place, text_of

V = TypeVar("V")


@dataclass(frozen=True)
class LoadedStudy:
    """``place`` is the path as the user gave it."""

    place: str
    study: Study
    trials: tuple[Trial, ...]

    @cached_property
    def summary(self) -> StudySummary:
        return self._to_paste(summarize(self.study, self.trials))

    def summary_with(self, *, machine_ceiling: float) -> StudySummary:
        """The same with the machine's ceiling, in tok/s, in its explanation."""
        return self._to_paste(summarize(self.study, self.trials, machine_ceiling_tok_per_s=machine_ceiling))

    def _to_paste(self, summary: StudySummary) -> StudySummary:
        """The commands of its next steps name this study's folder, and two repetitions more than it has."""
        explanation = summary.explanation
        if explanation is None:
            return summary
        place, more = shlex.quote(self.place), f"repetitions={self.study.repetitions + 2}"
        steps = tuple(
            step.model_copy(
                update={"command": step.command.replace("STUDY_DIR", place).replace("repetitions=N", more)}
            )
            if step.command is not None and step.command.startswith("spectune ")
            else step
            for step in explanation.next
        )
        return summary.model_copy(update={"explanation": explanation.model_copy(update={"next": steps})})

    @cached_property
    def engine_versions(self) -> tuple[str, ...]:
        """As the servers said, in order of first use."""
        said = (t.server.version for t in self.trials if t.server is not None)
        return tuple(dict.fromkeys(version for version in said if version))

    @cached_property
    def results(self) -> list[Trial]:
        """Complete trials of the study's own workload."""
        return comparable_trials(self.study, sorted(self.trials, key=lambda t: t.number))

    @cached_property
    def places(self) -> dict[int, str]:
        """The node of each launch; all the same where there was one host."""
        return {t.launch_number: t.place for t in self.results}

    @cached_property
    def stretches(self) -> dict[int, str]:
        """The same without what lies on the other side of a pause: launches that may be set against each other."""
        places = stretch_places(self.results, self.study.baseline.arm_id)
        return {t.launch_number: places[t.trial_id] for t in self.results}

    @cached_property
    def prompt_keys(self) -> dict[str, str]:
        """Prompt id -> what identifies the prompt across studies: its text, not its name."""
        nameless = self.study.imported is not None and "prompts" in self.study.imported.unknown
        keys: dict[str, str] = {}
        seen: Counter[str] = Counter()
        for prompt in self.study.workload.prompts:
            key = prompt.prompt_id if nameless else _key_of(prompt)
            seen[key] += 1
            keys[prompt.prompt_id] = key if seen[key] == 1 else f"{key}#{seen[key]}"
        return keys

    def speeds(self, arm_id: str, point: LoadPoint) -> list[dict[str, float]]:
        """Of each launch, end-to-end tok/s by prompt key."""
        return [speeds for _, speeds in self.numbered_speeds(arm_id, point)]

    def numbered_speeds(self, arm_id: str, point: LoadPoint) -> list[tuple[int, dict[str, float]]]:
        """The same with the number of each launch: arms that differ in their requests alone share theirs."""
        return self._by_launch(arm_id, point, lambda load: speed_by_prompt([load]))

    def acceptance(self, arm_id: str, point: LoadPoint) -> list[dict[str, AcceptanceCounts]]:
        """Of each launch, counts by prompt key; requests whose verify steps are unknown are left out."""
        return [counts for _, counts in self.numbered_acceptance(arm_id, point)]

    def numbered_acceptance(
        self, arm_id: str, point: LoadPoint
    ) -> list[tuple[int, dict[str, AcceptanceCounts]]]:
        return self._by_launch(arm_id, point, _acceptance_by_prompt)

    def _by_launch(
        self, arm_id: str, point: LoadPoint, figures: Callable[[LoadResult], Mapping[str, V]]
    ) -> list[tuple[int, dict[str, V]]]:
        found: list[tuple[int, dict[str, V]]] = []
        for trial in self.results:
            load = load_of(trial, point) if trial.arm_id == arm_id else None
            values = {} if load is None else figures(load)
            if values:
                by_key = {self.prompt_keys.get(p, p): value for p, value in values.items()}
                found.append((trial.launch_number, by_key))
        return found

    def find_arm(self, name: str) -> Arm:
        """By name or id; ``BadInput`` lists what there is."""
        for arm in self.study.arms:
            if name in (arm.arm_id, arm.name):
                return arm
        known = ", ".join(one_line(arm.name, limit=80) for arm in self.study.arms)
        raise BadInput(f"{self.place}: no arm {name!r}; there is {known}")

    def summary_of(self, arm: Arm) -> ArmSummary:
        return self.summary.arm(arm.arm_id)


def _key_of(prompt: Prompt) -> str:
    text = json.dumps([prompt.system, prompt.turns, prompt.output_tokens])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _acceptance_by_prompt(load: LoadResult) -> dict[str, AcceptanceCounts]:
    parts: dict[str, list[AcceptanceCounts]] = {}
    for request in load.completed:
        if request.acceptance is not None and request.acceptance.num_drafts is not None:
            parts.setdefault(request.prompt_id, []).append(request.acceptance)
    pooled = {prompt: pool_counts(counts) for prompt, counts in parts.items()}
    return {prompt: counts for prompt, counts in pooled.items() if counts is not None}


def load_study(place: str) -> LoadedStudy:
    """``BadInput`` unless ``place`` is a study directory of this version."""
    directory = open_study(place)
    return LoadedStudy(text_of(place), directory.read_study(), tuple(directory.read_trials()))


def load_studies(
    places: Sequence[str], *, opened: Mapping[str, LoadedStudy] | None = None
) -> list[LoadedStudy]:
    """Each once, in order; ``opened``: those that are read already, by place."""
    seen: dict[str, str] = {}
    for place in places:
        resolved = same_place(place)
        if resolved in seen:
            raise BadInput(f"{place}: is the same study as {seen[resolved]}; name it once")
        seen[resolved] = place
    known = opened or {}
    return [known.get(place) or load_study(place) for place in places]
