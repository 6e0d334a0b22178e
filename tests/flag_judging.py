"""Judges a pasted command for the tests of the flag rules."""

from __future__ import annotations

from typing import Any

from spectune.domain.findings import Finding
from spectune.preflight.command.reading import read_command
from spectune.preflight.flags.form import judge_form
from spectune.preflight.flags.rules import judge_flags
from spectune.preflight.rules import Judgement
from spectune.preflight.situation import EngineVersion

CURRENT = {"sglang": "0.5.23", "vllm": "0.32.0", "llamacpp": "xllamacpp 2026.10.11549"}


def judged(text: str, *, version: str | None = "current", **known: Any) -> Judgement:
    """Form and flags of a command. ``version``: ``"current"`` is that of the tables, ``None`` unknown."""
    command = read_command(text)
    number = CURRENT[command.engine] if version == "current" else version
    situation = command.situation(EngineVersion(number, "test"), **known)
    form, flags = judge_form(command), judge_flags(situation)
    return Judgement(form.findings + flags.findings, form.not_checked + flags.not_checked)


def alarms(text: str, **known: Any) -> dict[str, str]:
    """Codes and severities of errors and warnings."""
    return {f.code: f.severity for f in judged(text, **known).findings if f.severity != "note"}


def finding(text: str, code: str, **known: Any) -> Finding:
    """The one finding of that code."""
    (one,) = [f for f in judged(text, **known).findings if f.code == code]
    return one


def sglang(*words: str, algorithm: str = "EAGLE3", draft: bool = True) -> str:
    """An SGLang command with speculation."""
    drafting = "--speculative-draft-model-path d/e " if draft else ""
    return f"sglang serve --model-path m --speculative-algorithm {algorithm} {drafting}{' '.join(words)}"


def numbers(steps: Any, topk: Any, tokens: Any) -> str:
    """SGLang's three numbers; ``None`` leaves one out."""
    given = {"num-steps": steps, "eagle-topk": topk, "num-draft-tokens": tokens}
    return " ".join(f"--speculative-{name} {value}" for name, value in given.items() if value is not None)


def vllm(config: str, *words: str) -> str:
    """A vLLM command with a speculative configuration."""
    return f"vllm serve m --speculative-config '{config}' {' '.join(words)}"
