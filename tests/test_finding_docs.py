"""The pages of findings are those of the rules, and the table of public cases names only what exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spectune.domain.findings import FindingKind
from spectune.runner.finding_kinds import GROUPS, KINDS

ROOT = Path(__file__).parent.parent
FINDINGS = ROOT / "docs" / "findings"
COVERAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
MADE = re.compile(r'\bcode="([a-z0-9-]+)"')


def test_the_pages_are_up_to_date() -> None:
    reply = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"], capture_output=True, text=True
    )
    assert reply.returncode == 0, f"run tools/make_docs.py\n{reply.stderr}"


def test_every_kind_has_one_code_and_one_page() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(codes) == len(set(codes))
    assert {path.stem for path in FINDINGS.glob("*.md")} == {*codes, "README"}


def test_every_code_in_the_source_belongs_to_a_kind_that_has_a_page() -> None:
    used = {
        code
        for path in (ROOT / "src" / "spectune").rglob("*.py")
        for code in MADE.findall(path.read_text(encoding="utf-8"))
    }
    assert used == {kind.code for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_a_kind_is_written_to_be_a_page(kind: FindingKind) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kind.code)
    assert not kind.title.endswith(".") and kind.explanation.rstrip().endswith((".", "`", ")"))
    assert kind.holds_for


def test_the_index_lists_every_kind_under_its_group() -> None:
    index = (FINDINGS / "README.md").read_text(encoding="utf-8")
    for title, _, kinds in GROUPS:
        part = index.split(f"\n## {title}\n")[1].split("\n## ")[0]
        assert {*re.findall(r"\[([a-z0-9-]+)\]\(\1\.md\)", part)} == {kind.code for kind in kinds}


class TestCoverage:
    def test_every_finding_it_names_has_a_page(self) -> None:
        named = set(re.findall(r"findings/([a-z0-9-]+)\.md", COVERAGE))
        assert len(named) > 80 and named <= {kind.code for kind in KINDS}

    def test_every_test_file_it_names_exists(self) -> None:
        for name in set(re.findall(r"`(test_[a-z_]+)`", COVERAGE)):
            assert (ROOT / "tests" / f"{name}.py").exists(), name

    def test_every_case_stands_in_one_row(self) -> None:
        cases = re.findall(r"^\| ([ABEF]\d\db?) \|", COVERAGE, re.MULTILINE)
        assert len(cases) == len(set(cases)) == 99

    def test_a_case_of_logs_is_a_log_of_the_tests(self) -> None:
        for row in COVERAGE.splitlines():
            case = re.match(r"\| (A\d\d) \|", row)
            if case and "test_diagnose_cases" in row:
                text = (ROOT / "tests" / "test_diagnose_cases.py").read_text(encoding="utf-8")
                assert case[1] in text
