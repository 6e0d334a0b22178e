"""All rules that ask whether a draft fits its target, in the order their findings are shown."""

from __future__ import annotations

from spectune.preflight.draft import blocks as draft_fit_blocks
from spectune.preflight.draft import config as draft_fit_config
from spectune.preflight.draft import identity as draft_fit_identity
from spectune.preflight.draft import layers as draft_fit_layers
from spectune.preflight.draft import method as draft_fit_method
from spectune.preflight.draft import norms as draft_fit_norms
from spectune.preflight.draft import parallel as draft_fit_parallel
from spectune.preflight.draft import positions as draft_fit_positions
from spectune.preflight.draft import prediction as draft_fit_prediction
from spectune.preflight.draft import quantization as draft_fit_quantization
from spectune.preflight.draft import shapes as draft_fit_shapes
from spectune.preflight.draft import states as draft_fit_states
from spectune.preflight.draft import support as draft_fit_support
from spectune.preflight.draft import tensors as draft_fit_tensors
from spectune.preflight.draft import vocabulary as draft_fit_vocabulary
from spectune.preflight.draft import vocabulary_map as draft_fit_vocabulary_map
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
