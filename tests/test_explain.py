"""From figures alone: step costs, break-even, ceilings, limits, what to do next."""

import argparse
import json
import math
import shlex
from pathlib import Path
from statistics import NormalDist

import pytest
from report_realistic import realistic
from report_studies import BASELINE as PLAIN_LLAMA
from report_studies import FAST, counts, load_result, request, speculative, trial
from report_studies import study as small_study
from rich.console import Console

from spectune.analysis.explain.explanation import explain
from spectune.analysis.explain.measured import MeasuredRow, Prediction
from spectune.analysis.explain.records import ExplainedRow, Explanation, WhatIf
from spectune.analysis.explain.table import read_table
from spectune.analysis.explain.terminal import explanation_view
from spectune.analysis.explained_study import measured_rows
from spectune.analysis.summary import summarize
from spectune.cli.explain import explain_command
from spectune.domain.arm import Arm, Knobs, baseline_arm
from spectune.domain.interval import Interval
from spectune.domain.trial import Trial
from spectune.domain.workload import LoadPoint
from spectune.errors import BadInput, StudyFileError
from spectune.models.arm_shape import known_depth, shape_of
from spectune.models.observation import Observation
from spectune.report.html import render_html
from spectune.report.markdown_why import markdown_why

HEADER = "arm,num_steps,topk,num_draft_tokens,cuda_graphs,e2e_tok_per_s,acceptance_length\n"

# A target at 90 tok/s single stream with an EAGLE-3 draft, 3 steps and topk 4: what was tried by hand.
STORY = (
    HEADER
    + """baseline,0,0,0,true,90,
16 tokens without graphs,3,4,16,false,53.2,
16 tokens with graphs,3,4,16,true,74.9,2.1-2.5
5 tokens with graphs,3,4,5,true,82.3,2.0-2.4
another drafter,3,4,16,false,50.5,
"""
)


def explained(text: str, **given: object) -> Explanation:
    table = read_table(text, path="rows.csv")
    return explain(table.rows, assumptions=table.assumptions, **given)  # type: ignore[arg-type]


def row(of: Explanation, name: str) -> ExplainedRow:
    return next(r for r in of.rows if r.arm == name)


@pytest.fixture(scope="module")
def story() -> Explanation:
    return explained(STORY)


class TestTheStory:
    @pytest.mark.parametrize(
        ("name", "step_ms", "break_even", "zero_overhead"),
        [
            # tokens per step / tok/s; that in steps of 1 / 90 s; tokens per step x 90.
            ("16 tokens without graphs", 1e3 * 2.3 / 53.2, 2.3 * 90 / 53.2, 207.0),
            ("16 tokens with graphs", 1e3 * 2.3 / 74.9, 2.3 * 90 / 74.9, 207.0),
            ("5 tokens with graphs", 1e3 * 2.2 / 82.3, 2.2 * 90 / 82.3, 198.0),
        ],
    )
    def test_step_cost_break_even_and_ceiling_by_hand(
        self, story: Explanation, name: str, step_ms: float, break_even: float, zero_overhead: float
    ) -> None:
        found = row(story, name)
        assert found.step_cost_s == pytest.approx(step_ms / 1e3)
        assert found.break_even_acceptance_length == pytest.approx(break_even)
        assert found.zero_overhead_tok_per_s == pytest.approx(zero_overhead)

    def test_five_tokens_break_even_at_about_two_point_four(self, story: Explanation) -> None:
        found = row(story, "5 tokens with graphs")
        assert found.break_even_acceptance_length == pytest.approx(2.4, abs=0.02)
        assert found.break_even_interval is not None
        assert found.break_even_interval.low is not None and found.break_even_interval.low < 2.4

    def test_what_is_worked_out_of_three_figures_is_as_uncertain_as_all_of_them(
        self, story: Explanation
    ) -> None:
        """2.0 to 2.4 is 4.7 % for one standard error, each of the two speeds 3 %: 6.3 %, and 1.645 of it is 10.4 %."""
        even = row(story, "5 tokens with graphs").break_even_interval
        assert even is not None and even.low is not None and even.high is not None
        error = math.hypot(math.log(2.4 / 2.0) / 2 / 1.96, 0.03, 0.03)
        assert math.log(even.high / even.value) == pytest.approx(1.645 * error, rel=1e-3)

    def test_acceptance_and_step_overhead_are_named_with_their_shares(self, story: Explanation) -> None:
        found = row(story, "5 tokens with graphs")
        assert found.loss_shares is not None
        # ln(4 / 2.2) = 0.598 of 0.598 + ln(2.406) = 0.878: 40.5 % and 59.5 %.
        assert found.loss_shares.acceptance == pytest.approx(0.405, abs=0.002)
        assert found.loss_shares.step_overhead == pytest.approx(0.595, abs=0.002)
        assert "step overhead is 59%" in found.binding_limit
        assert "acceptance 41%" in found.binding_limit
        assert "2.20 tokens per forward pass against 2.41 to break even" in found.binding_limit

    def test_the_lengths_that_reach_ninety_and_more(self, story: Explanation) -> None:
        found = row(story, "5 tokens with graphs").required
        assert [r.tok_per_s for r in found] == pytest.approx([90, 117, 135])
        assert [r.acceptance_length.value for r in found] == pytest.approx([2.41, 3.13, 3.61], abs=0.005)
        assert all(r.reachable for r in found)
        # 3 steps give at most 4 tokens: 4.15 is out of reach with 16 tokens.
        assert row(story, "16 tokens with graphs").required[-1].reachable is False

    def test_the_parts_add_up_to_the_step_and_say_what_is_not_told_apart(self, story: Explanation) -> None:
        for name in ("16 tokens without graphs", "16 tokens with graphs", "5 tokens with graphs"):
            found = row(story, name)
            assert sum(p.s for p in found.parts) == pytest.approx(found.step_cost_s, rel=0.006)
            assert sum(p.share for p in found.parts) == pytest.approx(1, rel=0.006)
            parts = {p.name: p for p in found.parts}
            assert parts["baseline forward"].s == pytest.approx(1 / 90)
            # Every row has 3 steps: nothing tells drafting from what a step costs anyway.
            assert not parts["drafting"].separated and not parts["overhead"].separated
            assert parts["verification"].separated

    def test_graphs_cost_what_the_two_rows_differ_by(self, story: Explanation) -> None:
        parts = {p.name: p for p in row(story, "16 tokens without graphs").parts}
        by_hand = 2.3 / 53.2 - 2.3 / 74.9  # 12.5 ms
        found = parts["no graphs"]
        assert found.low_s is not None and found.high_s is not None
        assert found.low_s < by_hand < found.high_s
        assert found.s == pytest.approx(by_hand, rel=0.25)

    def test_the_other_drafter_is_judged_by_the_steps_of_the_like_arm(self, story: Explanation) -> None:
        found = row(story, "another drafter")
        assert found.acceptance_length is None and found.step_cost_s is None
        assert found.implied_acceptance_length is not None
        # 50.5 / 53.2 of the like arm's 2.3 tokens.
        assert found.implied_acceptance_length.value == pytest.approx(2.3 * 50.5 / 53.2, rel=0.05)

    def test_what_was_taken_for_granted_is_said(self, story: Explanation) -> None:
        assert row(story, "16 tokens without graphs").acceptance_assumed_from == "16 tokens with graphs"
        assert any("another drafter" in line for line in story.assumptions)
        assert any("graphs do not change it" in line for line in story.assumptions)

    def test_switch_off_now_and_what_training_must_reach(self, story: Explanation) -> None:
        kinds = [action.kind for action in story.next]
        assert kinds[:2] == ["switch-off", "train"]
        assert [a.rank for a in story.next] == list(range(1, len(kinds) + 1))
        train = story.next[1]
        for words in ("2.41 for 1x (90 tok/s)", "3.13 for 1.3x (117 tok/s)", "3.61 for 1.5x (135 tok/s)"):
            assert words in train.action
        assert train.predicted_tok_per_s is not None and train.predicted_tok_per_s.low is not None
        assert "stop" in kinds and "use-drafter" in kinds

    def test_what_if_covers_acceptance_tokens_graphs_and_overhead(self, story: Explanation) -> None:
        factors = {w.factor for w in story.what_if}
        assert factors >= {"acceptance", "num_draft_tokens", "cuda_graphs", "overhead"}
        perfect = next(w for w in story.what_if if "every draft kept" in w.change)
        assert perfect.predicted_tok_per_s.value == pytest.approx(82.3 * 4 / 2.2)
        without = next(w for w in story.what_if if w.factor == "cuda_graphs")
        assert without.predicted_tok_per_s.value < 75

    def test_the_headline_is_the_answer(self, story: Explanation) -> None:
        assert "loses: 82.3 tok/s, 0.91x plain decoding" in story.headline

    def test_the_terminal_shows_every_row_and_action(self, story: Explanation) -> None:
        console = Console(width=100, file=None, record=True, force_terminal=False)
        with console.capture() as capture:
            console.print(explanation_view(story))
        shown = " ".join(capture.get().split())
        for found in story.rows:
            assert found.arm.split()[0] in shown
        for action in story.next:
            assert action.action[:20] in shown


def table_of(*lines: str, header: str = HEADER) -> str:
    return header + "\n".join(lines) + "\n"


BASELINE = "plain,0,0,0,true,90,"


class TestTable:
    def test_winning_rows_name_the_winner_and_acceptance_as_the_limit(self) -> None:
        found = explained(table_of(BASELINE, "k3,3,1,3,true,140,1.8"))
        limit = row(found, "k3")
        assert limit.binding_factor == "acceptance"
        assert limit.speedup == pytest.approx(140 / 90)
        assert found.next[0].kind == "change-flag" and "serve k3" in found.next[0].action

    def test_an_arm_that_keeps_nothing_is_called_rejected(self) -> None:
        found = explained(table_of(BASELINE, "k3,3,1,3,true,50,1.0"))
        assert "every draft is rejected" in row(found, "k3").binding_limit

    def test_unknown_is_unknown_and_not_one(self) -> None:
        found = explained(table_of(BASELINE, "k3,3,1,3,true,100,"))
        only = row(found, "k3")
        assert only.acceptance_length is None
        assert only.break_even_acceptance_length is None
        assert only.parts == ()
        assert only.binding_limit.startswith("unknown")

    def test_chains_of_other_lengths_are_predicted_from_one_row(self) -> None:
        found = explained(table_of(BASELINE, "k5,5,1,5,true,120,2.6"))
        changes = {w.change: w for w in found.what_if if w.factor == "num_draft_tokens"}
        three = changes["a chain of 3"]
        assert three.predicted_tok_per_s.low is not None and three.predicted_tok_per_s.high is not None
        assert (
            three.predicted_tok_per_s.low < three.predicted_tok_per_s.value < three.predicted_tok_per_s.high
        )

    def test_the_machine_ceiling_scales_with_what_is_kept(self) -> None:
        found = explained(table_of(BASELINE, "k3,3,1,3,true,120,2.0"), machine_ceiling_tok_per_s=110.0)
        assert row(found, "k3").machine_ceiling_tok_per_s == pytest.approx(220)
        assert row(found, "plain").machine_ceiling_tok_per_s == pytest.approx(110)

    def test_concurrencies_are_explained_each_against_its_own_baseline(self) -> None:
        header = HEADER.strip() + ",concurrency\n"
        lines = ("p1,0,,0,,80,,1", "p16,0,,0,,20,,16", "k3-1,3,1,3,,120,2.4,1", "k3-16,3,1,3,,18,2.4,16")
        found = explained(table_of(*lines, header=header))
        assert row(found, "k3-1").break_even_acceptance_length == pytest.approx(2.4 * 80 / 120)
        assert row(found, "k3-16").break_even_acceptance_length == pytest.approx(2.4 * 20 / 18)
        assert found.schedule is not None
        assert found.schedule.best_by_concurrency == {"1": 3, "16": 0}
        assert "wins: 120.0 tok/s at c=1, 1.50x" in found.headline
        assert any(w.factor == "concurrency" for w in found.what_if)
        assert any(a.kind == "switch-off-above" for a in found.next)

    @pytest.mark.parametrize(
        ("line", "place", "words"),
        [
            ("k3,3,1,3,true,fast,2.0", "line 3: e2e_tok_per_s", "from 0.001 to 10,000,000, got 'fast'"),
            ("k3,3,1,3,true,-5,2.0", "line 3: e2e_tok_per_s", "got '-5'"),
            ("k3,3,1,3,true,nan,2.0", "line 3: e2e_tok_per_s", "got 'nan'"),
            ("k3,3,1,3,true,1e999,2.0", "line 3: e2e_tok_per_s", "got '1e999'"),
            ("k3,3,1,three,true,90,2.0", "line 3: num_draft_tokens", "whole number from 0 to 1000"),
            ("k3,3,1,3,true,1e-320,2.0", "line 3: e2e_tok_per_s", "got '1e-320'"),
            ("k3,3,1,3,true,1e300,2.0", "line 3: e2e_tok_per_s", "got '1e300'"),
            ("k3,,1,999999999,true,90,2.0", "line 3: num_draft_tokens", "whole number from 0 to 1000"),
            ("k3,3,1,3,true,90,3.5-9", "line 3: acceptance_length", "more than the 4 tokens"),
            ("k3,5,1,3,true,90,4.5", "line 3: acceptance_length", "more than the 4 tokens"),
            ("k3,3,1,3,maybe,90,2.0", "line 3: cuda_graphs", "true, false, or empty"),
            ("k3,3,1,3,true,90,0.7", "line 3: acceptance_length", "at least 1"),
            ("k3,3,1,3,true,90,2.5-2.1", "line 3: acceptance_length", "range like 2.1-2.5"),
            ("k3,3,1,3,true,90,5.0", "line 3: acceptance_length", "more than the 4 tokens"),
            ("k3,3,1,3,true,90", "line 3: row", "6 cells"),
            (",3,1,3,true,90,2.0", "line 3: arm", "must be a name"),
            ("plain,3,1,3,true,90,2.0", "line 3: arm", "already on line 2"),
            ("k0,3,1,0,true,90,", "line 3: num_steps", "must be 0 or empty"),
        ],
    )
    def test_a_bad_cell_is_named_by_line_column_and_value(self, line: str, place: str, words: str) -> None:
        with pytest.raises(BadInput) as raised:
            read_table(table_of(BASELINE, line), path="rows.csv")
        assert "rows.csv: 1 problem" in str(raised.value)
        assert place in str(raised.value)
        assert words in str(raised.value)

    def test_all_mistakes_are_reported_at_once(self) -> None:
        with pytest.raises(StudyFileError) as raised:
            read_table(table_of(BASELINE, "a,3,1,3,true,x,2", "b,3,1,3,true,90,0"), path="rows.csv")
        assert [p.line for p in raised.value.problems] == [3, 4]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "is empty"),
            (HEADER, "no rows"),
            ("arm,speed\na,1\n", "column is missing"),
            (HEADER.strip() + ",colour\n" + BASELINE + ",red\n", "unknown column; valid: arm"),
            (table_of("k3,3,1,3,true,90,2.0"), "no baseline row"),
            (table_of(BASELINE), "nothing to explain"),
            (table_of('"k3,3,1,3,true,90,2'), "file"),
        ],
    )
    def test_a_table_that_cannot_be_explained_says_why(self, text: str, words: str) -> None:
        with pytest.raises(BadInput, match=words):
            read_table(text, path="rows.csv")

    def test_more_rows_than_can_be_fitted_are_refused(self) -> None:
        lines = [f"k{i},3,1,3,true,90,2.0" for i in range(600)]
        with pytest.raises(BadInput, match="601 rows; at most 500"):
            read_table(table_of(BASELINE, *lines), path="rows.csv")

    def test_a_chain_counted_with_its_root_is_read_as_sglang_counts(self) -> None:
        found = explained(table_of(BASELINE, "k3,3,1,4,true,120,2.4"))
        assert found.rows == explained(table_of(BASELINE, "k3,3,1,3,true,120,2.4")).rows
        assert "4 draft tokens in a chain of 3 steps count the root" in found.assumptions[0]
        assert not any("root" in text for text in explained(STORY).assumptions)

    def test_several_baselines_are_said_to_be_pooled(self) -> None:
        # The geometric mean of 80 and 45 is 60.
        found = explained(table_of("a,0,0,0,,80,", "b,0,0,0,,45,", "k3,3,1,3,,70,2.0"))
        assert found.baseline_tok_per_s == pytest.approx({"1": 60})
        assert "60.0 tok/s, the geometric mean of its 2 rows (45.0 to 80.0)" in found.assumptions[0]

    def test_a_step_cheaper_than_a_plain_one_is_a_contradiction_and_no_limit(self) -> None:
        # 2.5 tokens per step at 400 tok/s take 6.25 ms; a plain step takes 11.1 ms.
        found = row(explained(table_of(BASELINE, "k3,3,1,3,true,400,2.5")), "k3")
        assert found.binding_limit.startswith("figures that do not fit together")
        assert "0.56 plain ones" in found.binding_limit
        assert found.binding_factor is None

    def test_an_arm_of_unknown_acceptance_that_is_faster_is_not_overlooked(self) -> None:
        found = explained(table_of(BASELINE, "fast,3,1,3,,200,", "known,4,1,4,,100,2.5"))
        assert found.headline.startswith(
            "known, the fastest arm of known acceptance length, wins: 100.0 tok/s"
        )
        assert any(a.action == "serve fast" for a in found.next)

    def test_figures_that_contradict_each_other_win_nothing_and_are_not_served(self) -> None:
        found = explained(
            table_of("plain,0,0,0,,0.090,", "k3,3,1,3,,95,2.2")
        )  # thousands of tok/s beside tok/s
        assert "k3, the best arm, tells nothing" in found.headline
        assert found.next[0].action.startswith("measure k3 and plain decoding again")
        assert not any(a.action.startswith("serve") for a in found.next)

    def test_lines_are_counted_as_editors_count_them(self) -> None:
        with pytest.raises(BadInput, match=r"line 4: e2e_tok_per_s: .* got 'x'"):
            read_table(table_of(BASELINE, "a\x0cb\u2028c,3,1,3,,120,2.0", "k4,4,1,4,,x,2.0"), path="x")
        with pytest.raises(BadInput, match="line 3: arm: is longer than 200 characters"):
            read_table(table_of(BASELINE, "k" * 201 + ",3,1,3,,120,2.0"), path="x")
        assert "a\ufffdb\ufffdc" in shown(explained(table_of(BASELINE, "a\x0cb\u2028c,3,1,3,,120,2.0")))

    def test_one_token_is_not_tokens(self) -> None:
        limit = row(explained(table_of(BASELINE, "k1,1,1,1,true,60,1.4")), "k1").binding_limit
        assert "verifying 1 token and drafting 1 step and work" in limit

    def test_comments_blank_lines_and_windows_ends_are_read(self) -> None:
        text = "# from a notebook\r\n\r\n" + table_of(BASELINE, "k3,3,1,3,,120,2.0").replace("\n", "\r\n")
        table = read_table(text, path="rows.csv")
        assert [r.name for r in table.rows] == ["plain", "k3"]

    def test_hostile_names_change_nothing_in_the_terminal(self) -> None:
        found = explained(table_of(BASELINE, "[red]\x1b[31mk3,3,1,3,true,120,2.0"))
        console = Console(width=100, force_terminal=False)
        with console.capture() as capture:
            console.print(explanation_view(found))
        assert "\x1b" not in capture.get()
        assert "[red]" in capture.get()

    @pytest.mark.parametrize("name", ["[/foo]k3", "[bold]k3", "k3[link=x]", "a\\[b]"])
    def test_brackets_in_a_name_are_letters_wherever_it_stands(self, name: str) -> None:
        found = explained(table_of(BASELINE, f"{name},3,1,3,true,120,2.0"))
        assert f"what if {name} had" in shown(found)

    def test_plain_decoding_without_graphs_is_a_baseline_where_it_is_the_only_one(self) -> None:
        lone = explained(table_of("plain,0,0,0,false,90,", "k3,3,1,3,false,120,2.4"))
        assert lone.baseline_tok_per_s == {"1": 90.0}
        # No row has graphs: none pays for the want of them.
        assert not any(p.name == "no graphs" for p in row(lone, "k3").parts)
        mixed = explained(table_of("plain,0,0,0,false,90,", "k3,3,1,3,true,120,2.4"))
        assert mixed.baseline_tok_per_s == {"1": 90.0}
        assert any("has no graphs, and k3 has them" in line for line in mixed.assumptions)

    def test_plain_decoding_without_graphs_does_not_slow_the_baseline_that_has_them(self) -> None:
        found = explained(table_of(BASELINE, "eager,0,0,0,false,60,", "k3,3,1,3,true,120,2.4"))
        assert found.baseline_tok_per_s == {"1": 90.0}
        assert not any("geometric mean" in line for line in found.assumptions)
        assert any(line.startswith("eager: plain decoding without graphs") for line in found.assumptions)

    def test_the_advice_is_about_the_same_baseline_as_the_headline(self) -> None:
        """Rows of 80 and 100 make 89.4; an arm at 95 is faster than that and is served, whatever one row says."""
        found = explained(table_of("a,0,0,0,,80,", "b,0,0,0,,100,", "k3,3,1,3,,95,2.0"))
        assert "k3, the best arm, wins" in found.headline
        assert not any(a.kind == "switch-off" for a in found.next)
        assert any(a.action == "serve k3" for a in found.next)

    @pytest.mark.parametrize(
        ("speed", "words"),
        [
            ("90.0", "the fastest arm with a draft, equals plain decoding within 2 %"),
            ("91.0", "the best arm, equals plain decoding within 2 %"),
            ("95.0", "the best arm, wins"),
            ("80.0", "the fastest arm with a draft, loses"),
        ],
    )
    def test_figures_without_a_spread_win_or_lose_by_more_than_the_margin(
        self, speed: str, words: str
    ) -> None:
        found = explained(table_of(BASELINE, f"k3,3,1,3,true,{speed},2.0"))
        assert words in found.headline
        assert any("3% is taken for one standard error" in line for line in found.assumptions)

    def test_a_draft_of_unknown_depth_has_no_known_limit(self) -> None:
        limit = row(explained(table_of(BASELINE, "tree,,4,16,true,60,2.2")), "tree")
        assert limit.binding_factor is None and limit.loss_shares is None
        assert "not told apart" in limit.binding_limit and "36.7 ms" in limit.binding_limit

    def test_a_perfect_draft_at_no_cost_is_limited_by_its_length(self) -> None:
        limit = row(explained(table_of(BASELINE, "k3,3,1,3,true,360,4.0")), "k3")
        assert limit.binding_factor is None and limit.binding_limit.startswith("the length of the draft")

    def test_a_lone_arm_of_unknown_acceptance_implies_none_and_predicts_nothing(self) -> None:
        found = explained(table_of(BASELINE, "tree,,4,16,true,60,"))
        assert row(found, "tree").implied_acceptance_length is None
        assert [a.kind for a in found.next] == ["switch-off", "stop"]
        assert "90.0 tok/s against 60.0" in found.next[0].why
        assert "nothing is predicted" in found.next[1].why

    def test_plain_decoding_that_is_not_told_apart_is_said_to_be(self) -> None:
        for speed, apart in ((89.0, False), (80.0, True)):
            first = explained(table_of(BASELINE, f"k3,3,1,3,true,{speed},2.0")).next
            (off,) = [a for a in first if a.kind == "switch-off"]
            assert ("not told apart" in off.why) is not apart

    def test_drafters_that_are_not_told_apart_are_not_ranked(self) -> None:
        lines = ("a,3,1,3,true,80.0,2.0", "b,3,1,3,true,80.5,2.0")
        assert not any(a.kind == "use-drafter" for a in explained(table_of(BASELINE, *lines)).next)

    def test_parts_of_a_step_are_no_more_than_the_step(self) -> None:
        """Three chains of one cost model, and one that is 15 % faster than it says."""
        lines = ["k1,1,1,1,,75,1.6", "k2,2,1,2,,70,2.0", "k4,4,1,4,,60,2.4", "k3,3,1,3,,80,2.0"]
        found = explained(table_of("plain,0,0,0,,90,", *lines))
        for line in found.rows[1:]:
            assert line.step_cost_s is not None
            assert sum(p.s for p in line.parts) == pytest.approx(line.step_cost_s, rel=0.006)
            assert all(p.s >= 0 for p in line.parts)

    def test_a_drafter_is_trained_at_a_depth_that_lets_it_gain(self) -> None:
        """k1 is the fastest and can never keep the 2.4 that would break even; k4 can keep its 3.6."""
        found = explained(table_of(BASELINE, "k1,1,1,1,true,60,1.6", "k4,4,1,4,true,50,2.0"))
        (train,) = [a for a in found.next if a.kind == "train"]
        assert "in k4" in train.why and "3.60 for 1x" in train.action

    @pytest.mark.parametrize("steps", [True, False], ids=["with num_steps", "without"])
    def test_nothing_that_was_measured_is_predicted_or_advised(self, steps: bool) -> None:
        def arm(k: int) -> Arm:
            knobs = Knobs(method="eagle3", drafter="d", num_draft_tokens=k, num_steps=k if steps else None)
            return Arm(name=f"k{k}", engine="vllm", target="m", knobs=knobs)

        speeds = {1: (120.0, 1.6), 2: (139.0, 2.0), 3: (140.0, 2.3), 4: (138.0, 2.5)}
        rows = [measured(arm(k), speed, log_sd=0.02, kept=kept) for k, (speed, kept) in speeds.items()]
        found = explain([measured(PLAIN, 100.0, log_sd=0.02), *rows])
        changes = [w.change for w in found.what_if if w.factor == "num_draft_tokens"]
        assert changes == ["a chain of 5", "a chain of 6", "a chain of 7"]
        again = explain([measured(PLAIN, 100.0, log_sd=0.02), *rows], tried=[arm(5), arm(6), arm(7)])
        assert not any(w.factor == "num_draft_tokens" for w in again.what_if)

    def test_what_may_be_faster_comes_with_its_chance(self) -> None:
        found = explained(table_of(BASELINE, "k5,5,1,5,true,85,2.6"))
        (more,) = [a for a in found.next if "chance to beat" in a.why]
        speed = more.predicted_tok_per_s
        assert speed is not None and speed.low is not None and speed.high is not None
        sd = math.log(speed.high / speed.low) / 2 / 1.645
        chance = 1 - NormalDist().cdf(math.log(90 * 1.02 / speed.value) / sd)
        assert f"({chance:.0%} chance to beat plain by 2%)" in more.why

    def test_a_gain_below_the_models_own_error_is_not_promised(self) -> None:
        rows = read_table(table_of(BASELINE, "k5,5,1,5,true,85,2.6"), path="x").rows
        right = Interval(value=1.0, low=0.9, high=1.1, level=0.8, n=3, unit="x baseline")
        for measured_speedup, promised in ((1.01, True), (0.6, False)):  # off by 1 %, and by 67 %
            off = [Prediction("k5", None, right, 85.0, measured_speedup)]
            more = [a for a in explain(rows, predictions=off).next if "k5 with" in a.action]
            assert bool(more) is promised

    def test_a_gain_that_noise_would_hide_is_not_promised(self) -> None:
        rows = read_table(table_of(BASELINE, "k5,5,1,5,true,85,2.6"), path="x").rows
        gain = next(a.gain_frac for a in explain(rows).next if "k5 with" in a.action)
        assert gain is not None and gain > 0.02
        for detectable, promised in ((0.9 * gain, True), (1.1 * gain, False)):
            found = explain(rows, detectable_frac=detectable).next
            assert bool([a for a in found if "k5 with" in a.action]) is promised

    @pytest.mark.parametrize(("detectable", "is_first"), [(0.4, False), (7.6, True)])
    def test_where_noise_hides_twice_the_speed_a_quieter_machine_comes_first(
        self, detectable: float, is_first: bool
    ) -> None:
        rows = read_table(table_of(BASELINE, "k5,5,1,5,true,60,2.6"), path="x").rows
        first = explain(rows, detectable_frac=detectable).next[0]
        assert ("quieter" in first.action) is is_first

    def test_a_dead_draft_is_looked_into_and_never_trained_or_shortened(self) -> None:
        found = explained(table_of(BASELINE, "k3,3,1,3,true,50,1.003"))
        (check,) = [a for a in found.next if a.kind == "check"]
        assert "all rejected" in check.action and check.command is not None
        assert not [a for a in found.next if a.kind == "train" or "chain of" in a.action]
        assert not [w for w in found.what_if if w.factor == "num_draft_tokens"]

    def test_nothing_is_predicted_of_n_grams_of_another_length(self) -> None:
        header = HEADER.strip() + ",method\n"
        found = explained(table_of("plain,0,0,0,true,90,,", "n4,4,1,4,true,95,1.6,ngram", header=header))
        assert not [w for w in found.what_if if w.factor == "num_draft_tokens"]
        assert not [a for a in found.next if "chain of" in a.action]

    def test_no_prediction_is_beyond_what_its_acceptance_allows(self) -> None:
        """The figures contradict each other: 1.3 tokens per step at 1.7x. No step is cheaper than a plain one."""
        found = explained(table_of(BASELINE, "k5,5,1,5,true,153,1.3"))
        for w in found.what_if:
            if w.factor == "num_draft_tokens":
                assert w.acceptance_length is not None
                assert w.speedup <= w.acceptance_length * 1.001

    def test_what_is_measured_goes_before_training(self) -> None:
        kinds = [a.kind for a in explained(table_of(BASELINE, "k3,3,1,3,true,95,2.2")).next]
        assert kinds.index("change-flag") < kinds.index("train")

    def test_rows_that_are_not_shown_are_counted(self) -> None:
        lines = [f"k{i},{i % 7 + 1},1,{i % 7 + 1},true,{60 + i},1.5" for i in range(44)]
        assert "the first 40 of 45 rows; --json has all" in shown(explained(table_of(BASELINE, *lines)))

    def test_the_machines_ceiling_is_a_column_where_it_is_asked_for(self) -> None:
        rows = table_of(BASELINE, "k3,3,1,3,true,120,2.0")
        assert "machine" not in shown(explained(rows))
        assert "220.0" in shown(explained(rows, machine_ceiling_tok_per_s=110.0))

    def test_slow_speeds_keep_their_digits(self) -> None:
        found = explained(table_of("plain,0,0,0,,0.52,", "k3,3,1,3,,0.41,2.0"))
        assert "loses: 0.410 tok/s" in found.headline
        assert "0.520" in shown(found)

    def test_the_vllm_command_can_be_pasted_whatever_the_drafter_is_called(self) -> None:
        header = HEADER.strip() + ",concurrency,drafter\n"
        drafting = [f"k3-{c},3,1,3,,{speed},2.4,{c},it's/me" for c, speed in ((1, 120), (16, 18))]
        lines = ("p1,0,,0,,80,,1,", "p16,0,,0,,20,,16,", *drafting)
        found = shown(explained(table_of(*lines, header=header)))
        (line,) = [line for line in found.splitlines() if "vLLM    --speculative-config" in line]
        assert json.loads(shlex.split(line)[2])["model"] == "it's/me"

    def test_methods_are_read_as_people_write_them(self) -> None:
        header = HEADER.strip() + ",method\n"
        table = read_table(table_of(BASELINE + ",", "k3,3,1,3,true,95,2.0,EAGLE-3", header=header), path="x")
        assert table.rows[1].arm.knobs.method == "eagle3"
        with pytest.raises(BadInput, match=r"line 3: method: .* got 'none'"):
            read_table(table_of(BASELINE + ",", "k3,3,1,3,true,95,2.0,none", header=header), path="x")


def shown(found: Explanation) -> str:
    console = Console(width=160, force_terminal=False)
    with console.capture() as capture:
        console.print(explanation_view(found), crop=False)
    return capture.get()


def arguments(**given: object) -> argparse.Namespace:
    defaults = {"study_dir": None, "table": None, "json": True, "weights_gib": None}
    defaults |= {"bandwidth_gib_s": None, "point": []}
    return argparse.Namespace(**{**defaults, **given})


class TestCommand:
    def test_json_has_the_promised_keys(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "rows.csv"
        path.write_text(STORY, encoding="utf-8")
        assert explain_command(arguments(table=str(path))) == 0
        document = json.loads(capsys.readouterr().out)
        assert set(document) >= {"schema_version", "rows", "what_if", "next"}
        keys = {
            "arm",
            "step_cost_s",
            "break_even_acceptance_length",
            "zero_overhead_tok_per_s",
            "binding_limit",
        }
        assert all(set(line) >= keys for line in document["rows"])
        plain = document["rows"][0]
        assert plain["step_cost_s"] == pytest.approx(1 / 90)
        assert plain["break_even_acceptance_length"] is None

    def test_training_sizes_say_what_data_would_buy(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """At 5 tokens a step costs 2.4 plain ones; the draft grows by 0.2 per tenfold data and keeps 2.2 now."""
        path = tmp_path / "rows.csv"
        path.write_text(STORY, encoding="utf-8")
        points = ["1000=1.8", "10000=2.0", "100000=2.2"]
        assert explain_command(arguments(table=str(path), point=points)) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["training"][0].startswith("for 5 tokens with graphs: ")
        even = next(line for line in document["training"] if line.startswith("1x needs"))
        assert "1x needs 2.41 tokens per step" in even
        train = next(a for a in document["next"] if a["kind"] == "train")
        assert "by the data sizes measured" in train["why"]

    def test_two_training_sizes_are_too_few(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        path.write_text(STORY, encoding="utf-8")
        with pytest.raises(BadInput, match="at least three data sizes"):
            explain_command(arguments(table=str(path), point=["1000=1.8", "10000=2.0"]))

    def test_a_missing_file_a_folder_and_bytes_are_named(self, tmp_path: Path) -> None:
        binary = tmp_path / "b.csv"
        binary.write_bytes(b"\xff\xfe\x00")
        for path, words in (
            (tmp_path / "no.csv", "no such file"),
            (tmp_path, "directory"),
            (binary, "UTF-8"),
        ):
            with pytest.raises(BadInput, match=words):
                explain_command(arguments(table=str(path)))

    def test_either_a_study_or_a_table(self) -> None:
        with pytest.raises(BadInput, match="either"):
            explain_command(arguments())

    @pytest.mark.parametrize(
        ("weights", "bandwidth"), [(14.0, None), (float("nan"), 900.0), (14.0, float("inf")), (1e-300, 1e300)]
    )
    def test_half_a_machine_and_none_are_no_ceiling(self, weights: float, bandwidth: float | None) -> None:
        with pytest.raises(BadInput, match="both are needed"):
            explain_command(arguments(table="x", weights_gib=weights, bandwidth_gib_s=bandwidth))


def measured(arm: Arm, speed: float, *, log_sd: float, kept: float | None = None) -> MeasuredRow:
    length = None if kept is None else Interval(value=kept, low=None, high=None, n=9, unit="tokens/step")
    observed = Observation(arm, speed, None, None, length=kept, log_sd=log_sd)
    return MeasuredRow(arm.name, observed, length, depth=shape_of(arm).steps)


PLAIN = baseline_arm(engine="vllm", target="m")
NGRAM = Arm(name="ngram", engine="vllm", target="m", knobs=Knobs(method="ngram", num_draft_tokens=4))
EAGLE3 = Arm(
    name="k4", engine="vllm", target="m", knobs=Knobs(method="eagle3", drafter="d", num_draft_tokens=4)
)


class TestWhatIsShown:
    """The fastest arm by its mean need not be the one that is shown to be best."""

    def found(self, winner: Arm, *, ngram: float = 107.0, log_sd: float = 0.08) -> Explanation:
        rows = [
            measured(PLAIN, 100.0, log_sd=0.02),
            measured(NGRAM, ngram, log_sd=log_sd, kept=2.2),
            measured(EAGLE3, 60.0, log_sd=0.02, kept=1.6),
        ]
        return explain(rows, winner_id=winner.arm_id, winning_command=f"serve {winner.name}")

    def test_an_arm_that_is_not_shown_to_be_faster_is_measured_again_and_not_served(self) -> None:
        found = self.found(PLAIN)
        assert not [a for a in found.next if a.action.startswith("serve") or a.command == "serve ngram"]
        assert any(a.action.startswith("measure ngram again") for a in found.next)
        (stop,) = [a for a in found.next if a.kind == "stop"]
        assert stop.action == "stop here, with baseline"
        assert "cannot be told from plain decoding: 107.0 tok/s" in found.headline

    def test_an_arm_that_is_shown_to_be_faster_is_served_with_its_own_command(self) -> None:
        found = self.found(NGRAM, ngram=140.0)
        (serve,) = [a for a in found.next if a.action == "serve ngram"]
        assert serve.command == "serve ngram"
        assert "wins: 140.0 tok/s" in found.headline

    def test_the_winner_is_the_headline_and_its_requests_belong_to_its_command(self) -> None:
        short = EAGLE3.model_copy(update={"name": "short", "request": {"speculative.n_max": 2}})
        rows = [
            measured(PLAIN, 100.0, log_sd=0.02),
            measured(short, 140.0, log_sd=0.02, kept=2.8),
            measured(EAGLE3, 150.0, log_sd=0.3, kept=2.4),
        ]
        found = explain(rows, winner_id=short.arm_id, winning_command="serve short")
        assert found.headline.startswith("short, the best arm, wins: 140.0 tok/s")
        assert found.winning_request_note == 'with {"speculative.n_max": 2} in the body of each request'
        assert "verifying 2 tokens" in row(found, "short").binding_limit
        console = Console(width=100, force_terminal=False)
        with console.capture() as capture:
            console.print(explanation_view(found))
        assert '{"speculative.n_max": 2} in the body' in " ".join(capture.get().split())
        assert any('"speculative.n_max": 2' in line for line in markdown_why(found))

    @pytest.mark.parametrize(
        ("winner", "ngram", "title"),
        [
            (PLAIN, 107.0, "The command to serve: plain decoding"),
            (NGRAM, 140.0, "The command to serve: ngram"),
        ],
        ids=["plain decoding", "ngram"],
    )
    def test_the_command_is_titled_for_what_it_serves(self, winner: Arm, ngram: float, title: str) -> None:
        found = self.found(winner, ngram=ngram)
        assert Explanation.model_validate_json(found.model_dump_json()).winning_title == title
        assert found.model_dump()["winning_arm"] == title.partition(": ")[2]
        console = Console(width=100, force_terminal=False)
        with console.capture() as capture:
            console.print(explanation_view(found))
        assert f"{title}:\n  serve {winner.name}" in capture.get()
        assert f"{title}." in markdown_why(found)

    def test_training_is_advised_for_a_drafter_and_never_for_n_grams(self) -> None:
        found = self.found(PLAIN)
        (train,) = [a for a in found.next if a.kind == "train"]
        assert "in k4" in train.why
        assert not any(a.kind == "use-drafter" for a in found.next)
        rows = [measured(PLAIN, 100.0, log_sd=0.02), measured(NGRAM, 107.0, log_sd=0.08, kept=2.2)]
        assert not any(a.kind == "train" for a in explain(rows).next)


class TestStudy:
    def test_a_drafter_that_skips_steps_breaks_even_at_a_length_of_its_verify_steps(self) -> None:
        """ngram: 2 tokens per pass at 120 tok/s against 100: a pass costs 5/3. Half of the passes check a
        draft and keep 3, so 1 + (5/3 - 1) / 0.5 = 7/3 would break even."""
        knobs = Knobs(method="ngram", num_draft_tokens=4)
        ngram = Arm(name="ngram", engine="vllm", target="m", knobs=knobs)
        base = baseline_arm(engine="vllm", target="m")
        kept = Interval(value=3.0, low=2.8, high=3.2, n=9, unit="tokens/step")
        found = explain(
            [
                MeasuredRow("plain", Observation(base, 100.0, None, None), None, depth=0),
                MeasuredRow("ngram", Observation(ngram, 120.0, None, None, length=2.0), kept, depth=4),
            ]
        )
        only = row(found, "ngram")
        assert only.step_cost_ratio == pytest.approx(5 / 3)
        assert only.break_even_acceptance_length == pytest.approx(7 / 3)
        assert only.perfect_acceptance_tok_per_s == pytest.approx(100 * 3 / (5 / 3))

    @pytest.mark.parametrize(
        ("knobs", "depth"),
        [
            (Knobs(method="ngram"), None),
            (Knobs(method="eagle3", num_draft_tokens=4), 4),
            (Knobs(method="eagle3", num_steps=3, topk=4, num_draft_tokens=16), 3),
            (Knobs(method="eagle3", topk=4, num_draft_tokens=16), None),
        ],
    )
    def test_the_engines_own_draft_length_is_not_guessed(self, knobs: Knobs, depth: int | None) -> None:
        arm = Arm(name="a", engine="llamacpp", target="m", knobs=knobs)
        assert known_depth(arm) == depth
        limited = arm.model_copy(update={"request": {"speculative.n_max": 2}})
        assert known_depth(limited) == 2

    @pytest.mark.parametrize("order", [(1, 4), (4, 1)])
    def test_the_answer_and_its_explanation_are_about_the_same_load(self, order: tuple[int, int]) -> None:
        points = tuple(LoadPoint.closed(c) for c in order)
        of = small_study(FAST, num_prompts=4, loads=points)
        speeds = {1: (100.0, 250.0), 4: (60.0, 25.0)}

        def measured(arm: Arm, number: int, which: int) -> Trial:
            kept = counts(40, 60) if which else None
            results = tuple(
                load_result(
                    [request(p, speeds[c][which], acceptance=kept) for p in of.workload.prompts],
                    LoadPoint.closed(c),
                )
                for c in order
            )
            return trial(of, arm, number, loads=results)

        summary = summarize(of, [measured(PLAIN_LLAMA, 1, 0), measured(FAST, 2, 1)])
        found = summary.explanation
        assert found is not None
        assert summary.arm(FAST.arm_id).first.load.concurrency == found.first_concurrency == order[0]
        assert f"tok/s at c={order[0]}" in found.headline
        assert found.next[0].kind == ("change-flag" if order[0] == 1 else "switch-off")
        assert f"at c={order[0]}, and what of it" in render_html(summary)

    def test_a_realistic_study_is_explained(self) -> None:
        study, trials = realistic()
        summary = summarize(study, trials)
        found = summary.explanation
        assert found is not None
        by_name = {r.arm: r for r in found.rows}
        for arm in summary.arms:
            if arm.break_even_acceptance_length is not None:
                seen = by_name[arm.name].break_even_acceptance_length
                assert seen == pytest.approx(arm.break_even_acceptance_length, rel=0.05)
        assert found.best_arm in {r.arm_id for r in found.rows}
        assert found.winning_command
        assert found.headline

    def test_predictions_are_shown_against_what_came(self) -> None:
        study, trials = realistic()
        rows = measured_rows(summarize(study, trials).arms)
        speed = Interval(value=70.0, low=60.0, high=80.0, level=0.8, n=3, unit="tok/s")
        ratio = Interval(value=0.7, low=0.6, high=0.8, level=0.8, n=3, unit="x baseline")
        found = explain(
            rows,
            predictions=[
                Prediction("k3", speed, None, 75.0, 0.8),
                Prediction("k4", speed, ratio, 75.0, 1.0),  # the machine drifted: the speedup counts
                Prediction("k5", speed, ratio, None, None),
                Prediction("ngram", None, None, 120.0, 1.2),
            ],
        )
        assert [p.inside for p in found.predictions] == [True, False, None, None]
        assert found.predictions[1].error_frac == pytest.approx(-0.3)
        assert found.model_error is not None
        assert found.model_error.n == 2

    def test_an_arm_that_was_stopped_early_is_not_advised_again(self) -> None:
        k3, k4 = speculative("k3", length=3), speculative("k4", length=4)
        of = small_study(k3, k4)
        trials = [
            trial(of, PLAIN_LLAMA, 1, speeds=100.0),
            trial(of, k3, 2, speeds=120.0, acceptance=counts(100, 150)),
            trial(of, k4, 3, speeds=60.0, status="pruned", pruned="at most 0.60x"),
        ]
        found = summarize(of, trials).explanation
        assert found is not None
        changes = [w.change for w in found.what_if if w.factor == "num_draft_tokens"]
        assert "a chain of 2" in changes and "a chain of 4" not in changes

    def test_a_study_without_a_baseline_is_refused(self) -> None:
        study, trials = realistic()
        others = [t for t in trials if t.arm_id != study.baseline.arm_id]
        assert summarize(study, others).explanation is None

    def test_imposed_acceptance_tells_what_a_step_costs_and_is_no_row(self) -> None:
        """100 tok/s plain. Imposed 3 tokens at K=4 give 150 tok/s: a step costs 2 plain ones, 0.25 per token."""
        base = baseline_arm(engine="vllm", target="m")

        def chain(k: int, **changes: object) -> Arm:
            knobs = Knobs(method="eagle3", drafter="d", num_draft_tokens=k, num_steps=k)
            return Arm(name=f"k{k}", engine="vllm", target="m", knobs=knobs).model_copy(update=changes)

        def imposed(k: int, speed: float) -> Observation:
            arm = chain(k, synthetic_acceptance_length=3.0)
            return Observation(arm, speed, None, None, length=3.0, synthetic=True, log_sd=0.005)

        rows = [MeasuredRow("plain", Observation(base, 100.0, None, None), None, depth=0)]
        length = Interval(value=1.5, low=1.4, high=1.6, n=9, unit="tokens/step")
        own = Observation(chain(2), 100.0, None, None, length=1.5)
        rows.append(MeasuredRow("k2", own, length, depth=2))
        found = explain(rows, imposed=[imposed(4, 150.0), imposed(6, 120.0)])
        assert [r.arm for r in found.rows] == ["plain", "k2"]
        assert [c.step_cost_ratio for c in found.imposed] == pytest.approx([2.0, 2.5])
        # At 2 plain steps a step 2 tokens break even, 3 make 1.5x; a chain of 4 can keep both.
        assert [r.acceptance_length.value for r in found.imposed[0].required] == pytest.approx(
            [2.0, 2.6, 3.0]
        )
        assert "a drafter must keep 2.00 for 1x, 2.60 for 1.3x, 3.00 for 1.5x" in shown(found)
        assert any("## With imposed acceptance" in part for part in markdown_why(found))
        four = next(w for w in found.what_if if w.change == "a chain of 4")
        without = next(w for w in explain(rows).what_if if w.change == "a chain of 4")

        def width(w: WhatIf) -> float:
            assert w.predicted_tok_per_s.low is not None
            assert w.predicted_tok_per_s.high is not None
            return w.predicted_tok_per_s.high / w.predicted_tok_per_s.low

        assert width(four) < width(without), "the step's cost is known now"
        untrained = explain(rows[:1], imposed=[imposed(4, 150.0)])
        assert "no drafter's own acceptance was measured" in untrained.headline
        assert "a step costs 2.00 plain ones" in untrained.headline
