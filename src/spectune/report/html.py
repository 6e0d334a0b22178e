"""The report as one HTML file: no network, no script, everything foreign escaped. The same page, live, has one
script of its own, which asks the server it came from how far the study is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spectune.analysis import words
from spectune.analysis.explain.records import ExplainedRow, Explanation
from spectune.analysis.explain.schedule import SGLANG_CONFIG_FILE
from spectune.analysis.grouping import command_lines, commands_of, failure_groups, finding_groups
from spectune.analysis.records import ArmSummary, LoadSummary, StudySummary, TrialSummary
from spectune.report import bars, charts, plots

WIDE_PX = 860.0
NARROW_PX = 344.0
SHOWN_ROWS = 40
"""Longer tables go on behind a fold."""
MAX_STEPS = 12
MAX_PARITY_EXAMPLES = 12
MAX_EXAMPLES_PER_ARM = 3


@dataclass(frozen=True)
class ArmRow:
    """A line of a table of arms."""

    arm: ArmSummary
    load: LoadSummary
    bar: Markup
    is_best: bool


@dataclass(frozen=True)
class LoadTable:
    """All measured arms at one load point, fastest first."""

    label: str
    axis: Markup
    rows: tuple[ArmRow, ...]

    @property
    def named_loads(self) -> list[tuple[str, LoadSummary]]:
        return [(row.arm.name, row.load) for row in self.rows]


@dataclass(frozen=True)
class Chart:
    """The same chart for a wide and for a narrow window; the style sheet shows one of them."""

    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class Live:
    """What makes the report a live page: the script's leave to run, and which report it begins with."""

    nonce: str
    version: str


def render_html(summary: StudySummary) -> str:
    """A whole page; its text depends on ``summary`` alone."""
    return _render(summary, live=None)


def render_live(summary: StudySummary, *, version: str, nonce: str) -> str:
    """The report with a panel that follows the study; what it may load is for its server's headers to say."""
    return _render(summary, live=Live(nonce, version))


def _render(summary: StudySummary, *, live: Live | None) -> str:
    template = _environment().get_template("report.html.j2")
    colours = charts.coloured_arms(summary)
    return template.render(
        live=live,
        summary=summary,
        study=summary.study,
        focus=focus_arm(summary),
        why=_why(summary),
        tables=_load_tables(summary),
        unmeasured=[a for a in summary.ranked_arms if not a.loads],
        speculative=[a for a in summary.ranked_arms if a.first is not None and not a.is_baseline],
        colours=colours,
        colours_by_name={arm.name: colours.get(arm.arm_id, 0) for arm in summary.arms},
        speed_chart=_chart(charts.speed_against_acceptance, summary, "speed"),
        position_chart=_chart(charts.acceptance_by_position, summary, "positions"),
        context_chart=_chart(plots.acceptance_by_context, summary, "contexts"),
        prediction_chart=_chart(plots.predicted_and_measured, summary, "predictions"),
        category_chart=_chart(bars.speedup_by_category, summary, "categories"),
        time_chart=_chart(bars.where_time_went, summary, "time"),
        findings=finding_groups(summary.findings),
        failures=failure_groups(summary.trials),
        examples=_parity_examples(summary),
        commands=_commands(summary),
        num_failed=sum(t.status == "failed" for t in summary.trials),
        sglang_config_file=SGLANG_CONFIG_FILE,
    )


@dataclass(frozen=True)
class Why:
    """The explanation at the first load point, as the page shows it."""

    explanation: Explanation
    concurrency: int
    anchor: ExplainedRow | None
    """The fastest speculating arm whose acceptance length is known."""
    steps: tuple[ExplainedRow, ...]

    @property
    def longest_s(self) -> float:
        return max(row.step_cost_s or 0.0 for row in self.steps)

    @property
    def any_together(self) -> bool:
        """Whether some part could not be told from another."""
        return any(part.is_shown and not part.separated for row in self.steps for part in row.parts)


def _why(summary: StudySummary) -> Why | None:
    found = summary.explanation
    if found is None:
        return None
    first = found.first_concurrency
    known = [r for r in found.rows if r.concurrency == first and r.parts and not r.is_baseline]
    known.sort(key=lambda row: -row.e2e_tok_per_s)
    return Why(found, first, known[0] if known else None, tuple(known[:MAX_STEPS]))


def focus_arm(summary: StudySummary) -> ArmSummary | None:
    """The arm the answer is about: the fastest, or the one that comes closest."""
    compared = [a for a in summary.ranked_arms if a.first is not None and a.first.speedup is not None]
    if summary.best_arm_id is not None and summary.best_arm_id != summary.baseline_arm_id:
        return summary.arm(summary.best_arm_id)
    return compared[0] if compared else None


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("spectune.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(
        number=words.number,
        measured=words.measured,
        bounds=words.bounds,
        times=words.times,
        ratio=words.ratio,
        ratio_bounds=words.bounds_of_ratio,
        percent=words.percent,
        seconds=words.seconds,
        ms=words.milliseconds,
        gib=words.gibibytes,
        line=words.one_line,
        command=command_lines,
        phase_class=bars.phase_class,
        part_class=bars.part_class,
        more_needed=words.more_needed,
        acceptance_words=words.acceptance_words,
        tokens=words.tokens_words,
        arm_break_even=words.arm_break_even,
    )
    environment.globals.update(
        commands_of=commands_of,
        verdict_words=words.VERDICT_WORDS,
        verdict_marks=words.VERDICT_MARKS,
        simulated=words.SIMULATED,
        unknown=words.UNKNOWN,
        shown_rows=SHOWN_ROWS,
        count=words.count,
        break_even_words=words.break_even_words,
        load_note=words.load_note,
        tail=words.tail,
        saved_by_early_ends=words.saved_by_early_ends,
    )
    return environment


def _shown(value: Any) -> Any:
    """What a template prints: unknown as a dash, foreign text without control characters."""
    if value is None:
        return words.UNKNOWN
    if isinstance(value, str) and not isinstance(value, Markup):
        return words.visible(value)
    return value


def _chart(draw: Callable[..., Markup | None], summary: StudySummary, key: str) -> Chart | None:
    wide = draw(summary, width=WIDE_PX, key=f"{key}-wide")
    narrow = draw(summary, width=NARROW_PX, key=f"{key}-narrow")
    return Chart(wide, narrow) if wide is not None and narrow is not None else None


def _load_tables(summary: StudySummary) -> tuple[LoadTable, ...]:
    labels = dict.fromkeys(load.label for arm in summary.arms for load in arm.loads)
    ordered = sorted(labels, key=lambda label: summary.study.loads.index(label))
    return tuple(_load_table(summary, label) for label in ordered)


def _load_table(summary: StudySummary, label: str) -> LoadTable:
    pairs = [(arm, load) for arm in summary.arms for load in arm.loads if load.label == label]
    pairs.sort(key=lambda pair: _order(*pair))
    scale = bars.speedup_scale([load for _, load in pairs], start=12, end=bars.INTERVAL_WIDTH - 12)
    faster = [arm.arm_id for arm, load in pairs if load.verdict == "FASTER"]
    best = faster[0] if faster else summary.baseline_arm_id
    rows = tuple(
        ArmRow(
            arm=arm,
            load=load,
            bar=bars.interval_bar(load.speedup, load.verdict, scale),
            is_best=arm.arm_id == best,
        )
        for arm, load in pairs
    )
    return LoadTable(label=label, axis=bars.interval_axis(scale), rows=rows)


def _order(arm: ArmSummary, load: LoadSummary) -> tuple[int, float]:
    if arm.is_baseline:
        return (0, -1.0)
    return (1, 0.0) if load.speedup is None else (0, -load.speedup.value)


def _parity_examples(summary: StudySummary) -> list[tuple[ArmSummary, Any]]:
    """A few first differences of each arm, some arms."""
    examples: list[tuple[ArmSummary, Any]] = []
    for arm in summary.ranked_arms:
        parity = arm.first.parity if arm.first is not None else None
        if parity is not None:
            examples += [(arm, d) for d in parity.first_divergences[:MAX_EXAMPLES_PER_ARM]]
    return examples[:MAX_PARITY_EXAMPLES]


def _commands(summary: StudySummary) -> list[TrialSummary]:
    """The last launch of each arm, in the order of the arms."""
    last = {trial.arm_id: trial for trial in summary.trials}
    return [last[arm.arm_id] for arm in summary.arms if arm.arm_id in last]
