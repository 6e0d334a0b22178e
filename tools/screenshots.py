"""Takes the pictures of docs/report.md from a real study: ``tools/screenshots.py STUDY_DIR``, or ``--live URL``.

``--live``: of the page that ``spectune watch`` serves while a study runs. Needs the extra ``browser``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from spectune.analysis.summary import summarize
from spectune.report.html import render_html
from spectune.store.study_dir import StudyDir

IMAGES = Path(__file__).parent.parent / "docs" / "images"
REPORT = {
    # name: width, height, dark, section at the top
    "report-light": (1120, 1330, False, None),
    "report-charts": (1120, 1420, False, "acceptance"),
    "report-dark": (1120, 900, True, "arms"),
    "report-phone": (375, 1100, False, "arms"),
}
LIVE = {"live": (1120, 900, False, None), "live-phone": (375, 1000, True, None)}


@contextmanager
def browser() -> Iterator[Any]:
    with sync_playwright() as driver:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        yield started
        started.close()


def take(started: Any, url: str, pictures: dict[str, tuple[int, int, bool, str | None]]) -> None:
    for name, (width, height, dark, section) in pictures.items():
        context = started.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto(url)
        page.wait_for_timeout(2500)
        if section is not None:
            page.evaluate("(id) => document.getElementById(id).scrollIntoView()", section)
            page.wait_for_timeout(300)
        page.screenshot(path=IMAGES / f"{name}.png")
        context.close()
        print(IMAGES / f"{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study_dir", nargs="?")
    parser.add_argument("--live", metavar="URL")
    args = parser.parse_args()
    if (args.study_dir is None) == (args.live is None):
        parser.error("give either STUDY_DIR or --live URL")
    IMAGES.mkdir(exist_ok=True)
    with browser() as started:
        if args.live:
            take(started, args.live, LIVE)
            return
        directory = StudyDir.open(Path(args.study_dir))
        html = render_html(summarize(directory.read_study(), directory.read_trials()))
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            page.write_text(html, encoding="utf-8")
            take(started, page.as_uri(), REPORT)


if __name__ == "__main__":
    main()
