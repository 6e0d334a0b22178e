"""What the log says about the worth of numbers measured on this server."""

from __future__ import annotations

from collections.abc import Iterator

from spectune.diagnose.facts import RunFacts
from spectune.diagnose.verdict import NotChecked, Rule, kept_words, line_of, speculates
from spectune.domain.findings import Finding
from spectune.findings.catalogue import finding_kind

REPEATED_SHARE = 0.5
MIN_PROMPTS = 8
CAP_WINDOWS = 3
PREFILL_HEAVY = 8.0
"""Computed prompt tokens per generated token above which the speed of decoding hardly shows."""

RATE_FORMULA = finding_kind("accept-rate-of-old-formula")
REPEATED = finding_kind("prompts-repeated")
CACHED = finding_kind("prefix-cache-used")
IDLE = finding_kind("windows-after-idle")
AT_CAP = finding_kind("running-requests-at-cap")
JIT = finding_kind("compiled-while-serving")
PREFILL = finding_kind("prefill-heavy")
CUMULATIVE = finding_kind("counts-since-start")


def rate_formula(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance = run.acceptance
    if acceptance is None or acceptance.printed_rate is None:
        return
    if acceptance.rate_formula is None:
        skipped.add(f"{run.subject}: which definition the printed accept rate follows")
    elif acceptance.rate_formula == "length / n" and acceptance.length is not None:
        tokens = run.settings.get("speculative_num_draft_tokens")
        n = tokens if isinstance(tokens, int) else round(acceptance.length / acceptance.printed_rate)
        right = (acceptance.length - 1) / (n - 1) if n > 1 else 0.0
        yield RATE_FORMULA.found(
            run.subject,
            f"printed {acceptance.printed_rate:.2f} is {acceptance.length:.2f} / {n}; "
            f"accepted / drafted is {right:.2f}",
            evidence=[
                ("decode lines", f"accept len {acceptance.length:.2f}, rate {acceptance.printed_rate:.2f}")
            ],
        )


def cache(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    cached = run.cache
    if cached.prompts >= MIN_PROMPTS and cached.prompts_cached_whole > REPEATED_SHARE * cached.prompts:
        seen = f"{cached.prompts_cached_whole} of {cached.prompts} prompts"
        yield REPEATED.found(run.subject, f"{seen} were cached whole", evidence=[("prefill lines", seen)])
    elif cached.hit_frac is not None and cached.hit_frac >= 0.05:
        share = f"{cached.hit_frac:.0%} of prompt tokens"
        yield CACHED.found(run.subject, share, evidence=[("log", share)])


def idle(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    left_out = run.speed.windows_after_idle
    drafts = run.acceptance.idle_windows if run.acceptance is not None else 0
    if run.acceptance is not None and "idle" in run.acceptance.source:
        yield IDLE.found(
            run.subject,
            "the gauge of acceptance holds its last value: the server is idle",
            evidence=[("metrics", "no request is running")],
        )
    if left_out > 1 or drafts:
        parts = [f"{left_out} first lines of a burst"] if left_out > 1 else []
        parts += [f"{drafts} lines without a draft"] if drafts else []
        yield IDLE.found(
            run.subject,
            " and ".join(parts),
            evidence=[("log", f"{run.speed.windows} throughput lines in all")],
        )


def at_cap(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    speed = run.speed
    if speed.windows_at_cap >= CAP_WINDOWS:
        cap = run.settings.get("max_running_requests", run.settings.get("max_num_seqs"))
        yield AT_CAP.found(
            run.subject,
            f"{cap} running and up to {speed.max_queued} waiting",
            evidence=[("log", f"in {speed.windows_at_cap} of {speed.windows} lines")],
        )


def compiled(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    jit = run.notice("jit")
    if jit is not None and (jit.after_ready or "during inference" in jit.text):
        yield JIT.found(
            run.subject, f"{jit.after_ready or jit.count} lines while serving", evidence=[line_of(jit)]
        )


def prefill(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance, cached = run.acceptance, run.cache
    if (
        acceptance is None
        or not acceptance.steps
        or acceptance.length is None
        or cached.prompt_tokens is None
    ):
        return
    computed = cached.prompt_tokens - (cached.cached_tokens or 0)
    generated = acceptance.steps * acceptance.length
    if (
        acceptance.source == "decode lines"
        and computed > PREFILL_HEAVY * generated
        and cached.prompts >= MIN_PROMPTS
    ):
        seen = f"{computed} prompt tokens computed, about {generated:.0f} generated"
        yield PREFILL.found(run.subject, seen, evidence=[("prefill and decode lines", seen)])


def cumulative(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    acceptance, totals = run.acceptance, run.totals
    if acceptance is not None and totals is not None and acceptance.source == "request lines":
        ours, theirs = acceptance.rate, totals.rate
        if ours is not None and theirs is not None and abs(ours - theirs) > 0.05:
            yield CUMULATIVE.found(
                run.subject,
                f"requests: {ours:.0%} of drafted tokens kept; statistics lines: {theirs:.0%}, of the whole process",
                evidence=[("statistics lines", f"{totals.accepted} of {totals.drafted} drafted tokens kept")],
            )
    if (
        acceptance is not None
        and acceptance.cumulative
        and acceptance.source != "a client's result"
        and speculates(run)
    ):
        yield CUMULATIVE.found(
            run.subject,
            f"{acceptance.source}: totals of the process",
            evidence=[
                (acceptance.source, kept_words(acceptance.accepted, acceptance.drafted, acceptance.length))
            ],
        )


RULES: tuple[Rule, ...] = (rate_formula, cache, idle, at_cap, compiled, prefill, cumulative)
