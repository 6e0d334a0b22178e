"""Costs, break-even and ceilings come from decoding: held to a server whose true costs are known."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from report_studies import BASELINE, load_result, request, speculative, study, trial

from spectune.analysis.explain.explanation import explain
from spectune.analysis.explain.records import ExplainedRow
from spectune.analysis.explain.table import read_table
from spectune.analysis.explained_study import measured_rows
from spectune.analysis.observations import observations
from spectune.analysis.records import StudySummary
from spectune.analysis.summary import summarize
from spectune.analysis.words import break_even_words, drift_note
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.request_time import RequestTimes, against_plain, all_decode, of_plain
from spectune.errors import BadInput
from spectune.models.speed import SpeedModel
from spectune.report.html import render_html
from spectune.report.markdown import render_markdown

PASS_S = 0.0095
"""A forward pass without speculation."""
PREFILL_S = (0.25, 0.5, 0.95, 2.0)
"""By prompt: the median request spends half of its time on its prompt."""
TOKENS = 97
K3 = speculative("k3", length=3)
K1 = speculative("k1", length=1)
K5 = speculative("k5", length=5)


class Server:
    """Every forward pass costs the same, and the drafter reads the prompt too."""

    def __init__(self, *, step_ratio: float = 1.0, tokens: float = 1.0, prefill: float = 1.0) -> None:
        self.step_s, self.tokens, self.prefill = PASS_S * step_ratio, tokens, prefill

    def request_s(self, prompt: int) -> tuple[float, float]:
        first_s = PREFILL_S[prompt] * self.prefill
        return first_s, first_s + (TOKENS - 1) / self.tokens * self.step_s

    def speedup(self) -> float:
        """Over the server without speculation: geometric mean over prompts, by simulation."""
        plain = Server()
        logs = [math.log(plain.request_s(i)[1] / self.request_s(i)[1]) for i in range(len(PREFILL_S))]
        return math.exp(sum(logs) / len(logs))


def measured(*servers: tuple[object, Server], slower: float = 1.0) -> tuple[StudySummary, list[object]]:
    """A study of these servers, each launch's machine so many times slower than the one before it."""
    of = study(*(arm for arm, _ in servers), num_prompts=len(PREFILL_S))  # type: ignore[arg-type]

    def records(server: Server, scale: float = 1.0) -> Sequence[object]:
        found = []
        for i, prompt in enumerate(of.workload.prompts):
            first_s, whole_s = server.request_s(i)
            steps = round((TOKENS - 1) / server.tokens)
            counts = AcceptanceCounts(
                num_drafts=steps, num_draft_tokens=5 * steps, num_accepted_tokens=TOKENS - 1 - steps
            )
            changes = {"ttft_s": first_s * scale, "latency_s": whole_s * scale, "output_tokens": TOKENS}
            known = None if server.tokens == 1 and server.step_s == PASS_S else counts
            found.append(request(prompt, 1.0, acceptance=known, **changes))
        return found

    trials = [trial(of, BASELINE, 1, loads=(load_result(records(Server())),))]  # type: ignore[arg-type]
    for arm, server in servers:
        for launched, of_it in ((arm, server), (BASELINE, Server())):
            scale = slower ** len(trials)
            load = load_result(records(of_it, scale))  # type: ignore[arg-type]
            trials.append(trial(of, launched, len(trials) + 1, loads=(load,)))  # type: ignore[arg-type]
    return summarize(of, trials), [of, trials]


def row_of(summary: StudySummary, name: str) -> ExplainedRow:
    assert summary.explanation is not None
    return next(row for row in summary.explanation.rows if row.arm == name)


class TestAgainstAKnownServer:
    """1.5 tokens of a step that costs 2.4 plain ones, half of the median request in the prompt."""

    TRUE = Server(step_ratio=2.4, tokens=1.5)

    @pytest.fixture
    def found(self) -> ExplainedRow:
        return row_of(measured((K3, self.TRUE))[0], "k3")

    def test_a_step_costs_what_the_server_takes_for_it(self, found: ExplainedRow) -> None:
        assert found.step_cost_ratio == pytest.approx(2.4)
        assert found.step_cost_s == pytest.approx(2.4 * PASS_S)
        assert {p.name: p for p in found.parts}["baseline forward"].s == pytest.approx(PASS_S)
        whole = 1.5 / self.TRUE.speedup()
        assert whole < 2.0, "what whole requests would say"

    def test_break_even_is_where_the_server_breaks_even(self, found: ExplainedRow) -> None:
        assert found.break_even_tokens_per_pass is not None and found.break_even_reachable
        assert Server(step_ratio=2.4, tokens=found.break_even_tokens_per_pass).speedup() == pytest.approx(1.0)
        assert found.break_even_acceptance_length == pytest.approx(2.4)

    def test_a_target_is_where_the_server_reaches_it(self, found: ExplainedRow) -> None:
        for required in found.required:
            assert required.tokens_per_pass is not None
            there = Server(step_ratio=2.4, tokens=required.tokens_per_pass)
            assert there.speedup() == pytest.approx(required.speedup)
        assert [r.reachable for r in found.required] == [True, False, False]

    def test_ceilings_are_what_the_server_would_do(self, found: ExplainedRow) -> None:
        plain = found.e2e_tok_per_s / self.TRUE.speedup()
        free = Server(step_ratio=1.0, tokens=1.5).speedup()
        perfect = Server(step_ratio=2.4, tokens=4.0).speedup()
        assert found.zero_overhead_tok_per_s == pytest.approx(plain * free)
        assert found.perfect_acceptance_tok_per_s == pytest.approx(plain * perfect)

    def test_whole_requests_break_even_later_where_the_drafter_reads_the_prompt_too(self) -> None:
        found = row_of(measured((K3, Server(step_ratio=2.4, tokens=1.5, prefill=1.2)))[0], "k3")
        assert found.break_even_tokens_per_pass == pytest.approx(2.4)
        needed = found.required[0].tokens_per_pass
        assert needed is not None and needed > 2.6
        assert Server(step_ratio=2.4, tokens=needed, prefill=1.2).speedup() == pytest.approx(1.0)

    # A prompt takes three quarters of what decoding takes: 2.4 / (1 - 0.6 * 0.75) = 4.4 tokens; K = 3 gives 4 at most.
    @pytest.mark.parametrize("prefill", [1.6, 6.0])
    def test_where_the_prompt_alone_takes_too_long_no_length_is_enough(self, prefill: float) -> None:
        found = row_of(measured((K3, Server(step_ratio=2.4, tokens=1.5, prefill=prefill)))[0], "k3")
        assert "whole requests cannot, their first token comes too late" in found.binding_limit
        assert all(r.reachable is False for r in found.required)

    def test_more_than_the_draft_length_allows_cannot_be_kept(self) -> None:
        found = row_of(measured((K1, Server(step_ratio=2.4, tokens=1.5)))[0], "k1")
        assert found.break_even_acceptance_length == pytest.approx(2.4)
        assert found.break_even_reachable is False
        assert "2.40 to break even, which this draft length cannot give" in found.binding_limit
        assert (
            break_even_words(found.break_even_tokens_per_pass, found.break_even_reachable) == "cannot (2.40)"
        )

    def test_a_machine_that_slows_down_changes_no_cost(self) -> None:
        found = row_of(measured((K3, self.TRUE), slower=1.2)[0], "k3")
        assert found.step_cost_ratio == pytest.approx(2.4)
        assert found.break_even_acceptance_length == pytest.approx(2.4)

    def test_a_machine_that_slows_down_leaves_one_speed_per_arm(self) -> None:
        """Launches at 1, 1.2 and 1.44 times the first one's time: paired in time the arm is as it was without drift."""
        summary, _ = measured((K3, self.TRUE), slower=1.2)
        arm, plain = summary.arm(K3.arm_id), summary.baseline
        assert arm.first is not None and plain.first is not None and arm.first.e2e_tok_per_s is not None
        assert plain.first.e2e_tok_per_s is not None and arm.first.speedup is not None
        assert arm.first.speedup.value == pytest.approx(self.TRUE.speedup())
        speed = plain.first.e2e_tok_per_s.value * arm.first.speedup.value
        assert arm.first.e2e_tok_per_s.value == pytest.approx(speed)
        assert row_of(summary, "k3").e2e_tok_per_s == pytest.approx(speed)
        (raw,) = [t.e2e_tok_per_s for t in summary.trials if t.arm_id == K3.arm_id]
        assert raw is not None and arm.first.drift_correction == pytest.approx(speed / raw.value)

    def test_speeds_that_were_corrected_say_what_was_measured(self) -> None:
        drifting, _ = measured((K3, self.TRUE), (K5, self.TRUE), slower=1.2)
        steady, _ = measured((K3, self.TRUE))
        assert drift_note((a.name, load) for a in steady.arms for load in a.loads) == ""
        note = drift_note((a.name, load) for a in drifting.arms for load in a.loads)
        assert (
            note.startswith("tok/s and speedup are both corrected for the machine's drift") and "k5" in note
        )
        assert note[0].upper() + note[1:] in render_markdown(drifting)
        assert note in render_html(drifting).replace("&#39;", "'")

    def test_the_arm_and_its_explanation_say_the_same(self) -> None:
        summary, _ = measured((K3, self.TRUE))
        arm, row = summary.arm(K3.arm_id), row_of(summary, "k3")
        assert arm.break_even_acceptance_length == pytest.approx(row.break_even_acceptance_length)
        assert arm.step_cost_ratio == pytest.approx(row.step_cost_ratio)
        assert arm.first is not None and arm.first.first_token_share == pytest.approx(row.first_token_share)

    def test_another_draft_length_is_predicted_for_whole_requests(self) -> None:
        """1 + 0.28 per drafted token, and 0.35 in overhead; every token of a chain is kept with chance 0.5."""
        chain = {k: (1.35 + 0.28 * k, 2 - 0.5**k) for k in (1, 3, 5)}
        servers = [(arm, Server(step_ratio=chain[k][0], tokens=chain[k][1])) for arm, k in ((K1, 1), (K5, 5))]
        _, (of, trials) = measured(*servers)
        model = SpeedModel(observations(of, trials))  # type: ignore[arg-type]
        truth = Server(step_ratio=chain[3][0], tokens=chain[3][1]).speedup()
        assert model.predict(K3).cost.value == pytest.approx(chain[3][0], rel=0.06)
        assert model.predict(K3).speedup.value == pytest.approx(truth, rel=0.04)
        together = model.joint([K3], looked=1)
        speeds = [math.exp(part.logs[0]) * part.weight for part in together]
        plain = model.baseline_tok_per_s()
        assert plain is not None
        assert sum(speeds) / sum(p.weight for p in together) == pytest.approx(truth * plain, rel=0.05)

    def test_a_measured_arm_is_predicted_as_it_was_measured(self) -> None:
        summary, _ = measured((K3, self.TRUE))
        rows = measured_rows(summary.arms)
        model = SpeedModel(
            [replace(row.observation, log_sd=0.001) for row in rows], declared_launch_log_sd=0.001
        )
        assert model.predict(K3).speedup.value == pytest.approx(self.TRUE.speedup(), rel=0.01)


class TestTimes:
    def test_decoding_that_is_twice_as_fast_shortens_only_its_part(self) -> None:
        times = RequestTimes(plain_first=(0.5,), first=(0.5,), decode=(0.5,))
        assert times.speedup(2.0) == pytest.approx(1 / 0.75)
        assert times.most_speedup == pytest.approx(2.0)
        assert times.faster_for(1 / 0.75) == pytest.approx(2.0)
        assert times.faster_for(2.0) is None
        # A percent of decoding is half a percent of the request.
        assert math.log(times.speedup(1.01)) == pytest.approx(0.5 * math.log(1.01), rel=0.01)
        assert times.decode_share() == pytest.approx(0.5)

    def test_without_a_time_to_the_first_token_all_of_it_is_decoding(self) -> None:
        times = all_decode(0.8)
        assert times.decode_speedup == pytest.approx(0.8)
        assert times.faster_for(1.2) == pytest.approx(1.5)
        assert times.most_speedup == math.inf

    def test_prompts_without_a_share_are_left_out(self) -> None:
        times = against_plain({"a": 0.5, "b": 0.2}, {"a": 0.25}, {"a": 0.5, "b": 0.7}, speedup=0.5)
        assert times == RequestTimes(plain_first=(0.5,), first=(0.5,), decode=(1.5,))
        assert against_plain({"a": 0.5}, {}, {"a": 1.0}, speedup=1.0) is None
        assert of_plain([]) is None

    def test_summed_up_times_make_nearly_the_same_speeds(self) -> None:
        first = tuple(0.02 * i for i in range(1, 49))
        times = RequestTimes(plain_first=first, first=first, decode=tuple(1 - f for f in first))
        few = times.summed_up()
        assert len(few.first) == 8
        for faster in (0.5, 1.0, 2.0, 4.0):
            assert few.speedup(faster) == pytest.approx(times.speedup(faster), rel=0.01)


HEADER = "arm,num_steps,topk,num_draft_tokens,cuda_graphs,e2e_tok_per_s,acceptance_length,tpot_ms\n"


class TestTable:
    def test_a_token_takes_longer_than_its_decoding_by_the_time_to_the_first(self) -> None:
        """50 tok/s are 20 ms, 10 of them decoding: half. At 40 tok/s, 25 ms, 15 are decoding: 1.5 plain steps for
        every token kept, 3 for a step that gives 2."""
        table = read_table(HEADER + "plain,0,,0,,50,,10\nk3,3,1,3,,40,2.0,15\n", path="t.csv")
        found = explain(table.rows, assumptions=table.assumptions)
        row = found.rows[1]
        assert row.step_cost_ratio == pytest.approx(3.0)
        assert row.break_even_acceptance_length == pytest.approx(3.0)
        assert row.first_token_share == pytest.approx(0.4)
        # 1.3x is 15.4 ms a token, 5.4 of them for decoding: 30 / 5.38.
        assert row.required[1].tokens_per_pass == pytest.approx(30 / (20 / 1.3 - 10))
        assert row.required[1].reachable is False
        assert not any("not known" in line for line in found.assumptions)

    def test_rows_without_it_are_taken_to_wait_as_long_as_the_baseline(self) -> None:
        table = read_table(HEADER + "plain,0,,0,,50,,10\nk3,3,1,3,,40,2.0,\n", path="t.csv")
        found = explain(table.rows, assumptions=table.assumptions)
        assert found.rows[1].step_cost_ratio == pytest.approx(3.0)
        assert any(line.startswith("k3: no tpot_ms") for line in found.assumptions)

    def test_a_table_without_the_column_says_what_it_takes_for_granted(self) -> None:
        text = HEADER.replace(",tpot_ms", "") + "plain,0,,0,,50,\nk3,3,1,3,,40,2.0\n"
        table = read_table(text, path="t.csv")
        found = explain(table.rows, assumptions=table.assumptions)
        assert found.rows[1].step_cost_ratio == pytest.approx(2.0 * 50 / 40)
        assert any("time to the first token is not known" in line for line in found.assumptions)

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            ("plain,0,,0,,50,,30\nk3,3,1,3,,40,2.0,15\n", "more than the 20 ms that a token of the whole"),
            (
                "plain,0,,0,,50,,\nk3,3,1,3,,40,2.0,15\n",
                "line 3: tpot_ms: is given here and not for the baseline",
            ),
            ("plain,0,,0,,50,,10\nk3,3,1,3,,120,3.5,\n", "line 3: tpot_ms: is missing"),
            ("plain,0,,0,,50,,ten\nk3,3,1,3,,40,2.0,\n", "line 2: tpot_ms: must be milliseconds"),
        ],
    )
    def test_times_that_cannot_be_are_refused(self, lines: str, words: str) -> None:
        with pytest.raises(BadInput, match=words):
            read_table(HEADER + lines, path="t.csv")
