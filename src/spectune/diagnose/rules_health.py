"""Starts that fail, servers that die, hang or come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spectune.diagnose.facts import RunFacts
from spectune.diagnose.verdict import NotChecked, Rule, line_of
from spectune.domain.findings import Finding, FindingKind

HANG_REPEATS = 3
"""vLLM issue 41402: the line repeats each minute; a compilation prints it once or twice."""
CRASH_LOOP_STARTS = 3

DIED = FindingKind(
    code="server-died",
    severity="error",
    title="The server died before it served",
    explanation="A start that fails is no measurement of 0 tok/s: the arm did not come up.",
    remedy="read the evidence; the same flags fail again",
    holds_for="all engines; known causes by their log lines",
    sources=("measured", "https://github.com/sgl-project/sglang/issues/4330"),
)
DIED_SERVING = FindingKind(
    code="server-died-after-ready",
    severity="error",
    title="The server said that it was ready, and died",
    explanation="The ready line is no proof of serving: a child process can be killed after it, and requests in "
    "flight are lost.",
    effect="requests after that moment failed; a loop that only looks for the ready line does not see it",
    remedy="count a server as ready only after it has generated twice with all children alive",
    holds_for="all engines",
    sources=(
        "https://github.com/sgl-project/sglang/issues/1238",
        "https://github.com/sgl-project/sglang/issues/14942",
    ),
)
PORT = FindingKind(
    code="port-taken",
    severity="error",
    title="Another program holds the port",
    explanation="SGLang loads everything first, logs the error and stays alive without serving; a loop that polls "
    "the port meets the other server and measures that.",
    effect="whatever answered on this port was not this server",
    remedy="stop the other program, or give another --port; give each server its own --nccl-port too",
    holds_for="SGLang 0.5.23, vLLM 0.32, llama.cpp, measured",
    sources=("measured", "https://github.com/sgl-project/sglang/issues/17402"),
)
LOOP = FindingKind(
    code="crash-loop",
    severity="error",
    title="The server is started again and again and dies each time",
    explanation="A supervisor restarts it with the same flags, so it dies of the same cause.",
    remedy="stop the supervisor, change the flags, then start once",
    holds_for="all engines",
    sources=("https://github.com/sgl-project/sglang/issues/32105",),
)
HANGS = FindingKind(
    code="engine-hangs",
    severity="error",
    title="The engine hangs",
    explanation="The processes wait for each other: the line repeats each minute and nothing is generated between.",
    effect="every request in flight is lost; there is no exception, and /health may go on saying yes",
    remedy="restart; with data parallelism keep prompt + max_tokens below max_model_len - num_speculative_tokens - 1; "
    "try fewer drafted tokens, or without asynchronous scheduling",
    holds_for="vLLM",
    sources=(
        "https://github.com/vllm-project/vllm/issues/41402",
        "https://github.com/vllm-project/vllm/issues/44185",
    ),
)
NOT_READY = FindingKind(
    code="not-ready-yet",
    severity="note",
    title="The log ends before the server was ready",
    explanation="Nothing failed so far. Compiling kernels for a new model takes SGLang up to 23 minutes (DeepGEMM), "
    "graph capture minutes more.",
    remedy="wait; no new line for several minutes is the sign of a stuck start, not the total time",
    holds_for="all engines",
    sources=("https://github.com/sgl-project/sglang/issues/9867",),
)
HEALTH = FindingKind(
    code="health-check-failed-under-load",
    severity="note",
    title="The health check failed while the server was working",
    explanation="A long prefill gives no output for longer than the check waits (20 s). Busy is not dead.",
    remedy="do not poll /health while measuring; raise SGLANG_HEALTH_CHECK_TIMEOUT",
    holds_for="SGLang",
    sources=("https://github.com/sgl-project/sglang/issues/22511",),
)
RETRACTED = FindingKind(
    code="requests-retracted",
    severity="warning",
    title="Requests were thrown out of the KV cache and computed again",
    explanation="The KV cache was full. Under speculation each request reserves the drafted tokens too. This is "
    "capacity, not the draft's quality.",
    effect="speed is lost to repeated prefill; some versions crash here",
    remedy="lower the concurrency or --max-running-requests, or give the KV cache more memory, in both arms",
    holds_for="SGLang, vLLM",
    sources=("https://github.com/sgl-project/sglang/issues/14942",),
)
GRAMMAR = FindingKind(
    code="grammar-rejects-drafts",
    severity="warning",
    title="Structured output and speculation disagree",
    explanation="The grammar meets drafted tokens it does not allow. In some versions that stops the request.",
    remedy="keep structured output out of the speed measurement; test it by itself",
    holds_for="vLLM 0.6 to 0.9, SGLang",
    sources=(
        "https://github.com/vllm-project/vllm/issues/15554",
        "https://github.com/sgl-project/sglang/issues/9187",
    ),
)


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
KINDS: tuple[FindingKind, ...] = (
    DIED,
    DIED_SERVING,
    PORT,
    LOOP,
    HANGS,
    NOT_READY,
    HEALTH,
    RETRACTED,
    GRAMMAR,
)
