"""Imposed acceptance: every engine's own form of it, and never a result."""

from __future__ import annotations

import json

import pytest

from spectune.domain.arm import Arm, Knobs
from spectune.engines.adapter import EngineSetup, Launch
from spectune.engines.registry import adapter_for
from spectune.errors import BadInput


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
