"""Are two studies comparable? Aspect by aspect, with both values and what a difference means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spectune.domain.parity import effective_temperature
from spectune.domain.record import Record
from spectune.domain.workload import Sampling
from spectune.exchange.whole_study import LoadedStudy

Aspect = Literal["engine", "version", "machine", "target", "prompts", "sampling"]
ASPECTS: tuple[Aspect, ...] = ("engine", "version", "machine", "target", "prompts", "sampling")
State = Literal["same", "differs", "unknown"]

_EFFECTS: dict[Aspect, str] = {
    "engine": "ratios are of two engines",
    "version": "ratios are of two versions",
    "machine": "tok/s are not divided, speedups are",
    "target": "nothing is divided: the models differ",
    "prompts": "ratios are over the prompts in both",
    "sampling": "nothing is divided: other requests were asked",
}
_UNKNOWN = "the ratios assume that it is the same"
_NO_COMMON_PROMPT = "nothing is divided: no prompt is in both"


class AspectCheck(Record):
    """One aspect of two studies."""

    aspect: Aspect
    state: State
    first: str
    second: str
    effect: str | None
    """What follows for the comparison; ``None`` where it is the same, or another aspect forbids every ratio."""
    allowed: bool = False
    """The user said that this difference may stand."""


class Comparability(Record):
    """All aspects, and which ratios they leave: where a study ran on several nodes, those of speedups."""

    checks: tuple[AspectCheck, ...]
    basis: Literal["tok/s", "speedup"] | None
    """What may be divided by one another; ``None``: nothing."""

    def state(self, aspect: Aspect) -> State:
        return next(check.state for check in self.checks if check.aspect == aspect)

    def differs(self, aspect: Aspect) -> bool:
        """And nobody allowed it."""
        return any(c.aspect == aspect and c.state == "differs" and not c.allowed for c in self.checks)

    @property
    def differences(self) -> tuple[AspectCheck, ...]:
        return tuple(check for check in self.checks if check.state != "same")

    @property
    def obstacles(self) -> tuple[AspectCheck, ...]:
        """Differences that forbid every ratio."""
        return tuple(c for c in self.checks if c.state == "differs" and not c.allowed and _forbids(c))


def _forbids(check: AspectCheck) -> bool:
    return check.effect is not None and check.effect.startswith("nothing is divided")


def comparability(first: LoadedStudy, second: LoadedStudy, *, allowed: Sequence[str] = ()) -> Comparability:
    """``allowed``: aspects whose difference the user lets stand."""
    checks = []
    for aspect in ASPECTS:
        ours, theirs = _value(first, aspect), _value(second, aspect)
        state: State = (
            "unknown" if ours is None or theirs is None else "same" if ours == theirs else "differs"
        )
        effect = {"same": None, "unknown": _UNKNOWN, "differs": _EFFECTS[aspect]}[state]
        shown = (_shown(first, aspect, ours), _shown(second, aspect, theirs))
        if aspect == "prompts" and state == "differs":
            common = len(set(first.prompt_keys.values()) & set(second.prompt_keys.values()))
            effect = f"ratios are over the {common} prompts in both" if common else _NO_COMMON_PROMPT
        checks.append(
            AspectCheck(
                aspect=aspect,
                state=state,
                first=shown[0],
                second=shown[1],
                effect=effect,
                allowed=aspect in allowed,
            )
        )
    found = Comparability(checks=tuple(checks), basis=None)
    if found.obstacles:  # what else differs has no effect then
        return found.model_copy(update={"checks": tuple(_without_effect(check) for check in checks)})
    machine = next(c for c in checks if c.aspect == "machine")
    several = any(len(set(study.places.values())) > 1 for study in (first, second))
    other_machine = several or (machine.state == "differs" and not machine.allowed)
    return found.model_copy(update={"basis": "speedup" if other_machine else "tok/s"})


def _without_effect(check: AspectCheck) -> AspectCheck:
    return check if _forbids(check) else check.model_copy(update={"effect": None})


def _value(loaded: LoadedStudy, aspect: Aspect) -> object:
    """What must be equal; ``None``: not recorded."""
    study = loaded.study
    unknown = study.imported.unknown if study.imported is not None else ()
    if aspect in unknown:
        return None
    if aspect == "engine":
        return study.engine.name
    if aspect == "version":
        return loaded.engine_versions or None
    if aspect == "machine":
        return study.machine.kind
    if aspect == "target":
        return tuple(sorted({_model_name(arm.target) for arm in study.arms}))
    if aspect == "prompts":
        return tuple(sorted(loaded.prompt_keys.values()))
    return (study.workload.api, _asked(study.workload.sampling).model_dump_json())


def _asked(sampling: Sampling) -> Sampling:
    """Greedy requests are the same with any seed and with none."""
    greedy = effective_temperature(sampling) == 0
    return sampling.model_copy(update={"seed": None}) if greedy else sampling


def _model_name(target: str) -> str:
    """Without the folders of a path: the same file lies elsewhere on another machine."""
    return target.rstrip("/").rsplit("/", 1)[-1] if target.startswith(("/", ".", "~")) else target


def _shown(loaded: LoadedStudy, aspect: Aspect, value: object) -> str:
    study = loaded.study
    if value is None:
        return "not recorded"
    if aspect == "machine":
        m = study.machine
        gpus = ", ".join(m.gpus) if m.gpus else "no GPU" if m.gpus == () else "GPUs unknown"
        nodes = len(set(loaded.places.values()))
        where = m.hostname if nodes < 2 else f"{nodes} nodes"
        return f"{where}: {m.cpu or 'processor unknown'}, {m.cores or '?'} cores, {gpus}"
    if aspect == "prompts":
        return f"{len(loaded.prompt_keys)} prompts, workload {study.workload.workload_hash}"
    if aspect == "sampling":
        s = study.workload.sampling
        end = ", end of text ignored" if s.ignore_eos else ""
        extra = f", extra {s.extra_body}" if s.extra_body else ""
        seed = "no seed" if s.seed is None else f"seed {s.seed}"
        limits = f"temperature {s.temperature:g}, at most {s.max_tokens} tokens, {seed}"
        return f"{limits}, {study.workload.api}{end}{extra}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)
