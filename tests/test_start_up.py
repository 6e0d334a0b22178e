"""``--help`` and ``import spectune`` load nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = ("pydantic", "rich", "scipy", "numpy", "psutil", "httptools", "jinja2", "yaml", "asyncio", "fsspec")


@pytest.mark.parametrize(
    "code", ["import spectune", "from spectune.cli.main import build_parser; build_parser()"]
)
def test_starting_up_imports_nothing_heavy(code: str) -> None:
    probe = f"import sys\n{code}\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    reply = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert reply.stdout.strip() == "[]"


def test_help_and_version_answer() -> None:
    for args, words in (
        (["--help"], "COMMAND"),
        (["--version"], "spectune 0."),
        (["run", "--help"], "--dry-run"),
    ):
        reply = subprocess.run([sys.executable, "-m", "spectune", *args], capture_output=True, text=True)
        assert reply.returncode == 0
        assert words in reply.stdout


def test_no_command_shows_the_help_and_fails() -> None:
    reply = subprocess.run([sys.executable, "-m", "spectune"], capture_output=True, text=True)
    assert reply.returncode == 2
    assert "demo" in reply.stdout
