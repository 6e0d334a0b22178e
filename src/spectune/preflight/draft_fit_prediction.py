"""Multi-token-prediction layers inside the target: are they there, and stored as the engine will read them?"""

from __future__ import annotations

import re

from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.findings import FindingKind
from spectune.preflight.draft_fit_family import is_own_draft
from spectune.preflight.draft_fit_tables import (
    SGLANG_MTP_TARGETS,
    SGLANG_READ,
)
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation

MTP_MISSING = FindingKind(
    code="mtp-layers-missing",
    severity="error",
    title="The target's files hold no multi-token-prediction layer",
    explanation=(
        "Conversions and quantisations often drop the prediction layer and leave `num_nextn_predict_layers` in the "
        "configuration. The engine then drafts with random values, or refuses."
    ),
    effect="the server ends while loading, or every draft is rejected",
    holds_for="every engine",
    sources=("https://github.com/sgl-project/sglang/issues/35797",),
)
MTP_DEPTH = FindingKind(
    code="mtp-depth-is-not-draft-count",
    severity="note",
    title="One prediction layer can draft several tokens",
    explanation=(
        "`num_nextn_predict_layers` says how many layers there are, not how many tokens to draft: engines run one "
        "layer several times. Vendors draft three with one layer, where drafting one gives a third of the gain."
    ),
    holds_for="vLLM, SGLang",
    sources=("https://github.com/Blackwellboy/model-serving-minefield",),
)
UNFUSED_EXCLUDE = FindingKind(
    code="mtp-exclude-list-unfused",
    severity="warning",
    title="The exclude list names the parts of layers that the engine fuses",
    explanation=(
        "Engines load q, k and v as one `qkv_proj`, gate and up as one `gate_up_proj`. An exclude list that names "
        "`mtp...q_proj` and its sisters one by one does not match the fused names, so SGLang allocates quantised "
        "parameters for the unquantised layer and drops its tensors, with one warning for all of them."
    ),
    slows=True,
    effect="acceptance length 1.00 (every line of the log), or far below the usual",
    holds_for=f"SGLang of August 2026; not settled whether fixed in {SGLANG_READ}",
    sources=("https://github.com/sgl-project/sglang/issues/35797",),
)
PREFIX_EXCLUDE = FindingKind(
    code="mtp-exclude-list-prefix",
    severity="warning",
    title="The exclude list names the prediction layer by a number the engine does not map",
    explanation=(
        "SGLang loads the prediction layer under another name and maps the checkpoint's `model.layers.61` to it, "
        "the number of DeepSeek-V3. In a model with another number of layers the excluded modules are not found, "
        "and unquantised weights are loaded into quantised parameters."
    ),
    effect="the server ends with a shape or dtype error for eh_proj",
    holds_for=f"SGLang of April 2026 to {SGLANG_READ}, Quark checkpoints",
    sources=(
        "https://github.com/sgl-project/sglang/pull/30379",
        "read in SGLang 0.5.23: models/deepseek_nextn.py",
    ),
)
_PARTS = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj)$")
_MTP = re.compile(r"(^|\.)mtp(\.|$)|nextn|\.eh_proj|\.enorm|\.hnorm")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


KINDS = (MTP_MISSING, MTP_DEPTH, UNFUSED_EXCLUDE, PREFIX_EXCLUDE)
_PARTS = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj)$")
_MTP = re.compile(r"(^|\.)mtp(\.|$)|nextn|\.eh_proj|\.enorm|\.hnorm")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def prediction_layers_exist(situation: Situation) -> Judgement:
    """A target that is to draft for itself has the layers for it."""
    target = situation.target
    if situation.knobs.method not in ("mtp", "eagle") or not is_own_draft(situation):
        return FINE
    if target is None or target.kind == "absent" or not target.num_nextn_layers:
        return FINE
    if target.tensors is None or not target.tensors_complete:
        return not_checked(
            "whether the target's prediction layers are in its files: not all headers were read"
        )
    if target.prediction_tensors:
        return _depth(situation, target.num_nextn_layers)
    return found(
        MTP_MISSING.found(
            situation.subject,
            f"the configuration announces {target.num_nextn_layers} prediction layers and the files hold none",
            # Elsewhere such layers may have names that are not known here.
            severity=None if set(target.architectures) & SGLANG_MTP_TARGETS else "warning",
            evidence=[
                (f"{target.source}: configuration", f"num_nextn_predict_layers: {target.num_nextn_layers}"),
                (
                    target.source,
                    f"{len(target.tensors)} tensors, none named mtp, nextn or layer {target.num_layers}",
                ),
            ],
            remedy="take a checkpoint that kept them, or another method",
        )
    )


def _depth(situation: Situation, layers: int) -> Judgement:
    if layers == 1 and situation.knobs.num_draft_tokens == 1:
        message = (
            "one prediction layer drafts one token here; it can be run more often, and vendors draft three"
        )
        return found(MTP_DEPTH.found(situation.subject, message, remedy="try 2 and 3 drafted tokens as well"))
    return FINE


def exclude_list_matches(situation: Situation) -> Judgement:
    """Exclude lists of quantised targets that keep their prediction layer unquantised."""
    target = situation.target
    if situation.engine != "sglang" or target is None or target.quantization is None:
        return FINE
    if situation.knobs.method not in ("mtp", "eagle") or not is_own_draft(situation):
        return FINE
    method, exclude = target.quantization.method or "", target.quantization.exclude
    if method == "compressed-tensors":
        return _unfused(situation, target, exclude)
    if method == "quark" and target.num_nextn_layers and target.num_layers not in (None, 61):
        named = [name for name in exclude if _layer_of(name) == target.num_layers]
        if named:
            return found(
                PREFIX_EXCLUDE.found(
                    situation.subject,
                    f"the exclude list names the prediction layer {target.num_layers}, and SGLang maps only 61",
                    evidence=[(f"{target.source}: {target.quantization.where}", ", ".join(named[:3]))],
                    remedy="take a version of SGLang with pull request 30379, or another checkpoint",
                )
            )
    return FINE


def _unfused(situation: Situation, target: CheckpointFacts, exclude: tuple[str, ...]) -> Judgement:
    parts = [name for name in exclude if _MTP.search(name) and _PARTS.search(name)]
    fused = any(_MTP.search(name) and re.search(r"qkv_proj|gate_up_proj", name) for name in exclude)
    pattern = any(name.startswith("re:") and "mtp" in name and not _PARTS.search(name) for name in exclude)
    if not parts or fused or pattern:
        return FINE
    count = len(target.prediction_tensors)
    tensors = f" ({count} tensors of that layer in the files)" if count else ""
    where = target.quantization.where if target.quantization else "config.json"
    return found(
        UNFUSED_EXCLUDE.found(
            situation.subject,
            f"{len(parts)} parts of fused layers are excluded one by one{tensors}",
            evidence=[(f"{target.source}: {where}", f"ignore: {', '.join(parts[:3])}, ...")],
            remedy="replace them with one pattern for the whole layer (re:.*mtp.*), then look for 'not found in "
            "params_dict' in the log",
        )
    )


def _layer_of(name: str) -> int | None:
    match = _LAYER.search(f"{name}.")
    return int(match[1]) if match else None


RULES: tuple[Rule, ...] = (prediction_layers_exist, exclude_list_matches)
