"""Are the tensors there that the method needs, and will those that are there be used?"""

from __future__ import annotations

import re

from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.findings import Finding
from spectune.engines.registry import title_of
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.eagle3_parts import is_llama_head, missing_parts, unannounced_biases
from spectune.preflight.draft.engine_names import (
    LLAMA_EAGLE3_DRAFTS,
)
from spectune.preflight.draft.family import FC_NAMES, Q_NAMES, identify, is_own_draft
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

DAMAGED = finding_kind("checkpoint-damaged")
TENSOR_MISSING = finding_kind("draft-tensor-missing")
TENSOR_UNUSED = finding_kind("draft-tensor-unused")
NOT_FINITE = finding_kind("draft-weights-not-finite")


_HEAD = ("lm_head.weight", "model.lm_head.weight", "output.weight")
_EMBEDDINGS = ("embed_tokens.weight", "model.embed_tokens.weight")
_KNOWN = re.compile(
    r"^(model\.)?(fc(_norm|_bias)?|midlayer|layers|lm_head|norm|embed_tokens|d2t|t2d|input_norm|hidden_norm|"
    r"aux_norm_\w+|mask_hidden|draft_id_to_target_id|verifier_\w+)(\.|$)"
)


def files_are_whole(situation: Situation) -> Judgement:
    """No shard is missing or cut short."""
    findings = []
    for what, facts in (("target", situation.target), ("draft", situation.draft)):
        if facts is None or not facts.faults or (what == "draft" and is_own_draft(situation)):
            continue
        findings.append(
            DAMAGED.found(
                situation.subject,
                f"the {what}'s files are damaged: {facts.faults[0]}",
                evidence=[(facts.source, fault) for fault in facts.faults[:8]],
                remedy="download or copy it again",
            )
        )
    return found(*findings)


def needed_tensors_exist(situation: Situation) -> Judgement:
    """By method: what an EAGLE-3 or EAGLE-1 head cannot do without."""
    draft = situation.draft
    if draft is None or draft.kind == "absent" or is_own_draft(situation):
        return FINE
    if draft.kind == "gguf" and not (draft.tensors and draft.model_type == "eagle3"):
        return FINE
    family = identify(draft, target=situation.target).family
    if family not in ("eagle", "eagle3") or situation.knobs.method not in ("eagle", "eagle3"):
        return FINE
    if draft.tensors is None:
        return not_checked(f"the draft's tensors: no header of {draft.source} was read")
    if set(draft.architectures) & {"Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"}:
        return not_checked("the draft's tensor names: those of latent-attention drafts are not known here")
    prefixed = [name for name in draft.tensors if name.startswith("model.")]
    if prefixed and situation.engine == "vllm" and set(draft.architectures) & LLAMA_EAGLE3_DRAFTS:
        return found(
            TENSOR_MISSING.found(
                situation.subject,
                f"the names of {len(prefixed)} tensors begin with 'model.', which vLLM puts in front of each itself",
                evidence=[(draft.source, ", ".join(sorted(prefixed)[:6]))],
                effect="the server ends with an unknown parameter model.model...",
                remedy="rename them: fc.weight, midlayer.*, norm.weight",
            )
        )
    missing = _missing(situation, draft, family)
    if not missing:
        return FINE
    return found(
        TENSOR_MISSING.found(
            situation.subject,
            f"the draft's files lack {', '.join(missing)}",
            evidence=[(draft.source, f"tensors: {', '.join(sorted(draft.tensors)[:12])}")],
            remedy="take another draft, or export this one again",
        )
    )


def _missing(situation: Situation, draft: CheckpointFacts, family: str) -> list[str]:
    if draft.kind == "gguf":
        return missing_parts(draft)
    if family == "eagle3" and is_llama_head(draft):
        shared = draft.has_tensor(*_HEAD) is not False or _shares_head(situation, draft)
        return [*missing_parts(draft), *(() if shared else ("lm_head.weight",))]
    missing = []
    if draft.has_tensor(*FC_NAMES, "fc.weight_packed", "fc.qweight") is False:
        missing.append("fc.weight")
    if family == "eagle3":
        if draft.has_tensor(*_HEAD) is False and not _shares_head(situation, draft):
            missing.append("lm_head.weight")
        fused = tuple(name.replace("q_proj", "qkv_proj") for name in Q_NAMES)
        packed = tuple(
            name.replace(".weight", end) for name in Q_NAMES for end in (".weight_packed", ".qweight")
        )
        if draft.has_tensor(*Q_NAMES, *fused, *packed) is False:
            missing.append("midlayer.self_attn.q_proj.weight (or layers.0...)")
    elif _head_needed(situation) and draft.has_tensor(*_HEAD) is False:
        missing.append("lm_head.weight (needed by vLLM 0.6)")
    return missing


def _head_needed(situation: Situation) -> bool:
    return situation.engine == "vllm" and is_older(situation.version.text, "0.7") is True


def _shares_head(situation: Situation, draft: CheckpointFacts) -> bool:
    """A draft over the whole vocabulary may use the target's head: SGLang without ``draft_vocab_size``, vLLM always."""
    whole = draft.draft_vocab_size is None or draft.draft_vocab_size == draft.vocab_size
    if draft.tie_word_embeddings and draft.has_tensor(*_EMBEDDINGS):
        return True
    return whole and (situation.engine == "vllm" or draft.draft_vocab_size is None)


def present_tensors_are_used(situation: Situation) -> Judgement:
    """Own heads and embeddings, the bias of ``fc``, and names nobody expects."""
    draft = situation.draft
    if draft is None or draft.tensors is None or draft.kind == "gguf" or is_own_draft(situation):
        return FINE
    family = identify(draft, target=situation.target).family
    if family not in ("eagle", "eagle3") or situation.knobs.method not in ("eagle", "eagle3"):
        return FINE
    findings = [
        _own_layers(situation, draft, family),
        _fc_bias(situation, draft, family),
        *_biases(situation, draft, family),
    ]
    unknown = sorted(name for name in draft.tensors if not _KNOWN.search(name))
    if unknown and situation.engine == "sglang" and family == "eagle3":
        findings.append(
            TENSOR_UNUSED.found(
                situation.subject,
                f"SGLang will drop {len(unknown)} tensors of the draft, whose names it does not expect",
                evidence=[(draft.source, ", ".join(unknown[:6]))],
                remedy="check that this draft was made for SGLang",
            )
        )
    return found(*findings)


def _own_layers(situation: Situation, draft: CheckpointFacts, family: str) -> Finding | None:
    own = [name for name in (*_HEAD[:1], *_EMBEDDINGS) if draft.tensor(name) is not None]
    if not own or family != "eagle3":
        return None
    if situation.engine == "sglang":
        return _own_embeddings(situation, draft)
    if situation.engine != "vllm":
        return None
    if not is_older(situation.version.text, "0.12"):
        return None
    return TENSOR_UNUSED.found(
        situation.subject,
        f"vLLM {situation.version.text} may replace the draft's own {' and '.join(own)} with the target's",
        evidence=[(draft.source, f"tensors {', '.join(own)}")],
        remedy="take a version of vLLM with pull request 28549 (November 2025)",
    )


def _own_embeddings(situation: Situation, draft: CheckpointFacts) -> Finding | None:
    shared = draft.target_hidden_size is None or draft.target_hidden_size == draft.hidden_size
    if not shared or draft.tensor(*_EMBEDDINGS) is None:
        return None
    return TENSOR_UNUSED.found(
        situation.subject,
        "SGLang replaces the draft's own embed_tokens with the target's, which is the same if they were frozen",
        severity="note",
        evidence=[(draft.source, "tensor embed_tokens.weight")],
        effect="lower acceptance only if the draft's embeddings were trained",
    )


def _fc_bias(situation: Situation, draft: CheckpointFacts, family: str) -> Finding | None:
    if draft.tensor("fc.bias", "model.fc.bias") is None:
        return None
    key = {"vllm": "eagle_fc_bias", "sglang": "bias"}.get(situation.engine)
    if key is None or draft.config.get(key) is True or (situation.engine == "sglang" and family == "eagle"):
        return None
    return TENSOR_UNUSED.found(
        situation.subject,
        f"the draft has an fc.bias, which {title_of(situation.engine)} uses only with {key}: true",
        evidence=[
            (draft.source, "tensor fc.bias"),
            (f"{draft.source}/config.json", f"{key}: {draft.config.get(key)}"),
        ],
        remedy=f'write "{key}": true into the draft\'s config.json',
    )


def _biases(situation: Situation, draft: CheckpointFacts, family: str) -> list[Finding]:
    if family != "eagle3" or not is_llama_head(draft):
        return []
    return [
        TENSOR_UNUSED.found(
            situation.subject,
            f"the draft has {len(names)} biases, which {title_of(situation.engine)} drops without {key}: true",
            evidence=[
                (draft.source, f"tensors {', '.join(names[:4])}"),
                (f"{draft.source}/config.json", f"{key}: {draft.config.get(key)}"),
            ],
            remedy=f'write "{key}": true into the draft\'s config.json if it was trained with them',
        )
        for key, names in unannounced_biases(draft).items()
    ]


def weights_are_finite(situation: Situation) -> Judgement:
    """Where the values were read, which a check before a launch does not do."""
    draft = situation.draft
    if draft is None or not draft.not_finite:
        return FINE
    named = [f"{name} ({count})" for name, count in draft.not_finite.items()]
    return found(
        NOT_FINITE.found(
            situation.subject,
            f"{len(named)} tensors of the draft hold values that are not finite: {', '.join(named[:6])}",
            evidence=[(draft.source, name) for name in named[:8]],
            remedy="take an earlier checkpoint of its training, or export or copy it again",
        )
    )


RULES: tuple[Rule, ...] = (
    files_are_whole,
    needed_tensors_exist,
    present_tensors_are_used,
    weights_are_finite,
)
