"""From log lines to facts, one run of one server at a time, in one pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from spectune.diagnose.facts import RunFacts
from spectune.diagnose.log import llamacpp as llamacpp_log
from spectune.diagnose.log import sglang as sglang_log
from spectune.diagnose.log import vllm as vllm_log
from spectune.diagnose.log.lines import LogLine, clean
from spectune.diagnose.log.other_lines import MetricsLines, client_summary, launch_command
from spectune.diagnose.log.records import Ended, Ready, Record, Settings
from spectune.diagnose.log.run_builder import Noticed, RunBuilder
from spectune.diagnose.log.triggers import (
    ENGINE_OF_WORD,
    HOT,
    PLAIN,
    RARE,
    TRAFFIC,
    WRAPPED,
    engine_of,
    hinted_engine,
)

_FAST: dict[str, Callable[[bytes], Record | None]] = {
    "sglang": sglang_log.fast,
    "vllm": vllm_log.fast,
    "llamacpp": llamacpp_log.fast,
}
_DIGITS = b"0123456789"
_SHAPE_LIMIT = 600
_SHAPES_BYTES = 8 << 20
_MAX_STREAMS = 64
_MAX_RUNS = 200
_LONG_TEXT = 4000
_PARSERS: dict[str, Callable[[str], Record | None]] = {
    "sglang": sglang_log.parse,
    "vllm": vllm_log.parse,
    "llamacpp": llamacpp_log.parse,
}


class LogReader:
    """Feed it lines; ``runs()`` gives the facts of each run in the order of their start."""

    def __init__(self, subject: str, *, engine: str | None = None) -> None:
        self.subject = subject
        self._engine = engine
        self._current: dict[str, RunBuilder] = {}
        self._done: list[RunFacts] = []
        self._order: list[str] = []
        self._recent: deque[bytes] = deque(maxlen=400)
        self._metrics = MetricsLines()
        self._shapes: dict[bytes, tuple[Noticed, ...]] = {}
        self._shapes_bytes = 0
        self.num_lines = 0
        self.runs_left_out = 0

    def read(self, lines: Iterable[bytes]) -> None:
        """Consumes raw lines."""
        hot, rare, recent = HOT.search, RARE.search, self._recent
        number = self.num_lines
        for raw in lines:
            number += 1
            if not raw:
                continue
            recent.append(raw)
            if any(words in raw for words in TRAFFIC):
                self._traffic(raw, number)
                continue
            found = hot(raw)
            if found is not None:
                if self._figure(raw, found[0]):
                    continue
            else:
                shape = raw.translate(None, _DIGITS)
                touched = self._shapes.get(shape)
                if touched is not None:
                    if touched:
                        self._current[""].again(touched)
                    continue
                if rare(raw) is None:
                    self._remember(shape, ())
                    continue
            self.num_lines = number
            parts = raw.split(b"\r") if b"\r" in raw else (raw,)
            for part in parts:
                if part:
                    touched = self._interesting(part, number)
            if found is None and touched is not None and len(parts) == 1:
                self._remember(shape, touched)
        self.num_lines = number

    def _traffic(self, raw: bytes, number: int) -> None:
        """A logged request or answer: only SGLang's counters at its end are of use."""
        if b"spec_verify_ct" in raw:
            line = clean(raw, number=number)
            summary = client_summary(line.text[line.text.rfind("meta_info") :])
            if summary is not None:
                self._run_for(line).client(summary)

    def _remember(self, shape: bytes, touched: tuple[Noticed, ...]) -> None:
        """Lines that differ in digits only do the same again; kept while one server is steady."""
        if len(shape) <= _SHAPE_LIMIT and self._shapes_bytes < _SHAPES_BYTES:
            self._shapes[shape] = touched
            self._shapes_bytes += len(shape) + 100

    def _figure(self, raw: bytes, word: bytes) -> bool:
        """Takes a line of today's usual form without unwrapping it; false: it must be looked at."""
        stream = ""
        plain = PLAIN.match(raw)
        if plain is None and (wrapped := WRAPPED.match(raw)) is not None:
            stream = wrapped[wrapped.lastindex or 0].decode("utf-8", "replace")
            plain = PLAIN.match(raw, wrapped.end())
        engine = ENGINE_OF_WORD.get(word)
        run = self._current.get(stream)
        if plain is None or engine is None or run is None or len(raw) > _LONG_TEXT:
            return False
        if run.engine is None:
            run.engine = self._engine or engine
        if run.engine != engine:
            return False
        record = _FAST[engine](raw)
        if record is None:
            return False
        prefix = plain[1]
        run.take(record, rank=prefix.decode() if prefix else None)
        run.saw(raw)
        return True

    def _interesting(self, raw: bytes, number: int) -> tuple[Noticed, ...] | None:
        """Looks at one line closely; gives what lines like it do again, or ``None`` if that is not known."""
        line = clean(raw, number=number)
        if self._metrics.take(line.text):
            return None
        run = self._run_for(line)
        text = line.text
        if asked := launch_command(text):
            run = self._restarted(run, line) if run.has_begun_serving else run
            run.asked(*asked)
            run.notices(line)
            return None
        engine = self._engine or run.engine or engine_of(text)
        is_figure = False
        if engine is not None:
            whole = len(text) < _LONG_TEXT or "args" in text or "config" in text
            record = _PARSERS[engine](text if whole else text[:_LONG_TEXT])
            if record is not None:
                if isinstance(record, Settings) and _is_new_start(record, run):
                    run = self._restarted(run, line)
                if isinstance(record, Ready) and run.is_over:
                    run = self._restarted(run, line)
                run.engine = run.engine or engine
                run.take(record, rank=line.rank)
                if line.time is not None:
                    run.saw(raw)
                is_figure = True
                if isinstance(record, Ready | Ended | Settings):
                    self._shapes.clear()
                    self._shapes_bytes = 0
                if not isinstance(record, Settings):
                    return None
            elif run.engine is None:
                run.engine = engine
        else:
            run.http_is_up = run.http_is_up or "Application startup complete" in text
        if engine is None and run.guess is None:
            run.guess = hinted_engine(text)
        summary = client_summary(text)
        if summary is not None:
            run.client(summary)
        touched = run.notices(line if len(text) < _LONG_TEXT else _shortened(line))
        is_alone = len(self._current) == 1 and not line.stream and not run.is_over
        return touched if is_alone and not is_figure and summary is None else None

    def _run_for(self, line: LogLine) -> RunBuilder:
        known = line.stream in self._current or len(self._current) < _MAX_STREAMS
        stream = line.stream if known else ""
        run = self._current.get(stream)
        if run is None:
            run = self._current[stream] = RunBuilder(self._name(stream), self._recent, first_line=line.number)
            self._order.append(stream)
        return run

    def _name(self, stream: str) -> str:
        return f"{self.subject} {stream}" if stream else self.subject

    def _restarted(self, run: RunBuilder, line: LogLine) -> RunBuilder:
        stream = next(name for name, candidate in self._current.items() if candidate is run)
        if len(self._done) < _MAX_RUNS:
            self._done.append(run.facts(last_line=line.number - 1))
        else:
            self.runs_left_out += 1
        fresh = RunBuilder(self._name(stream), self._recent, first_line=line.number)
        fresh.adopt_start_of(run)
        self._current[stream] = fresh
        self._shapes.clear()
        self._shapes_bytes = 0
        return fresh

    def runs(self) -> tuple[RunFacts, ...]:
        """Facts so far; call it once, at the end."""
        found = list(self._done)
        for name in self._order:
            builder = self._current[name]
            is_certain = builder.engine is not None
            run = builder.facts(last_line=self.num_lines)
            if is_certain or run.acceptance is not None or run.death is not None or run.notices:
                found.append(run)
        metrics = self._metrics.facts(self.subject)
        if metrics is not None:
            found.append(metrics)
        found.sort(key=lambda run: run.first_line)
        if len(found) > 1:
            found = [
                run.model_copy(update={"subject": f"{run.subject} (from line {run.first_line})"})
                for run in found
            ]
        return tuple(found)


def _is_new_start(record: Settings, run: RunBuilder) -> bool:
    return bool(record.starts) and (record.starts in run.starts or run.has_begun_serving)


def _shortened(line: LogLine) -> LogLine:
    return LogLine(line.number, line.text[:_LONG_TEXT], line.stream, line.rank, line.time)
