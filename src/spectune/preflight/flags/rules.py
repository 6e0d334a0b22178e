"""The flag rules of every engine in one place."""

from __future__ import annotations

from spectune.preflight.flags import every_engine as flags_common
from spectune.preflight.flags import ports as flags_ports
from spectune.preflight.flags.llamacpp import rules as flags_llamacpp
from spectune.preflight.flags.sglang import rules as flags_sglang
from spectune.preflight.flags.vllm import rules as flags_vllm
from spectune.preflight.rules import Judgement, Rule, judge
from spectune.preflight.situation import Situation

_OF_ENGINE: dict[str, tuple[Rule, ...]] = {
    "sglang": flags_sglang.RULES,
    "vllm": flags_vllm.RULES,
    "llamacpp": flags_llamacpp.RULES,
}


def rules_for(engine: str) -> tuple[Rule, ...]:
    """The flag rules of ``engine``; none for an engine without any."""
    return (*flags_common.RULES, *flags_ports.RULES, *_OF_ENGINE[engine]) if engine in _OF_ENGINE else ()


def judge_flags(situation: Situation) -> Judgement:
    """All flag rules over one situation. What version they hold for is said when it is not known."""
    judgement = judge(situation, rules_for(situation.engine))
    if situation.version.text is None:
        note = f"engine version {situation.version.source}"
        return Judgement(judgement.findings, (note, *judgement.not_checked))
    return judgement
