"""What the settings in effect mean for the numbers: asked and got, off, rewritten, simulated."""

from __future__ import annotations

from collections.abc import Iterator

from spectune.diagnose.facts import RunFacts
from spectune.diagnose.verdict import NotChecked, Rule, is_lookup, line_of, speculates
from spectune.domain.findings import Finding
from spectune.findings.catalogue import finding_kind

MIN_WINDOWS = 2
MIN_GENERATED = 64
"""Generated tokens without a draft before "speculation is off" is said of llama.cpp."""
LITTLE_MEMORY_GB = 3.0
"""SGLang issue 38341: 1.15, 1.8 and 2.83 GB left after capture, and all three ran out of memory under load."""
LONG_DRAFT = 8

OFF = finding_kind("speculation-silently-off")
DRAFT_FAILS = finding_kind("draft-decode-fails")
VOCABULARY = finding_kind("draft-vocabulary-refused")
REWRITTEN = finding_kind("draft-tokens-rewritten")
ADAPTIVE_OFF = finding_kind("adaptive-drafting-off")
CAP_SET = finding_kind("running-requests-reset")
CHANGED = finding_kind("settings-changed-by-engine")
SIMULATED = finding_kind("acceptance-is-simulated")
LOSSY = finding_kind("lossy-acceptance-thresholds")
SKIPPED = finding_kind("weights-skipped")
GRAPHS_OFF = finding_kind("decode-graphs-off")
LITTLE_MEMORY = finding_kind("little-memory-left")
PARAMETERS = finding_kind("sampling-parameters-ignored")
POSITIONS = finding_kind("context-longer-than-draft")


def speculation_off(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    notice = run.notice("speculation-off")
    drafted = run.acceptance is not None and run.acceptance.windows > 0
    if notice is not None and not drafted and run.death is None:
        yield OFF.found(run.subject, "the draft could not be used", evidence=[line_of(notice)])
        return
    if (failed := run.notice("draft-failed")) is not None:
        yield DRAFT_FAILS.found(
            run.subject, f"{failed.count} lines say that drafting failed", evidence=[line_of(failed)]
        )
    if (differs := run.notice("vocab-mismatch")) is not None and run.death is None:
        yield VOCABULARY.found(
            run.subject, "draft and target do not share a vocabulary", evidence=[line_of(differs)]
        )
        return
    asked = run.asked.method if run.asked is not None else None
    if asked not in (None, "none") and run.knobs is not None and run.knobs.method == "none":
        yield OFF.found(
            run.subject,
            f"the command asks for {asked}, the server's own settings have no speculation",
            evidence=[("command", f"method {asked}"), ("settings", "no speculative algorithm")],
        )
        return
    if not speculates(run) or drafted or run.settings.get("speculative_adaptive"):
        return
    idle = run.acceptance.idle_windows if run.acceptance is not None else 0
    windows, generated = run.speed.windows, run.speed.generated_tokens or 0
    if run.engine == "sglang" and windows >= MIN_WINDOWS:
        seen = f"{windows} decode lines, none with an accept length"
    elif run.engine == "vllm" and windows >= MIN_WINDOWS + 1:
        seen = f"tokens were generated in {windows} intervals, and nothing was drafted in any of them ({idle} say so)"
    elif run.engine == "llamacpp" and generated >= MIN_GENERATED:
        seen = f"{generated} tokens generated, and no request with a draft"
    else:
        return
    severity = "note" if is_lookup(run.method) else "error"
    yield OFF.found(
        run.subject,
        f"speculation with {run.method} was asked for: {seen}",
        evidence=[("log", seen)],
        severity="note" if severity == "note" else "error",
        effect="the n-gram drafter never found a match" if severity == "note" else None,
    )


def rewritten(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    notice = run.notice("tokens-rewritten")
    asked, got = run.asked, run.knobs
    wanted = asked.num_draft_tokens if asked is not None else None
    effective = got.num_draft_tokens if got is not None else None
    if wanted is not None and effective is None and asked is not None and asked.topk == 1 and asked.num_steps:
        effective = asked.num_steps if run.engine == "sglang" else None
    evidence = [line_of(notice)] if notice is not None else []
    differs = wanted is not None and effective is not None and wanted != effective and run.engine == "sglang"
    if differs and wanted is not None and effective is not None:
        evidence.append(("command", f"--speculative-num-draft-tokens {wanted + 1}"))
        message = f"num_draft_tokens {wanted + 1} becomes {effective + 1}"
    elif effective is not None:
        message = f"num_draft_tokens was changed to {effective + 1}"
    else:
        message = "num_draft_tokens was changed to num_steps + 1"
    if notice is not None or differs:
        yield REWRITTEN.found(run.subject, message, evidence=evidence)


def notices(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    for name, kind, message in (
        ("adaptive-off", ADAPTIVE_OFF, "the draft length is fixed"),
        ("running-reset", CAP_SET, "the limit was set by the engine"),
        ("parameters-ignored", PARAMETERS, "the engine ignores some sampling parameters"),
    ):
        if (notice := run.notice(name)) is not None:
            yield kind.found(run.subject, message, evidence=[line_of(notice)])
    if (limit := run.notice("position-limit")) is not None and run.death is None:
        yield POSITIONS.found(
            run.subject, "the context is longer than the draft's positions", evidence=[line_of(limit)]
        )
    if run.changes:
        yield CHANGED.found(
            run.subject,
            f"{len(run.changes)} different lines say so",
            evidence=[line_of(change) for change in run.changes[:20]],
        )


def simulated(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    notice = run.notice("simulated")
    method = run.settings.get("speculative.rejection_sample_method")
    if notice is not None:
        yield SIMULATED.found(run.subject, "drafts are accepted by a set rate", evidence=[line_of(notice)])
    elif method == "synthetic":
        evidence = [("settings", f"rejection_sample_method {method}")]
        yield SIMULATED.found(run.subject, "drafts are accepted by a set rate", evidence=evidence)
    thresholds = [
        (name, value)
        for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
        if isinstance(value := run.settings.get(name), int | float) and value < 1
    ]
    if thresholds:
        listed = ", ".join(f"{name} {value}" for name, value in thresholds)
        yield LOSSY.found(run.subject, f"acceptance is relaxed: {listed}", evidence=[("settings", listed)])


def skipped_weights(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    notice = run.notice("weights-skipped")
    if (
        notice is not None and run.death is None and run.method != "none"
    ):  # unused MTP layers are left out rightly
        yield SKIPPED.found(run.subject, "tensors were left out at load", evidence=[line_of(notice)])


def graphs(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    speed = run.speed
    on, off = speed.graph_windows_on, speed.graph_windows_off
    asked_off = (
        run.settings.get("disable_cuda_graph") is True
        or run.settings.get("disable_decode_cuda_graph") is True
    )
    if speed.graph_label != "cuda" or off < MIN_WINDOWS or off < 0.1 * (on + off):
        return
    where = f"{off} of {on + off} decode lines say graph: False"
    if on:
        where += f", at {speed.graph_off_min_running} running requests and more"
    yield GRAPHS_OFF.found(
        run.subject,
        where + (", as asked" if asked_off else ""),
        evidence=[("decode lines", where)],
        severity="note" if asked_off else "warning",
    )


def memory(run: RunFacts, skipped: NotChecked) -> Iterator[Finding]:
    knobs = run.knobs or run.asked
    drafted = knobs.num_draft_tokens if knobs is not None else None
    left = run.min_memory_gb
    if left is None or "available_cpu_mem" in run.settings:
        return
    if left < LITTLE_MEMORY_GB and drafted is not None and drafted + 1 >= LONG_DRAFT:
        yield LITTLE_MEMORY.found(
            run.subject,
            f"{left:.2f} GB left, with {drafted} drafted tokens per request",
            evidence=[("capture lines", f"least available memory {left:.2f} GB")],
        )


RULES: tuple[Rule, ...] = (speculation_off, rewritten, simulated, skipped_weights, graphs, memory, notices)
