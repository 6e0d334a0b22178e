"""Progress of a study: a live view in a terminal, plain lines elsewhere. All of it goes to standard error."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from spectune.analysis.records import StudySummary
from spectune.analysis.summary import summarize
from spectune.analysis.words import visible
from spectune.domain.secrets import redact_text
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.report.terminal import trial_block
from spectune.runner.events import NodeRow, TrialStart

_LINE_EVERY_S = 10.0
ANSWER_WITHIN_S = 300.0


def duration(seconds: float) -> str:
    """``75`` -> ``1:15``."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def can_redraw(stream: IO[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Whether what was written can be written over: a terminal, and not what a notebook takes for one.

    A notebook gives its ``!`` commands a terminal, and asks every program for
    colours; it shows them, and codes that move the cursor as litter.
    """
    in_notebook = "JPY_PARENT_PID" in environ
    return stream.isatty() and not in_notebook and environ.get("TERM") not in ("dumb", "unknown")


class ProgressView:
    """A ``Watcher`` for people. ``with`` starts and ends the live part."""

    def __init__(self, *, stream: IO[str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        stream = stream or sys.stderr
        self._redraws = can_redraw(stream)
        # Where lines are kept to be searched, they stay whole; in a terminal they end at a word.
        self._console = Console(
            file=stream, highlight=False, soft_wrap=not self._redraws, force_jupyter=False
        )
        self._live: Live | None = None
        self._began = clock()
        self._phase_since = clock()
        self._last_line = 0.0
        self._study: Study | None = None
        self._start: TrialStart | None = None
        self._phase = ""
        self._share: float | None = None
        self._requests = (0, 0)
        self._fetch: tuple[str, int, int | None] | None = None
        self._fetch_told = ""
        self._best = "none yet"
        self._nodes: tuple[NodeRow, ...] = ()

    def __enter__(self) -> ProgressView:
        if self._redraws:
            self._live = Live(
                self, console=self._console, refresh_per_second=4, transient=True, redirect_stdout=False
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __rich__(self) -> Table | Text:
        if self._start is None:
            if self._fetch is None:
                return Text("preparing ...")
            return Text(_fetch_text(*self._fetch))
        start, now = self._start, self._clock()
        table = Table.grid(padding=(0, 1))
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        table.add_row("trial", Text(f"{start.place}  {start.arm.name}"))
        if start.node is not None:
            for row in self._nodes:
                table.add_row(Text(row.node), Text(_node_text(row)))
            return self._with_best(table, start, now)
        done, total = self._requests
        counted = f"  {done}/{total} requests" if self._phase == "measure" and total else ""
        if self._share is not None:
            counted = f"  {self._share:.0%}"
        table.add_row(
            "phase", Text(f"{self._phase or 'preparing'} {duration(now - self._phase_since)}{counted}")
        )
        return self._with_best(table, start, now)

    def _with_best(self, table: Table, start: TrialStart, now: float) -> Table:
        left = "" if start.eta_s is None else f", about {duration(start.eta_s)} left when it began"
        table.add_row("elapsed", Text(f"{duration(now - self._began)}{left}"))
        table.add_row("best", Text(self._best))
        return table

    def _line(self, text: str) -> None:
        self._console.print(escape(visible(redact_text(text))))
        self._last_line = self._clock()

    def on_message(self, text: str) -> None:
        self._line(text)

    @property
    def can_ask(self) -> bool:
        """Whether a person reads this and can answer."""
        return self._redraws and sys.stdin is not None and sys.stdin.isatty()

    async def ask(self, text: str) -> bool:
        """Whether a person wants to go on. No answer in time is a yes, so that a run overnight is not lost."""
        self._line(f"{text} Go on? [y/N] (no answer in {ANSWER_WITHIN_S / 60:.0f} minutes: yes)")
        if self._live is not None:
            self._live.stop()
        try:
            answer = await _typed_line(sys.stdin.fileno(), within_s=ANSWER_WITHIN_S)
        finally:
            if self._live is not None:
                self._live.start()
        return answer is None or answer.strip().lower() in ("y", "yes")

    def on_fetch(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        before, self._fetch = self._fetch, (what, done_bytes, total_bytes)
        finished = total_bytes is not None and done_bytes >= total_bytes and before != self._fetch
        text = _fetch_text(what, done_bytes, total_bytes)
        if self._live is None and (
            finished or (text != self._fetch_told and self._clock() - self._last_line > 2.0)
        ):
            self._fetch_told = text
            self._line(text)

    def on_study(self, study: Study, *, done: int, total: int) -> None:
        self._study = study
        self._began = self._clock()
        self._line(f"study {study.name}: {study.question}")
        others = f", {done} of them done before" if done else ""
        launches = f"{total} launches" if study.search is None else f"searched by {study.search}"
        self._line(f"{len(study.arms)} arms, {launches}{others}; {len(study.workload.prompts)} prompts")
        if study.skipped_arms:
            self._line(f"skipped (other engines only): {', '.join(study.skipped_arms)}")

    def on_trial_start(self, start: TrialStart) -> None:
        self._start, self._requests, self._phase = start, (0, 0), ""
        self._phase_since = self._clock()
        eta = "" if start.eta_s is None else f", about {duration(start.eta_s)} to go"
        where = "" if start.node is None else f" on {start.node}"
        self._line(f"[{start.place}] {start.arm.name}, launch {start.repetition + 1}{where}{eta}")
        if self._live is None:
            self._line(f"    hypothesis: {hypothesis_text(start)}")

    def on_phase(self, phase: str) -> None:
        self._phase, self._phase_since = phase, self._clock()
        self._share = None
        if self._live is None and self._start is not None:
            self._line(f"    {phase}")

    def on_nodes(self, rows: Sequence[NodeRow]) -> None:
        self._nodes = tuple(rows)
        if rows and self._live is None and self._clock() - self._last_line > _LINE_EVERY_S:
            self._line("    " + "; ".join(f"{row.node}: {_node_text(row)}" for row in rows))

    def on_progress(self, share: float) -> None:
        self._share = share
        if self._live is None and self._clock() - self._last_line > _LINE_EVERY_S:
            self._line(f"    {self._phase}: {share:.0%}")

    def on_request(self, done: int, total: int) -> None:
        self._requests = (done, total)
        if self._live is None and done < total and self._clock() - self._last_line > _LINE_EVERY_S:
            self._line(f"    measure: {done}/{total} requests")

    def on_trial_end(self, trial: Trial, trials: list[Trial]) -> None:
        assert self._study is not None
        summary = summarize(self._study, trials)
        self._console.print(trial_block(summary, trial.trial_id))
        self._best = _best_words(summary)
        self._last_line = self._clock()


async def _typed_line(descriptor: int, *, within_s: float) -> str | None:
    """What was typed up to the end of a line; ``None``: nothing in time, or nobody is there to type."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(descriptor, typed.set)
    try:
        await asyncio.wait_for(typed.wait(), within_s)
        return os.read(descriptor, 1000).decode(errors="replace") or None
    except (TimeoutError, OSError):
        return None
    finally:
        loop.remove_reader(descriptor)


def _node_text(row: NodeRow) -> str:
    counted = f" {row.done}/{row.total} requests" if row.phase == "measure" and row.total else ""
    return f"{row.arm}  {row.phase or 'preparing'}{counted}"


def _best_words(summary: StudySummary) -> str:
    best = next((arm for arm in summary.arms if arm.arm_id == summary.best_arm_id), None)
    if best is None or best.is_baseline or best.first is None or best.first.speedup is None:
        return "no arm is faster than the baseline so far"
    return f"{best.name} {best.first.speedup.value:.2f}x"


def hypothesis_text(start: TrialStart) -> str:
    """The hypothesis in one line."""
    h = start.hypothesis
    if h.expectation == "reference":
        return f"none, {h.why}"
    if h.predicted_tok_per_s is not None:
        p = h.predicted_tok_per_s
        expected = f"{p.value:.1f} tok/s" + (
            "" if p.low is None or p.high is None else f" [{p.low:.1f}, {p.high:.1f}]"
        )
    else:
        expected = h.expectation
    against = (
        f" than {h.compared_with_name}" if h.compared_with_name and h.predicted_tok_per_s is None else ""
    )
    return f"{expected}{against}; {h.why}"


def _fetch_text(what: str, done: int, total: int | None) -> str:
    size = f"{done / 1e6:.0f} MB" if total is None else f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
    return f"fetching {what}: {size}"


class Quiet:
    """A ``Watcher`` that says nothing."""

    def on_fetch(self, what: str, done_bytes: int, total_bytes: int | None) -> None: ...

    def on_study(self, study: Study, *, done: int, total: int) -> None: ...

    def on_trial_start(self, start: TrialStart) -> None: ...

    def on_nodes(self, rows: Sequence[NodeRow]) -> None: ...

    def on_phase(self, phase: str) -> None: ...

    def on_progress(self, share: float) -> None: ...

    def on_request(self, done: int, total: int) -> None: ...

    def on_trial_end(self, trial: Trial, trials: list[Trial]) -> None: ...

    def on_message(self, text: str) -> None: ...
