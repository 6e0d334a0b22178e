"""All rules that ask whether a draft fits its target, in the order their findings are shown."""

from __future__ import annotations

from spectune.preflight import (
    draft_fit_blocks,
    draft_fit_config,
    draft_fit_identity,
    draft_fit_layers,
    draft_fit_method,
    draft_fit_norms,
    draft_fit_parallel,
    draft_fit_positions,
    draft_fit_prediction,
    draft_fit_quantization,
    draft_fit_shapes,
    draft_fit_states,
    draft_fit_support,
    draft_fit_tensors,
    draft_fit_vocabulary,
    draft_fit_vocabulary_map,
)
from spectune.preflight.rules import Judgement, Rule, not_checked
from spectune.preflight.situation import Situation

_MODULES = (
    draft_fit_method,
    draft_fit_support,
    draft_fit_states,
    draft_fit_config,
    draft_fit_shapes,
    draft_fit_parallel,
    draft_fit_vocabulary,
    draft_fit_vocabulary_map,
    draft_fit_tensors,
    draft_fit_prediction,
    draft_fit_layers,
    draft_fit_norms,
    draft_fit_quantization,
    draft_fit_positions,
    draft_fit_blocks,
    draft_fit_identity,
)


def files_were_read(situation: Situation) -> Judgement:
    """Whatever could not be read of the target or the draft, with its reason."""
    reasons: list[str] = []
    for what, facts in (("target", situation.target), ("draft", situation.draft)):
        if facts is not None:
            reasons.extend(f"{what}: {reason}" for reason in facts.not_read)
    if situation.target is None:
        reasons.append("target: its files were not looked at")
    return not_checked(*reasons)


RULES: tuple[Rule, ...] = (*(rule for module in _MODULES for rule in module.RULES), files_were_read)
