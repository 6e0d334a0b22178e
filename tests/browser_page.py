"""A real browser: one that is installed here, driven by playwright. Without either, its tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sshd_fixture import INSTALL_VARIABLE

BROWSER_VARIABLE = "SPECTUNE_TEST_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "chrome")
PATIENCE_MS = 120_000
WIDE = (1200, 900)
PHONE = (375, 812)


def browser_program(own: str) -> str:
    """Path of a Chromium; ``own`` is where playwright would have put its. Installs one where that was asked for."""
    named = os.environ.get(BROWSER_VARIABLE)
    if named:
        assert Path(named).exists(), f"{BROWSER_VARIABLE}={named}: no such program"
        return named
    found = _installed(own)
    if found is None and os.environ.get(INSTALL_VARIABLE) and os.getuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"],
        ):
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, check=False, timeout=300, env=environment)
        found = _installed(own)
    if found is None:
        pytest.skip(
            f"no browser here: install chromium, or `playwright install chromium`, or name one in {BROWSER_VARIABLE}"
        )
    return found


def _installed(own: str) -> str | None:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return own if found is None and Path(own).exists() else found


@contextmanager
def started_browser() -> Iterator[Any]:
    """Skips the test where there is none."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (extra browser)"
    )
    with sync_api.sync_playwright() as driver:
        program = browser_program(driver.chromium.executable_path)
        started = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"], timeout=120_000
        )
        try:
            yield started
        finally:
            started.close()


@dataclass
class Seen:
    """What happened in a page beyond what was asked for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    """Uncaught exceptions and console errors: what the page's policy refused is among them."""
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


@contextmanager
def opened(
    browser: Any, url: str, *, size: tuple[int, int] = WIDE, dark: bool = False, **options: Any
) -> Iterator[Seen]:
    """A page in a profile of its own."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        **options,
    )
    context.set_default_timeout(PATIENCE_MS)
    seen = Seen(context.new_page())
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on(
        "console", lambda message: seen.errors.append(message.text) if message.type == "error" else 0
    )
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
    try:
        seen.page.goto(url)
        yield seen
    finally:
        context.close()


def wait_until(page: Any, expression: str, *, limit_s: float = 90) -> None:
    """Until the JavaScript ``expression`` holds. The page's own policy forbids playwright's way to wait for it."""
    deadline = time.monotonic() + limit_s
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def accessibility_findings(page: Any, *, contrast: bool = True, all_else: bool = True) -> list[str]:
    """What axe-core finds, one line each: rule, impact, elements. Everything folded is unfolded first.

    ``contrast`` takes most of the time, and depends on the colour scheme alone.
    """
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed (extra browser)"
    )
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    options: dict[str, Any] = {"rules": {"color-contrast": {"enabled": contrast}}}
    if not all_else:
        options = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
    found = axe.Axe().run(page, options=options).response
    assert len(found["passes"]) >= (10 if all_else else 1), "axe did look"
    return [
        f"{v['id']} ({v['impact']}): "
        + "; ".join(f"{node['target']} {node['html'][:120]}" for node in v["nodes"][:3])
        for v in found["violations"]
    ]


def processor_s(browser: Any) -> float:
    """Processor time of the browser's living processes so far."""
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return float(sum(process["cpuTime"] for process in found))


def saved(folder: Path, html: str) -> str:
    """The address of a report on disk."""
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path.as_uri()
