"""Can the attention heads be divided over the GPUs?"""

from __future__ import annotations

from spectune.findings.catalogue import finding_kind
from spectune.preflight.draft.family import (
    is_own_draft,
)
from spectune.preflight.flags.every_engine import Flags
from spectune.preflight.flags.speculative import speculation_of
from spectune.preflight.rules import FINE, Judgement, Rule, found
from spectune.preflight.situation import Situation

HEADS_NOT_DIVISIBLE = finding_kind("heads-not-divisible-by-tp")


def heads_divide(situation: Situation) -> Judgement:
    """Heads of the draft, and under SGLang of the target, by tensor parallelism."""
    flags = Flags(situation)
    name = {"sglang": "tp-size", "vllm": "tensor-parallel-size"}.get(situation.engine)
    parts = flags.integer(name) if name else None
    if parts is None or parts < 2 or flags.on("enable-dp-attention") or flags.given("attn-dp-size"):
        return FINE
    draft_parts = (speculation_of(situation.flags) or {}).get("draft_tensor_parallel_size", parts)
    findings = []
    for what, facts, count in (("target", situation.target, parts), ("draft", situation.draft, draft_parts)):
        if facts is None or facts.num_heads is None or type(count) is not int or count < 1:
            continue
        if what == "target" and situation.engine == "vllm":
            continue  # a rule of vLLM's flags says it
        if (what == "draft" and is_own_draft(situation)) or facts.num_heads % count == 0:
            continue
        findings.append(
            HEADS_NOT_DIVISIBLE.found(
                situation.subject,
                f"the {what}'s {facts.num_heads} attention heads cannot be divided over {count} GPUs",
                evidence=[
                    (f"{facts.source}: configuration", f"num_attention_heads: {facts.num_heads}"),
                    ("flags", f"--{name} {parts}"),
                ],
                remedy=_divisors(
                    facts.num_heads, name if what == "target" or situation.engine == "sglang" else None
                ),
            )
        )
    return found(*findings)


def _divisors(heads: int, name: str | None) -> str:
    fitting = [str(parts) for parts in (1, 2, 3, 4, 6, 8, 9, 12, 16) if heads % parts == 0]
    if name is None:
        return 'give "draft_tensor_parallel_size": 1 in --speculative-config'
    return f"take --{name} {', '.join(fitting)}"


RULES: tuple[Rule, ...] = (heads_divide,)
