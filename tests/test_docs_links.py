"""Links inside the repository's Markdown and notebooks lead somewhere, and examples are what they say. No site tool."""

from __future__ import annotations

import json
import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

import spectune
from spectune.cli.main import build_parser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
HAND_WRITTEN = sorted(p for p in DOCS.rglob("*.md") if p.parent.name not in ("findings", "data"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *HAND_WRITTEN]
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
STUDY = re.compile(r"```yaml\n(question:.*?)```", re.DOTALL)


def text_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def links_of(path: Path) -> list[str]:
    found = LINK.findall(FENCE.sub("", text_of(path)))
    return [link for link in found if not link.startswith(("http://", "https://", "mailto:"))]


def anchors_of(path: Path) -> set[str]:
    """As Python-Markdown and GitHub make them of these headings: lower case, no punctuation, dashes for spaces."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(path)), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", head.replace("`", "")).strip().lower() for head in heads)
    return {re.sub(r"\s+", "-", head) for head in plain}


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(DOCS.rglob("*.ipynb"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_internal_links_lead_to_a_file_and_its_heading(page: Path) -> None:
    for link in links_of(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        inside = target.is_relative_to(DOCS) or not page.is_relative_to(DOCS)
        assert inside, f"{link}: leads out of docs/, where the site has no page"
        assert not anchor or anchor in anchors_of(target), f"{link}: no such heading"


def test_links_of_finding_pages_lead_to_a_file() -> None:
    for page in (DOCS / "findings").glob("*.md"):
        for link in links_of(page):
            assert (page.parent / link.partition("#")[0]).exists(), f"{page.name}: {link}"


def test_every_page_is_in_the_menu_of_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    menu = set(re.findall(r"[\w/-]+\.md", json.dumps(site["nav"])))
    notebooks = {str(p.relative_to(DOCS).with_suffix(".md")) for p in DOCS.rglob("*.ipynb")}
    written = {str(p.relative_to(DOCS)) for p in HAND_WRITTEN}
    assert menu == written | notebooks | {"findings/README.md"}


def studies() -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}-{number}", text)
        for page in PAGES
        for number, text in enumerate(STUDY.findall(text_of(page)), start=1)
    ]


@pytest.mark.parametrize("text", [t for _, t in studies()], ids=[name for name, _ in studies()])
def test_a_study_in_the_docs_can_be_planned(text: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    preview = spectune.load_study(path).preview()
    assert preview.launches >= 2 and len(preview.commands) >= 2


def commands() -> list[list[str]]:
    """Examples that begin with ``spectune``, as words: with the lines they go on in, and without comments."""
    found = []
    for page in PAGES:
        lines = iter(text_of(page).splitlines())
        for line in lines:
            if match := re.match(r"    (?:\$ )?(spectune .+)", line):
                command = match[1]
                while command.endswith("\\") or command.count('"') % 2:
                    command = f"{command.removesuffix(chr(92))} {next(lines).strip()}"
                found.append(shlex.split(command, comments=True)[1:])
    return [words for words in found if not {"...", "[options]", "|"} & set(words)]


def test_every_command_in_the_docs_is_understood() -> None:
    assert len(commands()) > 30
    for words in commands():
        own = list(takewhile(lambda word: word != ">", words))
        args, unknown = build_parser().parse_known_args(own)
        assert not unknown and args.command, words
