"""Token ids of the answers, from the server's own tokenizer, for the parity check."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.domain.measurement import LoadResult, RequestRecord, packed_ids
from spectune.engines.adapter import EngineAdapter
from spectune.errors import TransportError
from spectune.transport import HttpClient


async def tokenize_outputs(
    http: HttpClient, adapter: EngineAdapter, model: str | None, result: LoadResult
) -> LoadResult:
    """``result`` with ``token_ids`` filled in; left unknown where the engine has no tokenizer call.

    The text is tokenized again, which for the same text gives the same ids:
    enough to compare two outputs, and not proof of the ids that were generated.
    """
    known: dict[str, Sequence[int] | None] = {}
    records: list[RequestRecord] = []
    for record in result.requests:
        if record.ok and record.text not in known:
            known[record.text] = packed_ids(await _tokenize(http, adapter, model, record.text))
            if known[record.text] is None:
                return result
        ids = known.get(record.text) if record.ok else None
        records.append(record.model_copy(update={"token_ids": ids}))
    return result.model_copy(update={"requests": tuple(records)})


async def _tokenize(
    http: HttpClient, adapter: EngineAdapter, model: str | None, text: str
) -> tuple[int, ...] | None:
    call = adapter.tokenize_call(text, model)
    if call is None:
        return None
    try:
        reply = await http.request(call.method, call.path, body=call.body, timeout_s=30)
        return adapter.read_tokens(reply.json()) if reply.status == 200 else None
    except (TransportError, ValueError):
        return None
