"""The report and the live page in a real browser: eyes, keyboard, phone, print, screen reader, and hostile text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import (
    PHONE,
    WIDE,
    accessibility_findings,
    opened,
    processor_s,
    saved,
    started_browser,
    wait_until,
)
from report_realistic import realistic
from report_studies import BASELINE, failed, speculative, study, trial
from test_abort import Run, until
from test_report_hostile import HOSTILE, hostile_summary
from watched_study import Client, begin_trial, being_run, served, stored

from spectune.analysis.summary import summarize
from spectune.report.html import render_html
from spectune.store.progress import ProgressFile
from spectune.store.study_dir import StudyDir, TrialDir

pytestmark = pytest.mark.browser

LONG = "a-name-of-an-arm-that-somebody-made-by-joining-every-flag-of-it-" * 3


def lengthened() -> tuple[Any, Any]:
    """The realistic study with contexts of different lengths."""
    of, trials = realistic()
    tokens = {p.prompt_id: 60 + 45 * i for i, p in enumerate(of.workload.prompts)}
    changed = []
    for one in trials:
        loads = tuple(
            load.model_copy(
                update={
                    "requests": tuple(
                        r.model_copy(update={"prompt_tokens": tokens[r.prompt_id]}) for r in load.requests
                    )
                }
            )
            for load in one.loads
        )
        changed.append(one.model_copy(update={"loads": loads}))
    return of, changed


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("report"), render_html(summarize(*lengthened())))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, report: str) -> dict[str, str]:
    """Reports of several kinds, by name."""
    only_failures = study(speculative("a"))
    long_names = study(speculative(LONG, flags={LONG: LONG}), name=LONG, question=LONG)
    made = {
        "failures": summarize(
            only_failures, [failed(only_failures, arm, i + 1) for i, arm in enumerate(only_failures.arms)]
        ),
        "empty": summarize(only_failures, []),
        "long names": summarize(
            long_names,
            [trial(long_names, arm, i + 1, speeds=100.0 + i) for i, arm in enumerate(long_names.arms)],
        ),
        "200 arms": summarize(*realistic(num_arms=200)),
        "hostile": hostile_summary(" ".join(HOSTILE)),
    }
    found = {name: saved(tmp_path_factory.mktemp("page"), render_html(s)) for name, s in made.items()}
    return {"whole": report, **found}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Client]:
    """The live page of a study whose first trial has ended and whose second is loading."""
    of = study(speculative("drafting"), speculative("next", length=5))
    directory = stored(tmp_path / "study", of, [trial(of, BASELINE, 1, speeds=100.0)])
    begin_trial(directory, of.arms[1], log="".join(f"loading shard {i} of 40\n" for i in range(40)))
    with being_run(directory), served(directory) as client:
        yield client


KINDS = ["whole", "failures", "empty", "long names", "200 arms", "hostile"]


class TestReport:
    def test_has_no_accessibility_finding(self, browser: Any, report: str) -> None:
        with opened(browser, report) as seen:
            assert accessibility_findings(seen.page) == []

    def test_has_enough_contrast_in_the_dark(self, browser: Any, report: str) -> None:
        with opened(browser, report, dark=True) as seen:
            assert accessibility_findings(seen.page, all_else=False) == []

    def test_has_none_on_a_phone(self, browser: Any, report: str) -> None:
        with opened(browser, report, size=PHONE) as seen:
            assert accessibility_findings(seen.page, contrast=False) == []

    @pytest.mark.parametrize("kind", ["failures", "empty", "hostile", "long names"])
    def test_has_none_whatever_the_study_holds(self, browser: Any, pages: dict[str, str], kind: str) -> None:
        with opened(browser, pages[kind]) as seen:
            assert accessibility_findings(seen.page, contrast=False) == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_phone_scrolls_it_in_one_direction(
        self, browser: Any, pages: dict[str, str], kind: str
    ) -> None:
        with opened(browser, pages[kind], size=PHONE) as seen:
            assert seen.page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
            assert seen.errors == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_asks_the_network_for_nothing_and_runs_nothing(
        self,
        browser: Any,
        pages: dict[str, str],
        kind: str,
    ) -> None:
        with opened(browser, pages[kind]) as seen:
            seen.page.wait_for_load_state("networkidle")
            assert (seen.requests, seen.dialogs, seen.errors) == ([pages[kind]], [], [])
            assert seen.page.locator("script, img, iframe, object, embed, link").count() == 0

    def test_the_keyboard_reaches_the_answer_first_and_then_everything(
        self, browser: Any, report: str
    ) -> None:
        with opened(browser, report) as seen:
            page = seen.page
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
            assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
            page.keyboard.press("Enter")
            wait_until(page, "document.activeElement.id === 'answer'")
            wanted = page.evaluate(
                "[...document.querySelectorAll('main a, main summary, main [tabindex=\"0\"]')]"
                ".filter((e) => e.checkVisibility()).length"
            )
            reached, faint = set(), []
            for _ in range(wanted + 5):
                page.keyboard.press("Tab")
                place, outline = page.evaluate(
                    "(() => { const e = document.activeElement; return ["
                    "[...document.querySelectorAll('*')].indexOf(e), getComputedStyle(e).outlineStyle]; })()"
                )
                if page.evaluate("document.activeElement === document.body"):
                    break
                reached.add(place)
                if outline == "none":
                    faint.append(page.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
            assert len(reached) == wanted
            assert faint == [], "the focus is always seen"

    def test_folds_open_with_the_keyboard(self, browser: Any, report: str) -> None:
        with opened(browser, report) as seen:
            fold = seen.page.locator("#provenance details").first
            fold.locator("summary").focus()
            seen.page.keyboard.press("Enter")
            assert fold.evaluate("(d) => d.open") is True
            seen.page.keyboard.press("Space")
            assert fold.evaluate("(d) => d.open") is False

    def test_dark_and_light_follow_the_reader(self, browser: Any, report: str) -> None:
        grounds = []
        for dark in (False, True):
            with opened(browser, report, dark=dark) as seen:
                colour = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
                grounds.append(sum(int(n) for n in colour[4:-1].split(",")))
        assert grounds[0] > 3 * 200 and grounds[1] < 3 * 60

    def test_paper_shows_what_was_folded_and_no_navigation(self, browser: Any, report: str) -> None:
        with opened(browser, report, dark=True) as seen:
            page = seen.page
            page.emulate_media(media="print")
            assert not page.locator("nav").is_visible()
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            hidden = page.evaluate(
                "[...document.querySelectorAll('details > :not(summary)')].filter("
                "(e) => !e.checkVisibility() || e.getBoundingClientRect().height === 0).length"
            )
            assert hidden == 0
            ink = page.evaluate("getComputedStyle(document.querySelector('.headline')).color")
            assert sum(int(n) for n in ink[4:-1].split(",")) < 3 * 100, "dark ink on white paper"
            assert page.pdf(format="A4")[:5] == b"%PDF-"

    def test_two_hundred_arms_are_there_soon(self, browser: Any, pages: dict[str, str]) -> None:
        before = processor_s(browser)
        with opened(browser, pages["200 arms"]) as seen:
            assert seen.page.locator("#arms tbody tr").count() >= 200
            spent = processor_s(browser) - before
        assert spent < 8, "seconds of processor, of every process of the browser"


class TestHostileText:
    @pytest.mark.parametrize("text", HOSTILE)
    def test_stays_text_on_the_live_page(self, browser: Any, tmp_path: Path, text: str) -> None:
        of = study(speculative(text, flags={text: text}), name=text, question=text)
        directory = stored(tmp_path / "study", of, [trial(of, BASELINE, 1, speeds=100.0)])
        _, progress = begin_trial(directory, of.arms[1], log=text + "\n", why=text)
        progress.note_phase(text[:30])
        progress.note_message(text)
        with being_run(directory), served(directory) as client, opened(browser, client.server.url) as seen:
            page = seen.page
            page.wait_for_selector(".trial")
            assert page.locator(".trial pre").text_content().strip() != ""
            assert (
                page.evaluate("document.querySelectorAll('script, img, iframe, [onerror], [onload]').length")
                == 1
            )
            assert page.locator(".trial *").evaluate_all(
                "(all) => [...new Set(all.map((e) => e.localName))].sort()"
            ) == ["button", "details", "div", "h3", "p", "pre", "progress", "summary"]
            assert (seen.dialogs, seen.errors) == ([], [])
            assert all(url.startswith(f"http://127.0.0.1:{client.server.port}/") for url in seen.requests)


class TestLivePage:
    @pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (PHONE, True)], ids=["wide", "phone"])
    def test_has_no_accessibility_finding_and_fits(
        self, browser: Any, live: Client, size: tuple[int, int], dark: bool
    ) -> None:
        with opened(browser, live.server.url, size=size, dark=dark) as seen:
            seen.page.wait_for_selector(".trial")
            assert seen.page.evaluate("document.documentElement.scrollWidth") == size[0]
            assert accessibility_findings(seen.page) == []
            seen.page.click("#abort-run")
            assert accessibility_findings(seen.page, contrast=False) == []

    def test_renews_the_report_and_leaves_the_reader_where_they_were(
        self, browser: Any, live: Client
    ) -> None:
        directory: StudyDir = live.server.view.directory
        with opened(browser, live.server.url, reduced_motion="reduce") as seen:
            page = seen.page
            page.wait_for_selector(".trial")
            assert "drafting" in page.locator(".trial h3").text_content()
            fold = "#provenance details >> nth=0"
            page.locator(f"{fold} >> summary").focus()
            page.keyboard.press("Enter")
            place = "document.querySelector('#provenance').getBoundingClientRect().top"
            read_at = page.evaluate(place)
            before = page.locator(".headline").text_content()
            (path,) = [p for p in directory.trial_paths() if not (p / "trial.json").exists()]
            ended = trial(directory.read_study(), directory.read_study().arms[1], 2, speeds=250.0)
            for record in ended.loads[0].requests:
                TrialDir(path).append_request(0, record)
            TrialDir(path).finish(ended.model_copy(update={"trial_id": path.name}))
            wait_until(page, f"document.querySelector('.headline').textContent !== {json.dumps(before)}")
            assert "2.50x" in page.locator(".headline").text_content()
            assert page.locator("#live-best").text_content().startswith("drafting, 2.50x")
            assert page.locator(".trial").count() == 0
            assert page.locator(fold).evaluate("(d) => d.open") is True
            assert page.evaluate("document.activeElement.localName") == "summary"
            assert abs(page.evaluate(place) - read_at) < 5, "what is read stays where it is"
            assert seen.errors == []

    def test_speaks_when_the_phase_changes_and_not_every_second(self, browser: Any, live: Client) -> None:
        directory: StudyDir = live.server.view.directory
        path = directory.trial_paths()[-1]
        with opened(browser, live.server.url) as seen:
            page = seen.page
            page.wait_for_selector(".trial")
            page.evaluate(
                "window.spoken = []; new MutationObserver(() => window.spoken.push("
                "document.getElementById('live-said').textContent)).observe("
                "document.getElementById('live-said'), {childList: true})"
            )
            ProgressFile(path).note_phase("measure")
            wait_until(page, "document.querySelector('.phase-line').textContent.includes('measure')")
            wait_until(page, "document.querySelector('.phase-line').textContent.includes('0:02')")
            assert page.evaluate("window.spoken") == ["Trial 2, drafting: measure"]

    def test_says_when_nobody_answers_and_goes_on_when_somebody_does(
        self, browser: Any, live: Client
    ) -> None:
        with opened(browser, live.server.url) as seen:
            page = seen.page
            page.wait_for_selector(".trial")
            page.route("**/state", lambda route: route.abort())
            wait_until(page, "document.getElementById('live-alert').textContent.includes('No answer')")
            page.unroute("**/state")
            wait_until(page, "document.getElementById('live-alert').textContent === ''")

    def test_keeping_it_running_is_the_first_answer_and_escape_another(
        self, browser: Any, live: Client
    ) -> None:
        with opened(browser, live.server.url) as seen:
            page = seen.page
            page.wait_for_selector(".trial")
            for key in ("Enter", "Escape"):
                page.locator(".trial button").focus()
                page.keyboard.press("Enter")
                assert page.locator("#live-dialog").is_visible()
                assert page.evaluate("document.activeElement.id") == "dialog-no"
                page.keyboard.press(key)
                assert not page.locator("#live-dialog").is_visible()
            assert not any("/abort" in url for url in seen.requests)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for process in made.servers():  # left by a test that failed half-way
        process.kill()


def test_the_keyboard_alone_stops_a_trial_that_is_being_measured(browser: Any, run: Run) -> None:
    process = run.start()
    until(lambda: StudyDir.exists(run.directory.path))
    with served(run.directory) as client, opened(browser, client.server.url) as seen:
        page = seen.page
        wait_until(
            page,
            "[...document.querySelectorAll('.trial')].some((t) => t.textContent.includes('slow') && "
            "t.querySelector('.phase-line').textContent.startsWith('measure'))",
        )
        page.locator(".trial button").focus()
        page.keyboard.press("Enter")
        assert "slow" in page.locator("#dialog-title").text_content()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        wait_until(page, "document.querySelector('main').textContent.includes('aborted:')")
        page.locator("#abort-run").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert process.wait(timeout=60) == 130
        wait_until(page, "document.getElementById('live').dataset.state === 'stopped'")
        assert seen.errors == []
    assert run.servers() == []
