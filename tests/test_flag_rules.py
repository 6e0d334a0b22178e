"""Rules that hold for every engine, and the tables behind them."""

import json
from typing import Any

import pytest
from flag_judging import alarms, finding, judged
from hypothesis import given, settings
from hypothesis import strategies as st

from spectune.findings.catalogue import all_kinds
from spectune.preflight.command.reading import read_command
from spectune.preflight.flags.every_engine import whole_number
from spectune.preflight.flags.form import judge_form
from spectune.preflight.flags.rules import judge_flags, rules_for
from spectune.preflight.flags.table import table_for
from spectune.preflight.situation import EngineVersion


def test_every_finding_about_flags_has_a_source() -> None:
    flags = [kind for kind in all_kinds() if kind.group == "Flags"]
    assert len(flags) > 80 and all(kind.sources for kind in flags)


def test_an_engine_without_rules_has_none() -> None:
    assert rules_for("fake") == ()


def test_an_unknown_version_is_said() -> None:
    judgement = judged("vllm serve m", version=None)
    assert "unknown" in judgement.not_checked[0] or "version" in judgement.not_checked[0]


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("sglang serve --model-path m --speculative-nun-steps 3", "speculative-num-steps"),
        ("vllm serve m --tensor-paralel-size 2", "tensor-parallel-size"),
        ("sglang serve --model-path m --xyzzy 3", None),
    ],
)
def test_an_unknown_flag_is_an_error_that_names_the_nearest(text: str, nearest: str | None) -> None:
    found = finding(text, "flag-unknown")
    assert found.severity == "error"
    assert (found.remedy == f"write --{nearest}") if nearest else (found.remedy == "leave it out")


def test_an_unknown_flag_of_an_unknown_version_is_a_warning_only_if_it_is_a_slip() -> None:
    assert alarms("vllm serve m --tensor-paralel-size 2", version=None) == {"flag-unknown": "warning"}
    judgement = judged("vllm serve m --xyzzy 3", version=None)
    assert judgement.findings == ()
    assert any("xyzzy" in reason for reason in judgement.not_checked)


def test_an_unknown_flag_of_another_version_is_not_checked() -> None:
    judgement = judged("vllm serve m --tensor-paralel-size 2", version="0.40.0")
    assert judgement.findings == ()
    assert any("tensor-paralel-size" in reason for reason in judgement.not_checked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sglang serve --model-path m --tp two", "whole number"),
        ("sglang serve --model-path m --mem-fraction-static half", "number"),
        ("sglang serve --model-path m --attention-backend flash", "one of"),
        ("sglang serve --model-path m --cuda-graph-bs-decode 1 x", "whole number"),
        ("vllm serve m --max-model-len 2.5", "whole number"),
        ("vllm serve m --hf-overrides '{x'", "JSON"),
        ("llama-server -m x.gguf -c many", "whole number"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error(text: str, said: str) -> None:
    found = finding(text, "flag-value-refused")
    assert found.severity == "error"
    assert said in found.message


@pytest.mark.parametrize("value", ["8192", "8k", "1M", "25.6k", "auto", "-1"])
def test_sizes_may_have_a_suffix_in_vllm(value: str) -> None:
    assert alarms(f"vllm serve m --max-model-len {value}") == {}


@pytest.mark.parametrize("value", ["8192", "8k", "1M", "25.6k", "1Ki"])
def test_sizes_may_have_a_suffix_in_sglang(value: str) -> None:
    assert alarms(f"sglang serve --model-path m --context-length {value}") == {}


@pytest.mark.parametrize("value", ["auto", "8K", "8m", "1.5Ki"])
def test_sglang_does_not_take_vllms_suffixes(value: str) -> None:
    assert alarms(f"sglang serve --model-path m --context-length {value}") == {"flag-value-refused": "error"}


def test_a_mega_is_not_the_same_everywhere() -> None:
    # both engines document it in --help
    assert whole_number("1M", engine="vllm") == 1048576
    assert whole_number("1M", engine="sglang") == 1000000
    assert whole_number("25.6k", engine="vllm") == whole_number("25.6k", engine="sglang") == 25600
    assert whole_number("1.5M", engine="vllm") is None


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("sglang serve --model-path m --port 30000 --nccl-port 30000", 30000),
        ("sglang serve --model-path m --nccl-port 30000", 30000),  # C14: the default HTTP port
        ("sglang serve --model-path m --port 30000 --grpc-port 30000", 30000),
        ("sglang serve --model-path m --port 5000 --dist-init-addr 10.0.0.1:5000", 5000),
        ("sglang serve --model-path m --tp 8 --attn-dp-size 8 --nccl-port 30235", 30235),
        ("sglang serve --model-path m --tp 8 --dp-size 8 --enable-dp-attention --nccl-port 30233", 30233),
        ("vllm serve m --port 9000 --data-parallel-rpc-port 9000", 9000),
    ],
)
def test_c14_one_port_for_two_parts_is_an_error(text: str, port: int) -> None:
    found = finding(text, "port-conflict")
    assert found.severity == "error"
    assert str(port) in found.message


@pytest.mark.parametrize(
    "text",
    [
        "sglang serve --model-path m --port 30000 --nccl-port 30001",
        "sglang serve --model-path m --nccl-port 30235",  # free without attention data parallelism
        "sglang serve --model-path m --tp 8 --attn-dp-size 8 --nccl-port 30240",
        "vllm serve m --port 9000 --data-parallel-rpc-port 9001",
    ],
)
def test_distinct_ports_are_fine(text: str) -> None:
    assert alarms(text) == {}


@pytest.mark.parametrize(
    "text",
    ["sglang serve --model-path m --port -1", "vllm serve m --port 70000", "llama-server -m x --port 65536"],
)
def test_a_port_that_does_not_exist_is_an_error(text: str) -> None:
    assert alarms(text) == {"port-out-of-range": "error"}


def test_low_ports_exist() -> None:
    assert alarms("vllm serve m --port 80") == {}  # measured: vllm 0.32.0 takes it


def test_port_0_is_not_checked() -> None:
    assert any("--port 0" in reason for reason in judged("sglang serve --model-path m --port 0").not_checked)


def test_llama_server_may_choose_a_free_port() -> None:
    assert alarms("llama-server -m x.gguf --port 0") == {}


def test_a_deprecated_flag_is_noted() -> None:
    assert finding("sglang serve --model-path m --disable-cuda-graph", "flag-deprecated").severity == "note"


# --- whatever the values are, the rules answer ---

VALUES = st.one_of(
    st.sampled_from(
        ["0", "1", "-1", "3", "64", "8k", "1.5", "nan", "inf", "1e400", "9" * 400 + "k", "\u00b2", "EAGLE3"]
    ),
    st.text(max_size=12),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 100), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def judge_everything(words: list[str], version: str | None) -> None:
    command = read_command(words)
    judge_form(command)
    situation = command.situation(
        EngineVersion(version, "test"), max_concurrency=64, max_prompt_tokens=1000, max_tokens=100
    )
    for found in judge_flags(situation).findings:
        assert found.message


@pytest.mark.parametrize("engine", ["sglang", "vllm", "llamacpp"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_values_of_known_flags_are_judged(engine: str, data: st.DataObject) -> None:
    program = {"sglang": ["sglang", "serve"], "vllm": ["vllm", "serve"], "llamacpp": ["llama-server"]}[engine]
    table = table_for(engine)
    about = [name for name in table.flags if "spec" in name] + [
        "port",
        "page-size",
        "tp-size",
        "parallel",
        "ctx-size",
    ]
    names = data.draw(st.lists(st.sampled_from([*about, *table.renamed]), max_size=8))
    words: list[str] = []
    for name in names:
        words += [f"--{name}", data.draw(VALUES)]
    version = data.draw(st.sampled_from([None, "0.4.0", table.version, "b8407", "\u0663.1"]))
    judge_everything([*program, "m", *words], version)


@settings(max_examples=500, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*table_for("vllm").speculative_keys, "x", "num-speculative-tokens"]),
        JSON,
        max_size=8,
    ),
    st.sampled_from([None, "0.32.0", "0.9.0"]),
)
def test_any_speculative_config_is_judged(config: dict[str, Any], version: str | None) -> None:
    flags = [
        "--enable-lora",
        "--max-num-batched-tokens",
        "64",
        "-tp",
        "2",
        "-dp",
        "2",
        "--max-model-len",
        "512",
    ]
    judge_everything(["vllm", "serve", "m", "--speculative-config", json.dumps(config), *flags], version)
