"""A program that runs, what it says and when it said it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

from faults_table import Unexpected

from spectune.hosts import supervisor


class Running:
    """A command line that runs; its lines of standard error with the time of their coming."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.lines: list[tuple[float, str]] = []
        self._output: list[bytes] = []
        self._news = threading.Condition()
        self._has_ended = False
        assert process.stderr is not None and process.stdout is not None
        self._threads = [
            threading.Thread(target=self._read_errors, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_errors(self) -> None:
        for line in self.process.stderr or ():
            with self._news:
                self.lines.append((time.monotonic(), line.decode(errors="replace").rstrip("\n")))
                self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        self._output.append(self.process.stdout.read())

    @property
    def errors(self) -> str:
        return "\n".join(line for _, line in self.lines)

    @property
    def output(self) -> str:
        return b"".join(self._output).decode(errors="replace")

    def line(self, text: str, *, after: str | None = None, nth: int = 1, timeout_s: float = 40.0) -> float:
        """Waits for the ``nth`` line that is ``text``, ignoring spaces around; returns when it came."""

        def found() -> float | None:
            passed, times = after is None, 0
            for came, line in self.lines:
                passed = passed or line.strip() == after
                times += passed and line.strip() == text
                if times == nth:
                    return came
            return None

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._has_ended, timeout=timeout_s)
            if found() is None:
                raise Unexpected(f"no line {text!r} within {timeout_s:g} s; got: {self.errors[-400:]}")
        came = found()
        assert came is not None
        return came

    def wait(self, timeout_s: float = 60.0) -> int:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Unexpected(f"still running after {timeout_s:g} s: {self.errors[-400:]}") from None
        for thread in self._threads:
            thread.join(5)
        return code


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def is_alive(pid: int) -> bool:
    process = supervisor.read_process(pid)
    return process is not None and process.is_alive


def wait_until(holds: Callable[[], bool], what: str, *, timeout_s: float = 30.0) -> float:
    """Returns when ``holds`` was first seen to hold, by the monotonic clock."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise Unexpected(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.01)
    return time.monotonic()
