"""Text from servers, models, prompts and files can act in no form of the report."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt
from report_reading import Page, every_form, in_terminal
from report_studies import (
    BASELINE,
    counts,
    failed,
    hypothesis,
    load_result,
    machine,
    request,
    speculative,
    study,
    trial,
)

from spectune.analysis.records import StudySummary
from spectune.analysis.summary import summarize
from spectune.analysis.words import one_line
from spectune.domain.findings import Evidence, Finding
from spectune.domain.trial import ServerFacts
from spectune.report.html import render_html
from spectune.report.markdown import render_markdown
from spectune.report.markdown_text import escape
from spectune.report.terminal import study_tables, trial_block

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "]]><b>",
    '"><svg onload=alert(1)>',
    "[red]bold[/red][/]",
    "\x1b[31mred\x1b[0m\x1b]8;;http://evil\x07link\x1b]8;;\x07",
    "a|b`c```d\n\n# e\r\nf",
    "{{ 7*7 }}{% raw %}",
    "[click](javascript:alert(1))",
    "```\n<b>out of the block</b>\n~~~\n",
    "back\u202eward\u2066x\x00\x9b31m",
    "&lt;i&gt; &amp; \\| \\",
    "# heading",
    "=cmd|' /C calc'!A0",
    "![picture](http://evil/x)",
    "[x]: javascript:alert(1)",
    "1. <javascript:alert(1)>",
]


def hostile_summary(text: str) -> StudySummary:
    """``text`` wherever a server, a model, a prompt or a file could put it."""
    arm = speculative(text, flags={text: text})
    broken = speculative(f"broken {text}", length=5)
    of = study(
        arm,
        broken,
        name=text,
        question=text,
        categories=(text, "other"),
        machine=machine(hostname=text, cpu=text, os=text, gpus=(text,)),
        skipped_arms=(text,),
    )
    doubt = Finding(
        code=text,
        severity="warning",
        subject=text,
        message=text,
        evidence=(Evidence(source=text, detail=text),),
        effect=text,
        remedy=text,
    )
    guess = hypothesis(compared_with_name=text, changed=(text,), why=text, observed=text, verdict="confirmed")
    records = [request(p, 120, text=f"x{text}", acceptance=counts(66, 33)) for p in of.workload.prompts]
    records.append(request(of.workload.prompts[0], 1, error=text))
    broken_trial = failed(of, broken, 3, cause=text)
    assert broken_trial.failure is not None
    failure = broken_trial.failure.model_copy(
        update={"log_tail": (text, text), "phase": text, "remedy": text}
    )
    return summarize(
        of,
        [
            trial(of, BASELINE, 1, speeds=100.0, phases_s={text: 1.0}),
            trial(
                of,
                arm,
                2,
                loads=(load_result(records),),
                command=("server", "--model", text),
                env={"NAME": text},
                hypothesis=guess,
                findings=(doubt,),
                server=ServerFacts(engine=text, version=text, model=text),
            ),
            broken_trial.model_copy(update={"failure": failure}),
        ],
    )


def rendered_markdown(text: str) -> Page:
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    return Page(parser.render(render_markdown(hostile_summary(text))))


@pytest.mark.parametrize("text", HOSTILE)
class TestHostileText:
    def test_adds_no_element_and_no_attribute_to_the_page(self, text):
        page, harmless = (
            Page(render_html(hostile_summary(text))),
            Page(render_html(hostile_summary("harmless"))),
        )
        assert set(page.tags) == set(harmless.tags)
        assert page.tags.count("svg") == harmless.tags.count("svg")
        assert not [name for _, name, _ in page.attributes if name.startswith("on")]
        assert [v for v in page.values("href") if not v.startswith("#")] == []

    def test_leaves_no_control_or_direction_mark_on_the_page(self, text):
        html = render_html(hostile_summary(text))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)

    def test_is_readable_on_the_page(self, text):
        shown = " ".join(one_line(text).split())
        assert shown in Page(render_html(hostile_summary(text))).words

    def test_sends_no_control_code_to_a_terminal(self, text):
        out = every_form(hostile_summary(text))["terminal"]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", out)

    def test_sends_only_richs_own_styles_to_a_colour_terminal(self, text):
        summary = hostile_summary(text)
        blocks = [trial_block(summary, t.trial_id) for t in summary.trials]
        out = in_terminal(study_tables(summary), *blocks, terminal=True)
        codes = set(re.findall(r"\x1b\[([0-9;]*)m", out))
        assert codes <= {"0", "1", "2", "31", "32", "33", "35", "36", "1;31", "1;32", "1;2", "2;1", "3"}
        assert "\x1b]" not in out

    def test_changes_no_structure_of_the_markdown(self, text):
        """As a real parser with tables and raw HTML sees it."""
        page, harmless = rendered_markdown(text), rendered_markdown("harmless")
        assert page.tags == harmless.tags
        assert page.values("href") == page.values("src") == []

    def test_is_readable_in_the_markdown(self, text):
        assert one_line(text).replace("@", "") in rendered_markdown(text).words.replace("@", "")


def test_markdown_escapes_tags_and_emphasis_and_leaves_words_alone():
    assert escape("<b> *x* a_b _c_ [1, 2]") == r"&lt;b&gt; \*x\* a_b \_c\_ [1, 2]"
