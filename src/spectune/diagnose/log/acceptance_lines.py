"""Acceptance of one run, whichever kinds of lines its engine writes. Kinds are never mixed."""

from __future__ import annotations

from collections.abc import Mapping

from spectune.diagnose.facts import AcceptanceFacts
from spectune.diagnose.log.records import (
    ClientSummary,
    DecodeWindow,
    DraftPositions,
    DraftTotals,
    RequestDraft,
    RequestTimings,
    SpecWindow,
    Value,
)
from spectune.diagnose.log.sglang import DEFAULT_DECODE_LOG_INTERVAL
from spectune.diagnose.log.windows import AcceptanceTally
from spectune.domain.arm import Knobs

_ROUNDING = 0.006
"""Lengths are printed with two decimals."""
_OLD, _NEW = "length / n", "(length - 1) / (n - 1)"


class AcceptanceLines:
    """Takes windows of every kind; ``facts`` chooses the best one."""

    def __init__(self) -> None:
        self.running: int | None = None
        """Requests in flight, from the line before."""
        self.drafting_method: str | None = None
        self._decode = AcceptanceTally()
        self._intervals = AcceptanceTally()
        self._requests = AcceptanceTally()
        self._replies = AcceptanceTally()
        self._cumulative: SpecWindow | None = None
        self._totals: dict[str, DraftTotals] = {}
        self._client = ClientSummary()
        self._open: dict[str, RequestDraft] = {}
        self._most_per_step = 0.0
        self._last_key = ""
        self._depths: set[int] = set()

    @property
    def has_windows(self) -> bool:
        return bool(
            self._decode.windows or self._intervals.windows or self._requests.windows or self._replies.windows
        )

    def forget_warm_up(self) -> None:
        """The server's own warm-up request is no traffic."""
        self._decode = AcceptanceTally()

    def decode(self, window: DecodeWindow) -> None:
        if window.accept_length is None:
            return
        if window.accept_length < 1:
            self._decode.idle_windows += 1  # 0.00: a window without a verify step
            return
        running = max(window.running or 1, 1)
        self._decode.add(
            steps=running,
            kept=(window.accept_length - 1) * running,
            running=running,
            context=window.context_tokens / running if window.context_tokens else None,
            printed_rate=window.accept_rate,
        )

    def spec(self, window: SpecWindow) -> None:
        if window.cumulative:
            self._cumulative = window
        elif window.drafted == 0 or window.accepted > window.drafted:
            self._intervals.idle_windows += 1
        else:
            if window.depth is not None and len(self._depths) < 2:
                self._depths.add(window.depth)
            self._intervals.add(
                steps=_steps_of(window),
                kept=window.accepted,
                drafted=window.drafted,
                running=self.running if len(self._depths) < 2 else None,
                per_position=window.per_position,
            )

    def request(self, draft: RequestDraft) -> None:
        key = draft.slot or ""
        if key in self._open:
            self._close(key, context=None)
        self._open[key] = draft
        self._last_key = key
        if len(self._open) > 256:
            self._close(key, context=None)

    def positions(self, record: DraftPositions) -> None:
        """Of the request before."""
        draft = self._open.get(self._last_key)
        if draft is not None:
            self._open[self._last_key] = draft._replace(per_position=record.per_position)

    def timings(self, record: RequestTimings) -> None:
        if record.context_tokens is not None and record.slot is not None and record.slot in self._open:
            self._close(record.slot, context=record.context_tokens)
        if record.drafted is not None and record.accepted is not None and record.accepted <= record.drafted:
            self._replies.add(steps=None, kept=record.accepted, drafted=record.drafted)

    def _close(self, key: str, *, context: int | None) -> None:
        draft = self._open.pop(key)
        if draft.drafted == 0 or draft.accepted > draft.drafted:
            self._requests.idle_windows += 1
            return
        steps: float | None = None
        if draft.length is not None and draft.length > 1 and draft.accepted > 0:
            steps = draft.accepted / (draft.length - 1)
            self._most_per_step = max(self._most_per_step, draft.drafted / steps)
        elif draft.accepted == 0 and self._most_per_step >= 1:
            steps = draft.drafted / self._most_per_step
        self._requests.add(
            steps=steps,
            kept=draft.accepted,
            drafted=draft.drafted,
            context=context,
            per_position=draft.per_position,
        )

    def totals(self, record: DraftTotals) -> None:
        """The last line of a method counts: it is a sum over the process."""
        if record.method in self._totals or len(self._totals) < 64:
            self._totals[record.method] = record
        if record.drafted:
            self.drafting_method = record.method

    def client(self, summary: ClientSummary) -> None:
        if summary.steps is not None and summary.accepted is not None and summary.length is None:
            self._replies.add(steps=summary.steps, kept=summary.accepted, drafted=summary.drafted)
            return
        old = self._client
        self._client = ClientSummary(
            length=summary.length if summary.length is not None else old.length,
            steps=summary.steps if summary.steps is not None else old.steps,
            drafted=summary.drafted if summary.drafted is not None else old.drafted,
            accepted=summary.accepted if summary.accepted is not None else old.accepted,
            rate=summary.rate if summary.rate is not None else old.rate,
        )

    def facts(
        self, settings: Mapping[str, Value], knobs: Knobs | None
    ) -> tuple[AcceptanceFacts | None, AcceptanceFacts | None]:
        """(of this run's windows, totals of the process)."""
        for key in list(self._open):
            self._close(key, context=None)
        per_step = knobs.num_draft_tokens if knobs is not None else None
        totals = self._process_totals()
        interval = settings.get("decode_log_interval")
        known = isinstance(interval, int) and interval > 0
        decode = self._decode.facts(
            "decode lines",
            steps_per_window=float(interval)
            if known and isinstance(interval, int)
            else DEFAULT_DECODE_LOG_INTERVAL,
            estimated=not known,
            drafted_per_step=per_step,
        )
        choices = (
            decode and _with_formula(decode, settings.get("speculative_num_draft_tokens")),
            self._intervals.facts("speculation lines", drafted_per_step=per_step),
            self._cumulative_facts(),
            self._requests.facts("request lines", drafted_per_step=per_step),
            self._replies.facts("replies", drafted_per_step=per_step),
            self._client_facts(),
        )
        best = next((c for c in choices if c is not None and c.windows), None)
        best = best or totals or next((c for c in choices if c is not None), None)
        if best is not None and best.accepted == 0 and best.drafted:
            best = best.model_copy(update={"length": 1.0})
        return best, totals

    def _cumulative_facts(self) -> AcceptanceFacts | None:
        last = self._cumulative
        if last is None or not last.drafted or last.accepted > last.drafted:
            return None
        steps = round(last.drafted / last.drafted_per_step) if last.drafted_per_step else None
        # The V0 engine counted accepted tokens behind the first rejection too: only emitted tokens give a length.
        length = last.emitted / steps if steps and last.emitted else None
        return AcceptanceFacts(
            source="speculation lines",
            windows=1,
            windows_at_one=int(last.accepted == 0),
            steps=steps,
            drafted=last.drafted,
            accepted=last.accepted,
            length=max(length, 1.0) if length is not None else None,
            rate=last.accepted / last.drafted,
            cumulative=True,
        )

    def _process_totals(self) -> AcceptanceFacts | None:
        used = [t for t in self._totals.values() if t.drafted and t.accepted <= t.drafted]
        if not used:
            return None
        drafted, accepted = sum(t.drafted for t in used), sum(t.accepted for t in used)
        drafts = [t.drafts for t in used]
        steps = sum(d for d in drafts if d is not None) if all(d is not None for d in drafts) else None
        return AcceptanceFacts(
            source="statistics lines",
            windows=1,
            windows_at_one=int(accepted == 0),
            steps=steps,
            drafted=drafted,
            accepted=accepted,
            length=1 + accepted / steps if steps else None,
            rate=accepted / drafted,
            per_position=used[0].per_position if len(used) == 1 else None,
            cumulative=True,
        )

    def _client_facts(self) -> AcceptanceFacts | None:
        client = self._client
        length, rate = client.length, client.rate
        known = client.drafted and client.accepted is not None and client.accepted <= client.drafted
        if known and client.drafted and client.accepted is not None:
            rate = client.accepted / client.drafted
            length = 1 + client.accepted / client.steps if client.steps else length
        if length is None and rate is None:
            return None
        return AcceptanceFacts(
            source="a client's result",
            windows=1,
            steps=client.steps,
            drafted=client.drafted if known else None,
            accepted=client.accepted if known else None,
            length=length,
            rate=rate,
            cumulative=True,
        )


def _steps_of(window: SpecWindow) -> float | None:
    """Verify steps of an interval, from whichever of its figures agree."""
    positions = len(window.per_position) if window.per_position else window.drafted_per_step
    by_width = window.drafted / positions if positions else None
    if window.length is None:
        return by_width
    if by_width is not None and abs(1 + window.accepted / by_width - window.length) <= _ROUNDING:
        return by_width
    if window.length > 1 and window.accepted:
        return window.accepted / (window.length - 1)
    return by_width


def _with_formula(facts: AcceptanceFacts, num_draft_tokens: Value) -> AcceptanceFacts:
    """Which definition of the accept rate the printed one follows, by trying both."""
    if facts.length is None or facts.printed_rate is None:
        return facts
    length, rate = facts.length, facts.printed_rate
    formula = None
    if isinstance(num_draft_tokens, int) and num_draft_tokens > 1:
        old, new = length / num_draft_tokens, (length - 1) / (num_draft_tokens - 1)
        near_old, near_new = abs(old - rate) < 0.02, abs(new - rate) < 0.02
        formula = _OLD if near_old and not near_new else _NEW if near_new and not near_old else None
    elif rate > 0:
        off_old, off_new = _off_whole(length / rate), _off_whole((length - 1) / rate)
        formula = _OLD if off_old < 0.06 < 0.1 < off_new else _NEW if off_new < 0.06 < 0.1 < off_old else None
    elif length < 1.005:
        formula = _NEW
    return facts.model_copy(update={"rate_formula": formula})


def _off_whole(value: float) -> float:
    return abs(value - round(value))
