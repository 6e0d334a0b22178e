"""Each finding is a page and a rule, the published pages are those of the package, and so is the table of cases."""

import re
import subprocess
import sys
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from spectune.findings.catalogue import GROUPS, FindingKind, PageError, all_kinds, finding_kind, read_page

ROOT = Path(__file__).parent.parent
FINDINGS = ROOT / "docs" / "findings"
COVERAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "spectune").rglob("*.py"))
CODES = {kind.code for kind in all_kinds()}
NAMED = re.findall(r'^(\w+) = finding_kind\("([a-z0-9-]+)"\)$', SOURCE, re.MULTILINE)
PAGE = """\
---
group: Flags
severity: warning
title: A: b, and `c`
holds for: vLLM 0.9
source: https://example.org/a
source: measured
---

What happens.
"""


def test_the_pages_are_up_to_date() -> None:
    reply = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"], capture_output=True, text=True
    )
    assert reply.returncode == 0, f"run tools/make_docs.py\n{reply.stderr}"


def test_every_page_is_published() -> None:
    assert {path.stem for path in FINDINGS.glob("*.md")} == {*CODES, "README"}


def test_the_package_holds_the_pages_where_its_readers_look() -> None:
    assert {page.name for page in (files("spectune.findings") / "pages").iterdir()} == {
        f"{code}.md" for code in CODES
    }


def test_every_page_is_named_by_one_rule_and_every_name_has_a_page() -> None:
    times = Counter(code for _, code in NAMED)
    assert len(NAMED) == SOURCE.count('finding_kind("'), "a rule's kind is NAME = finding_kind(CODE)"
    assert set(times) - CODES == set(), "named by a rule, without a page"
    assert CODES - set(times) == set(), "pages that no rule names"
    assert max(times.values()) == 1
    assert set(re.findall(r'\bcode="([a-z0-9-]+)"', SOURCE)) <= CODES


@pytest.mark.parametrize(("name", "code"), NAMED, ids=lambda text: str(text))
def test_a_kind_that_is_named_is_used(name: str, code: str) -> None:
    assert len(re.findall(rf"\b{name}\b", SOURCE)) > 1, f"{code} is never found"


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.code)
def test_a_kind_is_written_to_be_a_page(kind: FindingKind) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kind.code)
    assert not kind.title.endswith(".") and kind.explanation.rstrip().endswith((".", "`", ")"))


def test_a_page_is_read_as_it_is_written() -> None:
    kind = read_page("a-b", PAGE)
    assert (kind.code, kind.group, kind.severity) == ("a-b", "Flags", "warning")
    assert (kind.title, kind.explanation) == ("A: b, and `c`", "What happens.")
    assert kind.sources == ("https://example.org/a", "measured")
    assert (kind.effect, kind.remedy, kind.slows) == (None, None, False)
    assert read_page("a-b", PAGE.replace("holds", "slows: yes\nholds")).slows


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("---\ngroup", "group", "a-b.md:1: a page begins with its keys"),
        ("holds for", "holds-for", "a-b.md:5: no key 'holds-for'; valid: group, severity"),
        ("group: Flags", "group: Flaggs", "a-b.md:2: group is 'Flaggs'; valid: Draft and target, Flags"),
        ("warning", "bad", "a-b.md:3: severity is 'bad'; valid: error, warning, note"),
        ("holds", "slows: no\nholds", "a-b.md:5: slows is 'no'; valid: yes"),
        ("title: A: b, and `c`", "title:", "a-b.md:4: no key 'title:'"),
        ("title: A", "title:  A", "a-b.md:4: title has no value, or blanks around it"),
        ("source: measured", "severity: note", "a-b.md:7: severity is given twice"),
        ("severity: warning\n", "", "a-b.md:7: severity missing"),
        ("What happens.\n", "", "a-b.md:8: explanation missing"),
    ],
)
def test_a_mistake_in_a_page_is_named_with_its_place(old: str, new: str, message: str) -> None:
    with pytest.raises(PageError, match=f"^{re.escape(message)}"):
        read_page("a-b", PAGE.replace(old, new, 1))


def test_a_code_without_a_page_is_named() -> None:
    with pytest.raises(PageError, match=r"^the finding no-such has no page: .*no-such\.md$"):
        finding_kind("no-such")


def test_the_index_lists_every_kind_under_its_group() -> None:
    index = (FINDINGS / "README.md").read_text(encoding="utf-8")
    for title in GROUPS:
        part = index.split(f"\n## {title}\n")[1].split("\n## ")[0]
        listed = {*re.findall(r"\[([a-z0-9-]+)\]\(\1\.md\)", part)}
        assert listed == {kind.code for kind in all_kinds() if kind.group == title}


class TestCoverage:
    def test_every_finding_it_names_has_a_page(self) -> None:
        named = set(re.findall(r"findings/([a-z0-9-]+)\.md", COVERAGE))
        assert len(named) > 80 and named <= CODES

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
