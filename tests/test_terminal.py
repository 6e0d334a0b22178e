"""The view of a running study at 80 columns: in a terminal, in tmux, in a pipe and in a notebook."""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from progress_script import MESSAGE, NAME, QUESTION

from spectune.api.progress import can_redraw

HERE = Path(__file__).parent
SCRIPT = [sys.executable, str(HERE / "progress_script.py")]
CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TERM")}
    source = str(HERE.parent / "src")
    return {**kept, "PYTHONPATH": f"{source}{os.pathsep}{HERE}", "TERM": "xterm-256color", **changes}


def in_pty(**changes: str) -> str:
    """What a terminal of 80 columns is sent."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen(SCRIPT, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**changes))
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    assert process.wait(30) == 0
    return b"".join(pieces).decode().replace("\r\n", "\n")


def in_pipe(**changes: str) -> str:
    reply = subprocess.run(SCRIPT, capture_output=True, text=True, env=environment(**changes), timeout=60)
    assert reply.returncode == 0, reply.stderr
    assert reply.stdout == ""
    return reply.stderr


def words(text: str) -> str:
    return " ".join(text.split())


class TestPipe:
    def test_gets_whole_lines_without_a_code(self) -> None:
        text = in_pipe()
        assert not CONTROL.search(text) and "\r" not in text
        lines = text.splitlines()
        assert f"study made-up: {QUESTION}" in lines and MESSAGE in lines
        assert f"[2/2] {NAME}, launch 1, about 1:35 to go" in lines
        assert [line for line in lines if line == "    measure"] == ["    measure"] * 2


class TestNotebook:
    def test_a_command_gets_plain_lines_though_its_output_is_a_terminal(self) -> None:
        text = in_pty(JPY_PARENT_PID="1", FORCE_COLOR="1", CLICOLOR="1", TERM="xterm-color")
        assert not CONTROL.search(COLOUR.sub("", text)) and "\r" not in text
        assert "    measure\n" in COLOUR.sub("", text)

    @pytest.mark.browser  # its extra has the kernel
    def test_a_real_kernel_shows_no_litter(self) -> None:
        pytest.importorskip("ipykernel", reason="no notebook kernel here (extra browser)")
        manager = pytest.importorskip("jupyter_client.manager")
        kernel, client = manager.start_new_kernel(env=environment())
        try:
            shown: list[str] = []

            def note(message: dict) -> None:
                if message["msg_type"] == "stream":
                    shown.append(message["content"]["text"])
                elif message["msg_type"] in ("display_data", "error", "execute_result"):
                    shown.append(f"\x00{message['content']}")

            command = " ".join(SCRIPT)
            for cell in (
                f"!{command}",
                f"%%bash\n{command}",
                "import progress_script; progress_script.main(0.0)",
            ):
                shown.clear()
                client.execute_interactive(cell, timeout=120, output_hook=note)
                text = COLOUR.sub("", "".join(shown)).replace("\r\n", "\n")
                assert "the end" in text and words(MESSAGE) in words(text), text
                assert not CONTROL.search(text), cell
        finally:
            client.stop_channels()
            kernel.shutdown_kernel(now=True)


class TestTerminal:
    def test_redraws_its_panel_and_breaks_lines_at_words(self) -> None:
        text = in_pty()
        assert "\x1b[" in COLOUR.sub("", text), "the panel is drawn over"
        lines = [CODE.sub("", line) for line in text.splitlines()]
        assert any(line.rstrip().endswith("longer than eighty") for line in lines)
        assert any(line.startswith("columns shown without") for line in lines)


@pytest.mark.parametrize(
    ("isatty", "environ", "expected"),
    [
        (True, {"TERM": "xterm-256color"}, True),
        (True, {}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "xterm-color", "JPY_PARENT_PID": "7"}, False),
        (False, {"TERM": "xterm-256color", "FORCE_COLOR": "1"}, False),
    ],
)
def test_only_what_can_be_written_over_is(isatty: bool, environ: dict[str, str], expected: bool) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return isatty

    assert can_redraw(Stream(), environ) is expected


@pytest.fixture
def tmux() -> Iterator[list[str]]:
    """A server of its own, with a window of 80 columns that runs the script."""
    program = shutil.which("tmux")
    if program is None:
        pytest.skip("no tmux here")
    command = [program, "-L", f"spectune-{uuid.uuid4().hex[:8]}", "-f", "/dev/null"]
    run = " ".join([*SCRIPT, "0.3", ";", "sleep", "60"])
    started = subprocess.run(
        [*command, "new-session", "-d", "-x", "80", "-y", "24", run],
        env=environment(),
        capture_output=True,
        text=True,
    )
    if started.returncode:
        pytest.skip(f"tmux does not start here: {started.stderr.strip()}")
    yield command
    subprocess.run([*command, "kill-server"], check=False, capture_output=True)


def test_tmux_shows_one_panel_and_then_none(tmux: list[str]) -> None:
    panels = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shot = subprocess.run(
            [*tmux, "capture-pane", "-p", "-S", "-1000"], capture_output=True, text=True
        ).stdout
        panels.append(len(re.findall(r"^elapsed ", shot, re.MULTILINE)))
        if "the end" in shot:
            break
        time.sleep(0.1)
    assert max(panels) == 1 and panels[-1] == 0
    lines = [line.rstrip() for line in shot.splitlines()]
    assert max(len(line) for line in lines) <= 80
    assert words(shot).count(QUESTION) == 1 and words(shot).count(MESSAGE) == 2, "no word is broken"
    assert words(shot).count(f"[2/2] {NAME}, launch 1, about 1:35 to go") == 1
