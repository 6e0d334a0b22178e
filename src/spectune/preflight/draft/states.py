"""Does the engine build the draft for as many hidden states, and with as many features, as it was trained with?"""

from __future__ import annotations

from spectune.checkpoints.facts import CheckpointFacts
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import fc_evidence, fc_tensor, identify, state_width
from spectune.preflight.rules import FINE, Judgement, Rule, found
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

STATES_UNDECLARED = finding_kind("draft-state-count")
NEEDS_NEWER = finding_kind("draft-needs-newer-engine")
_NEWER = {"sglang": ("0.5.12", "24663"), "vllm": ("0.21", "42764")}


def state_count_declared(situation: Situation) -> Judgement:
    """``fc`` is as wide as the number of states the engine will build it for."""
    draft = situation.draft
    if draft is None or situation.knobs.method != "eagle3" or situation.engine == "llamacpp":
        return FINE
    fc, width = fc_tensor(draft), state_width(draft, situation.target)
    if fc is None or width is None or identify(draft).family != "eagle3":
        return FINE
    declared = _declared_states(draft)
    if fc.shape[1] == declared * width:
        return FINE
    count, rest = divmod(fc.shape[1], width)
    holds = f"{count} states of {width}" if not rest else f"no whole number of states of {width}"
    return found(
        STATES_UNDECLARED.found(
            situation.subject,
            f"fc.weight {list(fc.shape)} takes {fc.shape[1]} values, {holds}, and the engine builds it for {declared}",
            evidence=[*fc_evidence(draft), (f"{draft.source}/config.json", _declaration(draft))],
            remedy=f'write "num_aux_hidden_states": {count} into the draft\'s config.json'
            if not rest
            else "check that this draft belongs to this target",
        )
    )


def _declared_states(draft: CheckpointFacts) -> int:
    if draft.num_aux_states is not None:
        return draft.num_aux_states
    in_eagle_config = draft.aux_layers is not None and draft.aux_layers.where.startswith("eagle_config")
    if draft.aux_layers is not None and (in_eagle_config or draft.speculators_algorithm):
        return len(draft.aux_layers.ids)
    return 3


def _declaration(draft: CheckpointFacts) -> str:
    if draft.num_aux_states is not None:
        return f"num_aux_hidden_states: {draft.num_aux_states}"
    if draft.aux_layers is not None:
        return f"{draft.aux_layers.where}: {list(draft.aux_layers.ids)}"
    return "neither num_aux_hidden_states nor layer ids: three states"


def features_known(situation: Situation) -> Judgement:
    """EAGLE-3.1 features and multi-layer drafts need releases of May 2026 or later."""
    draft = situation.draft
    if draft is None or situation.knobs.method != "eagle3" or situation.engine not in _NEWER:
        return FINE
    release, pull = _NEWER[situation.engine]
    if not is_older(situation.version.text, release):
        return FINE
    features = [key for key in ("fc_norm", "norm_output", "use_aux_norm") if draft.norm_options.get(key)]
    fc, width = fc_tensor(draft), state_width(draft, situation.target)
    if fc is not None and width and fc.shape[1] % width == 0 and fc.shape[1] // width != 3:
        features.append(f"fc over {fc.shape[1] // width} states")
    if draft.num_layers is not None and draft.num_layers > 1:
        features.append(f"{draft.num_layers} layers")
    if not features:
        return FINE
    return found(
        NEEDS_NEWER.found(
            situation.subject,
            f"the draft uses {', '.join(features)}, which {situation.engine} {situation.version.text} does not know",
            evidence=[(f"{draft.source}/config.json", ", ".join(features)), *fc_evidence(draft)],
            effect="tensors are skipped and acceptance falls, or fc fails on its shape",
            remedy=f"take {situation.engine} {release} or later (pull request {pull})",
        )
    )


RULES: tuple[Rule, ...] = (
    state_count_declared,
    features_known,
)
