"""Was the draft made for positions as far as the server will serve?"""

from __future__ import annotations

from spectune.checkpoints.facts import CheckpointFacts
from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import identify, is_own_draft
from spectune.preflight.flags.every_engine import whole_number
from spectune.preflight.rules import FINE, Judgement, Rule, found, not_checked
from spectune.preflight.situation import Situation
from spectune.preflight.versions import is_older

CONTEXT_LONGER = finding_kind("draft-context-shorter")
ROPE_DIFFERS = finding_kind("draft-rope-differs")


_ALLOW = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_LENGTH_FLAG = {"sglang": "context-length", "vllm": "max-model-len"}


def served_context(situation: Situation) -> int | None:
    """Tokens per request that the server will allow; ``None``: not known."""
    name = _LENGTH_FLAG.get(situation.engine)
    value = situation.flags.get(name) if name else None
    if isinstance(value, str):
        return whole_number(value, engine=situation.engine)
    if name in situation.flags:
        return None
    return situation.target.max_positions if situation.target is not None else None


def context_fits(situation: Situation) -> Judgement:
    """The context against the draft's own limit."""
    draft, engine = situation.draft, situation.engine
    if draft is None or draft.kind == "absent" or engine not in _LENGTH_FLAG or is_own_draft(situation):
        return FINE
    if situation.knobs.method in ("none", "ngram"):
        return FINE
    context, limit = served_context(situation), draft.max_positions
    if limit is None or context is None:
        return not_checked("the context length against the draft's: one of them is not known")
    if context <= limit:
        return FINE
    if engine == "sglang":
        return _in_sglang(situation, draft, context, limit)
    return _in_vllm(situation, draft, context, limit)


def _in_sglang(situation: Situation, draft: CheckpointFacts, context: int, limit: int) -> Judgement:
    allowed = situation.env.get(_ALLOW, "").lower() in ("1", "true", "yes", "y", "on", "t")
    if not allowed:
        message = f"the context is {context} tokens and the draft allows {limit}: SGLang refuses to start"
        remedy = (
            f"add --context-length {limit}, or set {_ALLOW}=1 and measure acceptance beyond {limit} tokens"
        )
        return found(
            CONTEXT_LONGER.found(
                situation.subject, message, evidence=_evidence(draft, context), remedy=remedy
            )
        )
    longest = _longest_request(situation)
    message = f"the context is {context} tokens and the draft was made for {limit}"
    if longest is None or longest <= limit:
        said = "requests stay below it" if longest is not None else "how long the requests are is not known"
        message += f" ({said})"
    else:
        message += f"; requests reach {longest}"
    return found(
        CONTEXT_LONGER.found(
            situation.subject,
            message,
            severity="warning" if longest is not None and longest > limit else "note",
            evidence=[*_evidence(draft, context), ("environment", f"{_ALLOW}={situation.env[_ALLOW]}")],
            effect=f"acceptance may fall beyond {limit} tokens",
            remedy="look at acceptance by length of the context",
        )
    )


def _in_vllm(situation: Situation, draft: CheckpointFacts, context: int, limit: int) -> Judgement:
    if identify(draft, target=situation.target).family not in ("eagle", "eagle3"):
        return FINE
    if is_older(situation.version.text, "0.24"):
        message = f"max_model_len is {context} and the draft's rotary table ends at {limit}"
        return found(
            CONTEXT_LONGER.found(
                situation.subject,
                message,
                severity="warning",
                evidence=_evidence(draft, context),
                effect="kernel errors beyond that length with CUDA graphs, fine without",
                remedy=f"write max_position_embeddings: {context} into the draft's config.json",
            )
        )
    message = f"vLLM stretches the draft's max_position_embeddings from {limit} to {context}"
    return found(
        CONTEXT_LONGER.found(
            situation.subject,
            message,
            severity="note",
            evidence=_evidence(draft, context),
            effect=f"acceptance may fall beyond {limit} tokens",
            remedy="look at acceptance by length of the context",
        )
    )


def _evidence(draft: CheckpointFacts, context: int) -> list[tuple[str, str]]:
    return [
        (f"{draft.source}: configuration", f"max_position_embeddings: {draft.max_positions}"),
        ("target and flags", f"context length: {context}"),
    ]


def _longest_request(situation: Situation) -> int | None:
    if situation.max_prompt_tokens is None:
        return None
    return situation.max_prompt_tokens + (situation.max_tokens or 0)


def rope_agrees(situation: Situation) -> Judgement:
    """The rotary base of a head against its target's."""
    draft, target = situation.draft, situation.target
    if draft is None or target is None or situation.knobs.method not in ("eagle", "eagle3"):
        return FINE
    ours, theirs = draft.rope.theta, target.rope.theta
    if is_own_draft(situation) or theirs is None or draft.hidden_size is None or ours == theirs:
        return FINE
    said = f"{ours:g}" if ours is not None else "not written (engines take 10000)"
    if ours is None and theirs == 10000.0:
        return FINE
    return found(
        ROPE_DIFFERS.found(
            situation.subject,
            f"rope_theta is {said} in the draft and {theirs:g} in the target",
            evidence=[
                (f"{draft.source}: configuration", f"rope_theta: {said}"),
                (f"{target.source}: configuration", f"rope_theta: {theirs:g}"),
            ],
            remedy="keep it if the draft was trained so",
        )
    )


RULES: tuple[Rule, ...] = (context_fits, rope_agrees)
