"""HTML, Markdown and terminal: what they say, and how they are built."""

from __future__ import annotations

import re
import time

import pytest
from report_reading import Page, every_form, in_terminal
from report_realistic import realistic
from report_studies import (
    BASELINE,
    bracketed,
    counts,
    failed,
    scaled,
    speculative,
    study,
    trial,
)

from spectune.analysis.explain.explanation import explain
from spectune.analysis.explain.table import read_table
from spectune.analysis.records import StudySummary
from spectune.analysis.summary import summarize
from spectune.analysis.words import percent
from spectune.report.html import render_html
from spectune.report.markdown import render_markdown
from spectune.report.terminal import study_tables, trial_block


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    return summarize(*realistic())


def test_the_draft_length_by_concurrency_is_given_in_both_engines_forms(summary):
    header = "arm,num_steps,topk,num_draft_tokens,cuda_graphs,e2e_tok_per_s,acceptance_length,concurrency"
    lines = ("p1,0,,0,,80,,1", "p16,0,,0,,20,,16", "k3-1,3,1,3,,120,2.4,1", "k3-16,3,1,3,,18,2.4,16")
    plan = explain(read_table("\n".join([header, *lines]), path="x").rows).schedule
    changed = summary.explanation.model_copy(update={"schedule": plan})
    summary = summary.model_copy(update={"explanation": changed})
    for text in (Page(render_html(summary)).words, render_markdown(summary)):
        plain = text.replace(" ", "")
        assert '"num_speculative_tokens_per_batch_size":[[1,15,3],[16,16,0]]' in plain
        assert 'adaptive.json:{"1":{"candidate_steps":[3]},"16":{"candidate_steps":[0]}}' in plain


class TestHtml:
    def test_is_well_formed_and_answers_first(self, summary):
        page = Page(render_html(summary))
        assert page.words.index(summary.headline) < page.words.index("Arms")

    def test_needs_no_network_and_no_script(self, summary):
        html = render_html(summary)
        page = Page(html)
        assert not {"script", "link", "iframe", "object", "embed", "img"} & set(page.tags)
        assert [value for value in page.values("href") if not value.startswith("#")] == []
        assert page.values("src") == []
        assert (
            "url(" not in html and "@import" not in html and "http://" not in html and "https://" not in html
        )

    def test_every_link_has_its_target_and_every_id_is_unique(self, summary):
        page = Page(render_html(summary))
        ids = page.values("id")
        assert len(ids) == len(set(ids))
        assert {value[1:] for value in page.values("href")} <= set(ids)
        named = " ".join(page.values("aria-labelledby")).split()
        assert set(named) <= set(ids)

    def test_every_chart_has_a_title_and_a_description(self, summary):
        html = render_html(summary)
        charts = re.findall(r"<svg[^>]*role=\"img\".*?</svg>", html, re.DOTALL)
        assert len(charts) == 8  # four charts, each for wide and narrow windows
        for chart in charts:
            assert re.match(r"<svg[^>]*><title [^>]*>[^<]+</title><desc [^>]*>[^<]+</desc>", chart)

    def test_every_table_has_a_caption_and_scoped_headers(self, summary):
        html = render_html(summary)
        for table in re.findall(r"<table.*?</table>", html, re.DOTALL):
            assert re.match(r"<table[^>]*>\s*<caption>[^<]+</caption>", table)
            assert all("scope=" in header for header in re.findall(r"<th[ >][^>]*", table))

    def test_shows_every_hypothesis_and_failure_with_its_log(self, summary):
        words = Page(render_html(summary)).words
        for row in summary.trials:
            assert row.hypothesis.why in words
        assert "failed to create draft context" in words
        assert "exit code 1" in words

    def test_states_the_share_of_spectunes_own_time(self, summary):
        assert percent(summary.time.own_frac) in Page(render_html(summary)).words

    def test_the_command_of_a_study_that_nothing_wins_is_that_of_plain_decoding(self):
        of, trials = bracketed(speculative("k3"), scaled(0.5), acceptance=counts(100, 120))
        words = Page(render_html(summarize(of, trials))).words
        assert "Nothing is faster than plain decoding" in words
        assert "The command to serve: plain decoding" in words
        faster, trials = bracketed(speculative("k3"), scaled(2.4), acceptance=counts(100, 120))
        assert "The command to serve: k3" in Page(render_html(summarize(faster, trials))).words

    def test_the_same_summary_gives_the_same_bytes(self, summary):
        assert render_html(summary) == render_html(summarize(*realistic()))

    def test_none_and_nan_are_never_shown(self, summary):
        words = Page(render_html(summary)).words
        assert not re.search(r"\b(None|nan|inf|Undefined)\b", words)


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_colour_has_enough_contrast(summary, scheme):
    """WCAG AA: 4.5 to 1."""
    block = re.findall(r":root \{(.*?)\}", render_html(summary), re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    names = ["ink", "soft", "faster", "slower", "same", "unsure", "bad", *(f"s{i}" for i in range(1, 9))]
    for name in names:
        for ground in ("panel", "paper", f"{name}-wash"):
            if ground in colours:
                light, dark = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


class TestEveryForm:
    @pytest.mark.parametrize("stage", range(11))
    def test_every_stage_of_a_study_can_be_drawn(self, stage):
        of, trials = realistic()
        for form, text in every_form(summarize(of, trials[:stage])).items():
            assert text.strip(), form
            assert "None" not in text, form

    def test_all_give_the_answer(self, summary):
        for form, text in every_form(summary).items():
            assert "is fastest: 2.06x [1.33, 3.20] of plain decoding" in " ".join(text.split()), form

    def test_only_failures_are_drawn(self):
        of = study(speculative("a"))
        drawn = every_form(summarize(of, [failed(of, arm, i + 1) for i, arm in enumerate(of.arms)]))
        for form, text in drawn.items():
            assert "out of memory" in text, form

    def test_one_prompt_is_drawn_without_an_interval(self):
        of = study(speculative("a"), num_prompts=1)
        trials = [trial(of, BASELINE, 1, speeds=100.0), trial(of, of.arms[1], 2, speeds=150.0)]
        for form, text in every_form(summarize(of, trials)).items():
            assert "1.50x" in text, form

    def test_simulation_is_named_in_every_form(self):
        of = study(speculative("a"))
        trials = [trial(of, arm, i + 1, speeds=100.0, simulated=True) for i, arm in enumerate(of.arms)]
        for form, text in every_form(summarize(of, trials)).items():
            assert "simulated engine: not a measurement" in text.lower(), form


@pytest.fixture(scope="module")
def crowd() -> StudySummary:
    return summarize(*realistic(num_arms=200))


class TestTwoHundredArms:
    def test_are_drawn_in_seconds_and_below_two_megabytes(self, crowd):
        begun = time.monotonic()
        html = render_html(crowd)
        assert time.monotonic() - begun < 5
        assert len(html.encode()) < 2_000_000

    def test_charts_name_only_a_few_of_them(self, crowd):
        html = render_html(crowd)
        scatter = re.search(r'<svg[^>]*aria-labelledby="speed-wide-title.*?</svg>', html, re.DOTALL)
        assert scatter is not None
        assert len(re.findall(r'<text[^>]*class="name', scatter.group())) <= 8

    def test_stay_readable_in_markdown_and_terminal(self, crowd):
        assert len(in_terminal(study_tables(crowd)).splitlines()) < 120
        assert "eagle3-101" in render_markdown(crowd)


class TestTerminal:
    def test_fits_eighty_columns_without_codes_in_a_pipe(self, summary):
        out = every_form(summary)["terminal"]
        assert max(len(line) for line in out.splitlines()) <= 80
        assert "\x1b" not in out

    def test_keeps_whole_intervals_and_verdicts(self, summary):
        out = in_terminal(study_tables(summary))
        assert re.search(r"eagle3-k3 +37\.\d +0\.46x \[0\.30, 0\.71\] +▼ slower +1\.87 +15/18", out)

    def test_arms_are_sorted_by_speedup_with_the_baseline_among_them(self, summary):
        out = in_terminal(study_tables(summary))
        names = re.findall(r"^ (\S+) +[\d.]+ +\d\.\d\dx", out, re.MULTILINE)
        assert names[:3] == ["eagle3-k4-pmin0.75", "eagle3-k1", "baseline"]

    def test_a_failed_trial_shows_cause_remedy_and_log(self, summary):
        out = in_terminal(trial_block(summary, summary.trials[-1].trial_id))
        assert "failed to create draft context" in out
        assert "use a smaller draft" in out
        assert "server.log" in out

    def test_an_unknown_trial_is_a_key_error(self, summary):
        with pytest.raises(KeyError):
            trial_block(summary, "9999-none")
