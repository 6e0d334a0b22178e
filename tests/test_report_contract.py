"""The JSON that scripts rely on."""

from __future__ import annotations

import json

import pytest
from report_realistic import realistic
from report_studies import (
    FAST,
    bracketed,
    counts,
    hypothesis,
    scaled,
    study,
    trial,
)

from spectune.analysis.summary import summarize
from spectune.report.write import summary_json


class TestContract:
    """Keys that scripts rely on (docs: what scripts may rely on)."""

    def test_json_has_the_promised_keys(self):
        body = json.loads(summary_json(summarize(*bracketed(FAST, scaled(1.2), acceptance=counts(66, 33)))))
        assert {
            "schema_version",
            "study",
            "baseline_arm_id",
            "best_arm_id",
            "trials",
            "findings",
        } <= body.keys()
        row = body["trials"][1]
        promised = (
            "trial_id arm_id is_baseline arm command status cause e2e_tok_per_s decode_tok_per_s acceptance_length "
            "acceptance_rate accepted_per_position speedup verdict parity_frac hypothesis phases_s"
        )
        assert set(promised.split()) <= row.keys()
        assert row["speedup"].keys() == {"value", "low", "high", "level", "n", "unit"}
        assert row["accepted_per_position"] == [0.5, 0.0, 0.0]
        assert row["hypothesis"]["expectation"] == "faster"

    def test_unknown_is_null(self):
        body = json.loads(summary_json(summarize(*bracketed(FAST, scaled(1.2)))))
        baseline = body["trials"][0]
        assert [
            baseline[key] for key in ("speedup", "verdict", "acceptance_length", "parity_frac", "cause")
        ] == [None] * 5

    @pytest.mark.parametrize("num_trials", range(11))
    def test_json_is_strict_at_every_stage_of_a_study(self, num_trials):
        of, trials = realistic()

        def refuse(name):
            raise AssertionError(f"{name} in JSON")

        json.loads(summary_json(summarize(of, trials[:num_trials])), parse_constant=refuse)

    def test_hypotheses_come_through_whole(self):
        of = study(FAST)
        judged = hypothesis(verdict="refuted", observed="0.9x")
        summary = summarize(of, [trial(of, FAST, 1, speeds=100.0, hypothesis=judged)])
        assert summary.trials[0].hypothesis == judged
