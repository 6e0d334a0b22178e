"""Prometheus text as engines write it, and as they should not."""

from pathlib import Path

import pytest

from spectune.diagnose.log.other_lines import metrics_facts
from spectune.domain.acceptance import AcceptanceCounts
from spectune.engines.json_bodies import as_int
from spectune.engines.prometheus import parse_metrics, read_spec_counters
from spectune.engines.registry import ENGINE_NAMES, adapter_for

RECORDED = Path(__file__).parent / "recorded"


def test_values_labels_and_escapes_are_read() -> None:
    metrics = parse_metrics(
        "# HELP requests_total How many.\n# TYPE requests_total counter\n"
        'requests_total{model="a \\"b\\" \\\\ }{,",engine="0",} 1.5e3 1700000000000\n'
        'requests_total{model="line\\nend",engine="1"} 2\r\n'
        "up 1\n"
    )
    first, second = metrics.samples("requests_total")
    assert first.labels == {"model": 'a "b" \\ }{,', "engine": "0"}
    assert second.labels == {"model": "line\nend", "engine": "1"}
    assert metrics.total("requests_total") == 1502
    assert metrics.total("requests_total", engine="1") == 2
    assert metrics.count("up") == 1


@pytest.mark.parametrize(
    "line", ["x NaN", "x +Inf", "x", "x{", 'x{a="1" 3', "x{a=1} 3", "x{} y", "{} 3", "3", "# x 3", "x three"]
)
def test_what_does_not_parse_or_is_no_number_is_absent(line: str) -> None:
    assert parse_metrics(f"{line}\nok 1\n").by_name.keys() == {"ok"}


def test_an_exemplar_is_not_part_of_the_value() -> None:
    assert parse_metrics('h_total{le="1"} 7 # {trace_id="} 9"} 0.67\n').total("h_total", le="1") == 7


def test_a_family_that_is_not_there_is_unknown_not_zero() -> None:
    metrics = parse_metrics('a_total{x="1"} 0\n')
    assert metrics.total("a_total") == 0
    assert metrics.total("a_total", x="2") is None
    assert metrics.total("b_total") is None


def spec_text(prefix: str, *, engine: int, drafts: int, drafted: int, per_position: list[int]) -> str:
    labels = f'engine="{engine}",model_name="m"'
    name = f"{prefix}spec_decode_num"
    rows = [
        f"{name}_drafts_total{{{labels}}} {drafts}.0",
        f"{name}_drafts_created{{{labels}}} 1.79598517e+09",
        f"{name}_draft_tokens_total{{{labels}}} {drafted}.0",
        f"{name}_accepted_tokens_total{{{labels}}} {sum(per_position)}.0",
    ]
    rows += [
        f'{name}_accepted_tokens_per_pos_total{{{labels},position="{p}"}} {kept}.0'
        for p, kept in enumerate(per_position)
    ]
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("prefix", ["vllm:", "llamacpp:"])
def test_speculation_counters_are_summed_over_engines(prefix: str) -> None:
    text = spec_text(prefix, engine=0, drafts=10, drafted=30, per_position=[7, 4, 1])
    text += spec_text(prefix, engine=1, drafts=5, drafted=15, per_position=[2, 0, 0])
    assert read_spec_counters(parse_metrics(text), prefix) == AcceptanceCounts(
        num_drafts=15, num_draft_tokens=45, num_accepted_tokens=14, accepted_per_position=(9, 4, 1)
    )


def test_positions_come_in_any_order_and_a_gap_makes_them_unknown() -> None:
    text = spec_text("vllm:", engine=0, drafts=4, drafted=8, per_position=[3, 2])
    lines = text.splitlines()
    swapped = "\n".join([*lines[:-2], lines[-1], lines[-2]])
    counts = read_spec_counters(parse_metrics(swapped), "vllm:")
    assert counts is not None
    assert counts.accepted_per_position == (3, 2)
    gap = read_spec_counters(parse_metrics(text.replace('position="0"', 'position="5"')), "vllm:")
    assert gap is not None
    assert gap.accepted_per_position is None
    assert gap.num_accepted_tokens == 5


def test_without_speculation_families_there_is_no_acceptance() -> None:
    assert read_spec_counters(parse_metrics("vllm:generation_tokens_total 5\n"), "vllm:") is None
    other = spec_text("llamacpp:", engine=0, drafts=1, drafted=1, per_position=[1])
    assert read_spec_counters(parse_metrics(other), "vllm:") is None


def test_more_accepted_than_drafted_is_not_believed() -> None:
    text = spec_text("vllm:", engine=0, drafts=4, drafted=3, per_position=[3, 2])
    assert read_spec_counters(parse_metrics(text), "vllm:") is None


@pytest.mark.parametrize("value", ["1e308", "-1e308", "1e999", "NaN", "9.3e18"])
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_value_that_no_counter_can_have_is_unknown_and_overflows_nothing(engine: str, value: str) -> None:
    names = [
        "generation_tokens_total",
        "prompt_tokens_total",
        "num_requests_running",
        "tokens_predicted_total",
    ]
    names += ["spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"]
    names += ["spec_accept_length", "num_running_reqs", "requests_processing"]
    lines = [f'{engine}:{name}{{rank="{rank}"}} {value}' for name in names for rank in range(3)]
    lines += [f'{engine}:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {value}'] * 3
    counters = adapter_for(engine).read_counters("\n".join(lines))
    assert counters == adapter_for(engine).read_counters("")
    assert metrics_facts(parse_metrics("\n".join(lines)), subject="s") is None


def test_a_count_beyond_64_bits_in_an_answer_is_unknown() -> None:
    assert as_int(10**400) is None
    assert as_int(2**63 - 1) == 2**63 - 1
