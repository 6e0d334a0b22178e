"""The fake engine, as a process: it does what its options say, and its adapter knows it."""

import asyncio
import json
import re
import signal
import socket
import time
from typing import Any

import psutil
import pytest
from fake_server_fixture import WAIT_S, fake_engine, start_fake_engine

from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, Knobs
from spectune.domain.trial import PHASES
from spectune.domain.workload import Sampling
from spectune.engines.adapter import EngineSetup, Launch
from spectune.engines.fake.adapter import FakeAdapter
from spectune.engines.fake.options import Speculation
from spectune.engines.fake.script import PrefixCache, accepted_per_step, answer_tokens, detokenize, tokenize
from spectune.errors import BadInput, TransportError
from spectune.transport import HttpClient, Response

ADAPTER = FakeAdapter()
FAST = "--tokens-per-s=2000"


def ask(url: str, method: str, path: str, body: object | None = None, *, key: str | None = None) -> Response:
    async def scenario() -> Response:
        async with HttpClient(url, api_key=key) as http:
            return await http.request(method, path, body)

    return asyncio.run(scenario())


def chat(prompt: str, *, max_tokens: int = 40, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, **fields}


def events(url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async def scenario() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with HttpClient(url) as http:
            await http.stream(
                path,
                {**body, "stream": True},
                lambda payload, _: found.append(json.loads(payload)),
                timeout_s=20,
            )
        return found

    return asyncio.run(scenario())


def text_of(found: list[dict[str, Any]]) -> str:
    choices = [choice for event in found for choice in event["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices)


def launch(knobs: Knobs, **flags: Any) -> Launch:
    arm = Arm(name="a", engine="fake", target="m", knobs=knobs, flags=flags)
    setup = EngineSetup(name="fake", flags={"tokens-per-s": 500.0}, env={"A": "1"})
    return Launch(
        arm=arm,
        setup=setup,
        host="127.0.0.1",
        port=1234,
        target_path="some/model",
        drafter_path="some/draft",
        max_concurrency=4,
    )


def test_text_depends_on_the_prompt_alone_and_diverges_where_told() -> None:
    prompt = "What is rain?"
    with (
        fake_engine(FAST) as plain,
        fake_engine(FAST, "--method=eagle3", "--accept=0.9,0.5") as fast,
        fake_engine(FAST, "--method=eagle3", "--diverge-after=10") as broken,
    ):
        one, two, other = (
            text_of(events(engine.url, "/v1/chat/completions", chat(prompt)))
            for engine in (plain, fast, broken)
        )
        whole = ask(plain.url, "POST", "/v1/chat/completions", chat(prompt)).json()
        another = text_of(events(plain.url, "/v1/completions", {"prompt": "Else?", "max_tokens": 40}))
    assert one == two == whole["choices"][0]["message"]["content"]
    assert len(one.split()) == 40
    assert other.split()[:10] == one.split()[:10]
    assert other.split()[10:] != one.split()[10:]
    assert another != one


def test_speculation_brings_several_tokens_in_one_chunk() -> None:
    with fake_engine(FAST, "--method=eagle3", "--accept=1", "--num-draft-tokens=3") as engine:
        found = events(engine.url, "/v1/completions", {"prompt": "x", "max_tokens": 9})
    words = [len(event["choices"][0]["text"].split()) for event in found if event["choices"]]
    assert words == [1, 4, 4, 0]


def test_counters_and_final_chunk_agree_to_the_token() -> None:
    options = ("--method=eagle3", "--accept=0.8,0.6,0.5", "--num-draft-tokens=3")
    with fake_engine(FAST, *options) as engine:
        found = events(engine.url, "/v1/completions", {"prompt": "x", "max_tokens": 200})
        counters = ADAPTER.read_counters(ask(engine.url, "GET", "/metrics").text)
    final = ADAPTER.read_final([event for event in found if not event["choices"]])
    counts = final.acceptance
    assert counts is not None
    assert counts == counters.acceptance
    assert counters.generation_tokens == 200
    assert counts.num_drafts is not None
    assert 1 + counts.num_drafts + counts.num_accepted_tokens == 200
    assert counts.num_draft_tokens == 3 * counts.num_drafts


def test_a_request_may_ask_for_shorter_drafts() -> None:
    with fake_engine(FAST, "--method=eagle3", "--accept=1", "--num-draft-tokens=3") as engine:

        def drafted(**fields: Any) -> tuple[int, int]:
            last = events(engine.url, "/v1/chat/completions", chat("p", max_tokens=13, **fields))[-1]
            counts = ADAPTER.read_final([last]).acceptance
            assert counts is not None
            return counts.num_drafts or 0, counts.num_draft_tokens

        # 12 tokens after the first, each step its drafts and one: 3 steps of 4, 6 steps of 2.
        assert drafted() == (3, 9)
        assert drafted(**{"speculative.n_max": 1}) == (6, 6)
        assert drafted(**{"speculative.n_max": 7}) == (3, 9)
        for wrong in (0, "2", True):
            reply = ask(engine.url, "POST", "/v1/chat/completions", chat("p", **{"speculative.n_max": wrong}))
            assert reply.status == 400
            assert "speculative.n_max must be" in reply.text


def test_conditional_acceptance_is_what_was_scripted() -> None:
    speculation = Speculation("eagle3", 3, (0.8, 0.6, 0.25))
    steps = list(accepted_per_step("p", 60_000, speculation, seed=1))
    histogram = [steps.count(kept) for kept in range(4)]
    counts = AcceptanceCounts.from_histogram(histogram, num_draft_tokens=3 * len(steps))
    assert counts.conditional_acceptance == pytest.approx((0.8, 0.6, 0.25), abs=0.015)


def test_steps_end_exactly_at_the_last_token() -> None:
    lucky = Speculation("eagle3", 4, (1.0,) * 4)
    for num_tokens in range(1, 30):
        steps = list(accepted_per_step("p", num_tokens, lucky, seed=0))
        assert 1 + len(steps) + sum(steps) == num_tokens


def test_without_speculation_the_families_are_absent_or_zero_as_told() -> None:
    with fake_engine() as engine, fake_engine("--zero-spec-metrics") as like_llamacpp:
        assert ADAPTER.read_counters(ask(engine.url, "GET", "/metrics").text).acceptance is None
        zeros = ADAPTER.read_counters(ask(like_llamacpp.url, "GET", "/metrics").text).acceptance
    assert zeros is not None
    assert (zeros.num_drafts, zeros.num_draft_tokens) == (0, 0)


def test_prefix_cache_holds_whole_blocks_and_can_be_emptied() -> None:
    prompt = " ".join(f"w{n}" for n in range(40))
    body = {"prompt": prompt, "max_tokens": 1}
    with fake_engine(FAST) as engine:

        def cached() -> int:
            usage = ask(engine.url, "POST", "/v1/completions", body).json()["usage"]
            assert usage["prompt_tokens"] == 40
            return usage["prompt_tokens_details"]["cached_tokens"]  # type: ignore[no-any-return]

        assert [cached(), cached()] == [0, 32]
        call = ADAPTER.flush_call()
        assert call is not None
        assert ask(engine.url, call.method, call.path, call.body).status == 200
        assert cached() == 0


def test_a_prefix_that_differs_early_hits_nothing() -> None:
    cache = PrefixCache()
    assert cache.look_up_and_add(list(range(64))) == 0
    assert cache.look_up_and_add([99, *range(1, 64)]) == 0
    assert cache.look_up_and_add([*range(32), 99, *range(33, 64)]) == 32


def test_the_tokenizer_gives_back_the_tokens_of_an_answer() -> None:
    tokens = answer_tokens("p", 50, seed=0)
    assert tokenize(detokenize(tokens)) == tokens
    with fake_engine() as engine:
        call = ADAPTER.tokenize_call(detokenize(tokens), "m")
        assert call is not None
        assert ADAPTER.read_tokens(ask(engine.url, call.method, call.path, call.body).json()) == tuple(tokens)


def test_speed_is_the_scripted_one() -> None:
    with fake_engine("--tokens-per-s=100", "--method=ngram", "--accept=0", "--draft-cost=0.1") as engine:
        start_s = time.monotonic()
        ask(engine.url, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 31})
        took_s = time.monotonic() - start_s
    scripted_s = 30 * 0.010 * 1.3  # 30 steps, 3 drafted tokens each
    assert scripted_s * 0.98 < took_s < scripted_s * 1.5


def test_an_end_of_text_is_ignored_when_asked_to() -> None:
    with fake_engine(FAST, "--stop-after=5") as engine:
        choice = ask(engine.url, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 9}).json()[
            "choices"
        ][0]
        assert (choice["finish_reason"], len(choice["text"].split())) == ("stop", 5)
        body = {"prompt": "x", "max_tokens": 9, **ADAPTER.request_fields(Sampling(ignore_eos=True))}
        choice = ask(engine.url, "POST", "/v1/completions", body).json()["choices"][0]
        assert (choice["finish_reason"], len(choice["text"].split())) == ("length", 9)


def test_health_is_503_until_ready_and_the_phases_are_told_in_order() -> None:
    engine = start_fake_engine("--ready-delay-s=30", "--startup-delay-s=0.1")
    try:
        assert ask(engine.url, "GET", "/health").status == 503
        assert ask(engine.url, "POST", "/v1/completions", {"prompt": "x"}).status == 503
        phases = [phase for line in engine.lines if (phase := ADAPTER.phase_of(line)) is not None]
        assert phases == [phase for phase in PHASES if phase in phases]
        assert set(phases) == {"load", "compile", "capture", "warm-up"}
    finally:
        engine.process.kill()
        engine.process.wait(WAIT_S)


def test_a_key_is_demanded() -> None:
    with fake_engine("--api-key=open-sesame") as engine:
        assert ask(engine.url, "GET", "/v1/models").status == 401
        assert ask(engine.url, "GET", "/v1/models", key="wrong").status == 401
        assert ask(engine.url, "GET", "/v1/models", key="open-sesame").status == 200


@pytest.mark.parametrize(
    "body", [{}, {"messages": []}, {"messages": [{"role": "user"}]}, chat("x", max_tokens=-1)]
)
def test_a_bad_body_is_status_400(body: dict[str, Any]) -> None:
    with fake_engine() as engine:
        assert ask(engine.url, "POST", "/v1/chat/completions", body).status == 400


def test_it_dies_with_its_code_and_message_during_the_start() -> None:
    engine = start_fake_engine(
        "--startup-delay-s=30", "--die-after-s=0.2", "--exit-code=7", "--die-message=MemoryError: no room"
    )
    assert engine.process.wait(WAIT_S) == 7
    engine.wait_for(r"MemoryError: no room")
    cause = ADAPTER.cause_of_death(engine.lines)
    assert cause is not None
    assert cause.message == "MemoryError: no room"


def test_it_dies_in_the_middle_of_the_chosen_request() -> None:
    with fake_engine(FAST, "--die-at-request=2") as engine:
        assert ask(engine.url, "POST", "/v1/completions", {"prompt": "x"}).status == 200
        with pytest.raises(TransportError, match="before the end of the answer"):
            events(engine.url, "/v1/completions", {"prompt": "x"})
        assert engine.process.wait(WAIT_S) == 1


def test_a_port_in_use_ends_it_with_a_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        engine = start_fake_engine(f"--port={taken.getsockname()[1]}")
        assert engine.process.wait(WAIT_S) == 1
    engine.wait_for(r"OSError: .*")
    assert ADAPTER.cause_of_death(engine.lines) is not None


def test_sigterm_ends_it_unless_told_otherwise() -> None:
    with fake_engine() as polite, fake_engine("--ignore-sigterm") as stubborn:
        polite.process.send_signal(signal.SIGTERM)
        stubborn.process.send_signal(signal.SIGTERM)
        assert polite.process.wait(WAIT_S) == 0
        assert ask(stubborn.url, "GET", "/health").status == 200


def test_hanging_generation_is_healthy_and_silent() -> None:
    async def scenario(url: str) -> None:
        async with HttpClient(url) as http:
            assert (await http.request("GET", "/health")).status == 200
            with pytest.raises(TransportError, match=r"\(0 bytes received\)"):
                await http.request("POST", "/v1/completions", {"prompt": "x"}, timeout_s=0.3)

    with fake_engine("--hang-generation") as engine:
        asyncio.run(scenario(engine.url))


@pytest.mark.parametrize("kind", ["group", "session"])
def test_its_child_ignores_sigterm_and_outlives_it(kind: str) -> None:
    with fake_engine(f"--spawn-child={kind}") as engine:
        child = psutil.Process(int(engine.wait_for(r"child pid (\d+)")[1]))
        engine.wait_for("child ready")
        engine.process.terminate()
        engine.process.wait(WAIT_S)
        try:
            child.terminate()
            with pytest.raises(psutil.TimeoutExpired):
                child.wait(0.2)
        finally:
            child.kill()


def test_a_client_that_leaves_no_longer_runs() -> None:
    async def scenario(url: str) -> None:
        first = asyncio.Event()
        async with HttpClient(url) as http:
            body = {"prompt": "x", "max_tokens": 10_000, "stream": True}
            task = asyncio.create_task(
                http.stream("/v1/completions", body, lambda *_: first.set(), timeout_s=60)
            )
            await first.wait()
            assert ADAPTER.read_counters((await http.request("GET", "/metrics")).text).requests_running == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with asyncio.timeout(5):
                while ADAPTER.read_counters((await http.request("GET", "/metrics")).text).requests_running:
                    pass

    with fake_engine() as engine:
        asyncio.run(scenario(engine.url))


@pytest.mark.parametrize("method", FakeAdapter.methods)
def test_a_command_reads_back_as_its_knobs(method: str) -> None:
    knobs = Knobs(method=method, cuda_graphs=False)
    if method != "none":
        knobs = Knobs(method=method, drafter="some/draft", num_steps=4, topk=2, num_draft_tokens=6)
    command = ADAPTER.command(launch(knobs, **{"ttft-s": 0.25}))
    assert ADAPTER.read_flags(command.argv) == knobs
    assert command.env == {"A": "1"}
    text = " ".join(command.argv)
    assert re.search(r"-m spectune\.engines\.fake\.server .*--port 1234 --model some/model", text)
    assert text.endswith("--tokens-per-s 500.0 --ttft-s 0.25")


def test_a_method_it_does_not_know_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(BadInput, match=r"medusa.*eagle3"):
        ADAPTER.command(launch(Knobs(method="medusa")))


def test_facts_are_what_the_server_runs_not_what_was_asked() -> None:
    with fake_engine("--method=eagle3", "--num-draft-tokens=5", "--effective-num-draft-tokens=2") as engine:
        bodies = {path: ask(engine.url, "GET", path).json() for path in ADAPTER.info_paths}
    facts = ADAPTER.read_facts(bodies)
    assert facts.model == "fake-model"
    assert facts.effective == Knobs(method="eagle3", num_draft_tokens=2)


def test_a_final_chunk_that_contradicts_itself_gives_nothing() -> None:
    broken = {"metrics": {"speculative_decoding": {"acceptance_histogram": [0, 9], "num_draft_tokens": 3}}}
    assert ADAPTER.read_final([broken]).acceptance is None
