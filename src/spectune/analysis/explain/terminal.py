"""What ``spectune explain`` shows in a terminal or a pipe."""

from __future__ import annotations

import json
import shlex
import unicodedata

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spectune.analysis.explain.measured import three_digits
from spectune.analysis.explain.records import ExplainedRow, Explanation, Schedule, StepPart
from spectune.analysis.explain.schedule import vllm_flag
from spectune.domain.interval import Interval

MAX_ROWS = 40
UNKNOWN = "?"
_NOTHING_KNOWN = 1_000
"""Between the ends of an interval: so wide a one says nothing."""


def explanation_view(explanation: Explanation) -> RenderableType:
    """Headline, rows, parts of a step, what-if, next actions, schedule."""
    blocks: list[RenderableType] = [Text(plain(explanation.headline), style="bold"), _rows(explanation)]
    if len(explanation.rows) > MAX_ROWS:
        blocks.append(Text(f"the first {MAX_ROWS} of {len(explanation.rows)} rows; --json has all\n"))
    blocks += [_limits(explanation), _parts(explanation)]
    if explanation.imposed:
        lines = [f"  {plain(cost.words)}" for cost in explanation.imposed[:MAX_ROWS]]
        blocks.append(Text("with imposed acceptance:\n" + "\n".join(lines) + "\n"))
    if explanation.what_if:
        blocks.append(_what_if(explanation))
    blocks.append(_next(explanation))
    if explanation.schedule is not None:
        blocks += _schedule(explanation.schedule)
    if explanation.model_error is not None:
        error = explanation.model_error
        blocks.append(
            Text(
                f"predictions so far: median error {error.median_abs_frac:.1%}, worst {error.worst_abs_frac:.1%}, "
                f"{error.inside_frac:.0%} inside their {error.level:.0%} intervals ({error.n} trials)"
            )
        )
    if explanation.training:
        lines = [f"  {plain(line)}" for line in explanation.training]
        blocks.append(Text("what training would buy:\n" + "\n".join(lines) + "\n"))
    if explanation.winning_command:
        title = explanation.winning_title
        blocks.append(_to_paste(f"{plain(title)}:\n  {plain(explanation.winning_command)}"))
    if explanation.winning_request_note:
        blocks.append(Text(f"  {plain(explanation.winning_request_note)}", overflow="fold"))
    blocks += [Text(f"assumed: {plain(line)}", style="dim") for line in explanation.assumptions]
    return Group(*blocks)


def plain(text: str) -> str:
    """Without control characters and separators of lines: names and commands come from files."""
    return "".join(c if c == "\n" or not _is_control(c) else "\ufffd" for c in text)


def _is_control(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")


def _number(value: float | None, digits: int = 2) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _three_digits(value: float | None) -> str:
    return UNKNOWN if value is None else three_digits(value)


def _bounds(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return three_digits(interval.value)
    if interval.high > _NOTHING_KNOWN * interval.low:
        return f"{three_digits(interval.value)} [not known]"
    return f"{three_digits(interval.value)} [{three_digits(interval.low)}, {three_digits(interval.high)}]"


def _rows(explanation: Explanation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("arm", overflow="fold")
    machine = any(row.machine_ceiling_tok_per_s is not None for row in explanation.rows)
    names = ("at", "tok/s", "tokens\n/pass", "needed", "step ms", "free\nsteps", "all\nkept")
    for name in (*names, "machine") if machine else names:
        table.add_column(name, justify="right")
    for row in explanation.rows[:MAX_ROWS]:
        step = None if row.step_cost_s is None else 1e3 * row.step_cost_s
        table.add_row(
            Text(plain(row.arm)),
            f"c={row.concurrency}",
            three_digits(row.e2e_tok_per_s),
            _number(row.tokens_per_pass) if not row.is_baseline else "1",
            "" if row.is_baseline else _needed(row),
            _three_digits(step),
            "" if row.is_baseline else _three_digits(row.zero_overhead_tok_per_s),
            "" if row.is_baseline else _three_digits(row.perfect_acceptance_tok_per_s),
            *((_three_digits(row.machine_ceiling_tok_per_s),) if machine else ()),
        )
    return table


def _needed(row: ExplainedRow) -> str:
    """Tokens per forward pass at which decoding pays off."""
    cannot = "cannot: " if row.break_even_reachable is False else ""
    return f"{cannot}{_number(row.break_even_tokens_per_pass)}"


def _speculating(explanation: Explanation) -> list[ExplainedRow]:
    return [row for row in explanation.rows if not row.is_baseline][:MAX_ROWS]


def _limits(explanation: Explanation) -> Text:
    lines = [
        f"  {plain(row.arm)} (c={row.concurrency}): {row.binding_limit}" for row in _speculating(explanation)
    ]
    return Text("what limits each:\n" + "\n".join(lines) + "\n" if lines else "")


def _parts(explanation: Explanation) -> Text:
    lines = []
    for row in _speculating(explanation):
        if row.parts:
            words = [
                f"{part.name} {three_digits(1e3 * part.s)} ms ({part.share:.0%}{_doubt(part)})"
                for part in row.parts
                if part.is_shown
            ]
            lines.append(f"  {plain(row.arm)} (c={row.concurrency}): " + " + ".join(words))
    return Text("a step is:\n" + "\n".join(lines) + "\n" if lines else "")


def _doubt(part: StepPart) -> str:
    return "" if part.separated else ", not told apart"


def _what_if(explanation: Explanation) -> Table:
    anchor = plain(explanation.what_if[0].arm)
    title = Text(f"what if {anchor} had")
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column("change", overflow="fold")
    table.add_column("predicted tok/s, 90 %", justify="right")
    table.add_column("speedup", justify="right")
    table.add_column("basis", overflow="fold")
    for item in explanation.what_if[:MAX_ROWS]:
        change = f"{item.change} (c={item.concurrency})"
        table.add_row(
            Text(plain(change)), _bounds(item.predicted_tok_per_s), f"{item.speedup:.2f}x", Text(item.basis)
        )
    return table


def _next(explanation: Explanation) -> Text:
    lines = ["next step (90 % intervals):"]
    for action in explanation.next:
        if action.rank == 2:
            lines.append("other ways, most promising first:")
        speed = (
            "" if action.predicted_tok_per_s is None else f" -> {_bounds(action.predicted_tok_per_s)} tok/s"
        )
        lines.append(f"  {action.rank}. {plain(action.action)}{speed}")
        lines.append(f"     {plain(action.why)}")
        if action.rank == 1 and action.command and action.command != explanation.winning_command:
            lines.append(f"     {plain(action.command)}")
    return Text("\n".join(lines) + "\n")


def _to_paste(text: str) -> Text:
    """On one line however long: print it with ``crop=False``."""
    return Text(text, no_wrap=True, overflow="ignore")


def _schedule(schedule: Schedule) -> list[Text]:
    best = ", ".join(f"{k} at c={c}" for c, k in schedule.best_by_concurrency.items())
    lines = [f"draft length by concurrency: {best}"]
    if schedule.vllm_speculative_config is not None:
        config = shlex.quote(vllm_flag(schedule.vllm_speculative_config))
        lines.append(f"  vLLM    --speculative-config {plain(config)}")
    if schedule.sglang_adaptive_config is not None:
        lines.append(f"  SGLang  {' '.join(schedule.sglang_flags)}")
        lines.append(f"          with the file {json.dumps(schedule.sglang_adaptive_config)}")
    notes = "".join(f"  note: {note}\n" for note in schedule.notes)
    return [_to_paste("\n".join(lines)), Text(notes)]
