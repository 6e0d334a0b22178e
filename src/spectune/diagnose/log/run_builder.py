"""Gathers the facts of one run from its lines."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from spectune.diagnose.facts import CacheFacts, DeathFacts, NoticeFacts, RunFacts, SpeedFacts
from spectune.diagnose.log.acceptance_lines import AcceptanceLines
from spectune.diagnose.log.deaths import cause_of
from spectune.diagnose.log.lines import LogLine, clean
from spectune.diagnose.log.messages import CHANGED, DEATHS, LAST_WORDS, NOTICES
from spectune.diagnose.log.other_lines import flags_of, knobs_of
from spectune.diagnose.log.records import (
    ClientSummary,
    DecodeWindow,
    DraftPositions,
    DraftTotals,
    Ended,
    EngineWindow,
    PrefillWindow,
    Ready,
    Record,
    RequestDraft,
    RequestTimings,
    Settings,
    SpecWindow,
    Value,
)
from spectune.diagnose.log.windows import Median
from spectune.domain.arm import Knobs
from spectune.engines.adapter import Cause
from spectune.engines.registry import adapter_for

_BY_RANK = (DecodeWindow, PrefillWindow)
_MAX_CHANGES = 60
_MAX_PENDING = 50
_MAX_AFTER_DEATH = 120
_LAST_LINES = 15
_LONG = 8000
_HEAD = re.compile(
    r"^(?:(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]{0,60}\] *|\[\d{4}-[^\]]{0,60}\] *|ERROR: +)+"
)
_TAIL = re.compile(r" \[type=\w+, input_.*$")
_WHOLE_PROMPT_NEW_TOKENS = 2
_DIGITS = re.compile(r"\d+")
_TENSOR_RANK = re.compile(r"TP(\d+)")
_DATA_RANK = re.compile(r"DP(\d+)")


class Noticed:
    """Lines of one kind: the first, and how many."""

    def __init__(self, kind: str, line: LogLine) -> None:
        self.kind, self.text, self.line = kind, line.text[:500], line.number
        self.count = self.after_ready = self.series = self.longest = 0

    def again(self, *, after_ready: bool) -> None:
        self.count += 1
        self.after_ready += after_ready
        self.series += 1
        self.longest = max(self.longest, self.series)

    def facts(self) -> NoticeFacts:
        return NoticeFacts(
            kind=self.kind,
            text=self.text,
            line=self.line,
            count=self.count,
            after_ready=self.after_ready,
            longest_series=self.longest,
        )


class RunBuilder:
    """One server from its start to its end, or to the end of the log."""

    def __init__(self, subject: str, recent: deque[bytes], *, first_line: int) -> None:
        self.subject, self._recent, self._first_line = subject, recent, first_line
        self.engine: str | None = None
        self.guess: str | None = None
        """The engine, by words that prove nothing."""
        self._settings: dict[str, Value] = {}
        self._asked: Knobs | None = None
        self._asked_flags: dict[str, Value] = {}
        self._architectures: list[str] = []
        self._config_seen = False
        self.starts: set[str] = set()
        """Kinds of lines seen that are printed once per start."""
        self.http_is_up = False
        """For vLLM that is to be ready, for SGLang it is not: known once the engine is."""
        self._ready = self._stopped = self._told_early = False
        self._acceptance = AcceptanceLines()
        self._speed, self._tok_per_s = SpeedFacts().model_dump(), Median()
        self._after_idle: dict[str, bool] = {}
        self._printing: dict[str, str] = {}
        self._queued_at: dict[int, int] = {}
        self._generated = 0
        self._cache: dict[str, int] = {"prompts": 0, "whole": 0, "new": 0, "cached": 0}
        self._hit_frac: float | None = None
        self._notices: dict[str, Noticed] = {}
        self._changes: dict[str, Noticed] = {}
        self._pending: list[LogLine] = []
        self._death: tuple[LogLine, list[bytes]] | None = None
        self._after_death: list[str] = []
        self._memory_gb: float | None = None
        self._first_raw: bytes | None = None
        self._last_raw: bytes | None = None

    @property
    def has_begun_serving(self) -> bool:
        return self._ready or self._stopped or self._death is not None

    def adopt_start_of(self, before: RunBuilder) -> None:
        """Lines of this run's start that came before the one that marks it."""
        for line in before._pending:
            self.notices(line)

    # Lines -----------------------------------------------------------------------------------------

    def take(self, record: Record, *, rank: str | None) -> None:
        """One parsed line."""
        if type(record) in _BY_RANK and rank is not None and not self._is_first_rank(rank):
            return
        self._TAKE[type(record)](self, record, rank)

    def saw(self, raw: bytes) -> None:
        """A line with a time on it; the first and the last tell when the run was."""
        if self._first_raw is None:
            self._first_raw = raw
        self._last_raw = raw

    def _is_first_rank(self, rank: str) -> bool:
        """Whether this tensor rank is the one of its data rank whose lines count: all say the same."""
        tensor, data = _TENSOR_RANK.search(rank), _DATA_RANK.search(rank)
        key, own = data[1] if data else "", tensor[1] if tensor else "0"
        if key not in self._printing and len(self._printing) < 4096:
            self._printing[key] = own
        return self._printing.get(key) == own

    def _ready_line(self, record: Ready, rank: str | None) -> None:
        if not self._ready:
            self._acceptance.forget_warm_up()
            self._queued_at.clear()
        self._ready = True

    def _ended_line(self, record: Ended, rank: str | None) -> None:
        if self._ready:
            self._stopped = self._death is None
        else:
            self._told_early = True  # engines also shut down their own parts when a start fails

    def _settings_line(self, record: Settings, rank: str | None) -> None:
        values = dict(record.values)
        memory = values.pop("available_memory_gb", None)
        if isinstance(memory, float):
            self._memory_gb = memory if self._memory_gb is None else min(memory, self._memory_gb)
        architecture = values.pop("loaded_architecture", None)
        is_new = isinstance(architecture, str) and architecture not in self._architectures
        if is_new and len(self._architectures) < 16:
            self._architectures.append(str(architecture))
        self._settings.update(
            {key: value for key, value in values.items() if value is not None or key not in self._settings}
        )
        if record.starts or "model" in values or "model_path" in values:
            self._config_seen = True
        if record.starts:
            self.starts.add(record.starts)

    def _decode(self, record: DecodeWindow, rank: str | None) -> None:
        self._progress()
        rank = rank or ""
        self._acceptance.decode(record)
        speed = self._speed
        speed["windows"] += 1
        after_idle = self._after_idle.pop(rank, speed["windows"] == 1)
        if record.tok_per_s is not None:
            if after_idle:
                speed["windows_after_idle"] += 1
            else:
                self._tok_per_s.add(record.tok_per_s)
        self._load(record.running, record.queued)
        speed["retracted_requests"] += record.retracted or 0
        if record.graph is not None:
            speed["graph_label"] = record.graph_label
            speed["graph_windows_on" if record.graph else "graph_windows_off"] += 1
            if not record.graph and record.running is not None:
                least = speed["graph_off_min_running"]
                speed["graph_off_min_running"] = (
                    record.running if least is None else min(least, record.running)
                )

    def _load(self, running: int | None, queued: int | None) -> None:
        speed = self._speed
        if running is not None:
            speed["max_running"] = max(running, speed["max_running"] or 0)
        if queued is not None:
            speed["max_queued"] = max(queued, speed["max_queued"] or 0)
        if running and queued and (running in self._queued_at or len(self._queued_at) < 4096):
            self._queued_at[running] = self._queued_at.get(running, 0) + 1

    def _prefill(self, record: PrefillWindow, rank: str | None) -> None:
        self._progress()
        self._speed["prefill_windows"] += 1
        if record.running == 0 and len(self._after_idle) < 4096:
            self._after_idle[rank or ""] = True
        if not self._ready and self._config_seen:
            return
        new, cached = record.new_tokens or 0, record.cached_tokens or 0
        self._cache["prompts"] += record.new_requests or 0
        self._cache["new"] += new
        self._cache["cached"] += cached
        requests = 1 if record.new_requests is None else record.new_requests
        if cached and new <= _WHOLE_PROMPT_NEW_TOKENS * requests:
            self._cache["whole"] += requests

    def _engine(self, record: EngineWindow, rank: str | None) -> None:
        busy = record.generation_tok_per_s > 0
        if busy:
            self._progress()
        speed = self._speed
        if busy:
            speed["windows"] += 1
            if self._after_idle.pop("", speed["windows"] == 1):
                speed["windows_after_idle"] += 1
            else:
                self._tok_per_s.add(record.generation_tok_per_s)
        else:
            self._after_idle[""] = True
        self._load(record.running, record.waiting)
        self._acceptance.running = record.running
        if record.cache_hit_frac is not None:
            self._hit_frac = record.cache_hit_frac

    def _spec(self, record: SpecWindow, rank: str | None) -> None:
        self._acceptance.spec(record)

    def _request(self, record: RequestDraft, rank: str | None) -> None:
        self._progress()
        self._acceptance.request(record)

    def _draft_positions(self, record: DraftPositions, rank: str | None) -> None:
        self._acceptance.positions(record)

    def _draft_totals(self, record: DraftTotals, rank: str | None) -> None:
        self._acceptance.totals(record)

    def _timings(self, record: RequestTimings, rank: str | None) -> None:
        self._progress()
        if record.prompt is not None:
            self._cache["prompts"] += 1
            self._cache["new"] += record.prompt
            self._cache["whole"] += record.prompt == 1
        if record.generated is not None:
            self._speed["windows"] += 1
            self._generated += record.generated
        if record.tok_per_s is not None:
            self._tok_per_s.add(record.tok_per_s)
        self._acceptance.timings(record)

    def client(self, summary: ClientSummary) -> None:
        """A client's result that stands in the log."""
        self._acceptance.client(summary)

    _TAKE: ClassVar[dict[type, Callable[[Any, Any, str | None], None]]] = {
        Ready: _ready_line,
        Ended: _ended_line,
        Settings: _settings_line,
        DecodeWindow: _decode,
        PrefillWindow: _prefill,
        EngineWindow: _engine,
        SpecWindow: _spec,
        RequestDraft: _request,
        DraftPositions: _draft_positions,
        DraftTotals: _draft_totals,
        RequestTimings: _timings,
    }

    def asked(self, engine: str, facts: Mapping[str, Value]) -> None:
        """A command line that stands in the log."""
        argv = str(facts["argv"])
        self.engine = self.engine or engine
        self._asked = knobs_of(engine, argv)
        self._asked_flags = flags_of(argv)

    def _progress(self) -> None:
        if (hang := self._notices.get("hang")) is not None:
            hang.series = 0

    def notices(self, line: LogLine) -> tuple[Noticed, ...] | None:
        """Everything that is no figure. ``None``: the next line like it must be looked at as well."""
        text = line.text
        if self.http_is_up and self.engine == "vllm":
            self._ready = True
        if self.is_over:
            if len(self._pending) < _MAX_PENDING:
                self._pending.append(line)
            if self._death is not None and len(self._after_death) < _MAX_AFTER_DEATH:
                self._after_death.append(text)
            return None
        is_settings = "server_args=" in text or " with config: " in text or "non-default args" in text
        touched: list[Noticed] = []
        for kind, pattern in NOTICES.items():
            if (not is_settings or kind == "simulated") and pattern.search(text):
                touched.append(self._notices.setdefault(kind, Noticed(kind, line)))
        if not is_settings and CHANGED.search(text) and not text.startswith(" "):
            key = _DIGITS.sub("#", text)[-160:]
            if key in self._changes or len(self._changes) < _MAX_CHANGES:
                touched.append(self._changes.setdefault(key, Noticed("changed", line)))
        self.again(touched)
        if is_settings:
            return None
        if self._death is None and not self._stopped and DEATHS.search(text):
            self._death = (line, list(self._recent))
            return None
        return tuple(touched)

    @property
    def is_over(self) -> bool:
        """Dead or told to stop: what follows belongs to its end, or to the next start."""
        return self._death is not None or self._stopped

    def again(self, touched: Iterable[Noticed]) -> None:
        """The same lines once more."""
        for noticed in touched:
            noticed.again(after_ready=self._ready)

    # Facts -----------------------------------------------------------------------------------------

    def facts(self, *, last_line: int) -> RunFacts:
        """What is known at the end of the run."""
        self.engine = self.engine or self.guess
        settings = {
            **{k: v for k, v in self._asked_flags.items() if k not in self._settings},
            **self._settings,
        }
        knobs = self._knobs(settings)
        acceptance, totals = self._acceptance.facts(settings, knobs or self._asked)
        death = self._death_facts()
        speed = dict(self._speed)
        cap = settings.get("max_running_requests", settings.get("max_num_seqs"))
        if isinstance(cap, int):
            speed["windows_at_cap"] = sum(n for running, n in self._queued_at.items() if running >= cap)
        return RunFacts(
            subject=self.subject,
            engine=self.engine,
            version=_text(settings.pop("version", None)),
            model=_text(settings.get("model_path", settings.get("model"))),
            architectures=tuple(self._architectures),
            knobs=knobs,
            asked=self._asked,
            settings=settings,
            acceptance=acceptance,
            totals=totals,
            speed=SpeedFacts(
                **{
                    **speed,
                    "median_tok_per_s": self._tok_per_s.value,
                    "generated_tokens": self._generated or None,
                }
            ),
            cache=self._cache_facts(),
            ready=self._ready,
            stopped=self._stopped or (self._told_early and death is None),
            death=death,
            notices=tuple(n.facts() for n in self._notices.values()),
            changes=tuple(n.facts() for n in self._changes.values()),
            first_line=self._first_line,
            last_line=last_line,
            first_time=_time_of(self._first_raw),
            last_time=_time_of(self._last_raw),
            min_memory_gb=self._memory_gb,
        )

    def _cache_facts(self) -> CacheFacts:
        known = self._cache["new"] + self._cache["cached"] if self.engine == "sglang" else 0
        return CacheFacts(
            prompts=self._cache["prompts"],
            prompts_cached_whole=self._cache["whole"],
            prompt_tokens=known or None,
            cached_tokens=self._cache["cached"] if known else None,
            hit_frac=self._cache["cached"] / known if known else self._hit_frac,
        )

    def _knobs(self, settings: Mapping[str, Value]) -> Knobs | None:
        """In effect, through the engine adapter; ``None`` where the log does not say."""
        argv: list[str] = []
        if self.engine == "sglang":
            if not self._config_seen:
                return None
            for name in ("algorithm", "draft_model_path", "num_steps", "eagle_topk", "num_draft_tokens"):
                value = settings.get(f"speculative_{name}")
                argv += [f"--speculative-{name.replace('_', '-')}", str(value)] if value is not None else []
            if settings.get("disable_cuda_graph") is True:
                argv.append("--disable-cuda-graph")
        elif self.engine == "vllm":
            spec = {
                k.removeprefix("speculative."): v for k, v in settings.items() if k.startswith("speculative.")
            }
            if not self._config_seen and not spec:
                return None
            argv = ["--speculative-config", json.dumps(spec)] if spec else []
            argv += ["--enforce-eager"] if settings.get("enforce_eager") is True else []
        elif self.engine == "llamacpp":
            kind = settings.get("speculative_type", self._acceptance.drafting_method)
            draft = settings.get("speculative_draft_model")
            if kind is None and draft is None:
                return None
            argv = ["--spec-type", str(kind or "draft-simple")]
            argv += ["--spec-draft-model", str(draft)] if draft is not None else []
            if kind is None:
                return None if self._asked is None else self._asked
        else:
            return None
        try:
            return adapter_for(self.engine).read_flags(argv)
        except ValueError:
            return None

    def _death_facts(self) -> DeathFacts | None:
        if self._death is not None:
            line, before = self._death
            tail = [*_texts(before), *self._after_death]
            return self._death_of(line, cause_of(tail, engine=self.engine))
        if self._ready or self._stopped or self._acceptance.has_windows or self._speed["windows"]:
            return None  # it served: an error at its end is one of its requests
        tail = _texts(list(self._recent))
        last = next((text for text in reversed(tail[-_LAST_LINES:]) if LAST_WORDS.search(text)), None)
        if last is None:
            return None
        cause = cause_of(tail, engine=self.engine)
        if self.engine is None and (cause is None or cause.remedy is None):
            return None  # some program's failure, not known to be a server's
        return self._death_of(LogLine(self._first_line, last), cause)

    def _death_of(self, line: LogLine, cause: Cause | None) -> DeathFacts:
        return DeathFacts(
            message=_without_head(cause.message if cause is not None else line.text[:300]),
            remedy=cause.remedy if cause is not None else None,
            line=line.number,
            text=line.text[:500],
            after_ready=self._ready,
            time=line.time,
        )


def _texts(raw: Iterable[bytes]) -> list[str]:
    return [clean(item[:_LONG], number=0).text for item in raw]


def _without_head(text: str) -> str:
    return _TAIL.sub("", _HEAD.sub("", text)).strip() or text


def _time_of(raw: bytes | None) -> str | None:
    return None if raw is None else clean(raw[:_LONG], number=0).time


def _text(value: Value) -> str | None:
    return None if value is None else str(value)
