"""The explanation as Markdown: what limits the speed, what to do next, predicted against measured."""

from __future__ import annotations

import json
import shlex

from spectune.analysis.explain.records import Explanation, PredictedAgainstMeasured, Schedule
from spectune.analysis.explain.schedule import SGLANG_CONFIG_FILE, vllm_flag
from spectune.analysis.words import (
    UNKNOWN,
    break_even_words,
    measured,
    milliseconds,
    number,
    percent,
    ratio,
    times,
    tokens_words,
)
from spectune.domain.interval import Interval
from spectune.report.markdown_text import block, escape, table

MAX_ACTIONS = 6
MAX_ROWS = 40


def markdown_why(explanation: Explanation | None) -> list[str]:
    """Sections "Why" to "Predicted and measured"; nothing without an explanation."""
    if explanation is None:
        return []
    return [
        *_steps(explanation),
        *_next(explanation),
        *_imposed(explanation),
        *_what_if(explanation),
        *_schedule(explanation.schedule),
        *_predictions(explanation),
    ]


def _steps(explanation: Explanation) -> list[str]:
    first = explanation.first_concurrency
    known = [r for r in explanation.rows if r.concurrency == first and r.parts and not r.is_baseline]
    known.sort(key=lambda row: -row.e2e_tok_per_s)
    if not known:
        return []
    rows = [
        [
            escape(row.arm),
            milliseconds(row.step_cost_s),
            "; ".join(
                f"{part.name} {milliseconds(part.s)} ms, {percent(part.share)}"
                f"{'' if part.separated else ' (not told apart)'}"
                for part in row.parts
                if part.is_shown
            ),
            tokens_words(row.tokens_per_pass),
            break_even_words(row.break_even_tokens_per_pass, row.break_even_reachable),
            number(row.zero_overhead_tok_per_s),
        ]
        for row in known[:MAX_ROWS]
    ]
    header = [
        "arm",
        "step, ms",
        "its parts",
        "tokens per forward pass",
        "needed to pay off",
        "no overhead, tok/s",
    ]
    return [
        "## Why",
        f"**{escape(known[0].arm)}** is limited by {escape(known[0].binding_limit, limit=600)}.",
        table(header, rows, right=(1, 3, 4, 5)),
    ]


def _next(explanation: Explanation) -> list[str]:
    lines = []
    for action in explanation.next[:MAX_ACTIONS]:
        speed = action.predicted_tok_per_s
        shown = "" if speed is None else f": {measured(speed)} tok/s"
        lines.append(
            f"{action.rank}. **{escape(action.action, limit=400)}**{shown}. {escape(action.why, limit=400)}"
        )
    parts = ["## What next", *lines[:1]]
    command = explanation.next[0].command if explanation.next else None
    if command is not None and command != explanation.winning_command:
        parts.append(block(command))
    if explanation.winning_command:
        title = escape(explanation.winning_title, limit=120)
        parts += [f"{title}.", block(explanation.winning_command)]
    if explanation.winning_request_note:
        parts.append(escape(explanation.winning_request_note, limit=600) + ".")
    return [*parts, "Other ways, most promising first:", "\n".join(lines[1:])] if lines[1:] else parts


def _imposed(explanation: Explanation) -> list[str]:
    if not explanation.imposed:
        return []
    lines = [f"- {escape(cost.words, limit=400)}" for cost in explanation.imposed[:MAX_ROWS]]
    return ["## With imposed acceptance", "\n".join(lines)]


def _what_if(explanation: Explanation) -> list[str]:
    if not explanation.what_if:
        return []
    rows = [
        [
            f"{escape(w.change)} (c={w.concurrency})",
            measured(w.predicted_tok_per_s),
            ratio(w.speedup),
            escape(w.basis),
        ]
        for w in explanation.what_if[:MAX_ROWS]
    ]
    anchor = escape(explanation.what_if[0].arm)
    return [
        f"## What if {anchor} had",
        table(["change", "predicted tok/s, 90 %", "speedup", "basis"], rows, right=(1, 2)),
    ]


def _schedule(schedule: Schedule | None) -> list[str]:
    if schedule is None:
        return []
    lengths = ", ".join(f"{k} at c={c}" for c, k in schedule.best_by_concurrency.items())
    lines = []
    if schedule.vllm_speculative_config is not None:
        lines.append(f"--speculative-config {shlex.quote(vllm_flag(schedule.vllm_speculative_config))}")
    if schedule.sglang_adaptive_config is not None:
        lines += [
            " ".join(schedule.sglang_flags),
            f"{SGLANG_CONFIG_FILE}: {json.dumps(schedule.sglang_adaptive_config)}",
        ]
    parts = ["## Draft length by concurrency", f"{lengths}; {'; '.join(map(escape, schedule.notes))}."]
    return [*parts, block("\n".join(lines))] if lines else parts


def _tok_per_s(speed: Interval | None) -> str:
    return UNKNOWN if speed is None else f"{measured(speed)} tok/s"


def _seen(prediction: PredictedAgainstMeasured) -> str:
    if prediction.measured_speedup is None and prediction.measured_tok_per_s is None:
        return "not measured"
    if prediction.measured_speedup is not None and prediction.predicted_speedup is not None:
        return ratio(prediction.measured_speedup)
    return f"{number(prediction.measured_tok_per_s)} tok/s"


def _predictions(explanation: Explanation) -> list[str]:
    if not explanation.predictions:
        return []
    rows = [
        [
            escape(p.arm),
            times(p.predicted_speedup) if p.predicted_speedup else _tok_per_s(p.predicted_tok_per_s),
            _seen(p),
            UNKNOWN if p.error_frac is None else f"{100 * p.error_frac:+.1f} %",
        ]
        for p in explanation.predictions[:MAX_ROWS]
    ]
    parts = [
        "## Predicted and measured",
        table(["arm", "predicted", "measured", "error"], rows, right=(1, 2, 3)),
    ]
    error = explanation.model_error
    if error is not None:
        parts.append(
            f"Median error {percent(error.median_abs_frac)}, worst {percent(error.worst_abs_frac)}; "
            f"{percent(error.inside_frac)} inside the predicted {percent(error.level)} intervals (n = {error.n})."
        )
    return parts
