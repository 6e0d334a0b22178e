"""Which of the draft's normalisation options will the engine's version honour?"""

from __future__ import annotations

from spectune.checkpoints.facts import CheckpointFacts
from spectune.engines.registry import title_of
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.engine_names import LLAMA_EAGLE3_DRAFTS
from spectune.preflight.draft.family import identify
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

OPTION_IGNORED = finding_kind("draft-option-ignored")
DEFAULT_DIFFERS = finding_kind("draft-norm-default")


_KNOWN = {
    "sglang": frozenset({"norm_before_fc", "fc_norm", "use_aux_norm", "norm_output"}),
    "vllm": frozenset({"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"}),
}


def options_known(situation: Situation) -> Judgement:
    """Every option that is switched on has code behind it."""
    draft = situation.draft
    if draft is None or situation.engine not in _KNOWN or situation.knobs.method != "eagle3":
        return FINE
    if identify(draft, target=situation.target).family != "eagle3":
        return FINE
    switched_on = [key for key, value in draft.norm_options.items() if value]
    if not switched_on:
        return FINE
    if not draft.speculators_algorithm and not set(draft.architectures) & LLAMA_EAGLE3_DRAFTS:
        return not_checked(
            f"whether {title_of(situation.engine)} honours {', '.join(switched_on)} in this draft's class"
        )
    ignored = [key for key in switched_on if key not in _KNOWN[situation.engine]]
    late = _lost_in_speculators(situation, draft)
    if late and "norm_before_fc" not in ignored:
        ignored.append("norm_before_fc")
    if not ignored:
        return FINE
    name = title_of(situation.engine)
    version = f" {situation.version.text}" if situation.version.text else ""
    return found(
        OPTION_IGNORED.found(
            situation.subject,
            f"{name}{version} ignores {', '.join(ignored)} of the draft's configuration",
            evidence=[(f"{draft.source}/config.json", f"{key}: true") for key in ignored],
            remedy="take a version of vLLM with pull request 38111"
            if late
            else "serve it with the engine the draft was trained for",
        )
    )


def _lost_in_speculators(situation: Situation, draft: CheckpointFacts) -> bool:
    if situation.engine != "vllm" or not draft.speculators_algorithm:
        return False
    return bool(draft.norm_options.get("norm_before_fc")) and bool(is_older(situation.version.text, "0.19"))


def default_known(situation: Situation) -> Judgement:
    """The value vLLM will take for ``norm_before_residual`` in a speculators configuration, and from where."""
    draft = situation.draft
    if draft is None or situation.engine != "vllm" or draft.speculators_algorithm != "eagle3":
        return FINE
    if "norm_before_residual" in draft.norm_options:
        return FINE
    return found(
        DEFAULT_DIFFERS.found(
            situation.subject,
            "norm_before_residual is not written: vLLM takes true, the default of the speculators format "
            "(a plain EAGLE-3 configuration would get false)",
            evidence=[
                (f"{draft.source}/config.json", f"speculators_model_type: {draft.speculators_algorithm}")
            ],
            remedy="write norm_before_residual into the draft's config.json as it was trained",
        )
    )


RULES: tuple[Rule, ...] = (options_known, default_known)
