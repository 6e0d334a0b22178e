"""Multi-token-prediction layers inside the target: are they there, and stored as the engine will read them?"""

from __future__ import annotations

import re

from spectune.checkpoints.facts import CheckpointFacts
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.engine_names import (
    SGLANG_MTP_TARGETS,
)
from spectune.preflight.draft.family import is_own_draft
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation

MTP_MISSING = finding_kind("mtp-layers-missing")
MTP_DEPTH = finding_kind("mtp-depth-is-not-draft-count")
UNFUSED_EXCLUDE = finding_kind("mtp-exclude-list-unfused")
PREFIX_EXCLUDE = finding_kind("mtp-exclude-list-prefix")
TRAINED_DEPTH = finding_kind("draft-beyond-trained-depth")

_FAR_BEYOND = 8
"""Drafted tokens for each layer; vendors draft three with one."""
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
    tokens = situation.knobs.num_draft_tokens
    if tokens is not None and tokens >= _FAR_BEYOND * layers:
        message = (
            f"{tokens} drafted tokens from {layers} prediction layer{'s' * (layers > 1)}: each is trained for one "
            "token, and what it drafts after its own drafts is kept less and less"
        )
        return found(
            TRAINED_DEPTH.found(
                situation.subject,
                message,
                severity="warning",
                remedy="measure 2, 3 and 5 drafted tokens as well",
            )
        )
    if layers == 1 and tokens == 1:
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
