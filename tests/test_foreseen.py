"""What a check foresees, and what a log does not count, is said as it is."""

from __future__ import annotations

import pytest
from report_studies import speculative, study

from spectune.diagnose.verdict import kept_words
from spectune.domain.findings import Finding
from spectune.domain.study import ArmExpectation, PlannedTrial, Study
from spectune.findings.catalogue import all_kinds, finding_kind
from spectune.runner.hypotheses import hypothesis_for

ARM = speculative("arm")
SLOWING = [kind.code for kind in all_kinds() if kind.slows]


def found(code: str) -> Finding:
    return finding_kind(code).found("arm", "an EAGLE-3 draft under EAGLE")


def expected(of: Study, *checked: Finding) -> str:
    return hypothesis_for(PlannedTrial(arm_id=ARM.arm_id, repetition=0), of, [], checked=checked).expectation


@pytest.mark.parametrize("code", SLOWING)
def test_an_arm_that_a_check_calls_slower_is_not_expected_to_be_faster(code: str):
    assert expected(study(ARM)) == "faster"
    assert expected(study(ARM), found(code)) == "slower"


def test_other_findings_say_nothing_about_speed():
    assert expected(study(ARM), found("imported-figures")) == "faster"


def test_what_the_user_expects_stands():
    of = study(ARM, expectations={ARM.arm_id: ArmExpectation(expect="faster")})
    assert expected(of, *(found(code) for code in SLOWING)) == "faster"


@pytest.mark.parametrize(
    ("accepted", "drafted", "length", "words"),
    [
        (72, 90, 1.8, "72 of 90 drafted tokens kept"),
        (72, None, 1.8, "72 drafted tokens kept"),
        (None, None, 1.8, "acceptance length 1.80"),
        (0, 0, None, "0 of 0 drafted tokens kept"),
        (None, None, None, "drafts kept: not counted"),
    ],
)
def test_what_is_not_counted_is_left_out(accepted, drafted, length, words):
    assert kept_words(accepted, drafted, length) == words
