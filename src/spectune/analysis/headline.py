"""The answer of a study in one to three sentences."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.analysis.records import ArmSummary, LoadSummary
from spectune.analysis.words import (
    SIMULATED,
    VERDICT_WORDS,
    count,
    listing,
    number,
    one_line,
    per_stream,
    percent,
    times,
)
from spectune.domain.study import Study
from spectune.statistics.intervals import judge


def best_arm(arms: Sequence[ArmSummary], *, load_index: int = 0) -> ArmSummary | None:
    """The FASTER arm with the largest speedup, else the baseline; ``None`` without a baseline."""
    baseline = next((a for a in arms if a.is_baseline), None)
    if baseline is None or not baseline.loads:
        return None
    faster = [
        (load.speedup.value, arm)
        for arm in arms
        if (load := _load(arm, load_index)) is not None
        and load.speedup is not None
        and load.verdict == "FASTER"
    ]
    return max(faster, key=lambda pair: pair[0])[1] if faster else baseline


def headline(study: Study, arms: Sequence[ArmSummary], *, num_remaining: int, simulated: bool) -> str:
    """What is fastest, by how much, and why not more; always with its uncertainty and its caveats."""
    baseline = next(a for a in arms if a.is_baseline)
    compared = [a for a in arms if a.first is not None and a.first.speedup is not None]
    sentences: list[str] = []
    if simulated:
        sentences.append(f"{SIMULATED[0].upper()}{SIMULATED[1:]}.")
    if study.noisy is not None:
        sentences.append(study.noisy)
    if not baseline.loads:
        sentences.append(_no_baseline(baseline))
    elif not compared:
        sentences.append(_only_baseline(baseline, arms))
    else:
        best = best_arm(arms)
        assert best is not None
        sentences += _nothing_faster(study, compared) if best.is_baseline else _fastest(best, study, compared)
        sentences += _other_loads(arms)
        sentences += _stopped_early(arms)
    if baseline.loads:
        sentences += _not_launched(study, arms)
    if baseline.loads and study.search is not None and study.search_end is None:
        sentences.append("Preliminary: the search has not ended.")
    elif baseline.loads and num_remaining:
        sentences.append(f"Preliminary: {num_remaining} of {len(study.plan)} launches still to come.")
    return " ".join(sentences)


def _load(arm: ArmSummary, index: int) -> LoadSummary | None:
    return arm.loads[index] if index < len(arm.loads) else None


def _name(arm: ArmSummary) -> str:
    return one_line(arm.name, limit=60)


def _no_baseline(baseline: ArmSummary) -> str:
    if baseline.status == "failed":
        cause = one_line(baseline.cause or "cause unknown", limit=160)
        return f"No answer: the baseline failed ({cause}), and every speedup is defined against it."
    if baseline.num_trials:
        return "No answer: the baseline has no complete trial of this workload."
    return "No answer yet: the baseline has not been measured."


def _only_baseline(baseline: ArmSummary, arms: Sequence[ArmSummary]) -> str:
    assert baseline.first is not None
    speed = baseline.first.e2e_tok_per_s
    rate = f"{number(speed.value if speed else None)} tok/s{per_stream(baseline.first.label)}"
    text = f"Only plain decoding was measured: {rate}"
    stopped = [a for a in arms if a.status == "pruned"]
    if stopped:
        were = "were" if len(stopped) > 1 else "was"
        return (
            f"Nothing that was launched is faster than plain decoding, {rate}: {listing(map(_name, stopped))} {were} "
            "stopped early, slower on the first prompts."
        )
    failed = [a for a in arms if a.status == "failed"]
    others = [a for a in arms if not a.is_baseline]
    if failed and len(failed) == len(others):
        return (
            f"{text}; {'the only other arm' if len(failed) == 1 else f'all {len(failed)} other arms'} failed."
        )
    if failed:
        return f"{text}; {listing(_name(a) for a in failed)} failed."
    return f"{text}; there is no other arm to compare with it yet."


def _basis(load: LoadSummary, study: Study) -> str:
    assert load.speedup is not None
    prompts, launches = count(load.speedup.n, "prompt"), count(load.num_trials, "launch")
    if study.imported is not None:
        prompts, launches = (
            "one figure over all prompts" if load.speedup.n == 1 else count(load.speedup.n, "paired figure"),
            f"{count(load.num_trials, 'run')} of {study.imported.tool}",
        )
    if load.speedup.low is None:
        return f"({prompts}, {launches}: no interval)"
    where = f"{load.label}, " if len(study.workload.loads) > 1 else ""
    return f"({where}{percent(study.level)}, {prompts}, {launches})"


def _fastest(best: ArmSummary, study: Study, arms: Sequence[ArmSummary]) -> list[str]:
    load = best.first
    assert load is not None
    text = f"{_name(best)} is fastest: {times(load.speedup)} of plain decoding {_basis(load, study)}"
    if load.tokens_per_pass is not None:
        text += f", {load.tokens_per_pass:.2f} tokens per forward pass"
    return [f"{text}.", *_ties(best, arms), *_output_caveat(load)]


def _ties(best: ArmSummary, arms: Sequence[ArmSummary]) -> list[str]:
    """Arms whose speedup lies inside the best one's interval: not told apart from it."""
    interval = best.first.speedup if best.first is not None else None
    if interval is None or interval.low is None:
        return []
    near = [
        arm
        for arm in arms
        if arm is not best
        and arm.first is not None
        and arm.first.speedup is not None
        and not arm.is_baseline
        and arm.first.speedup.value >= interval.low
    ]
    if not near:
        return []
    names = listing(_name(arm) for arm in near)
    return [f"Not told apart from it: {names}."]


def _output_caveat(load: LoadSummary) -> list[str]:
    parity = load.parity
    if parity is None or parity.equal_frac is None or parity.num_equal == parity.num_compared:
        return []
    changed = parity.num_compared - parity.num_equal
    return [f"Its output differs from plain decoding's in {changed} of {parity.num_compared} answers."]


def _nothing_faster(study: Study, compared: Sequence[ArmSummary]) -> list[str]:
    closest = max(compared, key=lambda a: a.first.speedup.value if a.first and a.first.speedup else 0.0)
    load = closest.first
    assert load is not None
    shown = all(a.first is not None and a.first.verdict != "CANNOT_TELL" for a in compared)
    claim = "Nothing is faster" if shown else "Nothing is shown to be faster"
    text = f"{claim} than plain decoding on this machine; closest: {_name(closest)} at {times(load.speedup)} "
    text += _basis(load, study)
    if load.verdict == "SAME":
        text += f", the same within {percent(study.margin)}"
    elif load.verdict == "CANNOT_TELL":
        text += ", which could be either side of 1"
    return [f"{text}.", *_on_these_prompts(load, study), *_why_not(closest, load)]


def _on_these_prompts(load: LoadSummary, study: Study) -> list[str]:
    """What is known of the prompts that were asked, where it is not of others like them."""
    these = load.these_prompts
    if load.verdict != "CANNOT_TELL" or these is None:
        return []
    verdict = judge(these, margin=study.margin)
    if verdict == "CANNOT_TELL":
        return []
    return [f"On these {these.n} prompts themselves it is {VERDICT_WORDS[verdict]}: {times(these)}."]


def _why_not(arm: ArmSummary, load: LoadSummary) -> list[str]:
    tokens, needed = load.tokens_per_pass, arm.break_even_tokens_per_pass
    if tokens is None:
        return []
    makes = f"It makes {tokens:.2f} tokens per forward pass"
    if load.verdict == "CANNOT_TELL" or needed is None or needed <= tokens:
        return [f"{makes}."]
    about = "about " if arm.break_even_approximate else ""
    beyond = ", more than this draft length can give" if arm.break_even_reachable is False else ""
    return [f"{makes} and needs {about}{needed:.2f} to pay off{beyond}."]


def _stopped_early(arms: Sequence[ArmSummary]) -> list[str]:
    stopped = [_name(arm) for arm in arms if arm.status == "pruned"]
    return [f"Stopped early, slower on the first prompts: {listing(stopped)}."] if stopped else []


def _not_launched(study: Study, arms: Sequence[ArmSummary]) -> list[str]:
    """After a search that ended: what it did without, and why."""
    left = sum(arm.status == "not run" for arm in arms)
    if study.search_end is None or not left:
        return []
    if "budget" in study.search_end:
        why = f"the budget was spent before, so {'they' if left > 1 else 'it'} may be faster"
    elif study.search_end.startswith("predict"):
        why = "the search expects no gain"
    else:
        why = f"{study.search} did not come to {'them' if left > 1 else 'it'}"
    return [f"{count(left, 'more arm')} {'was' if left == 1 else 'were'} not launched: {why}."]


def _other_loads(arms: Sequence[ArmSummary]) -> list[str]:
    """What wins at each further load point, in one sentence."""
    baseline = next(a for a in arms if a.is_baseline)
    parts = []
    for index, point in enumerate(baseline.loads[1:], start=1):
        best = best_arm(arms, load_index=index)
        load = _load(best, index) if best is not None else None
        if best is None or load is None:
            continue
        winner = (
            "nothing is faster" if best.is_baseline else f"{_name(best)} is fastest, {times(load.speedup)}"
        )
        parts.append(f"at {point.label} {winner}")
    if not parts:
        return []
    sentence = "; ".join(parts[:4])
    return [f"{sentence[0].upper()}{sentence[1:]}."]
