"""Are the values of the draft's configuration such as a layer can be built from?"""

from __future__ import annotations

from spectune.checkpoints.config_faults import config_faults
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import identify, is_own_draft
from spectune.preflight.rules import FINE, Judgement, Rule, found
from spectune.preflight.situation import Situation

CONFIG_VALUE = finding_kind("draft-config-value")


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
