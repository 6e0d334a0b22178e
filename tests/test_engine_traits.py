"""What any layer is told about an engine's commands, against commands that people run.

The devices are those of the engines' own documents: SGLang's data parallel attention shares the devices of tensor
parallelism, its replicas do not; vLLM's context parallel ranks of the prompt have devices of their own.
"""

import shlex

import pytest

from spectune.domain.arm import baseline_arm
from spectune.embedded.flags import DEFAULT_PORT
from spectune.engines.flags import read_args
from spectune.engines.registry import ENGINE_NAMES, adapter_for, title_of, traits_for
from spectune.preflight.command.reading import read_command
from spectune.preflight.flags.ports import http_port
from spectune.preflight.memory.estimate import estimate
from spectune.preflight.situation import EngineVersion, Situation
from spectune.runner.parallel import parts_of

SGLANG = "python3 -m sglang.launch_server --model-path m"
COMMANDS = [
    (f"{SGLANG} --tp-size 8 --dp-size 8 --enable-dp-attention", "sglang", 8, 30000),
    (f"{SGLANG} --tp 8 --attn-dp-size 8 --port 31000", "sglang", 8, 31000),
    (f"{SGLANG} --tp 8 --attn-dp-size 8 --dp-size 2", "sglang", 16, 30000),
    (f"{SGLANG} --tp 4 --dp 2", "sglang", 8, 30000),
    (f"{SGLANG} --tensor-parallel-size=4 --pp-size=2", "sglang", 8, 30000),
    ("sglang serve m", "sglang", 1, 30000),
    ("vllm serve m -tp 4 -dp 2", "vllm", 8, 8000),
    ("vllm serve m --tensor_parallel_size 4 --pipeline-parallel-size=2 --port=9000", "vllm", 8, 9000),
    ("vllm serve m -tp 4 -pcp 2 -dcp 2", "vllm", 8, 8000),
    ("vllm serve m --tensor-parallel-size 8 -tp 2", "vllm", 2, 8000),  # the later one counts
    ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", 1, 8000),
    ("llama-server -m m.gguf --port 8081", "llamacpp", None, 8081),
]
"""A command, its engine, its devices (``None``: all that it sees) and its port."""


def situation_of(command: str) -> Situation:
    return read_command(command).situation(EngineVersion(None, "not asked"), subject="m")


@pytest.mark.parametrize(("command", "engine", "devices", "port"), COMMANDS)
def test_a_command_is_known_by_its_engine_devices_and_port(
    command: str, engine: str, devices: int | None, port: int
) -> None:
    situation = situation_of(command)
    assert situation.engine == engine
    assert http_port(situation) == port
    assert estimate(situation).devices == (devices or 1)


@pytest.mark.parametrize(("command", "engine", "devices", "port"), COMMANDS)
def test_the_words_of_a_command_and_of_a_study_say_the_same_devices(
    command: str, engine: str, devices: int | None, port: int
) -> None:
    words = read_args(shlex.split(command))
    division = traits_for(engine).division(words)
    assert (division and division.devices) == devices
    assert parts_of(baseline_arm(engine=engine, target="m"), words) == (devices or 0)


@pytest.mark.parametrize("size", ["0", "-1", "two", "", "9" * 5000, None, True, 2.5])
def test_a_size_that_no_server_can_have_divides_nothing(size: str | float | None) -> None:
    division = traits_for("vllm").division({"tensor-parallel-size": size})
    assert division is not None and division.devices == 1


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_the_methods_that_need_a_drafter_are_methods_of_the_engine(engine: str) -> None:
    traits = traits_for(engine)
    assert traits.name == engine
    assert traits.needs_drafter < set(adapter_for(engine).methods)
    assert not traits.needs_drafter & {"none", "ngram", "mtp", "suffix"}


def test_titles_are_written_as_the_makers_write_them() -> None:
    assert {name: title_of(name) for name in ENGINE_NAMES} == {
        "llamacpp": "llama.cpp",
        "vllm": "vLLM",
        "sglang": "SGLang",
    }
    assert title_of("another") == "another"


def test_the_port_of_llama_cpp_is_that_of_the_embedded_server() -> None:
    assert traits_for("llamacpp").port == DEFAULT_PORT  # which imports nothing beyond its own folder
