"""Numbers and foreign text as a person reads them; the same words in every output form.

Numbers carry three significant digits. What is unknown is a dash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from spectune.analysis.records import ArmSummary, LoadSummary, StudyTime
from spectune.domain.interval import Interval
from spectune.domain.sizes import in_bytes
from spectune.statistics.intervals import Verdict

UNKNOWN = "–"
SIMULATED = "simulated engine: not a measurement"

VERDICT_WORDS: Mapping[Verdict, str] = {
    "FASTER": "faster",
    "SLOWER": "slower",
    "SAME": "same",
    "CANNOT_TELL": "cannot tell",
}
VERDICT_MARKS: Mapping[Verdict, str] = {"FASTER": "▲", "SLOWER": "▼", "SAME": "=", "CANNOT_TELL": "?"}

_ESCAPE_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
_BLANKS = re.compile(r"\s+")


def visible(text: str) -> str:
    """``text`` without terminal escape sequences; other control and direction marks become ``�``.

    Keeps newlines and tabs. Everything that came from a server, a model, a
    prompt or a file passes here before it is shown anywhere.
    """
    text = text.replace("\r\n", "\n")
    return INVISIBLE.sub("�", _ESCAPE_SEQUENCES.sub("", text))


def one_line(text: str, *, limit: int | None = None) -> str:
    """``visible`` text with every run of blanks as one space, cut to ``limit`` characters."""
    line = _BLANKS.sub(" ", visible(text)).strip()
    if limit is not None and len(line) > limit:
        return line[: limit - 1].rstrip() + "…"
    return line


def number(value: float | None) -> str:
    """Three significant digits, no exponent below a million."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.2e}"
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.0995 or size == 0 else 3
    return f"{value:.{digits}f}"


def bounds(interval: Interval | None) -> str:
    """``[low, high]``, or nothing when the interval says nothing about spread."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"[{number(interval.low)}, {number(interval.high)}]"


def measured(interval: Interval | None) -> str:
    """Value with its bounds."""
    if interval is None:
        return UNKNOWN
    return f"{number(interval.value)} {bounds(interval)}".strip()


def times(interval: Interval | None) -> str:
    """A speedup: ``1.08x [1.03, 1.13]``."""
    if interval is None:
        return UNKNOWN
    return f"{ratio(interval.value)} {bounds_of_ratio(interval)}".strip()


def ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}x"


def bounds_of_ratio(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ""
    low = "<0.01" if interval.low < 0.005 else f"{interval.low:.2f}"
    high = ">100" if interval.high > 100 else f"{interval.high:.2f}"  # too few launches to say anything
    return f"[{low}, {high}]"


def percent(fraction: float | None) -> str:
    if fraction is None:
        return UNKNOWN
    value = 100 * fraction
    if 0 < value < 0.05:
        return "<0.1 %"
    shown = f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"
    return f"{shown.removesuffix('.0')} %"


def seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if value < 0.9995:
        return f"{number(value * 1000)} ms"
    if value < 99.95:
        return f"{number(value)} s"
    total_minutes, rest_s = divmod(round(value), 60)
    if total_minutes < 60:
        return f"{total_minutes} min {rest_s:02d} s"
    hours, minutes = divmod(total_minutes, 60)
    return f"{hours} h {minutes:02d} min"


def milliseconds(value_s: float | None) -> str:
    return UNKNOWN if value_s is None else number(1000 * value_s)


def tail(p99_s: float | None, largest_s: float | None) -> str:
    """In ms; where there are too few values for a percentile, the largest, named as that."""
    return milliseconds(p99_s) if p99_s is not None or largest_s is None else f"max {milliseconds(largest_s)}"


def gibibytes(value_bytes: int | None) -> str:
    return UNKNOWN if value_bytes is None else in_bytes(value_bytes, binary=True)


def count(amount: int, noun: str) -> str:
    """``1 launch``, ``2 launches``."""
    if amount == 1:
        return f"1 {noun}"
    return f"{amount} {noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}"


_DRIFT_TOLD = 0.01


def per_stream(label: str) -> str:
    """One request at a time is all that the server makes."""
    return "" if label == "c=1" else " per stream"


def load_note(loads: Iterable[tuple[str, LoadSummary]]) -> str:
    """What was done with the figures of one table; empty if nothing was."""
    named = list(loads)
    return "; ".join(note for note in (drift_note(named), steady_note(load for _, load in named)) if note)


def steady_note(loads: Iterable[LoadSummary]) -> str:
    """Which part of the time the figures are of, at c > 1."""
    shares = sorted(load.steady_frac for load in loads if load.steady_frac is not None)
    if not shares:
        return ""
    share = " to ".join(dict.fromkeys((percent(shares[0]), percent(shares[-1]))))
    return (
        f"tok/s are per stream and of the steady state, {share} of the time; the server filled and emptied in the "
        "rest, which counts for no verdict"
    )


def drift_note(loads: Iterable[tuple[str, LoadSummary]]) -> str:
    """Says that speeds were corrected, and what they were as measured; empty where they are as measured."""
    moved = [
        f"{one_line(name, limit=40)} {number(load.e2e_tok_per_s.value / load.drift_correction)}"
        for name, load in loads
        if load.e2e_tok_per_s and load.drift_correction and abs(load.drift_correction - 1) > _DRIFT_TOLD
    ]
    if not moved:
        return ""
    return (
        "tok/s and speedup are both corrected for the machine's drift between launches "
        f"(tok/s as measured: {listing(moved)})"
    )


def acceptance_words(load: LoadSummary) -> str:
    """The acceptance length, with the share of passes that it is of where a drafter skips some."""
    if load.acceptance_length is None:
        return UNKNOWN
    of = f" in {percent(load.verify_step_frac)} of passes" if load.skips_passes else ""
    return f"{load.acceptance_length.value:.2f}{of}"


def tokens_words(value: float | None) -> str:
    """Tokens per forward pass."""
    return UNKNOWN if value is None else f"{value:.2f}"


def break_even_words(needed: float | None, reachable: bool | None, *, approximate: bool = False) -> str:
    """Tokens per forward pass needed to pay off, or that the draft length cannot give so many."""
    if needed is None:
        return UNKNOWN
    about = "≈ " if approximate else ""
    return f"cannot ({about}{needed:.2f})" if reachable is False else f"{about}{needed:.2f}"


def arm_break_even(arm: ArmSummary) -> str:
    return break_even_words(
        arm.break_even_tokens_per_pass, arm.break_even_reachable, approximate=arm.break_even_approximate
    )


def more_needed(load: LoadSummary) -> str:
    """What would turn a CANNOT_TELL into an answer: ``12 more prompts or 3 more launches would``."""
    ways = []
    if load.more_prompts_needed is not None:
        ways.append(count(load.more_prompts_needed, "more prompt"))
    if load.more_launches_needed is not None:
        ways.append(f"{count(load.more_launches_needed, 'more launch')} of each arm")
    if ways:
        return f"{' or '.join(ways)} would"
    return "20 more launches would not: make the machine quieter" if load.quieter_machine_needed else ""


def listing(names: Iterable[str], *, most: int = 5) -> str:
    """``a, b and c``, or the first few and how many more."""
    items = list(names)
    if len(items) > most:
        return f"{', '.join(items[:most])} and {len(items) - most} more"
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def saved_by_early_ends(time: StudyTime) -> str:
    """What was not measured because it was not needed, in one sentence; empty where everything was."""
    if not time.num_ended_early:
        return ""
    trials = count(time.num_ended_early, "trial")
    whole_s = time.phases_s.get("measure", 0.0) + time.saved_s
    if not time.saved_s or not whole_s:
        return f"{trials} did not need every prompt."
    saved = f"about {seconds(time.saved_s)}, {percent(time.saved_s / whole_s)} of the measuring"
    return f"{trials} did not need every prompt, which saved {saved}."
