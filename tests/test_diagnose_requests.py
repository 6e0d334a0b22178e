"""Findings over the requests of a study's trials."""

from report_studies import counts, load_result, prompts, request, speculative, study, trial

from spectune.diagnose.rules.requests import trial_findings
from spectune.diagnose.verdict import NotChecked
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.findings import Finding
from spectune.domain.trial import Trial

ARM = speculative("eagle3-k3")


def trial_of(parts: list[tuple[str, int, AcceptanceCounts]]) -> Trial:
    """One request per (category, prompt tokens, counts)."""
    of = study(ARM, num_prompts=len(parts), categories=[category for category, _, _ in parts])
    records = [
        request(prompt, 50.0, category=category, prompt_tokens=tokens, acceptance=part)
        for prompt, (category, tokens, part) in zip(
            prompts(len(parts), categories=[c for c, _, _ in parts]), parts, strict=True
        )
    ]
    return trial(of, ARM, 1, loads=(load_result(records),))


def found(parts: list[tuple[str, int, AcceptanceCounts]]) -> list[Finding]:
    return list(trial_findings(trial_of(parts), NotChecked()))


def test_G14_a_language_the_draft_never_saw_is_named() -> None:
    """Kimi-K2.5's published lengths: MT-Bench 2.624, GSM8K 3.123, C-Eval 1.482."""
    parts = [
        (name, 100, counts(1000, kept)) for name, kept in (("mtbench", 1624), ("gsm8k", 2123), ("ceval", 482))
    ]
    (finding,) = found(parts)
    assert finding.code == "category-far-below-others"
    assert finding.message == "ceval: acceptance length 1.48, the next lowest 2.62"


def test_categories_that_differ_as_usual_are_no_finding() -> None:
    parts = [
        (name, 100, counts(1000, kept))
        for name, kept in (("mtbench", 1687), ("gsm8k", 2201), ("ceval", 1295))
    ]
    assert found(parts) == []


def test_B09_acceptance_gone_beyond_a_prompt_length_is_named() -> None:
    parts = [(f"c{i}", tokens, counts(1000, kept)) for i, (tokens, kept) in enumerate(
        [(100, 1600), (900, 1500), (1800, 1550), (2100, 200), (5000, 100)])]  # fmt: skip
    by_length = [f for f in found(parts) if f.code == "acceptance-falls-with-context"]
    assert len(by_length) == 1
    assert "from 2048 prompt tokens on" in by_length[0].message


def test_too_few_steps_say_nothing() -> None:
    parts = [(name, 100, counts(50, kept)) for name, kept in (("a", 81), ("b", 106), ("c", 2))]
    assert found(parts) == []
