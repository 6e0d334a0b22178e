"""Are the values of the draft's configuration such as a layer can be built from?"""

from __future__ import annotations

from spectune.checkpoints.config_faults import config_faults
from spectune.domain.findings import FindingKind
from spectune.preflight.draft_fit_family import identify, is_own_draft
from spectune.preflight.rules import FINE, Judgement, Rule, found
from spectune.preflight.situation import Situation

CONFIG_VALUE = FindingKind(
    code="draft-config-value",
    severity="error",
    title="A value of the draft's config.json is of the wrong kind or out of range",
    explanation=(
        "A size that is no whole number, a norm's epsilon that is text, a rotary base below zero, heads that key "
        "heads do not divide: mostly a configuration edited by hand or written by another trainer. Engines find out "
        "while they build the draft, after the target has been loaded, or compute something else."
    ),
    effect="the server ends with a type or shape error, or the draft computes other values than it was trained for",
    holds_for="every engine",
    sources=("https://huggingface.co/docs/transformers/model_doc/llama",),
)

KINDS = (CONFIG_VALUE,)


def values_are_valid(situation: Situation) -> Judgement:
    """Of EAGLE-like heads, whose layer is Llama's."""
    draft = situation.draft
    if draft is None or draft.kind not in ("folder", "hub") or is_own_draft(situation):
        return FINE
    if identify(draft, target=situation.target).family not in ("eagle", "eagle3"):
        return FINE
    faults = config_faults(draft.config)
    if not faults:
        return FINE
    return found(
        CONFIG_VALUE.found(
            situation.subject,
            f"the draft's configuration cannot be used: {'; '.join(faults[:4])}",
            evidence=[(draft.source, fault) for fault in faults[:8]],
            remedy="correct the draft's config.json",
        )
    )


RULES: tuple[Rule, ...] = (values_are_valid,)
