"""How are the draft's weights stored, and what will the engine take them for?"""

from __future__ import annotations

import re

from spectune.checkpoints.facts import TensorInfo
from spectune.domain.sizes import in_bytes
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import identify, is_own_draft
from spectune.preflight.flags.speculative import speculation_of
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation

INHERITED = finding_kind("draft-inherits-quantization")
STAYS_WIDE = finding_kind("draft-not-quantized")
NARROW_HEAD = finding_kind("draft-weights-below-8-bit")
MIXED_ASSISTANT = finding_kind("draft-for-unquantized-target")


_NEED_A_CONFIG = re.compile(
    r"awq|gptq|marlin|compressed-tensors|modelopt|quark|auto-round|w4afp8|moe_wna16|aqlm"
)
_PACKED = re.compile(r"qweight$|weight_packed$|\.scales$|weight_scale_2$|qzeros$")
_NARROW_GGUF = re.compile(r"I?Q[1-5]|TQ|MXFP4")


def inheritance_works(situation: Situation) -> Judgement:
    """The target's ``--quantization`` and the draft's files: the rule differs per engine."""
    draft, method = situation.draft, situation.flags.get("quantization")
    if draft is None or draft.kind in ("absent", "gguf") or is_own_draft(situation):
        return FINE
    if not isinstance(method, str) or draft.quantization is not None or situation.knobs.method == "none":
        return FINE
    evidence = [
        ("flags", f"--quantization {method}"),
        (f"{draft.source}: configuration", "no quantization_config"),
    ]
    if situation.engine == "sglang":
        if situation.flags.get("speculative-draft-model-quantization") is not None:
            return FINE
        if not _NEED_A_CONFIG.search(method):
            return FINE
        return found(
            INHERITED.found(
                situation.subject,
                f"the draft is not quantised and would inherit --quantization {method}",
                evidence=evidence,
                remedy="add --speculative-draft-model-quantization unquant",
            )
        )
    if situation.engine == "vllm" and not (speculation_of(situation.flags) or {}).get("quantization"):
        size = f", {in_bytes(draft.weight_bytes, binary=True)}," if draft.weight_bytes else ""
        return found(
            STAYS_WIDE.found(
                situation.subject,
                f"--quantization {method} reaches the target only; the draft{size} stays {draft.dtype or 'as it is'}",
                evidence=evidence,
                remedy='count its full size, or give "quantization" in --speculative-config',
            )
        )
    return FINE


def head_is_wide_enough(situation: Situation) -> Judgement:
    """Draft heads and prediction layers are stored in at least 8 bits."""
    if situation.knobs.method not in ("eagle", "eagle3", "mtp", "dflash", "dspark"):
        return FINE
    own = is_own_draft(situation)
    holder = situation.target if own else situation.draft
    if holder is None or holder.kind == "absent":
        return FINE
    if holder.tensors is None:
        return not_checked(
            f"the precision of the draft's weights: no tensor headers of {holder.source} were read"
        )
    names = holder.prediction_tensors if own else holder.tensors
    narrow = {name: holder.tensors[name] for name in names if _is_narrow(name, holder.tensors[name])}
    if not narrow:
        return FINE
    name, info = min(narrow.items())
    return found(
        NARROW_HEAD.found(
            situation.subject,
            f"{len(narrow)} tensors of the {'prediction layer' if own else 'draft'} are stored below 8 bits",
            severity="note" if holder.kind == "gguf" else None,
            evidence=[(f"{holder.source}: {info.file}", f"{name}: {info.dtype}")],
            remedy="use the draft in BF16 or 8 bits",
        )
    )


def _is_narrow(name: str, info: TensorInfo) -> bool:
    if _PACKED.search(name) and info.dtype in ("I32", "U32", "U8", "I8"):
        return True
    return bool(_NARROW_GGUF.match(info.dtype)) or info.dtype == "F4"


def assistant_has_its_target(situation: Situation) -> Judgement:
    """Gemma-4 assistants beside quantised targets."""
    draft, target = situation.draft, situation.target
    if draft is None or target is None or identify(draft).family != "mtp" or target.quantization is None:
        return FINE
    if draft.quantization is not None or not any("Assistant" in name for name in draft.architectures):
        return FINE
    return found(
        MIXED_ASSISTANT.found(
            situation.subject,
            f"the assistant is unquantised and the target is {target.quantization.method}",
            evidence=[
                (f"{draft.source}/config.json", f"architectures: {list(draft.architectures)}"),
                (
                    f"{target.source}: {target.quantization.where}",
                    f"quant_method: {target.quantization.method}",
                ),
            ],
            remedy="if hardly any draft is kept, measure once with the unquantised target",
        )
    )


RULES: tuple[Rule, ...] = (
    inheritance_works,
    head_is_wide_enough,
    assistant_has_its_target,
)
