"""What ``spectune drafter demo`` found, as sections for a terminal, Markdown and one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spectune.domain.acceptance import AcceptanceCounts
from spectune.report import markdown_text
from spectune.statistics.intervals import acceptance_length_interval
from spectune.store.study_dir import write_atomically

UNKNOWN = "–"
_DEPTHS = 4


@dataclass(frozen=True)
class Section:
    """A heading, some sentences, and a table whose first column is a name."""

    title: str
    lines: tuple[str, ...]
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def demo_sections(results: Mapping[str, Any], *, sizes: Sequence[int], depth: int) -> tuple[Section, ...]:
    return (
        _by_size(results, sizes),
        _offline_and_served(results, max(sizes), depth),
        _speed(results),
        _forecast(results),
    )


def _by_size(results: Mapping[str, Any], sizes: Sequence[int]) -> Section:
    rows = []
    for size in sizes:
        train, judged = results[f"train-{size}"], results[f"evaluate-{size}"]
        chains = [_interval(chain["acceptance_length"]) for chain in judged["chains"][:_DEPTHS]]
        rows.append(
            (
                f"{size} prompts",
                f"{train['num_answer_tokens']:,}",
                f"{train['num_epochs']:.1f}",
                f"{train['train_s'] / 60:.1f}",
                f"{train['tok_per_s']:,.0f}",
                *chains,
            )
        )
    judged = results[f"evaluate-{max(sizes)}"]
    manifest = results["data"]["manifest"]
    train = results[f"train-{max(sizes)}"]
    rate = _data_rate(manifest)
    return Section(
        "Data against acceptance",
        (
            f"Answers: {manifest['num_rows']} by the target itself, {manifest['answer_tokens']:,} tokens{rate}; "
            f"{manifest['num_failed']} failed, {manifest['num_empty']} empty.",
            f"Every draft was trained for {train['num_steps']} steps. Acceptance length (tokens per verify step, "
            f"bonus included) offline on the same {judged['num_prompts']} held-out prompts, "
            f"{judged['num_answer_tokens']:,} tokens; 95 % intervals over prompts.",
        ),
        (
            "trained on",
            "answer tokens",
            "epochs",
            "training, min",
            "tok/s",
            *(f"K = {k}" for k in range(1, _DEPTHS + 1)),
        ),
        tuple(rows),
    )


def _data_rate(manifest: Mapping[str, Any]) -> str:
    ends = [run["end"] for run in manifest["runs"] if run["end"] and run["end"]["elapsed_s"]]
    if not ends:
        return ""
    return f" at {ends[-1]['completion_tokens'] / ends[-1]['elapsed_s']:,.0f} tok/s"


def _offline_and_served(results: Mapping[str, Any], size: int, depth: int) -> Section:
    """Offline over the prompts that were served, so that both figures are of the same answers."""
    by_prompt = results[f"evaluate-{size}"]["chains"][depth - 1]["by_prompt"]
    arms = {arm["name"]: arm for arm in results["serve"]["arms"]}
    served = _first_load(arms[f"eagle3-k{depth}"])
    ngram = _first_load(arms[f"ngram-k{depth}"])
    prompts = results["served_prompts"]
    counts = [AcceptanceCounts.model_validate(by_prompt[name]) for name in prompts if name in by_prompt]
    offline = acceptance_length_interval(counts)
    rows = [
        ("EAGLE-3, offline", _interval(None if offline is None else offline.model_dump()), f"{len(counts)}"),
        ("EAGLE-3, served", _interval(served.get("acceptance_length")), _num(served)),
        ("ngram, served", _interval(ngram.get("acceptance_length")), _num(ngram)),
    ]
    lines = [f"The draft of {size} prompts, {depth} drafted tokens, greedy, the same held-out prompts."]
    value = _value(served.get("acceptance_length"))
    if offline is not None and value is not None:
        lines.append(f"Offline is {offline.value / value - 1:+.1%} of what was served.")
    return Section(
        "Offline against served", tuple(lines), ("draft", "acceptance length", "requests"), tuple(rows)
    )


def _speed(results: Mapping[str, Any]) -> Section:
    rows = []
    for arm in results["serve"]["arms"]:
        load = _first_load(arm)
        rows.append(
            (
                arm["name"],
                _interval(load.get("e2e_tok_per_s"), digits=1),
                _interval(load.get("speedup")),
                str(load.get("verdict") or UNKNOWN),
                _interval(load.get("acceptance_length")),
                _plain(arm.get("break_even_acceptance_length")),
                _num(load),
            )
        )
    return Section(
        "Served on the embedded llama.cpp",
        (str(results["serve"]["headline"]),),
        ("arm", "tok/s", "speedup", "verdict", "acceptance length", "breaks even at", "requests"),
        tuple(rows),
    )


def _forecast(results: Mapping[str, Any]) -> Section:
    forecast = results["forecast"]
    rows = [
        (
            f"{row['num_samples']:,.0f} prompts",
            _interval(row["acceptance_length"]),
            _interval(row["tok_per_s"], digits=1),
            _interval(row["speedup"]),
            _plain(row["train_hours"]),
        )
        for row in forecast["forecasts"]
    ]
    lines = [f"{forecast['advice'].capitalize()}: {forecast['because']}."]
    check = forecast["check"]
    if check is not None:
        lines.append(
            f"From the two smaller sizes the largest was forecast as {_interval(check['forecast'])}; measured "
            f"{check['measured']:.2f} ({check['error_frac']:+.1%}, "
            f"{'inside' if check['inside'] else 'outside'} the interval)."
        )
    lines += [f"Assumed: {text}." for text in forecast["assumptions"]]
    return Section(
        "Forecast",
        tuple(lines),
        ("data", "acceptance length", "tok/s", "speedup", "hours"),
        tuple(rows),
    )


def _first_load(arm: Mapping[str, Any]) -> Mapping[str, Any]:
    loads: Sequence[Mapping[str, Any]] = arm["loads"]
    return loads[0] if loads else {}


def _value(interval: Mapping[str, Any] | None) -> float | None:
    return None if interval is None else float(interval["value"])


def _interval(interval: Mapping[str, Any] | None, *, digits: int = 2) -> str:
    if interval is None:
        return UNKNOWN
    low, high = interval["low"], interval["high"]
    spread = "" if low is None or high is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{interval['value']:.{digits}f}{spread}"


def _plain(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _num(load: Mapping[str, Any]) -> str:
    number = load.get("num_requests")
    return UNKNOWN if number is None else str(number)


def print_sections(sections: Sequence[Section]) -> None:
    console = Console(highlight=False)
    for section in sections:
        console.print(Text(f"\n{section.title}", style="bold"))
        for line in section.lines:
            console.print(Text(line))
        if section.rows:
            table = Table()
            for place, name in enumerate(section.header):
                table.add_column(name, justify="right" if place else "left")
            for row in section.rows:
                table.add_row(*map(Text, row))
            console.print(table)


def write_demo_report(out: Path, sections: Sequence[Section]) -> tuple[Path, Path]:
    """``report.md`` and ``report.html``; neither has a script or a link to elsewhere."""
    markdown, page = out / "report.md", out / "report.html"
    write_atomically(markdown, _markdown(sections))
    write_atomically(page, str(_html(sections)))
    return markdown, page


def _markdown(sections: Sequence[Section]) -> str:
    parts = ["# A draft of our own, from data to server"]
    for section in sections:
        parts.append(f"## {section.title}")
        parts += [markdown_text.escape(line, limit=2000) for line in section.lines]
        if section.rows:
            rows = [[markdown_text.escape(cell) for cell in row] for row in section.rows]
            right = range(1, len(section.header))
            parts.append(markdown_text.table(section.header, rows, right=right))
    return "\n\n".join(parts) + "\n"


def _html(sections: Sequence[Section]) -> Markup:
    style = (resources.files("spectune.report") / "templates" / "report.css").read_text(encoding="utf-8")
    body = Markup("").join(map(_html_section, sections))
    return Markup(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name=color-scheme content="light dark"><title>spectune drafter demo</title><style>{style}\n'
        ".demo {{ border-collapse: collapse; }} .demo th, .demo td {{ padding: 4px 14px 4px 0; text-align: right; "
        "border-bottom: 1px solid var(--rule); }} .demo :first-child {{ text-align: left; }} "
        ".scroll {{ overflow-x: auto; }}</style></head>\n"
        "<body><header class=mast><p class=brand><span>spectune</span> drafter demo</p>"
        "<h1>A draft of our own, from data to server</h1></header>\n<main>\n{body}</main></body></html>\n"
    ).format(style=Markup(style), body=body)  # noqa: S704 - the style sheet is ours


def _html_section(section: Section) -> Markup:
    lines = Markup("").join(Markup("<p class=lead>{}</p>\n").format(line) for line in section.lines)
    head = Markup("").join(Markup("<th scope=col>{}</th>").format(name) for name in section.header)
    rows = Markup("").join(
        Markup("<tr>{}</tr>\n").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row))
        for row in section.rows
    )
    table = Markup("<div class=scroll><table class=demo><tr>{}</tr>\n{}</table></div>").format(head, rows)
    return Markup("<section><h2>{}</h2>\n{}{}</section>\n").format(
        escape(section.title), lines, table if section.rows else Markup("")
    )
