"""The report as Markdown, for a pull request or a chat."""

from __future__ import annotations

from spectune.analysis.grouping import (
    FailureGroup,
    command_lines,
    commands_of,
    failure_groups,
    finding_groups,
)
from spectune.analysis.records import ArmSummary, LoadSummary, StudySummary
from spectune.analysis.words import (
    SIMULATED,
    UNKNOWN,
    VERDICT_WORDS,
    acceptance_words,
    arm_break_even,
    count,
    listing,
    load_note,
    measured,
    milliseconds,
    more_needed,
    number,
    percent,
    saved_by_early_ends,
    seconds,
    tail,
    times,
    tokens_words,
    visible,
)
from spectune.report.markdown_text import block, code, escape, table
from spectune.report.markdown_why import markdown_why

MAX_PER_GROUP = 12


def render_markdown(summary: StudySummary) -> str:
    study = summary.study
    parts = [f"# {escape(study.name)}", escape(study.question)]
    if summary.simulated:
        parts.append(f"> **{SIMULATED[0].upper()}{SIMULATED[1:]}.**")
    parts.append(f"**{escape(summary.headline, limit=2000)}**")
    parts += [f"Noise: {escape(summary.noise.sentence)}."] if summary.noise else []
    parts += _arms(summary) or ["Nothing has been measured."]
    waiting = [f"{escape(arm.name)} ({arm.status_words})" for arm in summary.arms if not arm.loads]
    parts += [f"Without a whole measurement: {listing(waiting, most=12)}."] if waiting else []
    parts += _search(summary)
    parts += markdown_why(summary.explanation)
    parts += _findings(summary)
    parts += _acceptance(summary)
    parts += _categories(summary)
    parts += _latency(summary)
    parts += _hypotheses(summary)
    parts += [_failures(group) for group in failure_groups(summary.trials)]
    parts += _time(summary)
    parts += _provenance(summary)
    return "\n\n".join(part for part in parts if part) + "\n"


def _measured_arms(summary: StudySummary) -> list[tuple[ArmSummary, LoadSummary]]:
    return [(arm, arm.first) for arm in summary.ranked_arms if arm.first is not None]


def _verdict(arm: ArmSummary, load: LoadSummary) -> str:
    if arm.is_baseline:
        return "baseline"
    if load.verdict is None:
        return "not compared"
    more = more_needed(load) if load.verdict == "CANNOT_TELL" else ""
    return f"{VERDICT_WORDS[load.verdict]}{f' ({more})' if more else ''}"


def _parity(load: LoadSummary) -> str:
    if load.parity is None or load.parity.equal_frac is None:
        return UNKNOWN
    return f"{load.parity.num_equal} of {load.parity.num_compared}"


def _arms(summary: StudySummary) -> list[str]:
    """A table per load point, fastest first."""
    parts = []
    for label in summary.study.loads:
        rows = []
        for arm in sorted(summary.ranked_arms, key=lambda a: _order(a, label)):
            load = next((load for load in arm.loads if load.label == label), None)
            if load is None:
                continue
            name = f"**{escape(arm.name)}**" if arm.arm_id == summary.best_arm_id else escape(arm.name)
            speedup = "1.00x" if arm.is_baseline else times(load.speedup)
            speed = load.e2e_tok_per_s.value if load.e2e_tok_per_s else None
            rows.append(
                [
                    name,
                    number(speed),
                    speedup,
                    _verdict(arm, load),
                    "1" if arm.is_baseline else tokens_words(load.tokens_per_pass),
                    arm_break_even(arm) if load is arm.first else UNKNOWN,
                    acceptance_words(load),
                    _parity(load),
                ]
            )
        if rows:
            header = [
                "arm",
                "tok/s",
                "speedup",
                "verdict",
                "tokens per forward pass",
                "needed to pay off",
                "acceptance length",
                "same text",
            ]
            parts += [f"## Arms at {label}", table(header, rows, right=(1, 2, 4, 5, 6, 7))]
            note = load_note((a.name, load) for a in summary.arms for load in a.loads if load.label == label)
            parts += [f"{escape(note[0].upper() + note[1:], limit=600)}."] if note else []
    if parts:
        level, margin = percent(summary.study.level), percent(summary.study.margin)
        parts.append(
            f"Speedup: end to end, prompt by prompt against plain decoding measured before and after, "
            f"{level} intervals that hold for all arms of a table together; within {margin} of 1.00x is the same."
        )
    return parts


def _search(summary: StudySummary) -> list[str]:
    study = summary.study
    if study.search is None:
        return []
    ended = f"; it ended: {escape(study.search_end)}" if study.search_end else ""
    left = [f"{escape(name)} ({escape(reason)})" for name, reason in study.pruned_arms.items()]
    parts = [f"Searched by {study.search}{ended}."]
    return parts + ([f"Left out: {listing(left, most=12)}."] if left else [])


def _order(arm: ArmSummary, label: str) -> float:
    load = next((load for load in arm.loads if load.label == label), None)
    if arm.is_baseline:
        return -1.0
    return -load.speedup.value if load is not None and load.speedup is not None else 0.0


def _findings(summary: StudySummary) -> list[str]:
    if not summary.findings:
        return []
    items = []
    for group in finding_groups(summary.findings):
        first = group.first
        lines = [f"- **{first.severity}** {code(first.code)}"]
        for finding in group.findings[:MAX_PER_GROUP]:
            seen = [e for e in finding.evidence if e.source != "log tail"][:4]
            details = "; ".join(f"{escape(e.source)}: {escape(e.detail)}" for e in seen)
            about = f"  - **{escape(finding.subject)}**: {escape(finding.message)}"
            lines.append(f"{about} ({details})" if details else about)
        more = len(group.findings) - MAX_PER_GROUP
        lines += [f"  - and {more} more"] if more > 0 else []
        lines += [f"  - Effect: {escape(first.effect)}"] if first.effect else []
        lines += [f"  - Do: {escape(first.remedy)}"] if first.remedy and first.code != "arm-failed" else []
        items.append("\n".join(lines))
    return ["## Findings", "\n".join(items)]


def _acceptance(summary: StudySummary) -> list[str]:
    rows = []
    for arm, load in _measured_arms(summary):
        if load.acceptance_counts is None or load.acceptance_length is None:
            continue
        weighted = load.request_weighted_acceptance_length
        rows.append(
            [
                escape(arm.name),
                tokens_words(load.tokens_per_pass),
                f"{measured(load.acceptance_length)}{_of_passes(load)}",
                number(weighted),
                percent(load.acceptance_rate),
                " · ".join(percent(r) for r in load.accepted_per_position or ()) or UNKNOWN,
                " · ".join(percent(r) for r in load.conditional_per_position or ()) or UNKNOWN,
            ]
        )
    if not rows:
        return []
    header = [
        "arm",
        "tokens per forward pass",
        "acceptance length",
        "by request",
        "accepted / drafted",
        "kept, by position",
        "kept, given all before",
    ]
    return ["## Acceptance", table(header, rows, right=(1, 2, 3, 4))]


def _of_passes(load: LoadSummary) -> str:
    return f" in {percent(load.verify_step_frac)} of passes" if load.skips_passes else ""


def _categories(summary: StudySummary) -> list[str]:
    names = list(summary.study.categories)
    arms = [(arm, load) for arm, load in _measured_arms(summary) if not arm.is_baseline]
    if len(names) < 2 or not arms:
        return []
    rows = []
    for arm, load in arms:
        found = {part.category: part.speedup for part in load.categories}
        rows.append([escape(arm.name), *(times(found.get(name)) for name in names)])
    header = ["arm", *(escape(name) for name in names)]
    return ["## Speedup by prompt category", table(header, rows, right=range(1, len(header)))]


def _latency(summary: StudySummary) -> list[str]:
    rows = [
        [
            escape(arm.name),
            milliseconds(load.median_ttft_s),
            tail(load.p99_ttft_s, load.largest_ttft_s),
            milliseconds(load.median_tpot_s),
            tail(load.p99_tpot_s, load.largest_tpot_s),
            number(load.output_tok_per_s),
            f"{load.num_failed_requests} of {load.num_requests}",
        ]
        for arm, load in _measured_arms(summary)
    ]
    if not rows:
        return []
    header = [
        "arm",
        "TTFT median, ms",
        "p99 (max of fewer than 100)",
        "TPOT median, ms",
        "p99 (max of fewer than 100)",
        "all tokens / time, tok/s",
        "requests failed",
    ]
    return ["## Latency and throughput", table(header, rows, right=range(1, 7))]


def _hypotheses(summary: StudySummary) -> list[str]:
    rows = []
    for trial in summary.trials:
        h = trial.hypothesis
        link = "as" if h.expectation == "same" else "than"
        expected = h.expectation + (f" {link} {escape(h.compared_with_name)}" if h.compared_with_name else "")
        judged = "failed" if trial.status == "failed" else h.verdict or UNKNOWN
        rows.append(
            [
                f"{trial.number} {escape(trial.name)}",
                f"{expected}: {escape(h.why)}",
                measured(h.predicted_tok_per_s),
                escape(h.observed) if h.observed else measured(trial.e2e_tok_per_s),
                judged,
            ]
        )
    header = ["launch", "expectation", "predicted tok/s", "observed", "judgement"]
    return ["## Hypotheses", table(header, rows)] if rows else []


def _failures(group: FailureGroup) -> str:
    trial = group.last
    failure = trial.failure
    assert failure is not None
    lines = [f"## Failed: {escape(trial.name)}", f"In {escape(failure.phase)}: {escape(failure.cause)}"]
    lines += [f"Do: {escape(failure.remedy)}"] if failure.remedy else []
    lines += [block("\n".join(failure.log_tail[-20:]))] if failure.log_tail else []
    return "\n\n".join(lines)


def _time(summary: StudySummary) -> list[str]:
    time = summary.time
    if time.wall_s <= 0:
        return []
    rows = [[escape(n), seconds(s), percent(s / time.wall_s)] for n, s in time.phases_s.items()]
    rows.append(["spectune itself", seconds(time.own_s), percent(time.own_frac)])
    launches = count(len({trial.launch for trial in summary.trials}), "launch")
    return [
        "## Where the time went",
        f"{launches} in {seconds(time.wall_s)}. {saved_by_early_ends(time)}".rstrip(),
        table(["phase", "time", "share"], rows, right=(1, 2)),
    ]


def _provenance(summary: StudySummary) -> list[str]:
    study, machine = summary.study, summary.study.machine
    items = {
        "spectune": study.spectune_version,
        "engine": f"{study.engine} {', '.join(study.engine_versions) or 'version unknown'}",
        "target": ", ".join(study.targets),
        "machine": f"{machine.cpu or 'processor unknown'}, {machine.cores or UNKNOWN} cores, {machine.os}",
        "GPUs": UNKNOWN if machine.gpus is None else ", ".join(machine.gpus) or "none",
        "workload": f"{count(study.num_prompts, 'prompt')}, {study.workload_hash}, at {', '.join(study.loads)}",
        "sampling": f"temperature {study.sampling.temperature:g}, at most {study.sampling.max_tokens} tokens",
        "launches": f"{len(summary.trials)} of {study.num_planned_trials} planned",
        "study made": study.created_at,
    }
    if study.imported is not None:
        items["measured by"] = (
            f"{study.imported.tool}, imported from {listing(f.name for f in study.imported.files)}"
        )
        if "sampling" in study.imported.unknown:
            items["sampling"] = "not recorded"
        if "prompts" in study.imported.unknown:
            items["workload"] = f"prompts not recorded, at {', '.join(study.loads)}"
    lines = ["## Provenance", "\n".join(f"- {name}: {escape(value)}" for name, value in items.items())]
    last = {trial.arm_id: trial for trial in summary.trials}
    commands = [
        "\n".join(filter(None, (f"{trial.name}:" if index == 0 else "", title, command_lines(command))))
        for trial in last.values()
        for index, (title, _, command) in enumerate(commands_of(trial))
        if command
    ]
    if commands:
        lines += [
            "<details><summary>Commands</summary>",
            block("\n\n".join(visible(c) for c in commands)),
            "</details>",
        ]
    return lines
