"""All rules over the facts of some runs."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.diagnose import compare
from spectune.diagnose.facts import RunFacts
from spectune.diagnose.rules import acceptance as rules_acceptance
from spectune.diagnose.rules import health as rules_health
from spectune.diagnose.rules import measurement as rules_measurement
from spectune.diagnose.rules import settings as rules_settings
from spectune.diagnose.verdict import NotChecked, Rule, Verdict
from spectune.domain.findings import Finding, Severity

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
RULES: tuple[Rule, ...] = (
    *rules_health.RULES,
    *rules_acceptance.RULES,
    *rules_settings.RULES,
    *rules_measurement.RULES,
)


def judge(logs: Sequence[Sequence[RunFacts]], skipped: NotChecked, *, compared: bool = True) -> list[Finding]:
    """Findings over the runs of each log, and, if ``compared``, over the logs as arms of one comparison."""
    found: list[Finding] = []
    for runs in logs:
        for run in runs:
            if run.engine is None:
                skipped.add(f"{run.subject}: no line of a known engine")
            elif run.version is None:
                skipped.add(f"{run.subject}: engine version (the log does not name it)")
            for rule in RULES:
                found += rule(run, skipped)
        found += rules_health.crash_loops(runs)
    if compared:
        found += _comparisons(logs, skipped)
    return found


def _comparisons(logs: Sequence[Sequence[RunFacts]], skipped: NotChecked) -> list[Finding]:
    """Each log's last run that served, against the first log's."""
    served = [run for runs in logs if (run := _last_that_served(runs)) is not None]
    found: list[Finding] = []
    for other in served[1:]:
        found += compare.compare(served[0], other, skipped)
    return found


def _last_that_served(runs: Sequence[RunFacts]) -> RunFacts | None:
    return next((r for r in reversed(runs) if r.ready or r.speed.windows or r.acceptance is not None), None)


def verdict(findings: Sequence[Finding], skipped: NotChecked) -> Verdict:
    """Each finding once, the worst first."""
    unique = {finding.model_dump_json(): finding for finding in findings}
    ranked = sorted(unique.values(), key=lambda finding: _ORDER[finding.severity])
    return Verdict(tuple(ranked), tuple(skipped.items))
