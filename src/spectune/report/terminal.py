"""What a terminal or a pipe shows: one block after each trial, and the table of arms.

Fits 80 columns. Foreign text is put into ``Text``, never parsed as rich markup,
and has lost its escape sequences; without a terminal, rich writes no codes.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spectune.analysis.finding_kinds import PRECISION_NOT_REACHED
from spectune.analysis.records import ArmSummary, LoadSummary, StudySummary, TrialSummary
from spectune.analysis.words import (
    SIMULATED,
    UNKNOWN,
    VERDICT_MARKS,
    VERDICT_WORDS,
    bounds_of_ratio,
    listing,
    load_note,
    measured,
    number,
    one_line,
    per_stream,
    percent,
    ratio,
    seconds,
    times,
    tokens_words,
)
from spectune.domain.findings import Severity
from spectune.domain.hypothesis import Hypothesis
from spectune.statistics.intervals import Verdict

LOG_LINES = 6
MAX_FINDINGS = 10
MAX_ROWS = 40

_VERDICT_STYLES: dict[Verdict, str] = {
    "FASTER": "bold green",
    "SLOWER": "yellow",
    "SAME": "cyan",
    "CANNOT_TELL": "magenta",
}
_SEVERITY_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_OF_THE_END = frozenset({PRECISION_NOT_REACHED.code})
"""Not said after each trial: launches that are still to come may do it."""
_JUDGEMENT_STYLES = {"confirmed": "green", "refuted": "yellow", "undecided": "magenta"}


def trial_block(summary: StudySummary, trial_id: str) -> RenderableType:
    """The result of one trial, a line per question; ``KeyError`` if the summary has no such trial."""
    trial = next((t for t in summary.trials if t.trial_id == trial_id), None)
    if trial is None:
        raise KeyError(trial_id)
    rows = Table.grid(padding=(0, 1))
    rows.add_column(width=12, style="dim")
    rows.add_column(overflow="fold")
    lines = _failure_lines(trial) if trial.status == "failed" else _result_lines(summary, trial)
    for name, value in lines:
        rows.add_row(f"  {name}", value)
    return Group(_title(summary, trial), rows)


def _title(summary: StudySummary, trial: TrialSummary) -> Text:
    position = 1 + next(i for i, t in enumerate(summary.trials) if t.trial_id == trial.trial_id)
    place = f"{position}/{max(position, summary.study.num_planned_trials)} "
    took = next((row.wall_s for row in summary.time.trials if row.trial_id == trial.trial_id), None)
    style = {"failed": "bold red", "pruned": "yellow"}.get(trial.status, "green")
    return Text.assemble(
        (place, "dim"),
        (one_line(trial.name, limit=50), "bold"),
        "  ",
        (trial.status, style),
        f" in {seconds(took)}",
        (f"  ({SIMULATED})" if trial.simulated else "", "bold red"),
    )


def _failure_lines(trial: TrialSummary) -> Iterable[tuple[str, Text]]:
    failure = trial.failure
    if failure is None:
        yield "cause", Text(UNKNOWN)
        return
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    yield "phase", Text(f"{one_line(failure.phase)}{code}")
    yield "cause", Text(one_line(failure.cause, limit=600), style="red")
    if failure.remedy:
        yield "do", Text(one_line(failure.remedy, limit=600))
    for line in failure.log_tail[-LOG_LINES:]:
        yield "log", Text(one_line(line, limit=300), style="dim")
    of_rank = next((rank.log for rank in trial.ranks if rank.rank == failure.rank), "server.log")
    yield "full log", Text(f"trials/{one_line(trial.trial_id)}/{one_line(of_rank)}")


def _result_lines(summary: StudySummary, trial: TrialSummary) -> Iterable[tuple[str, Text]]:
    yield "expected", Text(_expectation(trial.hypothesis))
    stream = per_stream(trial.load or "c=1")
    decoding = number(trial.decode_tok_per_s.value if trial.decode_tok_per_s else None)
    yield (
        "measured",
        Text(f"{measured(trial.e2e_tok_per_s)} tok/s{stream} at {trial.load or UNKNOWN}, decode {decoding}"),
    )
    if not trial.is_baseline:
        against = ""
        if trial.speedup is not None and trial.e2e_tok_per_s is not None:
            plain = trial.e2e_tok_per_s.value / trial.speedup.value
            against = f"  plain decoding before and after: {number(plain)} tok/s"
        yield (
            "speedup",
            Text.assemble(*_speedup_so_far(summary, trial), (against, "dim")),
        )
    if trial.ended_early is not None:
        saved = trial.ended_early.saved_s
        spared = "" if saved is None else f"; about {seconds(saved)} saved"
        yield "ended early", Text(one_line(f"{trial.ended_early.reason}{spared}", limit=400))
    if trial.acceptance_length is not None:
        rates = " ".join(percent(r) for r in (trial.accepted_per_position or ())[:8])
        by_position = f", kept by position {rates}" if rates else ""
        said = trial.acceptance_source
        by_whom = f" (from the {said})" if said in ("server log", "server info") else ""
        yield (
            "acceptance",
            Text(f"{measured(trial.acceptance_length)} tokens per drafted step{by_whom}{by_position}"),
        )
    if trial.parity_frac is not None:
        yield "same text", Text(f"{percent(trial.parity_frac)} of outputs equal plain decoding's")
    verdict = trial.hypothesis.verdict
    if verdict is not None:
        seen = f": {one_line(trial.hypothesis.observed, limit=200)}" if trial.hypothesis.observed else ""
        yield "hypothesis", Text.assemble((verdict, _JUDGEMENT_STYLES[verdict]), seen)
    about = [
        f
        for f in summary.findings
        if f.subject == trial.name and f.severity != "note" and f.code not in _OF_THE_END
    ]
    for finding in about[:3]:
        yield finding.severity, Text(one_line(f"{finding.code}: {finding.message}"), style="yellow")


def _speedup_so_far(summary: StudySummary, trial: TrialSummary) -> Iterable[Text | str]:
    """With the verdict of the arm, over all of its launches: the one that the table has."""
    load = summary.arm(trial.arm_id).first
    if load is None or load.speedup is None or load.num_trials < 2 or load.label != trial.load:
        yield f"{times(trial.speedup)}  "
        yield _verdict_text(trial.verdict if load is None else load.verdict)
        return
    yield f"{ratio(trial.speedup.value if trial.speedup else None)} in this launch, "
    yield f"{times(load.speedup)} over {load.num_trials}  "
    yield _verdict_text(load.verdict)


def _expectation(hypothesis: Hypothesis) -> str:
    if hypothesis.expectation == "reference":
        return "the reference of every speedup"
    link = "as" if hypothesis.expectation == "same" else "than"
    other = one_line(hypothesis.compared_with_name or "the reference", limit=40)
    predicted = hypothesis.predicted_tok_per_s
    figure = f", predicted {measured(predicted)} tok/s" if predicted is not None else ""
    changed = f" (changed: {one_line(listing(hypothesis.changed))})" if hypothesis.changed else ""
    return f"{hypothesis.expectation} {link} {other}{changed}{figure}"


def _verdict_text(verdict: Verdict | None) -> Text:
    if verdict is None:
        return Text("not compared", style="dim")
    return Text(f"{VERDICT_MARKS[verdict]} {VERDICT_WORDS[verdict]}", style=_VERDICT_STYLES[verdict])


def study_tables(summary: StudySummary) -> RenderableType:
    """The answer, a table of arms per load point, and the findings."""
    parts: list[RenderableType] = []
    if summary.simulated:
        parts.append(Text(f"{SIMULATED[0].upper()}{SIMULATED[1:]}", style="bold red"))
    for label in summary.study.loads:
        table = _arms_table(summary, label)
        if table is not None:
            parts.append(table)
            note = load_note((a.name, load) for a in summary.arms for load in a.loads if load.label == label)
            parts += [Text(note, style="dim")] if note else []
    waiting = [f"{one_line(a.name, limit=40)} ({a.status_words})" for a in summary.arms if not a.loads]
    if waiting:
        parts.append(Text(f"Without a whole measurement: {listing(waiting)}", style="dim"))
    parts += _finding_lines(summary)
    parts.append(Text(f"\n{one_line(summary.headline)}", style="bold"))
    parts += _why(summary)
    return Group(*parts)


def _why(summary: StudySummary) -> Iterable[Text]:
    """What limits the speed, what to do, and how small a difference was to be seen; `explain` says more."""
    if summary.explanation is not None:
        yield Text(f"why: {one_line(summary.explanation.headline, limit=500)}")
        first = summary.explanation.next[0]
        yield Text(f"next: {one_line(first.action, limit=300)}")
        if first.command is not None:
            yield Text(f"  {one_line(first.command)}", overflow="fold")
    if summary.noise is not None:
        yield Text(f"noise: {one_line(summary.noise.sentence)}", style="dim")


def _arms_table(summary: StudySummary, label: str) -> Table | None:
    pairs = [(arm, load) for arm in summary.arms for load in arm.loads if load.label == label]
    if not pairs:
        return None
    pairs.sort(key=lambda pair: _order(*pair))
    more = len(pairs) - MAX_ROWS
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=Text(f"{one_line(summary.study.name, limit=50)} at {label}"),
        title_justify="left",
        title_style="bold",
        caption=Text(f"and {more} more arms, all slower") if more > 0 else None,
        caption_justify="left",
    )
    table.add_column("arm", overflow="fold", min_width=10, ratio=1)
    table.add_column("tok/s", justify="right", no_wrap=True)
    table.add_column("speedup", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("tokens\n/pass", justify="right", no_wrap=True)
    table.add_column("same\ntext", justify="right", no_wrap=True)
    for arm, load in pairs[:MAX_ROWS]:
        best = arm.arm_id == summary.best_arm_id and load is arm.first
        table.add_row(*_cells(arm, load), style="bold" if best else "")
    return table


def _cells(arm: ArmSummary, load: LoadSummary) -> list[Text]:
    if arm.is_baseline:
        speedup, verdict = "1.00x", Text("baseline", style="dim")
    elif load.speedup is None:
        speedup, verdict = UNKNOWN, _verdict_text(None)
    else:
        speedup = f"{ratio(load.speedup.value)} {bounds_of_ratio(load.speedup)}".strip()
        verdict = _verdict_text(load.verdict)
    parity = load.parity
    equal = UNKNOWN
    if parity is not None and parity.equal_frac is not None:
        equal = f"{parity.num_equal}/{parity.num_compared}"
    return [
        Text(one_line(arm.name, limit=60)),
        Text(number(load.e2e_tok_per_s.value if load.e2e_tok_per_s else None)),
        Text(speedup),
        verdict,
        Text("1" if arm.is_baseline else tokens_words(load.tokens_per_pass)),
        Text(equal),
    ]


def _order(arm: ArmSummary, load: LoadSummary) -> tuple[int, float]:
    if arm.is_baseline:
        return (0, -1.0)
    return (1, 0.0) if load.speedup is None else (0, -load.speedup.value)


def _finding_lines(summary: StudySummary) -> Iterable[Text]:
    for finding in summary.findings[:MAX_FINDINGS]:
        yield Text.assemble(
            (f"{finding.severity} ", _SEVERITY_STYLES[finding.severity]),
            (f"{one_line(finding.code)} ", "dim"),
            one_line(f"{finding.subject}: {finding.message}", limit=300),
        )
    more = len(summary.findings) - MAX_FINDINGS
    if more > 0:
        yield Text(f"and {more} more findings in the report", style="dim")
