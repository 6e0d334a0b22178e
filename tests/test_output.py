"""Nothing that a terminal would obey reaches one, in no form of output."""

import io
import json
import sys

import pytest

from spectune.cli.output import say, show, show_document, show_json
from spectune.exchange.exports.tables import csv_text

OBEYED = "a\x1b]0;title\x07b\x9b31mc\u202ed\x00e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def is_harmless(text: str) -> bool:
    return not any(c in text for c in "\x1b\x9b\x07\x00\u202e")


def test_json_is_the_same_document_without_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    show_json(json.dumps({"name": OBEYED, "plain": "Zürich 東京\n"}, ensure_ascii=False) + "\n")
    written = capsys.readouterr().out
    assert is_harmless(written) and "東京" in written
    assert json.loads(written) == {"name": OBEYED, "plain": "Zürich 東京\n"}


def test_a_script_is_whole_in_a_pipe_and_harmless_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_document(f"exec {OBEYED}\n")
    assert capsys.readouterr().out == f"exec {OBEYED}\n"
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show_document(f"exec {OBEYED}\n")
    assert is_harmless(terminal.getvalue()) and terminal.getvalue().startswith("exec a")
    assert "-o FILE" in capsys.readouterr().err


def test_an_ordinary_table_is_shown_on_a_terminal_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show_document("a,b\r\n1,2\r\n")
    assert terminal.getvalue().split() == ["a,b", "1,2"]
    assert capsys.readouterr().err == ""


def test_a_cell_is_neither_a_formula_nor_an_escape() -> None:
    text = csv_text([["=cmd|' /C calc'!A0", OBEYED, -1.5], ["+1", "@SUM(A1)", 2]], ["name", "b", "c"])
    assert is_harmless(text)
    rows = [line.split(",") for line in text.splitlines()]
    assert rows[1][0] == "'=cmd|' /C calc'!A0" and rows[1][2] == "-1.5"
    assert rows[2][:2] == ["'+1", "'@SUM(A1)"]


def test_words_and_errors_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    show([OBEYED])
    say(f"spectune: {OBEYED}: HF_TOKEN=s3cr3t")
    written = capsys.readouterr()
    assert is_harmless(written.out + written.err)
    assert "s3cr3t" not in written.err
