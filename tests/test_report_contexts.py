"""Acceptance by context length: ranges that hold requests, and each arm's length in them."""

from __future__ import annotations

import pytest
from report_reading import Page
from report_studies import BASELINE, counts, load_result, request, speculative, study, trial

from spectune.analysis.contexts import MAX_RANGES, context_ranges
from spectune.analysis.records import StudySummary
from spectune.analysis.summary import summarize
from spectune.report.html import render_html


def ranges(*lengths: int) -> list[tuple[int, int]]:
    of = study(speculative("a"), num_prompts=len(lengths))
    records = [
        request(p, 100).model_copy(update={"prompt_tokens": n})
        for p, n in zip(of.workload.prompts, lengths, strict=True)
    ]
    return list(context_ranges([load_result(records)]))


class TestRanges:
    def test_lie_between_powers_of_two(self) -> None:
        assert ranges(70, 80, 130, 140, 300, 400) == [(64, 128), (128, 256), (256, 512)]

    def test_a_single_request_joins_its_neighbour(self) -> None:
        assert ranges(70, 80, 130, 140, 270, 280, 700) == [(64, 128), (128, 256), (256, 1024)]
        assert ranges(20, 70, 80, 130, 140, 270, 280) == [(16, 128), (128, 256), (256, 512)]

    def test_half_steps_tell_apart_what_powers_do_not(self) -> None:
        assert ranges(65, 70, 100, 120) == [(64, 96), (96, 128)]

    def test_say_nothing_of_lengths_that_were_not_there(self) -> None:
        assert ranges(10, 12, 20, 20, 3000, 3100) == [(8, 16), (16, 32), (2048, 4096)]

    @pytest.mark.parametrize("lengths", [(), (70,), (70, 71, 72, 73), (70, 700)])
    def test_are_not_made_of_what_is_alike_or_alone(self, lengths: tuple[int, ...]) -> None:
        assert len(ranges(*lengths)) < 2

    def test_there_are_never_many(self) -> None:
        found = ranges(*(2**i for i in range(17) for _ in range(2)))
        assert len(found) == MAX_RANGES
        assert found[0][0] == 1 and found[-1] == (2**16, 2**17)

    @pytest.mark.parametrize("longest", [1, 2, 3, 63, 64, 65, 131_072])
    def test_hold_the_shortest_and_the_longest_context(self, longest: int) -> None:
        found = ranges(1, 1, longest, longest)
        assert found[0][0] == 1
        assert found[-1][0] <= longest < found[-1][1]


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    """Contexts of 80 tokens keep 1 of 2 drafts at each step, contexts of 800 keep none."""
    arm = speculative("short-sighted", length=2)
    of = study(arm, num_prompts=8)

    def records(*, drafts: bool) -> list:
        found = []
        for i, p in enumerate(of.workload.prompts):
            short = i % 2 == 0
            acceptance = counts(40, 40 if short else 0, length=2) if drafts else None
            one = request(p, 100, acceptance=acceptance)
            found.append(one.model_copy(update={"prompt_tokens": 80 + i if short else 800 + i}))
        return found

    return summarize(
        of,
        [
            trial(of, BASELINE, 1, loads=(load_result(records(drafts=False)),)),
            trial(of, arm, 2, loads=(load_result(records(drafts=True)),)),
        ],
    )


def test_each_range_has_its_own_acceptance_length(summary: StudySummary) -> None:
    (arm,) = [a for a in summary.arms if not a.is_baseline]
    assert arm.first is not None
    found = [(c.min_tokens, c.max_tokens, c.num_requests, c.acceptance_length) for c in arm.first.contexts]
    assert [f[:3] for f in found] == [(64, 95, 4), (768, 1023, 4)]
    lengths = [f[3].value for f in found if f[3] is not None]
    assert lengths == [2.0, 1.0]


def test_the_page_shows_them_as_a_chart_and_in_figures(summary: StudySummary) -> None:
    html = render_html(summary)
    words = Page(html).words
    assert "Acceptance by context length" in words
    assert "short-sighted 2.00 to 1.00" in words  # the chart's description, for who cannot see it
    assert "4 requests" in words


def test_requests_without_their_own_acceptance_have_none() -> None:
    of = study(speculative("a"), num_prompts=4)
    trials = [trial(of, BASELINE, 1, speeds=100.0), trial(of, of.arms[1], 2, speeds=120.0)]
    assert all(load.contexts == () for arm in summarize(of, trials).arms for load in arm.loads)
