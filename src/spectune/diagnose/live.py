"""Facts of a running server: what it reports and counts. Nothing is generated and nothing is changed."""

from __future__ import annotations

from typing import Any

from spectune.diagnose.facts import AcceptanceFacts, CacheFacts, RunFacts, SpeedFacts
from spectune.diagnose.log.other_lines import acceptance_of
from spectune.diagnose.log.records import Value
from spectune.diagnose.verdict import NotChecked
from spectune.engines.json_bodies import as_dict
from spectune.engines.prometheus import Metrics, parse_metrics
from spectune.engines.registry import adapter_for
from spectune.errors import TransportError
from spectune.server.detect import detect_engine
from spectune.server.probe import read_facts
from spectune.transport import HttpClient


async def server_facts(http: HttpClient, *, engine: str | None, skipped: NotChecked) -> RunFacts:
    """Raises ``EnvironmentFailed`` if no server answers."""
    name = engine or await detect_engine(http)
    adapter = adapter_for(name)
    told = await read_facts(http, adapter)
    text = await _text(http, adapter.metrics_path)
    subject = http.base_url
    if text is None:
        skipped.add(f"{subject}: counters ({adapter.metrics_path} is off; SGLang: --enable-metrics)")
    if told.effective is None:
        skipped.add(f"{subject}: settings in effect (the server does not report them)")
    metrics = parse_metrics(text or "")
    counters = adapter.read_counters(text or "")
    acceptance = acceptance_of(counters.acceptance, "counters") if counters.acceptance is not None else None
    if acceptance is not None and not acceptance.drafted:
        acceptance = None
    if name == "sglang":
        acceptance = await _sglang_acceptance(http, metrics, busy=bool(counters.requests_running))
    hits = None
    if counters.prompt_tokens and counters.cached_tokens is not None:
        hits = min(counters.cached_tokens / counters.prompt_tokens, 1.0)
    return RunFacts(
        subject=subject,
        kind="server",
        engine=name,
        version=told.version,
        model=told.model,
        knobs=told.effective,
        settings=_settings(told.reported),
        acceptance=acceptance,
        speed=SpeedFacts(max_running=counters.requests_running, max_queued=counters.requests_waiting),
        cache=CacheFacts(
            prompt_tokens=counters.prompt_tokens, cached_tokens=counters.cached_tokens, hit_frac=hits
        ),
        ready=True,
    )


async def _sglang_acceptance(http: HttpClient, metrics: Metrics, *, busy: bool) -> AcceptanceFacts | None:
    """From the lifetime mean, else from the gauge, which keeps its last value while the server is idle."""
    lengths = []
    info = as_dict(await _json(http, "/server_info"))
    states = info.get("internal_states")
    for state in states if isinstance(states, list) else []:
        value = as_dict(state).get("avg_spec_accept_length")
        if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 1000:
            lengths.append(float(value))
    steps = metrics.count("sglang:spec_verify_calls_total")
    if lengths:
        mean = sum(lengths) / len(lengths)
        kept = None if steps is None else round((mean - 1) * steps)
        return AcceptanceFacts(
            source="mean since the last flush",
            windows=1,
            steps=steps,
            accepted=kept,
            length=mean,
            cumulative=True,
        )
    samples = metrics.samples("sglang:spec_accept_length")
    values = [sample.value for sample in samples if 1 <= sample.value < 1000]
    if not values:
        return None
    source = "gauge" if busy else "gauge of an idle server (its last value)"
    return AcceptanceFacts(source=source, windows=1, steps=steps, length=sum(values) / len(values))


def _settings(reported: dict[str, Any]) -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for name, value in reported.items():
        inner = value if isinstance(value, dict) else {name: value}
        for key, item in inner.items():
            label = f"speculative.{key}" if name == "speculative_config" else key
            if (
                item is None
                or isinstance(item, bool | int | float)
                or (isinstance(item, str) and len(item) < 500)
            ):
                flat[label] = item
    return flat


async def _text(http: HttpClient, path: str) -> str | None:
    try:
        reply = await http.request("GET", path, timeout_s=20)
    except TransportError:
        return None
    return reply.text if reply.status == 200 else None


async def _json(http: HttpClient, path: str) -> Any:
    try:
        reply = await http.request("GET", path, timeout_s=20)
        return reply.json() if reply.status == 200 else None
    except TransportError:
        return None
