"""Imposed acceptance: every engine's own form of it, and never a result."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from report_studies import BASELINE, hypothesis, speculative, study, trial

from spectune.analysis.pooling import speed_by_prompt
from spectune.domain.arm import Arm, Knobs
from spectune.engines.adapter import EngineSetup, Launch
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput
from spectune.runner.hypotheses import judged
from spectune.statistics.intervals import SpeedSample


def launch(engine: str, *, length: float, k: int = 3, method: str = "eagle3") -> Launch:
    knobs = Knobs(method=method, drafter="d", num_draft_tokens=k) if method != "none" else Knobs()
    arm = Arm(name="a", engine=engine, target="t", knobs=knobs, synthetic_acceptance_length=length)
    return Launch(
        arm=arm,
        setup=EngineSetup(name=engine),
        host="127.0.0.1",
        port=1,
        target_path="t",
        drafter_path="d",
        max_concurrency=1,
    )


def test_each_engine_gets_its_own_form() -> None:
    words = list(adapter_for("llamacpp").command(launch("llamacpp", length=2.5)).argv)
    assert words[words.index("--spec-synth-len") + 1] == "2.5"
    words = list(adapter_for("vllm").command(launch("vllm", length=2.5)).argv)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_length"] == 2.5
    assert adapter_for("sglang").command(launch("sglang", length=2.5)).env["SGLANG_SIMULATE_ACC_LEN"] == "2.5"
    words = list(adapter_for("fake").command(launch("fake", length=2.5)).argv)
    chances = [float(c) for c in words[words.index("--accept") + 1].split(",")]
    assert 1 + chances[0] + chances[0] * chances[1] + 0 == 2.5


@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang", "fake"])
def test_what_cannot_be_imposed_is_refused(engine: str) -> None:
    with pytest.raises(BadInput, match=r"4\.5 is more than the 4 tokens that a step can yield"):
        adapter_for(engine).command(launch(engine, length=4.5))


def test_an_arm_without_it_keeps_the_id_it_had_before_there_was_such_a_thing() -> None:
    arm = Arm(name="x", engine="fake", target="t", knobs=Knobs(method="ngram", num_draft_tokens=2))
    assert arm.arm_id == "44ce24a8"
    assert arm.model_copy(update={"synthetic_acceptance_length": 2.0}).arm_id != arm.arm_id


RATES = (0.8, 0.5, 0.3, 0.1)


def rated(engine: str, *, k: int, rates: tuple[float, ...] = RATES, **knobs: object) -> Launch:
    made = launch(engine, length=1.0, k=k)
    changes = {"synthetic_acceptance_length": None, "synthetic_acceptance_rates": rates}
    arm = made.arm.model_copy(update={**changes, "knobs": made.arm.knobs.model_copy(update=knobs)})
    return replace(made, arm=arm)


def test_rates_by_position_are_those_of_the_first_drafted_tokens() -> None:
    words = list(adapter_for("llamacpp").command(rated("llamacpp", k=2)).argv)
    assert words[words.index("--spec-synth-rates") + 1] == "0.8,0.5"
    words = list(adapter_for("vllm").command(rated("vllm", k=3)).argv)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["synthetic_acceptance_rates"] == [0.8, 0.5, 0.3]
    assert "synthetic_acceptance_length" not in config
    assert adapter_for("sglang").command(rated("sglang", k=3)).env["SGLANG_SIMULATE_ACC_LEN"] == "2.6"
    words = list(adapter_for("fake").command(rated("fake", k=2)).argv)
    chances = [float(c) for c in words[words.index("--accept") + 1].split(",")]
    assert chances == pytest.approx([0.8, 0.5 / 0.8, 0.0], abs=1e-5)


@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang", "fake"])
def test_rates_that_do_not_fit_are_refused(engine: str) -> None:
    with pytest.raises(BadInput, match="4 rates for 5 drafted tokens"):
        adapter_for(engine).command(rated(engine, k=5))
    with pytest.raises(BadInput, match="never rise"):
        adapter_for(engine).command(rated(engine, k=2, rates=(0.5, 0.6)))


@pytest.mark.parametrize(
    "change",
    [
        {"flags": {"spec-synth-len": 2}},
        {"flags": {"speculative.synthetic_acceptance_rates": "[0.5]"}},
        {"env": {"SGLANG_SIMULATE_ACC_LEN": "2"}},
        {"synthetic_acceptance_rates": (0.5,)},
    ],
)
def test_however_it_is_imposed_the_arm_is_marked(change: dict[str, object]) -> None:
    plain = Arm(name="x", engine="vllm", target="t", knobs=Knobs(method="eagle3", num_draft_tokens=1))
    assert not plain.is_synthetic
    assert plain.model_copy(update=change).is_synthetic


def test_a_schedule_in_the_speculative_config_is_json() -> None:
    made = launch("vllm", length=1.0)
    name = "speculative.num_speculative_tokens_per_batch_size"
    knobs = {"synthetic_acceptance_length": None, "flags": {name: "[[1,4,3],[5,16,0]]"}}
    words = list(adapter_for("vllm").command(replace(made, arm=made.arm.model_copy(update=knobs))).argv)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 4, 3], [5, 16, 0]]
    broken = replace(made, arm=made.arm.model_copy(update={**knobs, "flags": {name: "[[1,"}}))
    with pytest.raises(BadInput, match="not JSON"):
        adapter_for("vllm").command(broken)


@pytest.mark.parametrize(("imposed", "verdict"), [(None, "confirmed"), (2.5, None)])
def test_a_speed_of_imposed_acceptance_confirms_nothing(imposed: float | None, verdict: str | None) -> None:
    arm = speculative("k3", synthetic_acceptance_length=imposed)
    of = study(arm)
    plain, own = trial(of, BASELINE, 1, speeds=100.0), trial(of, arm, 2, speeds=250.0)
    sample = SpeedSample(arm.arm_id, 2, speed_by_prompt(own.loads))
    told = hypothesis(compared_with=BASELINE.arm_id, predicted_tok_per_s=None)
    found = judged(told, sample, own.loads, study=of, trials=[plain])
    assert found.verdict == verdict


def test_sglang_keeps_the_drafted_tokens_where_it_can() -> None:
    """One and the same token in every place chooses the same experts: too cheap a verification."""

    def mode(**knobs: object) -> str | None:
        env = adapter_for("sglang").command(rated("sglang", k=3, **knobs)).env
        return env.get("SGLANG_SIMULATE_ACC_TOKEN_MODE")

    assert mode() == "real-draft-token"
    assert mode(method="ngram", drafter=None) is None  # its drafts are trees, which SGLang refuses there
    made = launch("sglang", length=2.5)
    knobs = Knobs(method="eagle3", drafter="d", num_steps=3, topk=4, num_draft_tokens=8)
    tree = replace(made, arm=made.arm.model_copy(update={"knobs": knobs}))
    assert "SGLANG_SIMULATE_ACC_TOKEN_MODE" not in adapter_for("sglang").command(tree).env
