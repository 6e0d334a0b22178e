"""Lines that no server writes, but that stand in the files people have: commands, scrapes, clients' results."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from spectune.diagnose.facts import AcceptanceFacts, RunFacts
from spectune.diagnose.log.fields import literal, number
from spectune.diagnose.log.records import ClientSummary, Value
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Knobs
from spectune.domain.secrets import redact_argv
from spectune.engines.flags import read_args
from spectune.engines.prometheus import Metrics, parse_metrics, read_spec_counters
from spectune.engines.registry import adapter_for

_PROGRAM = re.compile(
    r"(?:^|[\s/'\"])(?:(?P<sglang>sglang\.launch_server|sglang serve)"
    r"|(?P<vllm>vllm serve|vllm\.entrypoints\.openai\.api_server)"
    r"|(?P<llamacpp>llama-server))(?=\s)(?P<rest>.{0,8000}?\s--?[a-z].*)"
)
_METRIC = re.compile(r"(vllm|llamacpp|sglang):(\w*spec_\w+)(\{[^}]{0,2000}\})? +([-+.\deE]+|NaN)\b")
_MAX_SERIES = 2000

_CLIENT_LENGTH = re.compile(
    r"(?:[Mm]ean acceptance length|\b[Aa]ccept(?:ance|ed)?[_ ][Ll]en(?:gth)?|\"\w{0,40}acc(?:ept(?:ance)?)?_length\")"
    r"\s*[:=]\s*([\d.]{1,12})"
)
_CLIENT_RATE = re.compile(r"[Dd]raft acceptance rate(?: \(%\))?\s*[:=]\s*([\d.]{1,8}) ?%")
_CLIENT_COUNT = re.compile(
    r"\b(num_drafts|num_draft_tokens|num_accepted_tokens|n_drafted|n_accept)\s*[:=]\s*(\d{1,15})\b"
)
_META = re.compile(
    r"['\"](spec_verify_ct|completion_tokens|spec_num_correct_drafts|spec_num_proposed_drafts"
    r"|spec_accept_token_num|spec_draft_token_num)['\"]\s*:\s*(\d{1,15})"
)


def launch_command(text: str) -> tuple[str, Mapping[str, Value]] | None:
    """(engine, flags) of a server command in the line: what ``set -x`` or a terminal left in the file."""
    if "server_args=" in text or text.startswith("usage: "):
        return None
    match = _PROGRAM.search(text, 0, 20000)
    if match is None:
        return None
    engine = next(name for name in ("sglang", "vllm", "llamacpp") if match[name])
    rest = match["rest"]
    try:
        words = shlex.split(rest)
    except ValueError:
        words = rest.split()
    if rest.lstrip().startswith((":", "`")) or len(words) > 2000:
        return None
    return engine, {"argv": shlex.join(redact_argv(words))}


def knobs_of(engine: str, argv: str) -> Knobs | None:
    """Knobs of a command line; ``None`` where they make no sense."""
    try:
        return adapter_for(engine).read_flags(shlex.split(argv))
    except ValueError:
        return None


def flags_of(argv: str) -> dict[str, Value]:
    try:
        args = read_args(shlex.split(argv))
    except ValueError:
        return {}
    return {
        name.replace("-", "_"): literal(v) if isinstance(v, str) else v
        for name, v in list(args.items())[:200]
    }


def client_summary(text: str) -> ClientSummary | None:
    """A client's own result, or the counters in one reply of SGLang."""
    if "spec_verify_ct" in text:
        values: dict[str, int] = {}
        for match in _META.finditer(text):
            values.setdefault(match[1], int(match[2]))
        steps = values.get("spec_verify_ct")
        if not steps:
            return None
        kept = values.get("spec_num_correct_drafts")
        if kept is None and "completion_tokens" in values:
            kept = max(values["completion_tokens"] - steps, 0)
        return ClientSummary(steps=steps, accepted=kept, drafted=values.get("spec_num_proposed_drafts"))
    if "draft" not in text and "ccept" not in text:
        return None
    counts = {match[1]: int(match[2]) for match in _CLIENT_COUNT.finditer(text)}
    length = _CLIENT_LENGTH.search(text) if "SpecDecoding" not in text else None
    percent = _CLIENT_RATE.search(text) if not counts and "Drafted: " not in text else None
    if not counts and length is None and percent is None:
        return None
    rate = number(percent[1]) if percent else None
    return ClientSummary(
        rate=rate / 100 if rate is not None and rate <= 100 else None,
        length=float_of(length[1]) if length else None,
        steps=counts.get("num_drafts"),
        drafted=counts.get("num_draft_tokens", counts.get("n_drafted")),
        accepted=counts.get("num_accepted_tokens", counts.get("n_accept")),
    )


def float_of(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 1 <= value <= 1000 else None


class MetricsLines:
    """Speculation series of a Prometheus scrape kept in a file; of several scrapes the last counts."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def take(self, text: str) -> bool:
        match = _METRIC.match(text) if ":" in text[:10] else None
        if match is None:
            return text.startswith(("# HELP ", "# TYPE "))
        name = f"{match[1]}:{match[2]}"
        if match[2].startswith("spec_decode_num_") and not name.endswith("_total"):
            name += "_total"
        series = name + (match[3] or "")
        if series in self._last or len(self._last) < _MAX_SERIES:
            self._last[series] = match[4]
        return True

    def facts(self, subject: str) -> RunFacts | None:
        """One pseudo-run of the scrape; ``None`` if there was none."""
        if not self._last:
            return None
        metrics = parse_metrics("\n".join(f"{series} {value}" for series, value in self._last.items()))
        return metrics_facts(metrics, subject=f"{subject} (metrics)")


def metrics_facts(metrics: Metrics, *, subject: str) -> RunFacts | None:
    for prefix, engine in (("vllm:", "vllm"), ("llamacpp:", "llamacpp")):
        counts = read_spec_counters(metrics, prefix)
        if counts is not None:
            return RunFacts(
                subject=subject,
                kind="server",
                engine=engine,
                acceptance=acceptance_of(counts, "counters"),
                ready=True,
            )
    length = metrics.total("sglang:spec_accept_length")
    if length is not None:
        return RunFacts(
            subject=subject,
            kind="server",
            engine="sglang",
            acceptance=AcceptanceFacts(source="gauge", windows=1, length=length) if length >= 1 else None,
            ready=True,
        )
    return None


def acceptance_of(counts: AcceptanceCounts, source: str) -> AcceptanceFacts:
    """Engine counters as facts; counters are totals since the start."""
    return AcceptanceFacts(
        source=source,
        windows=1 if counts.num_draft_tokens else 0,
        steps=counts.num_drafts,
        drafted=counts.num_draft_tokens,
        accepted=counts.num_accepted_tokens,
        length=counts.acceptance_length,
        rate=counts.acceptance_rate,
        per_position=counts.marginal_acceptance,
        cumulative=True,
    )
