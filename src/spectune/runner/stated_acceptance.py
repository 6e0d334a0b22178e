"""Acceptance of a load point where answers and counters do not count it: a length, and what says so.

SGLang before 0.5.19 gives no counts per request. Later versions count verify
steps but not kept tokens; all of them print the mean of each window of decode
steps, and name it on request.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from spectune.bench.counters import own_output_tokens
from spectune.diagnose.inputs import read_stream
from spectune.diagnose.verdict import NotChecked
from spectune.domain.measurement import AcceptanceSource, LoadResult, LoadTotals
from spectune.engines.adapter import EngineAdapter
from spectune.errors import BadInput
from spectune.hosts.supervised import SupervisedServer
from spectune.server.probe import read_facts
from spectune.transport import HttpClient

_READ_BYTES = 16 << 20


@dataclass(frozen=True)
class LogPart:
    """The server's log from where it ended when a load began."""

    server: SupervisedServer
    start: int

    @classmethod
    async def begin(cls, server: SupervisedServer | None) -> LogPart | None:
        """``None``: the server is not ours, so neither is its log."""
        if server is None:
            return None
        await server.sync_log()
        return cls(server, _size_of(server.log_path))

    async def read(self) -> bytes:
        await self.server.sync_log()
        try:
            with self.server.log_path.open("rb") as file:
                file.seek(self.start)
                return file.read(_READ_BYTES)
        except OSError:
            return b""


async def with_stated_acceptance(
    result: LoadResult, *, http: HttpClient, adapter: EngineAdapter, log: LogPart | None, was_flushed: bool
) -> LoadResult:
    """``result`` with the acceptance length that counters, log or server state, unless it has counts."""
    if result.acceptance is not None or any(r.acceptance is not None for r in result.completed):
        return result
    length: float | None = _from_verify_calls(result)
    source: AcceptanceSource = "counters"
    if length is None and log is not None:
        length, source = acceptance_in_log(await log.read(), engine=adapter.name), "server log"
    if length is None and was_flushed:  # which also begins the server's own mean anew
        length, source = (await read_facts(http, adapter)).acceptance_length, "server info"
    if length is None or length < 1:
        return result
    return result.model_copy(
        update={"totals": LoadTotals(acceptance_length=length), "acceptance_source": source}
    )


def _from_verify_calls(result: LoadResult) -> float | None:
    """Tokens after each answer's first, by the verify steps that made them; other users would be in both."""
    before, after = result.counters_before, result.counters_after
    tokens = own_output_tokens(result.requests)
    if before is None or after is None or after.verify_calls is None or result.foreign_tokens != 0:
        return None
    calls = after.verify_calls - (before.verify_calls or 0)
    return (tokens - len(result.requests)) / calls if tokens is not None and calls > 0 else None


def acceptance_in_log(part: bytes, *, engine: str) -> float | None:
    """The mean over the windows that the engine printed, by the requests in each."""
    try:
        runs = read_stream(io.BytesIO(part), engine=engine, skipped=NotChecked())
    except (BadInput, ValueError, TypeError, LookupError, ArithmeticError):
        return None  # whatever a server may have written, the load is measured and is kept
    acceptance = runs[-1].acceptance if runs else None
    return None if acceptance is None or acceptance.cumulative else acceptance.length


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
