"""The best length by concurrency, in forms that the engines' own rules accept.

The rules are those of vLLM 0.32 (v1/spec_decode/dynamic) and SGLang 0.5.23
(speculative/adaptive_spec_params), written down again from reading them.
"""

from typing import Any

import pytest

from spectune.analysis.explain.explanation import explain
from spectune.analysis.explain.records import Schedule
from spectune.analysis.explain.schedule import (
    sglang_adaptive_config,
    sglang_adaptive_flags,
    vllm_flag,
    vllm_ranges,
    vllm_speculative_config,
)
from spectune.analysis.explain.table import read_table

HEADER = "arm,num_steps,topk,num_draft_tokens,cuda_graphs,e2e_tok_per_s,acceptance_length,concurrency,method,drafter\n"
LOADS = HEADER + "".join(
    f"{name}-{c},{k or ''},1,{k},true,{speed},{length},{c},{'none' if k == 0 else 'eagle3'},{'' if k == 0 else 'd'}\n"
    for c, speeds in {1: (80, 120, 140), 4: (70, 95, 90), 16: (40, 38, 30)}.items()
    for (name, k, length), speed in zip(
        (("plain", 0, ""), ("k3", 3, 2.4), ("k5", 5, 2.9)), speeds, strict=True
    )
)


def plan(text: str = LOADS) -> Schedule:
    found = explain(read_table(text, path="rows.csv").rows).schedule
    assert found is not None
    return found


def vllm_lookup(ranges: list[list[int]], *, largest: int, most: int) -> list[int]:
    """Batch size -> tokens, by vLLM's rules; raises where vLLM would refuse."""
    assert ranges and all(len(r) == 3 for r in ranges)
    assert ranges[0][0] == 1, "the first range must start at 1"
    end, table, last = 0, [0] * (largest + 1), 0
    for first, final, tokens in ranges:
        assert 0 < first <= final and tokens >= 0 and first > end
        for size in range(end + 1, min(first, largest + 1)):
            table[size] = min(most, last)
        for size in range(first, min(final, largest) + 1):
            table[size] = min(most, tokens)
        end, last = final, tokens
    for size in range(end + 1, largest + 1):
        table[size] = min(most, last)
    return table


def sglang_steps(config: dict[str, Any], batch: int) -> int:
    """The only candidate of the largest key not above the batch."""
    keys = sorted(int(k) for k in config)
    assert all(isinstance(s, int) and s >= 0 for v in config.values() for s in v["candidate_steps"])
    key = max([k for k in keys if k <= batch], default=keys[0])
    (steps,) = config[str(key)]["candidate_steps"]
    return steps


def test_the_best_length_of_each_concurrency_is_chosen() -> None:
    found = plan()
    assert found.best_by_concurrency == {"1": 5, "4": 3, "16": 0}
    assert found.off_above_concurrency == 4


def test_the_vllm_form_gives_each_batch_its_length() -> None:
    config = plan().vllm_speculative_config
    assert config is not None
    assert (config["method"], config["model"], config["num_speculative_tokens"]) == ("eagle3", "d", 5)
    table = vllm_lookup(config["num_speculative_tokens_per_batch_size"], largest=64, most=5)
    assert (table[1], table[3], table[4], table[15], table[16], table[64]) == (5, 5, 3, 3, 0, 0)


def test_neighbouring_ranges_of_one_length_are_one_range() -> None:
    assert vllm_ranges({1: 4, 4: 4, 16: 2}) == [[1, 15, 4], [16, 16, 2]]


def test_a_schedule_that_starts_above_one_is_stretched_down_to_it() -> None:
    assert vllm_ranges({8: 3, 32: 0}) == [[1, 31, 3], [32, 32, 0]]
    assert set(sglang_adaptive_config({8: 3, 32: 0})) == {"1", "32"}


def test_the_vllm_form_keeps_the_other_keys_of_the_arm() -> None:
    flags = {"speculative.prompt_lookup_max": 4, "speculative.probs": "[0.5]", "max-model-len": 8192}
    arm = read_table(LOADS, path="x").rows[1].arm.model_copy(update={"flags": flags})
    config = vllm_speculative_config({1: 2, 8: 0}, arm)
    assert (config["prompt_lookup_max"], config["probs"]) == (4, [0.5])
    assert "max-model-len" not in config


def test_the_vllm_flag_is_one_argument_of_json() -> None:
    config = vllm_speculative_config({1: 2, 8: 0}, read_table(LOADS, path="x").rows[1].arm)
    assert vllm_flag(config) == (
        '{"method":"eagle3","model":"d","num_speculative_tokens":2,'
        '"num_speculative_tokens_per_batch_size":[[1,7,2],[8,8,0]]}'
    )


def test_the_sglang_form_gives_each_batch_its_length() -> None:
    config = plan().sglang_adaptive_config
    assert config is not None
    assert [sglang_steps(config, batch) for batch in (1, 3, 4, 15, 16, 200)] == [5, 5, 3, 3, 0, 0]


def test_sglangs_start_value_is_one_of_its_candidates() -> None:
    """It refuses another one when it starts; tokens are steps plus the root, and only chains adapt."""
    best = {1: 0, 4: 3, 16: 1}
    flags = sglang_adaptive_flags(best)
    given = dict(zip(flags[1::2], flags[2::2], strict=True))
    candidates = {s for v in sglang_adaptive_config(best).values() for s in v["candidate_steps"]}
    assert int(given["--speculative-num-steps"]) in candidates
    assert given["--speculative-num-draft-tokens"] == "4"
    assert given["--speculative-eagle-topk"] == "1"


def test_trees_are_left_out_of_the_schedule() -> None:
    tree = "tree-1,3,4,16,true,500,3.0,1,eagle3,d\n"
    assert plan(LOADS + tree).best_by_concurrency["1"] == 5


def test_lengths_that_are_not_told_apart_are_said_to_be() -> None:
    near = plan(LOADS + "k4-4,4,1,4,true,94.5,2.7,4,eagle3,d\n")
    assert near.best_by_concurrency["4"] == 3
    assert any(note.endswith("as far as these figures tell: 4 at c=4") for note in near.notes)
    assert not any("figures tell" in note for note in plan().notes)


def test_one_concurrency_makes_no_schedule() -> None:
    only = "\n".join(
        line for line in LOADS.splitlines() if ",1,none" in line or ",1,eagle3" in line or "arm," in line
    )
    assert explain(read_table(only + "\n", path="rows.csv").rows).schedule is None


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_sglang_adapts_eagle_chains_only(method: str) -> None:
    found = plan(LOADS.replace("eagle3", method))
    assert found.sglang_adaptive_config is None
    assert found.vllm_speculative_config is not None
