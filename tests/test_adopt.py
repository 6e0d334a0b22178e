"""``up --adopt``: a server that somebody else started is taken for an arm only if it is that arm."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.cli.main import main
from spectune.domain.arm import Arm, FlagValue, Knobs
from spectune.embedded.models import draft_folder, fetch_embedded_target
from spectune.engines.adapter import Command, EngineSetup, Launch
from spectune.engines.registry import adapter_for
from spectune.home import data_home
from spectune.runner.adopt import Answers, command_behind, differences

RECORDED = Path(__file__).parent / "recorded"
FOLDERS = {
    "llamacpp": "llamacpp-xllamacpp-2026.10.11549",
    "vllm": "vllm-0.32.0",
    "sglang": "sglang-0.5.23",
}
ENGINES = tuple(FOLDERS)


def recorded(engine: str) -> Command:
    """The command of a server with an EAGLE-3 draft that drafts three tokens."""
    path = RECORDED / FOLDERS[engine] / "eagle3" / "command.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    return Command(tuple(body["argv"]), body["env"])


def arm_of(engine: str, length: int = 3, **flags: FlagValue) -> Arm:
    knobs = Knobs(method="eagle3", drafter="DRAFT_DIR", num_steps=length, topk=1, num_draft_tokens=length)
    return Arm(name=f"k{length}", engine=engine, target="MODEL_DIR", knobs=knobs, flags=flags)


def asked(arm: Arm) -> Command:
    setup = EngineSetup(name=arm.engine, python="python")
    launch = Launch(
        arm=arm,
        setup=setup,
        host="127.0.0.1",
        port=1,
        target_path="MODEL_DIR",
        drafter_path="DRAFT_DIR",
        max_concurrency=1,
    )
    return replace(adapter_for(arm.engine).command(launch), env=dict(arm.env))


def problems(
    arm: Arm, running: Command | None, told: Knobs | None = None, *, model: str = "MODEL_DIR"
) -> list[str]:
    answers = Answers(arm.engine, model, told)
    return differences(arm, target="MODEL_DIR", answers=answers, asked=asked(arm), running=running)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_right_server_is_taken_though_it_has_answered_nothing_yet(engine: str) -> None:
    assert problems(arm_of(engine), recorded(engine)) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_another_draft_length_is_refused(engine: str) -> None:
    (first, *_) = problems(arm_of(engine, 4), recorded(engine), Knobs(method="eagle3"))
    assert "asked for 4, runs 3" in first


@pytest.mark.parametrize("engine", ENGINES)
def test_a_length_that_its_command_leaves_to_the_engine_is_refused(engine: str) -> None:
    words = list(recorded(engine).argv)
    for flag in ("--spec-draft-n-max", "--speculative-num-steps", "--speculative-num-draft-tokens"):
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
    words = [word.replace(', "num_speculative_tokens": 3', "") for word in words]
    found = problems(arm_of(engine), Command(tuple(words)))
    assert any("num_draft_tokens: asked for 3, its command does not set it" in problem for problem in found)


def test_a_setting_that_nobody_can_read_is_no_match() -> None:
    """llama.cpp names the method of a server that has answered, and not how many tokens it drafts."""
    found = problems(arm_of("llamacpp"), None, Knobs(method="eagle3"))
    assert any(
        problem.startswith("num_draft_tokens: asked for 3; the server does not say") for problem in found
    )
    (nothing,) = problems(arm_of("llamacpp"), None)
    assert "does not say with which settings" in nothing


def test_what_a_server_says_counts_more_than_its_command() -> None:
    """llama.cpp goes on without a draft that it could not load, and its command still names it."""
    found = problems(arm_of("llamacpp"), recorded("llamacpp"), Knobs())
    assert found == ["method: asked for 'eagle3', runs 'none'"]


def test_flags_of_the_arm_and_of_speculation_count_and_others_do_not() -> None:
    running = recorded("llamacpp")
    picky = arm_of("llamacpp", **{"draft-p-min": 0.6})  # an older spelling of --spec-draft-p-min
    assert problems(picky, running) == ["--spec-draft-p-min: asked for '0.6', runs nothing"]
    same = Command((*running.argv, "--spec-draft-p-min", "0.60"))
    assert problems(picky, same) == []
    assert problems(arm_of("llamacpp"), same) == ["--spec-draft-p-min: asked for nothing, runs '0.60'"]
    assert problems(arm_of("llamacpp"), Command((*running.argv, "--log-file", "x"))) == []


def test_variables_of_the_arm_count_and_their_values_are_not_shown() -> None:
    arm = arm_of("llamacpp").model_copy(update={"env": {"GGML_SETTING": "hidden"}})
    (found,) = problems(arm, recorded("llamacpp"))
    assert "GGML_SETTING" in found and "hidden" not in found
    assert problems(arm, replace(recorded("llamacpp"), env=arm.env)) == []


def test_a_process_that_gave_itself_a_title_is_judged_by_what_it_says() -> None:
    titled = Command(("VLLM::APIServer", "", ""), {})
    arm = arm_of("vllm").model_copy(update={"env": {"OMP_NUM_THREADS": "1"}})
    told = Knobs(method="eagle3", drafter="DRAFT_DIR", num_steps=3, topk=1, num_draft_tokens=3)
    assert problems(arm, titled, told) == []
    assert any("num_draft_tokens" in p for p in problems(arm, titled, Knobs(method="eagle3")))


def test_llama_servers_own_variables_are_read() -> None:
    argv = [word for word in recorded("llamacpp").argv if word not in ("--spec-draft-n-max", "3")]
    running = Command(tuple(argv), {"LLAMA_ARG_SPEC_DRAFT_N_MAX": "3"})
    assert problems(arm_of("llamacpp"), running) == []


def test_another_model_is_refused() -> None:
    (found,) = problems(arm_of("vllm"), recorded("vllm"), model="other")
    assert found == "it serves 'other', not 'MODEL_DIR'"


def test_the_words_of_whoever_listens_are_read(tmp_path: Path) -> None:
    program = "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
    program += "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", program, "--speculative-num-steps", "3"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OWN": "a=b"}
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        port = int(process.stdout.readline())
        found = command_behind(port)
        process.stdin.close()
    assert found is not None
    assert list(found.argv) == words
    assert found.env["OWN"] == "a=b"
    assert command_behind(port) is None


STUDY = """
question: Which length?
engine: {{name: llamacpp, flags: {{threads: 1, ctx-size: 512}}}}
target: {target}
drafter: {draft}
arms:
  - {{name: k2, method: eagle3, num_draft_tokens: 2}}
  - {{name: k4, method: eagle3, num_draft_tokens: 4}}
workload: {{prompts: builtin, num_prompts: 1, max_tokens: 8}}
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[int]:
    """A real llama.cpp server that drafts two tokens, and a study of it."""
    pytest.importorskip("xllamacpp")
    target = fetch_embedded_target(data_home())
    draft = draft_folder() / "draft-q8_0.gguf"
    (tmp_path / "study.yaml").write_text(STUDY.format(target=target, draft=draft), encoding="utf-8")
    words = [sys.executable, "-m", "spectune.embedded.llama_server", "--model", str(target), "--port", "0"]
    words += ["--threads", "1", "--ctx-size", "512", "--slots", "--spec-type", "draft-eagle3"]
    words += ["--spec-draft-model", str(draft), "--spec-draft-n-max", "2"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = (re.search(r"listening on http://\S+:(\d+)", line) for line in process.stderr)
        yield next(int(match[1]) for match in found if match)
        process.kill()


@pytest.mark.embedded
def test_a_real_server_of_two_tokens_is_that_arm_before_and_after_its_first_answer(
    served: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def adopt(arm: str) -> int:
        return main(["up", str(tmp_path / "study.yaml"), "--arm", arm, "--port", str(served), "--adopt"])

    assert adopt("k2") == 0
    connection = http.client.HTTPConnection("127.0.0.1", served, timeout=60)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    assert adopt("k2") == 0
    capsys.readouterr()
    assert adopt("k4") != 0
    assert "num_draft_tokens: asked for 4, runs 2" in capsys.readouterr().err
