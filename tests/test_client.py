"""The measuring client: what it sends, what it makes of answers, and that a failure is a record."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_server_fixture import Answer, FakeEngine, always, chunked, fake_engine, plain, scripted_server

from spectune.bench.answer import MAX_TEXT_CHARS
from spectune.bench.answer import Answer as StreamedAnswer
from spectune.bench.client import StreamingClient
from spectune.cli.main import build_parser
from spectune.domain.measurement import RequestRecord
from spectune.domain.workload import Prompt, Sampling
from spectune.engines.adapter import FinalFields
from spectune.engines.fake.adapter import FakeAdapter
from spectune.engines.registry import adapter_for
from spectune.study_file.schema import WorkloadSpec
from spectune.transport import HttpClient

RECORDED = Path(__file__).parent / "recorded"
PROMPT = Prompt(prompt_id="p1", category="chat", turns=("What is rain?",))
KEY = "sk-very-secret-4711"


def run(
    url: str,
    prompt: Prompt = PROMPT,
    sampling: Sampling | None = None,
    *,
    key: str | None = None,
    **client: Any,
) -> list[RequestRecord]:
    async def scenario() -> list[RequestRecord]:
        options = {"adapter": FakeAdapter(), "model": "m", **client}
        async with HttpClient(url, api_key=key) as http:
            return await StreamingClient(http, **options).run(prompt, sampling or Sampling(), origin=0.0)

    return asyncio.run(scenario())


def run_scripted(
    answer: Answer, prompt: Prompt = PROMPT, sampling: Sampling | None = None, **client: Any
) -> tuple[list[RequestRecord], list[dict[str, Any]]]:
    """Records, and the request bodies that the server saw."""

    async def scenario() -> tuple[list[RequestRecord], list[dict[str, Any]]]:
        key = client.pop("key", None)
        options = {"adapter": FakeAdapter(), "model": "m", **client}
        async with scripted_server(answer) as server, HttpClient(server.url, api_key=key) as http:
            records = await StreamingClient(http, **options).run(prompt, sampling or Sampling(), origin=0.0)
            return records, [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]

    return asyncio.run(scenario())


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(completion_tokens: int, **fields: object) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": completion_tokens, **fields}}


DONE = b"data: [DONE]\n\n"
GOOD = [event(delta(content="Rain")), event(delta("stop")), event(usage(1)), DONE]


def answer_with(*events: bytes, end: bool = True, close: bool = False) -> Answer:
    return always(chunked(*events, end=end), close=close)


def only(*events: bytes, **client: Any) -> RequestRecord:
    records, _ = run_scripted(answer_with(*events), **client)
    assert len(records) == 1
    return records[0]


def test_a_chat_body_holds_what_was_asked_and_extra_body_wins() -> None:
    prompt = Prompt(prompt_id="p", system="Be brief.", turns=("Hi",), output_tokens=7)
    sampling = Sampling(temperature=0.5, seed=3, ignore_eos=True, extra_body={"top_p": 0.9, "seed": 4})
    _, bodies = run_scripted(answer_with(*GOOD), prompt, sampling)
    assert bodies == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "max_tokens": 7,
            "temperature": 0.5,
            "seed": 4,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "top_p": 0.9,
        }
    ]


def test_no_seed_is_sent_unless_one_is_asked_for() -> None:
    """A seeded request takes vLLM's whole batch off its fast sampler."""
    _, bodies = run_scripted(answer_with(*GOOD))
    assert "seed" not in bodies[0]
    assert WorkloadSpec().seed is None
    assert build_parser().parse_args(["bench", "http://h:1"]).seed is None


def test_a_completions_body_holds_the_prompt_as_it_is() -> None:
    good = event({"choices": [{"index": 0, "text": "Rain", "finish_reason": "stop"}]})
    records, bodies = run_scripted(answer_with(good, event(usage(1))), api="completions")
    assert bodies[0]["prompt"] == "What is rain?"
    assert "messages" not in bodies[0]
    assert records[0].text == "Rain"


def test_a_later_turn_carries_the_earlier_answers() -> None:
    prompt = Prompt(prompt_id="p", turns=("one", "two", "three"))
    reasoned = [event(delta(reasoning_content="hm")), *GOOD]
    records, bodies = run_scripted(answer_with(*reasoned), prompt)
    assert [record.turn for record in records] == [0, 1, 2]
    assert all(record.ok and record.text == "hmRain" for record in records)
    assert bodies[2]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "Rain"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "Rain"},
        {"role": "user", "content": "three"},
    ]


def test_after_a_failed_turn_the_others_are_not_sent_and_say_so() -> None:
    prompt = Prompt(prompt_id="p", turns=("one", "two", "three"))
    records, bodies = run_scripted(always(plain(b"too long", status="400 Bad Request")), prompt)
    assert len(bodies) == 1
    assert "HTTP 400: too long" in (records[0].error or "")
    for record in records[1:]:
        assert record.error is not None
        assert record.error.startswith("not sent, because an earlier turn failed: ")
        assert record.error.count("not sent") == 1
        assert "HTTP 400" in record.error


def test_tokens_are_the_servers_and_a_chunk_may_hold_several() -> None:
    with fake_engine(
        "--tokens-per-s=200", "--method=eagle3", "--accept=1", "--num-draft-tokens=4", "--ttft-s=0.1"
    ) as engine:
        (record,) = run(engine.url, sampling=Sampling(max_tokens=21))
    assert record.ok
    assert record.output_tokens == 21
    assert len(record.text.split()) == 21
    assert record.prompt_tokens == 3
    assert len(record.chunk_gaps_s) + 1 == 5  # 1 + 4 steps of 5 tokens
    assert record.finish_reason == "length"
    assert record.ttft_s is not None
    assert record.latency_s is not None
    assert record.ttft_s >= 0.1
    assert record.latency_s - record.ttft_s == pytest.approx(sum(record.chunk_gaps_s))
    assert record.latency_s >= (0.1 + 4 * 0.005) * 0.99
    assert record.acceptance is not None
    assert record.acceptance.acceptance_length == 5


def test_a_role_chunk_is_not_the_first_token() -> None:
    async def slow_text(request: bytes, writer: asyncio.StreamWriter) -> bool:
        whole = chunked(event(delta(role="assistant", content="")), *GOOD)
        cut = whole.index(b"Rain") - 80
        writer.write(whole[:cut])
        await asyncio.sleep(0.15)
        writer.write(whole[cut:])
        return True

    records, _ = run_scripted(slow_text)
    assert records[0].ok
    assert records[0].ttft_s is not None
    assert records[0].ttft_s >= 0.15
    assert records[0].latency_s == records[0].ttft_s


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "content"])
def test_reasoning_is_text_too(name: str) -> None:
    record = only(event(delta(**{name: "hm"})), event(delta("stop")), event(usage(1)))
    assert record.ok
    assert record.text == "hm"


CALL = [{"index": 0, "id": "call-7f", "type": "function", "function": {"name": "rain", "arguments": ""}}]
ARGUMENTS = [{"index": 0, "function": {"arguments": '{"mm"'}}]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tool_calls": CALL}, ""),
        ({"tool_calls": ARGUMENTS}, '{"mm"'),
        ({"tool_calls": [{"index": 0, "type": "custom", "custom": {"name": "sh", "input": "ls"}}]}, "ls"),
        ({"function_call": {"name": "rain", "arguments": "{}"}}, "{}"),
        ({"refusal": "I cannot"}, "I cannot"),
        ({"content": [{"type": "text", "text": "Rain"}]}, "Rain"),
        ({"reasoning": "hm", "content": "Rain"}, "hmRain"),
    ],
)
def test_every_delta_that_carries_tokens_is_an_answer_and_is_timed(fields: dict[str, Any], text: str) -> None:
    record = only(
        event(delta(role="assistant")), event(delta(**fields)), event(delta("stop")), event(usage(1))
    )
    assert record.ok
    assert record.text == text
    assert record.ttft_s is not None
    assert record.chunk_gaps_s == ()


@pytest.mark.parametrize(
    "fields", [{"role": "assistant"}, {"tool_calls": [{"id": "c"}]}, {"tool_calls": [3]}]
)
def test_roles_and_ids_are_no_tokens(fields: dict[str, Any]) -> None:
    record = only(event(delta(**fields)), event(delta("stop")), event(usage(1)))
    assert record.error == "the answer holds no text"


def test_time_runs_through_text_and_tool_calls_alike() -> None:
    """40 tokens, of which the last 32 are those of a call: all of their time is decoding's."""
    events = [delta(content="x")] * 8 + [delta(tool_calls=ARGUMENTS)] * 32 + [delta("tool_calls"), usage(40)]
    answer = StreamedAnswer()
    for number, part in enumerate(events):
        answer.take(json.dumps(part).encode(), 0.004 * number)
    record = answer.record(PROMPT, 0, sent_s=0.0, origin=0.0, error=None, final=FinalFields())
    assert record.decode_tok_per_s == pytest.approx(250)
    assert len(record.chunk_gaps_s) == 39


def test_half_a_character_that_comes_with_its_token_id_is_timed() -> None:
    answer = StreamedAnswer()
    for number, token_ids in enumerate([[226], [130], []]):
        choice = {"index": 0, "delta": {"content": ""}, "finish_reason": None, "token_ids": token_ids}
        answer.take(json.dumps({"choices": [choice]}).encode(), float(number))
    record = answer.record(PROMPT, 0, sent_s=0.0, origin=0.0, error=None, final=FinalFields())
    assert list(record.chunk_gaps_s) == [1.0]


def test_without_usage_the_number_of_tokens_is_unknown() -> None:
    record = only(event(delta(content="Rain")), event(delta("stop")), DONE)
    assert record.ok
    assert record.output_tokens is None
    assert record.e2e_tok_per_s is None


def test_cached_tokens_come_from_usage() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 4}}
    assert only(GOOD[0], GOOD[1], event(usage(1, **details))).cached_tokens == 4
    assert only(*GOOD).cached_tokens is None


class Witness(FakeAdapter):
    """Keeps what it was given, and gives what it was told."""

    def __init__(self, fields: FinalFields | ValueError) -> None:
        self.fields = fields
        self.seen: list[list[Mapping[str, Any]]] = []

    def read_final(self, payloads: Sequence[Mapping[str, Any]]) -> FinalFields:
        self.seen.append(list(payloads))
        if isinstance(self.fields, ValueError):
            raise self.fields
        return self.fields


def test_the_adapter_gets_the_events_without_text_and_its_fields_are_kept() -> None:
    adapter = Witness(FinalFields(cached_tokens=9, server_timings={"predicted_ms": 12.5}))
    record = only(*GOOD, adapter=adapter)
    assert adapter.seen == [[delta("stop"), usage(1)]]
    assert record.cached_tokens == 9
    assert record.server_timings == {"predicted_ms": 12.5}


def test_engine_fields_that_make_no_sense_are_an_error_record() -> None:
    record = only(*GOOD, adapter=Witness(ValueError("9 accepted of only 3")))
    assert "9 accepted of only 3" in (record.error or "")


@pytest.mark.parametrize(
    ("events", "message"),
    [
        pytest.param(
            [event({"error": {"message": "KV cache is full"}})], "KV cache is full", id="error event"
        ),
        pytest.param([GOOD[0], event({"error": "aborted"})], "aborted", id="error as text"),
        pytest.param([GOOD[0], b"data: {nonsense\n\n"], "malformed JSON", id="no JSON"),
        pytest.param([b"data: " + b"[" * 100_000 + b"\n\n"], "malformed JSON", id="endless nesting"),
        pytest.param([b"data: \xff\xfe{}\n\n"], "malformed JSON", id="no UTF-8"),
        pytest.param([b'data: {"a": 1} {"b": 2}\n\n'], "extra data", id="two objects"),
        pytest.param([b"data: [1]\n\n"], "no JSON object", id="an array"),
        pytest.param([GOOD[0], event(delta("abort")), event(usage(1))], "'abort'", id="aborted"),
        pytest.param([GOOD[0], event(usage(1)), DONE], "without a finish_reason", id="no finish"),
        pytest.param([event(delta("stop")), event(usage(0)), DONE], "holds no text", id="no tokens"),
        pytest.param([DONE], "holds no text", id="nothing at all"),
        pytest.param([event(delta(content="x" * (MAX_TEXT_CHARS + 1)))], "longer than", id="endless text"),
    ],
)
def test_a_broken_stream_is_an_error_record(events: list[bytes], message: str) -> None:
    record = only(*events)
    assert message in (record.error or "")
    assert not record.ok


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None},
        {"choices": {}},
        {"choices": [None]},
        {"choices": [{"delta": {"content": ["x"]}}]},
        {"choices": [{"delta": None, "text": 7}]},
        {"choices": [{"finish_reason": 3}]},
        {"usage": {"completion_tokens": "many", "prompt_tokens": -1, "prompt_tokens_details": []}},
        {"error": None},
        {},
    ],
)
def test_odd_but_harmless_events_are_passed_over(odd: dict[str, Any]) -> None:
    record = only(event(odd), *GOOD)
    assert record.ok
    assert (record.text, record.output_tokens) == ("Rain", 1)


def test_counts_that_are_no_counts_are_unknown() -> None:
    bad = {"choices": [], "usage": {"completion_tokens": True, "prompt_tokens": -4}}
    record = only(GOOD[0], GOOD[1], event(bad))
    assert record.ok
    assert (record.output_tokens, record.prompt_tokens) == (None, None)


def test_halves_of_a_surrogate_pair_are_joined_and_lone_ones_replaced() -> None:
    events = [
        b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n' % s
        for s in (rb"\ud83d", rb"\ude00", rb"\udead")
    ]
    record = only(*events, *GOOD[1:])
    assert record.text == "\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}"
    record.model_dump_json()


def test_a_reset_in_the_middle_keeps_what_had_come() -> None:
    records, _ = run_scripted(answer_with(GOOD[0], end=False, close=True))
    assert "before the end of the answer" in (records[0].error or "")
    assert records[0].text == "Rain"
    assert records[0].e2e_tok_per_s is None


def test_a_time_out_is_an_error_record() -> None:
    with fake_engine("--hang-generation") as engine:
        (record,) = run(engine.url, request_timeout_s=0.2)
    assert "no complete answer within 0.2 s" in (record.error or "")


def test_a_server_that_is_not_there_is_an_error_record() -> None:
    with fake_engine() as engine:
        url = engine.url
        engine.process.kill()
        engine.process.wait()
    (record,) = run(url)
    assert "cannot connect" in (record.error or "")


@pytest.mark.parametrize("padding", [0, 480, 990])
def test_the_api_key_is_in_no_record_even_if_the_stream_repeats_it(padding: int) -> None:
    text = "x" * padding + KEY
    for bad in (event({"error": {"message": text}}), b"data: {" + text.encode() + b"\n\n"):
        record = only(bad, key=KEY)
        assert not record.ok
        assert "sk-" not in record.model_dump_json()
        assert "4711" not in record.model_dump_json()
        assert len(record.error or "") <= 1000


def test_cancellation_is_not_turned_into_a_record() -> None:
    async def scenario(engine: FakeEngine) -> None:
        async with HttpClient(engine.url) as http:
            client = StreamingClient(http, adapter=FakeAdapter(), model="m")
            task = asyncio.create_task(client.run(PROMPT, Sampling(), origin=0.0))
            await asyncio.to_thread(engine.wait_for, "request started")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 2)

    with fake_engine("--hang-generation", "--log-requests") as engine:
        asyncio.run(scenario(engine))


@pytest.mark.parametrize(
    "path", sorted(RECORDED.glob("*/*/chat-1.http")), ids=lambda p: f"{p.parent.parent.name}-{p.parent.name}"
)
def test_recorded_engine_answers_are_measured_by_their_usage(path: Path) -> None:
    raw = path.read_bytes()
    events = [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]
    deltas = [choice["delta"] for e in events for choice in e["choices"]]
    reported = next(e["usage"] for e in events if e.get("usage"))
    adapter = adapter_for(path.parent.parent.name.split("-")[0])
    records, _ = run_scripted(always(raw, close=True), adapter=adapter)
    (record,) = records
    assert record.ok, record.error
    assert record.text == "".join(d.get("content") or "" for d in deltas)
    assert (record.output_tokens, record.prompt_tokens) == (
        reported["completion_tokens"],
        reported["prompt_tokens"],
    )
    assert len(record.chunk_gaps_s) + 1 == sum(bool(d.get("content")) for d in deltas)
