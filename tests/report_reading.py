"""Reads a report back as a browser, a pipe or a colour terminal would."""

from __future__ import annotations

import io
from html.parser import HTMLParser

from rich.console import Console

from spectune.analysis.records import StudySummary
from spectune.report.html import render_html
from spectune.report.markdown import render_markdown
from spectune.report.terminal import study_tables, trial_block

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails on a tag that is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> closes <{self._open[-1:]}>"
        self._open.pop()

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]


def in_terminal(*renderables, width: int = 80, terminal: bool = False) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None
    )
    for renderable in renderables:
        console.print(renderable)
    return stream.getvalue()


def every_form(summary: StudySummary) -> dict[str, str]:
    blocks = [trial_block(summary, t.trial_id) for t in summary.trials]
    return {
        "html": render_html(summary),
        "markdown": render_markdown(summary),
        "terminal": in_terminal(study_tables(summary), *blocks),
    }
