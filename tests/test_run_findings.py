"""Each finding: a study that must raise it, and its neighbour that must not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from report_studies import (
    BASELINE,
    counts,
    failed,
    load_result,
    request,
    speculative,
    study,
    trial,
)

from spectune.analysis.fault_findings import differing_knobs
from spectune.analysis.summary import summarize
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, Knobs
from spectune.domain.findings import Finding
from spectune.domain.study import Study
from spectune.domain.trial import ServerFacts, Trial
from spectune.domain.workload import LoadPoint

ARM = speculative("arm")
STUDY = study(ARM)


def found(trials: Sequence[Trial], of: Study = STUDY) -> dict[str, Finding]:
    return {finding.code: finding for finding in summarize(of, trials).findings}


def measured(
    arm: Arm = ARM, number: int = 2, *, of: Study = STUDY, speed: float = 110.0, load=None, **changes
) -> Trial:
    """A trial whose every request has ``changes``; ``load`` changes the load point."""
    records = [request(p, speed, **changes) for p in of.workload.prompts]
    return trial(of, arm, number, loads=(load_result(records, **(load or {})),))


def plain(number: int = 1, *, of: Study = STUDY, speed: float = 100.0, **changes) -> Trial:
    return measured(BASELINE, number, of=of, speed=speed, **changes)


def alive() -> Trial:
    return measured(acceptance=counts(66, 33))


def test_a_sound_study_has_no_finding():
    assert found([plain(), alive(), plain(3)]) == {}


def test_a_study_that_has_not_begun_has_no_finding():
    assert found([]) == {}


class TestNoBaseline:
    def test_is_an_error_once_anything_else_ran(self):
        finding = found([alive()])["no-baseline"]
        assert finding.severity == "error"
        assert finding.remedy is not None

    def test_carries_the_cause_of_a_failed_baseline_and_comes_first(self):
        findings = summarize(STUDY, [failed(STUDY, BASELINE, 1, cause="port taken")]).findings
        assert findings[0].code == "no-baseline"
        assert findings[0].evidence[0].detail == "port taken"


class TestDeadDrafter:
    def test_many_verify_steps_and_nothing_kept(self):
        finding = found([plain(), measured(acceptance=counts(99, 0))])["dead-drafter"]
        assert finding.severity == "warning"
        assert finding.evidence[0].detail == "0 of 891 drafted tokens kept in 297 verify steps"
        assert "EAGLE" in finding.remedy

    def test_one_kept_in_a_hundred_is_as_dead(self):
        assert "dead-drafter" in found([plain(), measured(acceptance=counts(100, 1))])

    def test_two_kept_in_a_hundred_live(self):
        assert "dead-drafter" not in found([plain(), measured(acceptance=counts(100, 2))])

    def test_too_few_steps_prove_nothing(self):
        assert "dead-drafter" not in found([plain(), measured(acceptance=counts(6, 0))])  # 18 steps in all
        assert "dead-drafter" in found([plain(), measured(acceptance=counts(7, 0))])


class TestSpeculationOff:
    def test_no_verify_step(self):
        finding = found([plain(), measured(acceptance=counts(0, 0))])["speculation-off"]
        assert "no verify step" in finding.message

    def test_unknown_acceptance_is_a_note_of_its_own_and_never_speculation_off(self):
        told = found([plain(), measured()])
        assert "speculation-off" not in told
        assert told["acceptance-unknown"].severity == "note"

    def test_plain_decoding_needs_no_speculation(self):
        assert "speculation-off" not in found([plain()])

    def test_an_engine_that_counts_no_steps_is_not_off(self):
        unknown_steps = counts(66, 33).model_copy(update={"num_drafts": None})
        assert "speculation-off" not in found([plain(), measured(acceptance=unknown_steps)])


class TestOutputs:
    def _changed(self, *, share: int) -> Trial:
        prompts = STUDY.workload.prompts
        acceptance = counts(66, 33)
        records = [
            request(p, 110, acceptance=acceptance, **({"text": "other"} if i < share else {}))
            for i, p in enumerate(prompts)
        ]
        return trial(STUDY, ARM, 2, loads=(load_result(records),))

    def test_other_text_than_a_baseline_that_repeats_itself_is_a_warning(self):
        finding = found([plain(), self._changed(share=1), plain(3)])["output-changed"]
        assert finding.severity == "warning"
        assert finding.message == "2 of 3 greedy outputs equal plain decoding's"

    def test_a_baseline_that_differs_from_itself_as_much_makes_it_a_note(self):
        again = self._changed(share=1).model_copy(
            update={"arm": BASELINE, "arm_id": BASELINE.arm_id, "number": 3, "trial_id": "again"}
        )
        finding = found([plain(), self._changed(share=1), again])["output-changed"]
        assert finding.severity == "note"
        worse = found([plain(), self._changed(share=2), again])["output-changed"]
        assert worse.severity == "warning"

    def test_one_baseline_launch_leaves_the_noise_floor_unknown(self):
        finding = found([plain(), self._changed(share=1)])["output-changed"]
        assert "unknown" in finding.evidence[1].detail

    def test_longer_outputs_are_named(self):
        longer = measured(acceptance=counts(66, 33), output_tokens=106)
        assert "1.06 times" in found([plain(), longer, plain(3)])["output-length-changed"].message

    def test_lengths_within_five_percent_are_not(self):
        longer = measured(acceptance=counts(66, 33), output_tokens=105)
        assert "output-length-changed" not in found([plain(), longer, plain(3)])


class TestTaintedMeasurements:
    def test_prompts_that_the_cache_held_whole(self):
        told = found(
            [plain(), measured(acceptance=counts(66, 33), prompt_tokens=200, cached_tokens=164), plain(3)]
        )
        finding = told["cached-prompt-tokens"]
        assert (
            finding.evidence[0].detail == "50 % of prompt tokens at c=1"
        )  # 64 of them may be the template's

    def test_unknown_caching_is_not_caching(self):
        assert "cached-prompt-tokens" not in found([plain(cached_tokens=None), plain(3)])

    def test_tokens_of_others(self):
        finding = found([plain(), measured(acceptance=counts(66, 33), load={"foreign_tokens": 7})])
        assert finding["server-used-by-others"].evidence[0].detail == "7 tokens at c=1"

    @pytest.mark.parametrize(
        ("load", "limited"),
        [
            ({"max_loop_lag_s": 0.051}, True),
            ({"max_loop_lag_s": 0.05}, False),
            ({"max_loop_lag_s": None, "client_cpu_s": None}, False),
            ({"duration_s": 10.0, "client_cpu_s": 8.1}, True),
            ({"duration_s": 10.0, "client_cpu_s": 7.9}, False),
        ],
    )
    def test_a_client_at_its_limit(self, load, limited):
        assert ("client-limited" in found([plain(load=load)])) is limited


PAIR = study(ARM, loads=(LoadPoint.closed(1), LoadPoint.closed(8)))
"""Two load points: each fault below shows at the second one only."""


def at_second(arm: Arm = ARM, number: int = 2, *, speed: float = 110.0, load=None, **changes) -> Trial:
    sound = {"acceptance": counts(66, 33)} if arm is ARM else {}
    first = load_result([request(p, speed, **sound) for p in PAIR.workload.prompts])
    records = [request(p, speed, **{**sound, **changes}) for p in PAIR.workload.prompts]
    return trial(PAIR, arm, number, loads=(first, load_result(records, LoadPoint.closed(8), **(load or {}))))


class TestEveryLoadPoint:
    def _found(self, **changes) -> dict[str, Finding]:
        plain_trials = [at_second(BASELINE, 1, speed=100), at_second(BASELINE, 3, speed=100)]
        return found([plain_trials[0], at_second(**changes), plain_trials[1]], PAIR)

    def test_sound_ones_give_nothing(self):
        assert self._found() == {}

    @pytest.mark.parametrize(
        ("code", "changes"),
        [
            ("dead-drafter", {"acceptance": counts(99, 0)}),
            ("speculation-off", {"acceptance": counts(0, 0)}),
            ("acceptance-unknown", {"acceptance": None}),
            ("output-changed", {"text": "other"}),
            ("output-length-changed", {"output_tokens": 120}),
            ("cached-prompt-tokens", {"prompt_tokens": 10163, "cached_tokens": 10162}),
        ],
    )
    def test_a_fault_at_the_second_is_told_with_its_place(self, code, changes):
        finding = self._found(**changes)[code]
        assert finding.message.endswith(" at c=8") or " at c=8:" in finding.message

    def test_drift_at_the_second(self):
        slow = load_result([request(p, 72) for p in PAIR.workload.prompts], LoadPoint.closed(8))
        early = at_second(BASELINE, 1, speed=100)
        drifted = early.model_copy(update={"loads": (early.loads[0], slow)})
        told = found([drifted, at_second(), at_second(BASELINE, 3, speed=100)], PAIR)
        assert told["baseline-drift"].message == "plain decoding itself ran from 72.0 to 100 tok/s at c=8"


class TestImposedAcceptance:
    def _judged(self, counted: AcceptanceCounts, **arm) -> dict[str, Finding]:
        imposing = speculative("imposing", **arm)
        of = study(ARM, imposing)
        return found([plain(of=of), measured(imposing, of=of, acceptance=counted)], of)

    @pytest.mark.parametrize(
        "arm",
        [
            {"synthetic_acceptance_length": 1.5},
            {"synthetic_acceptance_rates": (0.3, 0.2, 0.0)},
            {"env": {"SGLANG_SIMULATE_ACC_LEN": "1.5"}},
            {"flags": {"speculative.synthetic_acceptance_length": 1.5}},
            {"flags": {"spec-synth-rates": "0.3,0.2,0"}},
        ],
    )
    def test_another_one_than_was_counted_is_an_error_in_every_form(self, arm):
        finding = self._judged(counts(100, 149), **arm)["imposed-acceptance-not-reached"]
        assert (finding.severity, finding.subject) == ("error", "imposing")
        assert finding.message == "acceptance length 1.50 was imposed, and 2.49 was counted"

    @pytest.mark.parametrize(("kept", "is_off"), [(50, False), (57, False), (58, True), (42, True)])
    def test_five_percent_are_let_pass(self, kept, is_off):
        told = self._judged(counts(100, kept), synthetic_acceptance_length=1.5)
        assert ("imposed-acceptance-not-reached" in told) is is_off


class TestNoise:
    def test_single_launches_leave_launch_noise_unknown(self):
        assert found([plain(), alive()])["launch-noise-unknown"].severity == "warning"

    def test_a_second_baseline_launch_makes_it_known(self):
        assert "launch-noise-unknown" not in found([plain(), alive(), plain(3)])

    def test_a_baseline_that_drifts_is_named_with_its_range(self):
        finding = found([plain(speed=72), alive(), plain(3, speed=98)])["baseline-drift"]
        assert finding.message == "plain decoding itself ran from 72.0 to 98.0 tok/s"

    def test_ten_percent_is_no_drift(self):
        assert "baseline-drift" not in found([plain(speed=100), alive(), plain(3, speed=109.9)])


class TestFaults:
    def test_a_failed_arm_gives_cause_remedy_and_log_tail(self):
        finding = found([plain(), failed(STUDY, ARM, 2, cause="no draft context")])["arm-failed"]
        assert finding.message == "failed in load: no draft context"
        assert finding.remedy == "use a smaller draft"
        assert finding.evidence[-1].detail == "error: no draft context"
        assert finding.effect == "nothing is known about this arm"

    def test_the_same_failure_twice_is_one_finding(self):
        trials = [plain(), failed(STUDY, ARM, 2), failed(STUDY, ARM, 3)]
        assert [f.code for f in summarize(STUDY, trials).findings].count("arm-failed") == 1

    def test_failed_requests_are_counted_with_their_reason(self):
        records = [request(p, 110, acceptance=counts(66, 33)) for p in STUDY.workload.prompts]
        records[0] = records[0].model_copy(update={"error": "timed out after 600 s"})
        finding = found([plain(), trial(STUDY, ARM, 2, loads=(load_result(records),)), plain(3)])[
            "requests-failed"
        ]
        assert finding.message == "1 of 3 requests failed"
        assert finding.evidence[0].detail == "timed out after 600 s"

    def test_settings_that_run_are_told_from_those_asked_for(self):
        runs = ServerFacts(
            engine="sglang", effective=Knobs(method="eagle", drafter="/models/draft", num_draft_tokens=2)
        )
        odd = alive().model_copy(update={"server": runs})
        finding = found([plain(), odd, plain(3)])["effective-settings-differ"]
        assert [(e.source, e.detail) for e in finding.evidence] == [
            ("method", "asked for 'eagle3', runs 'eagle'"),
            ("num_draft_tokens", "asked for 3, runs 2"),
        ]

    def test_what_the_server_does_not_say_does_not_differ(self):
        assert differing_knobs(Knobs(method="eagle3", num_draft_tokens=3), Knobs(method="eagle3")) == []

    def test_another_drafter_differs(self):
        asked, runs = Knobs(method="eagle3", drafter="a/draft"), Knobs(method="eagle3", drafter="/x/other")
        assert [name for name, _, _ in differing_knobs(asked, runs)] == ["drafter"]

    def test_findings_of_the_trials_are_kept_once(self):
        note = Finding(code="flush-failed", severity="note", subject="arm", message="cache not flushed")
        twice = [plain(), alive().model_copy(update={"findings": (note, note)}), plain(3)]
        assert list(found(twice).values()) == [note]


def test_every_warning_says_what_it_does_and_what_to_do():
    of = study(ARM, speculative("dead", length=2), speculative("off", method="ngram"))
    trials = [
        plain(of=of, speed=70, load={"foreign_tokens": 3, "max_loop_lag_s": 1.0}),
        measured(of=of, acceptance=counts(66, 33), cached_tokens=3, output_tokens=200, text="x"),
        measured(of.arms[2], 3, of=of, acceptance=counts(99, 0)),
        measured(of.arms[3], 4, of=of),
        failed(of, of.arms[3], 5),
        plain(6, of=of, speed=100),
    ]
    findings = summarize(of, trials).findings
    assert len({f.code for f in findings}) >= 8
    for finding in findings:
        assert finding.effect and finding.remedy and finding.evidence, finding.code
