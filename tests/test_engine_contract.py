"""One contract for every adapter, against what the real engines said (``recorded/README.md``).

Adding an engine version is adding a folder.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spectune.domain.acceptance import AcceptanceCounts, pool_counts
from spectune.domain.arm import Arm, Knobs, baseline_arm
from spectune.domain.trial import PHASES
from spectune.domain.workload import Sampling
from spectune.engines.adapter import EngineAdapter, EngineSetup, Launch
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput

RECORDED = Path(__file__).parent / "recorded"
METHODS = {
    "none": ("none", None),
    "bare": ("none", None),
    "ngram": ("ngram", 3),
    "eagle3": ("eagle3", 3),
    "eagle3-random-draft": ("eagle3", 3),
    "eagle3-draft-with-flag-eagle": ("eagle", 3),
}


def recordings() -> list[Any]:
    folders = sorted(p for p in RECORDED.glob("*/*") if (p / "server.log").exists())
    return [pytest.param(p, id=f"{p.parent.name}-{p.name}") for p in folders]


def adapter_of(folder: Path) -> EngineAdapter:
    return adapter_for(folder.parent.name.split("-")[0])


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def payloads_of(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def test_there_are_recordings_of_all_three_engines() -> None:
    assert {adapter_of(p.values[0]).name for p in recordings()} == {"llamacpp", "vllm", "sglang"}


@pytest.mark.parametrize("folder", recordings())
def test_facts_name_version_model_and_effective_method(folder: Path) -> None:
    adapter = adapter_of(folder)
    bodies = {}
    for path in adapter.info_paths:
        name = path.split("?")[0].strip("/").split("/")[-1]
        # After a generation, as spectune asks: llama.cpp names its method in a slot that has been used.
        for file in (folder / f"{name}-after.json", folder / f"{name}.json"):
            if file.exists():
                bodies.setdefault(path, read_json(file))
    facts = adapter.read_facts(bodies)
    assert facts.model
    assert facts.version
    assert facts.effective is not None
    method, length = METHODS[folder.name]
    assert facts.effective.method == method
    if facts.effective.num_draft_tokens is not None:
        assert facts.effective.num_draft_tokens == length


@pytest.mark.parametrize("folder", recordings())
def test_the_recorded_command_reads_back_as_the_knobs_that_were_asked(folder: Path) -> None:
    path = folder / "command.json"
    if not path.exists() or "probe" in path.read_text():
        pytest.skip("this engine was not started by a command line")
    knobs = adapter_of(folder).read_flags(read_json(path)["argv"])
    assert (knobs.method, knobs.num_draft_tokens) == METHODS[folder.name]


@pytest.mark.parametrize("folder", recordings())
def test_request_acceptance_sums_to_the_servers_own_counters(folder: Path) -> None:
    adapter = adapter_of(folder)
    if METHODS[folder.name][0] == "none":
        for chat in sorted(folder.glob("chat-[123].sse")):
            final = adapter.read_final(list(payloads_of(chat)))
            assert final.acceptance is None or final.acceptance.num_draft_tokens == 0
        return
    parts: list[AcceptanceCounts] = []
    for chat in sorted(folder.glob("chat-[123].sse")):
        final = adapter.read_final(list(payloads_of(chat)))
        if final.acceptance is not None:
            parts.append(final.acceptance)
    pooled = pool_counts(parts)
    assert pooled is not None
    before = adapter.read_counters((folder / "metrics-before.txt").read_text(encoding="utf-8")).acceptance
    after = adapter.read_counters((folder / "metrics-after.txt").read_text(encoding="utf-8")).acceptance
    if before is None or after is None:
        assert adapter.name == "sglang"  # publishes no counter of accepted tokens
        return
    assert pooled.num_accepted_tokens == after.num_accepted_tokens - before.num_accepted_tokens
    assert pooled.num_draft_tokens == after.num_draft_tokens - before.num_draft_tokens
    if pooled.num_drafts is not None:
        assert after.num_drafts is not None and before.num_drafts is not None
        assert pooled.num_drafts == after.num_drafts - before.num_drafts
        assert pooled.accepted_per_position is not None
        assert after.accepted_per_position is not None and before.accepted_per_position is not None
        assert pooled.accepted_per_position == tuple(
            late - early
            for late, early in zip(after.accepted_per_position, before.accepted_per_position, strict=True)
        )


@pytest.mark.parametrize("folder", recordings())
def test_generated_tokens_are_counted_to_the_token(folder: Path) -> None:
    adapter = adapter_of(folder)
    own = 0
    for chat in sorted(folder.glob("chat-[123].sse")):
        own += next(p["usage"]["completion_tokens"] for p in payloads_of(chat) if p.get("usage"))
    before = adapter.read_counters((folder / "metrics-before.txt").read_text(encoding="utf-8"))
    after = adapter.read_counters((folder / "metrics-after.txt").read_text(encoding="utf-8"))
    assert after.generation_tokens is not None
    assert after.generation_tokens - (before.generation_tokens or 0) == own


@pytest.mark.parametrize("folder", recordings())
def test_a_dead_drafter_has_acceptance_length_one(folder: Path) -> None:
    if folder.name != "eagle3-random-draft":
        return
    adapter = adapter_of(folder)
    counts = [
        adapter.read_final(list(payloads_of(chat))).acceptance
        for chat in sorted(folder.glob("chat-[123].sse"))
    ]
    pooled = pool_counts(c for c in counts if c is not None)
    assert pooled is not None
    assert pooled.num_draft_tokens > 50
    assert pooled.num_accepted_tokens <= 1


@pytest.mark.parametrize("folder", recordings())
def test_start_up_phases_come_in_order(folder: Path) -> None:
    adapter = adapter_of(folder)
    seen: list[str] = []
    for line in (folder / "server.log").read_text(encoding="utf-8").splitlines():
        phase = adapter.phase_of(line)
        if phase is not None and (not seen or seen[-1] != phase):
            assert phase in PHASES
            seen.append(phase)
    assert seen[0] == "load"
    assert seen[-1] == "warm-up"


@pytest.mark.parametrize("folder", recordings())
def test_tokens_are_read_from_the_tokenizer_reply(folder: Path) -> None:
    path = folder / "tokenize.json"
    if not path.exists():
        pytest.skip("not recorded")
    tokens = adapter_of(folder).read_tokens(read_json(path))
    assert tokens is not None and len(tokens) > 3


REAL = ("llamacpp", "vllm", "sglang")
ENGINES = (*REAL, "fake")


def launch_of(engine: str, knobs: Knobs, **setup: Any) -> Launch:
    arm = Arm(name="a", engine=engine, target="TARGET", knobs=knobs)
    return Launch(
        arm=arm,
        setup=EngineSetup(name=engine, **setup),
        host="127.0.0.1",
        port=12345,
        target_path="TARGET",
        drafter_path=knobs.drafter,
        max_concurrency=4,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(),
        Knobs(method="ngram", num_draft_tokens=3),
        Knobs(method="eagle3", drafter="DRAFT", num_draft_tokens=3),
        Knobs(method="draft_model", drafter="DRAFT", num_draft_tokens=5),
        Knobs(method="mtp", num_draft_tokens=1),
    ],
    ids=lambda k: k.method,
)
def test_knobs_survive_the_way_to_flags_and_back(engine: str, knobs: Knobs) -> None:
    adapter = adapter_for(engine)
    command = adapter.command(launch_of(engine, knobs))
    back = adapter.read_flags(command.argv)
    assert back.method == knobs.method
    assert back.num_draft_tokens == knobs.num_draft_tokens
    assert back.drafter == knobs.drafter


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_listens_on_loopback_only(engine: str) -> None:
    argv = adapter_for(engine).command(launch_of(engine, Knobs())).argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--port") + 1] == "12345"


@pytest.mark.parametrize("engine", REAL)
def test_an_unknown_method_lists_the_valid_ones(engine: str) -> None:
    adapter = adapter_for(engine)
    with pytest.raises(BadInput, match="valid: none, ngram"):
        adapter.command(launch_of(engine, Knobs(method="teleport")))


@pytest.mark.parametrize("engine", REAL)
def test_a_missing_drafter_is_said(engine: str) -> None:
    with pytest.raises(BadInput, match="drafter"):
        adapter_for(engine).command(launch_of(engine, Knobs(method="eagle3", num_draft_tokens=3)))


@pytest.mark.parametrize("engine", ["llamacpp", "vllm"])
def test_engines_without_trees_refuse_topk(engine: str) -> None:
    knobs = Knobs(method="eagle3", drafter="D", num_steps=3, topk=4, num_draft_tokens=16)
    with pytest.raises(BadInput, match="topk"):
        adapter_for(engine).command(launch_of(engine, knobs))


def test_sglang_always_gets_all_three_numbers_and_counts_the_root() -> None:
    adapter = adapter_for("sglang")
    argv = adapter.command(launch_of("sglang", Knobs(method="eagle3", drafter="D", num_draft_tokens=3))).argv
    flags = dict(itertools.pairwise(argv))
    assert flags["--speculative-num-steps"] == "3"
    assert flags["--speculative-eagle-topk"] == "1"
    assert flags["--speculative-num-draft-tokens"] == "4"


def test_sglang_trees_larger_than_their_candidates_are_refused() -> None:
    adapter = adapter_for("sglang")
    # topk + (steps - 1) * topk^2 = 2 + 4 = 6 candidates.
    fits = Knobs(method="eagle3", drafter="D", num_steps=2, topk=2, num_draft_tokens=6)
    assert "--speculative-num-draft-tokens" in adapter.command(launch_of("sglang", fits)).argv
    with pytest.raises(BadInput, match="more than the 6 candidates"):
        adapter.command(launch_of("sglang", fits.model_copy(update={"num_draft_tokens": 7})))


def test_vllm_speculation_is_one_json_flag() -> None:
    knobs = Knobs(method="eagle3", drafter="D", num_draft_tokens=3, cuda_graphs=False)
    argv = adapter_for("vllm").command(launch_of("vllm", knobs)).argv
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config == {"method": "eagle3", "model": "D", "num_speculative_tokens": 3}
    assert "--enforce-eager" in argv


def test_speculative_keys_go_into_vllms_json() -> None:
    knobs = Knobs(method="ngram", num_draft_tokens=3)
    setup = {"flags": {"speculative.prompt_lookup_max": 5, "max-model-len": 2048}}
    argv = adapter_for("vllm").command(launch_of("vllm", knobs, **setup)).argv
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config["prompt_lookup_max"] == 5
    assert argv[argv.index("--max-model-len") + 1] == "2048"


@pytest.mark.parametrize("engine", REAL)
def test_user_flags_win_over_defaults_but_not_over_what_spectune_must_set(engine: str) -> None:
    adapter = adapter_for(engine)
    argv = adapter.command(launch_of(engine, Knobs(), flags={"seed-of-mine": 7, "metrics": False})).argv
    assert argv[argv.index("--seed-of-mine") + 1] == "7"
    assert "--metrics" not in argv
    with pytest.raises(BadInput, match="port"):
        adapter.command(launch_of(engine, Knobs(), flags={"port": 1}))


@pytest.mark.parametrize("engine", REAL)
def test_a_command_prefix_is_used_as_it_is(engine: str) -> None:
    argv = adapter_for(engine).command(launch_of(engine, Knobs(), command=("docker", "start", "image"))).argv
    assert argv[:3] == ("docker", "start", "image")


def test_arms_have_ids_that_do_not_depend_on_their_names() -> None:
    first = baseline_arm(engine="vllm", target="m")
    assert first.arm_id == first.model_copy(update={"name": "other"}).arm_id
    assert first.arm_id != baseline_arm(engine="sglang", target="m").arm_id
    assert adapter_for("vllm").request_fields(Sampling(ignore_eos=True)) == {"ignore_eos": True}


BAD_STARTS = {
    "llamacpp-xllamacpp-2026.10.11549-draft-missing": "no such file: /nonexistent/draft",
    "llamacpp-xllamacpp-2026.10.11549-port-taken": "couldn't bind HTTP server socket",
    "sglang-0.5.23-draft-missing": "'/nonexistent/draft'",
    "sglang-0.5.23-no-amx": "EAGLE is not supported in decode attention backend torch_native",
    "sglang-0.5.23-no-draft-named": "hot_token_id",
    "sglang-0.5.23-only-steps-named": "'NoneType' and 'int'",
    "sglang-0.5.23-port-taken": "address already in use",
    "sglang-0.5.23-tree-larger-than-its-candidates": "selected index k out of range",
    "sglang-0.5.23-unknown-flag": "ambiguous option: --cuda-graph-max-bs",
    "vllm-0.32.0-draft-missing": "Value error, Invalid repository ID or local directory specified: "
    "'/nonexistent/draft'",
    "vllm-0.32.0-metrics-flag-without-speculation": "requires speculative decoding to be enabled",
    "vllm-0.32.0-port-taken": "Address already in use",
    "vllm-0.32.0-unknown-flag": "unrecognized arguments: --num-speculative-tokens",
}


@pytest.mark.parametrize(("name", "words"), BAD_STARTS.items(), ids=str)
def test_the_cause_of_a_bad_start_is_found_in_its_log(name: str, words: str) -> None:
    log = (RECORDED / "bad-starts" / f"{name}.log").read_text(encoding="utf-8").splitlines()
    cause = adapter_for(name.split("-")[0]).cause_of_death(log[-200:])
    assert cause is not None
    assert words in cause.message
    assert "[type=" not in cause.message


def test_vllms_last_lines_point_up_and_the_workers_reason_counts() -> None:
    at = "ERROR 11-30 03:32:09"
    log = [
        f"(Worker pid=36) {at} [multiproc_executor.py:1063] AssertionError: no such kernel for this head size",
        f"(EngineCore pid=35) {at} [core.py:1512] RuntimeError: Worker failed with error 'no such kernel for this "
        "head size', please check the stack trace above for the root cause",
        f"(APIServer pid=34) {at} [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue. See stack trace (above) for the root cause.",
    ]
    cause = adapter_for("vllm").cause_of_death(log)
    assert cause is not None
    assert "no such kernel for this head size" in cause.message
    for reason, remedy in (
        ("Synthetic acceptance not supported with CPU sampling", "GPUs only"),
        ("CPU Generator does not use offset", "send no seed"),
    ):
        known = adapter_for("vllm").cause_of_death(
            [line.replace("no such kernel for this head size", reason) for line in log]
        )
        assert known is not None
        assert remedy in (known.remedy or "")


@pytest.mark.parametrize("folder", recordings())
def test_a_healthy_start_has_no_cause_of_death(folder: Path) -> None:
    log = (folder / "server.log").read_text(encoding="utf-8").splitlines()
    ready = next(
        i for i, line in enumerate(log) if "Application startup complete" in line or "listening on" in line
    )
    assert adapter_of(folder).cause_of_death(log[:ready]) is None


def test_a_draft_that_llamacpp_could_not_use_is_no_speculation() -> None:
    bodies = {"/slots": [{"speculative": False, "params": {"speculative.types": "draft-eagle3"}}]}
    effective = adapter_for("llamacpp").read_facts(bodies).effective
    assert effective is not None and effective.method == "none"


def test_llamacpp_ngrams_are_short_enough_to_match() -> None:
    for length, size in ((1, "1"), (2, "2"), (8, "3")):
        argv = (
            adapter_for("llamacpp")
            .command(launch_of("llamacpp", Knobs(method="ngram", num_draft_tokens=length)))
            .argv
        )
        assert argv[argv.index("--spec-ngram-simple-size-n") + 1] == size
    own = {"flags": {"spec-ngram-simple-size-n": 5}}
    argv = (
        adapter_for("llamacpp")
        .command(launch_of("llamacpp", Knobs(method="ngram", num_draft_tokens=8), **own))
        .argv
    )
    assert argv.count("--spec-ngram-simple-size-n") == 1
