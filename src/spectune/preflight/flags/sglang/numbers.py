"""SGLang: which algorithm, and its three numbers: steps, topk, draft tokens."""

from __future__ import annotations

from dataclasses import dataclass

from spectune.domain.findings import Finding
from spectune.preflight.draft.prediction import TRAINED_DEPTH
from spectune.preflight.flags.every_engine import (
    FLAGS_WITHOUT_METHOD,
    Flags,
    attention_dp,
    flag_evidence,
    found,
    version_words,
)
from spectune.preflight.flags.sglang import kinds
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import Situation

ADAPTIVE_STEPS = (0, 1, 3, 5, 7)
"""Candidates of the built-in adaptive configuration."""
STEPS, TOPK, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
ALGORITHM, DRAFT = "speculative-algorithm", "speculative-draft-model-path"
_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP")
TREE = frozenset({"EAGLE", "EAGLE3", "STANDALONE"})
BLOCK = frozenset({"DFLASH", "DSPARK"})


@dataclass(frozen=True)
class Speculation:
    """The speculation flags of one command, as SGLang would begin to read them."""

    algorithm: str
    """Upper case; NEXTN is EAGLE."""
    steps: int | None
    topk: int | None
    tokens: int | None
    unclear: bool
    """One of the three has a value only a shell knows, or none that is a number."""


def speculation_in(situation: Situation) -> Speculation | None:
    """``None``: no algorithm is given."""
    flags = Flags(situation)
    text = flags.text(ALGORITHM)
    if text is None:
        return None
    algorithm = "EAGLE" if text.upper() == "NEXTN" else text.upper()
    three = (STEPS, TOPK, TOKENS)
    return Speculation(
        algorithm=algorithm,
        steps=flags.integer(STEPS),
        topk=flags.integer(TOPK),
        tokens=flags.integer(TOKENS),
        unclear=any(flags.given(name) and flags.integer(name) is None for name in three),
    )


def algorithm_exists(situation: Situation) -> Judgement:
    """The algorithm is one SGLang has; and the flags of speculation have one."""
    flags = Flags(situation)
    text = flags.text(ALGORITHM)
    if text is None:
        idle = [name for name in (DRAFT, STEPS, TOPK, TOKENS) if flags.given(name)]
        if flags.given(ALGORITHM) or not idle:
            return Judgement()
        return found(
            FLAGS_WITHOUT_METHOD.found(
                situation.subject,
                f"--{idle[0]} is given, --{ALGORITHM} is not: SGLang serves without speculation",
                evidence=flag_evidence(situation, *idle),
                remedy=f"add --{ALGORITHM} EAGLE3 (or the algorithm this draft was trained for)",
            )
        )
    if text.upper() in _ALGORITHMS:
        return Judgement()
    return found(
        kinds.ALGORITHM_UNKNOWN.found(
            situation.subject,
            f"{version_words(situation)} has no algorithm {text!r}",
            evidence=flag_evidence(situation, ALGORITHM),
            remedy=f"one of {', '.join(_ALGORITHMS[:8])} (or one that an installed plugin registers)",
        )
    )


def draft_is_used(situation: Situation) -> Judgement:
    """No draft model where the algorithm takes none."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None:
        return Judgement()
    named = flags.given(DRAFT)
    if spec.algorithm in ("UNO", "NGRAM") and named:
        return found(
            kinds.DRAFT_UNUSED.found(
                situation.subject,
                f"{spec.algorithm} has no draft model",
                evidence=flag_evidence(situation, ALGORITHM, DRAFT),
                severity="error" if spec.algorithm == "UNO" else None,
            )
        )
    return Judgement()


def three_numbers_fit(situation: Situation) -> Judgement:
    """Which of steps, topk and draft tokens may be given alone, and what becomes of them."""
    spec = speculation_in(situation)
    if spec is None or spec.algorithm not in TREE:
        return Judgement()
    if spec.unclear:
        return found(not_checked=[f"--{STEPS}, --{TOPK}, --{TOKENS}: a value is not readable here"])
    if Flags(situation).on("speculative-adaptive") and adaptive_obstacle(situation) is None:
        return _adaptive_numbers(situation, spec)
    given = [
        name
        for name, value in ((STEPS, spec.steps), (TOPK, spec.topk), (TOKENS, spec.tokens))
        if value is not None
    ]
    if not given:
        return _automatic(situation, spec)
    if spec.steps is None:
        return found(
            _incomplete(
                situation, given, f"--{STEPS} is missing: SGLang stops with an AssertionError without a text"
            )
        )
    if spec.topk is None:
        message = f"--{TOPK} is missing: SGLang stops with TypeError: '>' not supported between 'NoneType' and 'int'"
        return found(_incomplete(situation, given, message))
    if spec.steps < 0 or spec.topk < 1 or (spec.tokens is not None and spec.tokens < 1):
        return found(no_draft(situation, given, "numbers below 1 (0 steps: no drafting)"))
    if spec.topk > 1 and spec.tokens is None:
        message = (
            f"--{TOKENS} is missing and topk is {spec.topk}: SGLang resolves it to nothing and dies at start-up "
            "with a TypeError"
        )
        return found(_incomplete(situation, given, message))
    return found(*_numbers(situation, spec, given))


def _numbers(situation: Situation, spec: Speculation, given: list[str]) -> list[Finding]:
    steps, topk, tokens = spec.steps or 0, spec.topk or 1, spec.tokens
    if topk == 1:
        findings = []
        if tokens is None:
            findings.append(
                kinds.TRIPLE_COMPLETED.found(
                    situation.subject,
                    f"--{TOKENS} is not given and becomes {steps + 1} (steps + 1)",
                    evidence=flag_evidence(situation, *given),
                    remedy=f"write --{TOKENS} {steps + 1}",
                )
            )
        elif tokens != steps + 1:
            findings.append(
                kinds.TOKENS_REWRITTEN.found(
                    situation.subject,
                    f"--{TOKENS} {tokens} becomes {steps + 1}: with topk 1 it is always steps ({steps}) + 1",
                    evidence=flag_evidence(situation, *given),
                    remedy=f"write --{TOKENS} {steps + 1}, or --{STEPS} {tokens - 1} if {tokens} was meant"
                    if tokens > 1
                    else f"write --{TOKENS} {steps + 1}",
                )
            )
        if steps == 0:
            findings.append(no_draft(situation, given, "0 steps"))
        return findings
    if steps == 0 or tokens == 1:
        return [no_draft(situation, given, f"{steps} steps and {tokens} tokens, the root included")]
    most = topk + (steps - 1) * topk * topk
    if tokens is not None and tokens - 1 > most:
        return [
            kinds.TREE_TOO_LARGE.found(
                situation.subject,
                f"{tokens} draft tokens are {tokens - 1} beside the root; topk {topk} and {steps} steps give "
                f"{most} candidates (topk + (steps - 1) * topk^2)",
                evidence=flag_evidence(situation, *given),
                remedy=f"--{TOKENS} {most + 1} at most, or more steps or a larger topk",
            )
        ]
    return []


def _incomplete(situation: Situation, given: list[str], message: str) -> Finding:
    flags = Flags(situation)
    steps, topk, tokens = flags.integer(STEPS), flags.integer(TOPK), flags.integer(TOKENS)
    if steps is None:
        steps = tokens - 1 if tokens and tokens > 1 and topk in (None, 1) else 3
    topk = topk or 1
    if tokens is None:
        # The whole tree where it is small, else the size that SGLang's own defaults have for 5 steps and topk 4.
        tokens = steps + 1 if topk == 1 else min(8, topk + (steps - 1) * topk * topk + 1)
    return kinds.TRIPLE_INCOMPLETE.found(
        situation.subject,
        message,
        evidence=flag_evidence(situation, *given),
        remedy=f"give all three, e.g. --{STEPS} {steps} --{TOPK} {topk} --{TOKENS} {tokens}, or none of them",
    )


def no_draft(situation: Situation, given: list[str], message: str) -> Finding:
    return kinds.NOTHING_DRAFTED.found(
        situation.subject,
        f"{message}: nothing can be drafted",
        evidence=flag_evidence(situation, *given),
        remedy=f"--{STEPS} 3 --{TOPK} 1 --{TOKENS} 4",
    )


def _automatic(situation: Situation, spec: Speculation) -> Judgement:
    if spec.algorithm == "STANDALONE":
        chosen = "3 steps, topk 1, 4 tokens"
    elif situation.target is None or not situation.target.architectures:
        return found(
            not_checked=["steps, topk and draft tokens: chosen by SGLang from the target's architecture"]
        )
    elif situation.target.architectures[0] in ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"):
        chosen = "5 steps, topk 4, 8 tokens: a tree"
    else:
        chosen = "3 steps, topk 1, 4 tokens"
    return found(
        kinds.TRIPLE_COMPLETED.found(
            situation.subject,
            f"none of steps, topk and draft tokens is given: SGLang takes {chosen}",
            evidence=flag_evidence(situation, ALGORITHM),
        )
    )


def adaptive_obstacle(situation: Situation) -> str | None:
    """Why SGLang would switch --speculative-adaptive off."""
    spec, flags = speculation_in(situation), Flags(situation)
    if spec is None or spec.algorithm not in ("EAGLE", "EAGLE3"):
        return "only EAGLE and EAGLE3 can be adaptive"
    if spec.topk not in (None, 1):
        return f"topk is {spec.topk}, adaptive needs 1"
    if attention_dp(situation):
        return "attention data parallelism is on"
    for name in ("enable-multi-layer-eagle", "enable-two-batch-overlap", "enable-pdmux"):
        if flags.on(name):
            return f"--{name} is given"
    return None


def adaptive_is_possible(situation: Situation) -> Judgement:
    """Adaptive speculation that SGLang would switch off with a warning."""
    if not Flags(situation).on("speculative-adaptive"):
        return Judgement()
    obstacle = adaptive_obstacle(situation)
    if obstacle is None:
        return Judgement()
    return found(
        kinds.ADAPTIVE_OFF.found(
            situation.subject,
            f"--speculative-adaptive is switched off: {obstacle}",
            evidence=flag_evidence(situation, "speculative-adaptive", ALGORITHM, TOPK),
        )
    )


def _adaptive_numbers(situation: Situation, spec: Speculation) -> Judgement:
    flags = Flags(situation)
    if flags.given("speculative-adaptive-config"):
        return found(not_checked=["--speculative-adaptive-config: its candidate steps are not read"])
    if spec.steps is not None and spec.steps not in ADAPTIVE_STEPS:
        return found(
            kinds.ADAPTIVE_STEPS.found(
                situation.subject,
                f"--{STEPS} {spec.steps} is not among the adaptive candidates {', '.join(map(str, ADAPTIVE_STEPS))}",
                evidence=flag_evidence(situation, STEPS, "speculative-adaptive"),
                remedy=f"--{STEPS} 3, or leave it out",
            )
        )
    becomes = (3 if spec.steps is None else spec.steps) + 1
    if spec.tokens is not None and spec.tokens != becomes:
        return found(
            kinds.TOKENS_REWRITTEN.found(
                situation.subject,
                f"--{TOKENS} {spec.tokens} becomes {becomes} (steps + 1) under --speculative-adaptive",
                evidence=flag_evidence(situation, STEPS, TOKENS, "speculative-adaptive"),
                remedy=f"write --{TOKENS} {becomes}, or leave it out",
            )
        )
    return Judgement()


def steps_within_reach(situation: Situation) -> Judgement:
    """More steps than drafts are trained for."""
    spec = speculation_in(situation)
    if spec is None or spec.steps is None or spec.algorithm not in ("EAGLE", "EAGLE3") or spec.steps < 8:
        return Judgement()
    return found(
        TRAINED_DEPTH.found(
            situation.subject,
            f"{spec.steps} steps; EAGLE heads are trained for about 7, and a public grid collapses at 8",
            evidence=flag_evidence(situation, STEPS),
            remedy=f"measure --{STEPS} 3, 5 and 7 as well",
            severity="note",
        )
    )


RULES = (
    algorithm_exists,
    draft_is_used,
    three_numbers_fit,
    adaptive_is_possible,
    steps_within_reach,
)
