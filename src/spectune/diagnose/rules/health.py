"""Starts that fail, servers that die, hang or come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spectune.diagnose.facts import RunFacts
from spectune.diagnose.verdict import NotChecked, Rule, line_of
from spectune.domain.findings import Finding
from spectune.findings.catalogue import finding_kind

HANG_REPEATS = 3
"""vLLM issue 41402: the line repeats each minute; a compilation prints it once or twice."""
CRASH_LOOP_STARTS = 3

DIED = finding_kind("server-died")
DIED_SERVING = finding_kind("server-died-after-ready")
PORT = finding_kind("port-taken")
LOOP = finding_kind("crash-loop")
HANGS = finding_kind("engine-hangs")
NOT_READY = finding_kind("not-ready-yet")
HEALTH = finding_kind("health-check-failed-under-load")
RETRACTED = finding_kind("requests-retracted")
GRAMMAR = finding_kind("grammar-rejects-drafts")


def deaths(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    port, death = run.notice("port-taken"), run.death
    if port is not None and not run.ready:
        yield PORT.found(run.subject, "the server could not take its port", evidence=[line_of(port)])
        return
    if death is None:
        started = run.settings or run.architectures
        served = (
            run.acceptance is not None or run.speed.windows or (run.asked is not None and run.knobs is None)
        )
        if (
            run.kind == "log"
            and not run.ready
            and not run.stopped
            and started
            and not served
            and run.notice("hang") is None
        ):
            jit = run.notice("jit")
            yield NOT_READY.found(
                run.subject,
                "no ready line so far" + (", kernels are being compiled" if jit is not None else ""),
                evidence=[line_of(jit)] if jit is not None else [(f"line {run.last_line}", "end of the log")],
            )
        return
    kind = DIED_SERVING if death.after_ready else DIED
    when = f" at {death.time}" if death.time else ""
    yield kind.found(
        run.subject,
        death.message,
        evidence=[(f"line {death.line}{when}", death.text)],
        remedy=death.remedy,
    )


def hangs(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    hang = run.notice("hang")
    if hang is None or hang.longest_series < HANG_REPEATS or not (hang.after_ready or not run.ready):
        return
    if not run.ready and run.settings and not hang.after_ready and run.kind == "log" and run.architectures:
        yield HANGS.found(
            run.subject,
            f"waiting for {hang.longest_series} minutes during the start; compilation can take this long",
            evidence=[line_of(hang)],
            severity="warning",
        )
        return
    if hang.after_ready == 0 and run.ready:
        return  # it was compiling
    yield HANGS.found(
        run.subject,
        f"{hang.longest_series} times in a row without a token in between",
        evidence=[line_of(hang)],
    )


def other(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    if (health := run.notice("health-failed")) is not None:
        yield HEALTH.found(run.subject, f"{health.count} times", evidence=[line_of(health)])
    retracted = run.notice("retracted")
    count = max(run.speed.retracted_requests, retracted.count if retracted is not None else 0)
    if count:
        evidence = (
            [line_of(retracted)] if retracted is not None else [("decode lines", f"#retracted-req: {count}")]
        )
        yield RETRACTED.found(run.subject, f"{count} times", evidence=evidence)
    if (grammar := run.notice("grammar")) is not None:
        yield GRAMMAR.found(run.subject, f"{grammar.count} times", evidence=[line_of(grammar)])


def crash_loops(runs: Sequence[RunFacts]) -> Iterator[Finding]:
    """Over all runs of one log."""
    by_cause: dict[str, list[RunFacts]] = {}
    for run in runs:
        if run.death is not None:
            by_cause.setdefault(run.death.message, []).append(run)
    for cause, died in by_cause.items():
        if len(died) >= CRASH_LOOP_STARTS:
            yield LOOP.found(
                died[0].subject,
                f"{len(died)} starts died alike: {cause}",
                evidence=[(f"line {r.death.line}", r.death.text) for r in died[:8] if r.death is not None],
            )


RULES: tuple[Rule, ...] = (deaths, hangs, other)
