"""Do draft and target mean the same token by the same number?"""

from __future__ import annotations

from spectune.checkpoints.facts import CheckpointFacts
from spectune.domain.findings import Finding, Severity
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import identify, is_own_draft
from spectune.preflight.flags.speculative import speculation_of
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation

VOCAB_DIFFERS = finding_kind("draft-vocabulary-differs")
TOKENIZER_DIFFERS = finding_kind("draft-tokenizer-differs")


_LLAMACPP_TOLERANCE = 128
"""llama.cpp accepts this difference in size (``SPEC_VOCAB_MAX_SIZE_DIFFERENCE``)."""
_PADDING = 1024


def vocabularies_agree(situation: Situation) -> Judgement:
    """Sizes, and for GGUF or stand-alone drafts the lists themselves."""
    draft, target = situation.draft, situation.target
    if draft is None or draft.kind == "absent" or is_own_draft(situation) or situation.knobs.method == "none":
        return FINE
    if target is None or target.kind == "absent":
        return not_checked("the draft's vocabulary against the target's: the target's files were not read")
    if situation.engine == "vllm" and (speculation_of(situation.flags) or {}).get("use_heterogeneous_vocab"):
        return FINE
    kinds = _kind_problem(draft, target)
    if kinds is not None:
        return found(_differs(situation, kinds))
    if draft.vocab_size is None or target.vocab_size is None:
        return not_checked("the draft's vocabulary against the target's: a size is not known")
    difference = abs(draft.vocab_size - target.vocab_size)
    stand_alone = identify(draft, target=target).family == "standalone"
    tolerance = _LLAMACPP_TOLERANCE if situation.engine == "llamacpp" and stand_alone else 0
    if difference > tolerance:
        message = f"the target has {target.vocab_size} tokens, the draft {draft.vocab_size}"
        padded = situation.engine == "sglang" and stand_alone and difference <= _PADDING
        if padded and _same_tokens(draft, target):
            return FINE
        return found(_differs(situation, message, severity="warning" if padded else None))
    return _contents(situation, draft, target)


def _same_tokens(draft: CheckpointFacts, target: CheckpointFacts) -> bool:
    """Sizes of one family differ where the embedding was padded to another multiple."""
    ours, theirs = draft.tokenizer, target.tokenizer
    if ours is None or theirs is None or ours.vocab_hash is None:
        return False
    return (ours.hash_of, ours.vocab_hash) == (theirs.hash_of, theirs.vocab_hash)


def _kind_problem(draft: CheckpointFacts, target: CheckpointFacts) -> str | None:
    ours, theirs = draft.tokenizer, target.tokenizer
    if ours is None or theirs is None or ours.hash_of != "gguf tokens" or theirs.hash_of != "gguf tokens":
        return None
    for name, mine, other in (
        ("tokenizer.ggml.model", ours.model, theirs.model),
        ("tokenizer.ggml.pre", ours.pre, theirs.pre),
    ):
        if mine is not None and other is not None and mine != other:
            return f"{name} is {mine!r} in the draft and {other!r} in the target"
    return None


def _contents(situation: Situation, draft: CheckpointFacts, target: CheckpointFacts) -> Judgement:
    ours, theirs = draft.tokenizer, target.tokenizer
    if ours is None or ours.vocab_hash is None:
        return FINE  # heads come without a tokenizer and use the target's
    if theirs is None or theirs.vocab_hash is None or ours.hash_of != theirs.hash_of:
        return not_checked(
            "the draft's list of tokens against the target's: they are in different files or not read"
        )
    if ours.vocab_hash != theirs.vocab_hash:
        added = _added_difference(draft, target)
        refused = situation.engine == "llamacpp" and situation.knobs.method == "draft_model"
        return found(
            TOKENIZER_DIFFERS.found(
                situation.subject,
                "draft and target list different tokens" + (f": {added}" if added else ""),
                severity="error" if refused and ours.num_tokens == theirs.num_tokens else None,
                evidence=[
                    (f"{draft.source}: {ours.hash_of}", f"hash {ours.vocab_hash}, {ours.num_tokens} tokens"),
                    (
                        f"{target.source}: {theirs.hash_of}",
                        f"hash {theirs.vocab_hash}, {theirs.num_tokens} tokens",
                    ),
                ],
                remedy="take a draft with the target's tokenizer",
            )
        )
    if (ours.bos, ours.eos) != (theirs.bos, theirs.eos) and None not in (ours.eos, theirs.eos):
        message = (
            f"bos/eos are {ours.bos}/{ours.eos} in the draft and {theirs.bos}/{theirs.eos} in the target"
        )
        return found(TOKENIZER_DIFFERS.found(situation.subject, message, severity="note"))
    return FINE


def _added_difference(draft: CheckpointFacts, target: CheckpointFacts) -> str | None:
    ours = draft.tokenizer.added_tokens if draft.tokenizer else None
    theirs = target.tokenizer.added_tokens if target.tokenizer else None
    if ours is None or theirs is None or ours == theirs:
        return None
    differing = sorted(set(ours) ^ set(theirs))[:3]
    return "added tokens differ, e.g. " + ", ".join(f"{number} {text!r}" for number, text in differing)


def _differs(situation: Situation, message: str, *, severity: Severity | None = None) -> Finding:
    draft, target = situation.draft, situation.target
    assert draft is not None and target is not None
    return VOCAB_DIFFERS.found(
        situation.subject,
        f"draft and target have different vocabularies: {message}",
        severity=severity,
        evidence=[
            (draft.source, f"vocab_size: {draft.vocab_size}"),
            (target.source, f"vocab_size: {target.vocab_size}"),
        ],
        remedy="take a draft with the target's tokenizer",
    )


RULES: tuple[Rule, ...] = (vocabularies_agree,)
