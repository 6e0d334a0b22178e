"""llama-server's log lines, from early 2025 to package ``xllamacpp`` 2026.10."""

from __future__ import annotations

import re

from spectune.diagnose.log.fields import number, numbers_in
from spectune.diagnose.log.records import (
    DraftPositions,
    DraftTotals,
    Ended,
    Ready,
    Record,
    RequestDraft,
    RequestTimings,
    Settings,
)

_ACCEPTANCE = re.compile(
    r"draft acceptance(?: rate)?\s*=\s*[\d.nax-]+\s*\(\s*(\d{1,15}) accepted\s*/\s*(\d{1,15}) generated\)"
)
_LENGTH = re.compile(r"mean (?:acceptance )?len(?:gth)?\s*=\s*([\d.]+)")
_STATISTICS = re.compile(r"statistics\s+([\w-]+):\s*#calls")
_TOTAL = re.compile(r"#(gen drafts|acc drafts|gen tokens|acc tokens|mean acc len)\s*=\s*([\d.]{1,20})")
_POSITIONS = re.compile(r"(?:#acc rate/pos|acc per pos|acceptance (?:rate )?per position)\s*=\s*\(([^)]*)\)")
_NUMBER = rb"(\d{1,12}(?:\.\d{1,12})?)"
_FAST_REQUEST = re.compile(
    rb"\bid +(\d{1,6}) \| task \d+ \| *(?:"
    rb"draft acceptance = [\d.]+ \( *(\d{1,15}) accepted / *(\d{1,15}) generated\), mean len = *"
    + _NUMBER
    + rb"|stop processing: n_tokens = (\d{1,15})"
    rb"|(prompt )?eval time = *[\d.]+ ms / *(\d{1,15}) tokens \( *[\d.]+ ms per token, *"
    + _NUMBER
    + rb" tokens)"
)
_SLOT = re.compile(r"\bid +(\d{1,6}) \|")
_EVAL = re.compile(
    r"(prompt )?eval time\s*=\s*[\d.]+ ms\s*/\s*(\d{1,15}) (?:tokens|runs).*?([\d.]+) tokens per second"
)
_RELEASE = re.compile(r"stop processing: n_tokens = (\d{1,15})")
_JSON = re.compile(r'"(predicted_n|prompt_n|draft_n|draft_n_accepted)"\s*:\s*(\d{1,15})')
_BUILD = re.compile(
    r"build_info: (\S+)|build: (\d+ \(\w+\))|llama_server: (xllamacpp \S+)|^version: (\d+ \(\w+\))"
)
_SLOTS = re.compile(r"n_slots = (\d{1,6}), n_ctx_slot = (\d{1,9})")
_DRAFT = re.compile(r"loading draft model '([^']*)'")
_TARGET = re.compile(r"loading model '([^']*)'")
_TYPE = re.compile(r"speculative implementation '([\w-]+)'")


def fast(raw: bytes) -> RequestDraft | RequestTimings | None:
    """Today's lines of one request, straight from their bytes; ``None``: use ``parse``."""
    if found := _FAST_REQUEST.search(raw):
        slot, accepted, drafted, length, context, kind, tokens, speed = found.groups()
        name = slot.decode()
        if accepted is not None:
            return RequestDraft(int(accepted), int(drafted), float(length), name)
        if context is not None:
            return RequestTimings(context_tokens=int(context), slot=name)
        if kind is not None:
            return RequestTimings(prompt=int(tokens), slot=name)
        return RequestTimings(generated=int(tokens), tok_per_s=float(speed), slot=name)
    return None


def parse(text: str) -> Record | None:
    """What one cleaned line says; ``None`` if it is none of llama.cpp's that matter."""
    if match := _ACCEPTANCE.search(text):
        length = _LENGTH.search(text)
        accepted, drafted = int(match[1]), int(match[2])
        mean = number(length[1]) if length else None
        return RequestDraft(accepted, drafted, mean, _slot_of(text), per_position_in(text))
    if match := _STATISTICS.search(text):
        return _totals(text, match[1])
    if "per pos" in text and (rates := per_position_in(text)):
        return DraftPositions(rates)
    if "eval time" in text and (match := _EVAL.search(text)):
        if match[1]:
            return RequestTimings(prompt=int(match[2]))
        return RequestTimings(generated=int(match[2]), tok_per_s=number(match[3]))
    if match := _RELEASE.search(text):
        return RequestTimings(context_tokens=int(match[1]), slot=_slot_of(text))
    if '"predicted_n"' in text:
        return _timings(text)
    if "is listening on" in text or "listening on http" in text or "all slots are idle" in text:
        return Ready()
    if "received SIG" in text or "cleaning up before exit" in text:
        return Ended()
    if match := _BUILD.search(text):
        return Settings(
            {"version": next(g for g in match.groups() if g)}, starts="build" if "build_info" in text else ""
        )
    if match := _SLOTS.search(text):
        return Settings({"parallel": int(match[1]), "context_length": int(match[2])})
    if match := _DRAFT.search(text):
        return Settings({"speculative_draft_model": match[1]})
    if match := _TARGET.search(text):
        return Settings({"model": match[1]})
    if match := _TYPE.search(text):
        return Settings({"speculative_type": match[1]})
    return None


def _slot_of(text: str) -> str | None:
    match = _SLOT.search(text)
    return match[1] if match else None


def _totals(text: str, method: str) -> DraftTotals | None:
    values = {match[1]: number(match[2]) for match in _TOTAL.finditer(text)}
    drafted, accepted = values.get("gen tokens"), values.get("acc tokens")
    if drafted is None or accepted is None:
        return None
    drafts = values.get("gen drafts")
    return DraftTotals(
        method=method,
        drafts=None if drafts is None else round(drafts),
        drafted=round(drafted),
        accepted=round(accepted),
        length=values.get("mean acc len"),
        per_position=per_position_in(text),
    )


def per_position_in(text: str) -> tuple[float, ...] | None:
    """Acceptance per position; llama.cpp prints it at its trace level, on a line of its own."""
    match = _POSITIONS.search(text)
    rates = numbers_in(match[1]) if match else ()
    return rates if rates and all(0 <= rate <= 1 for rate in rates) else None


def _timings(text: str) -> RequestTimings:
    values = {match[1]: int(match[2]) for match in _JSON.finditer(text)}
    return RequestTimings(
        generated=values.get("predicted_n"),
        prompt=values.get("prompt_n"),
        drafted=values.get("draft_n"),
        accepted=values.get("draft_n_accepted"),
    )
