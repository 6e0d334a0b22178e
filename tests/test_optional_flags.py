"""Flags that spectune adds to measure are left out where the engine's version does not know them."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from report_studies import study
from test_run_study import Runner, run  # noqa: F401

from spectune.domain.arm import Arm, Knobs
from spectune.domain.study import EngineSettings, Study
from spectune.errors import ServerDied
from spectune.runner.optional_flags import lacking_by_version, unknown_flag, without_flags

FLAG = "per-request-spec-decode-metrics"
ARM = Arm(name="a", engine="vllm", target="t", knobs=Knobs(method="ngram", num_draft_tokens=3))
OLD_VLLM = """\
import argparse, json, runpy, sys
words = sys.argv[1:]
if "--per-request-spec-decode-metrics" in words:
    print("usage: vllm serve [model_tag] [options]")
    print("vllm: error: unrecognized arguments: --per-request-spec-decode-metrics summary")
    sys.exit(2)
parser = argparse.ArgumentParser()
for name in ("model", "host", "port", "speculative-config"):
    parser.add_argument("--" + name, default=None)
known, _ = parser.parse_known_args(words)
drafting = json.loads(known.speculative_config or "{}")
sys.argv = ["server", "--model", known.model, "--host", known.host, "--port", known.port, "--no-request-acceptance"]
sys.argv += ["--tokens-per-s", "400", "--accept", "0.5"]
if drafting:
    sys.argv += ["--method", drafting["method"], "--num-draft-tokens", str(drafting["num_speculative_tokens"])]
runpy.run_module("spectune.engines.fake.server", run_name="__main__", alter_sys=True)
"""


def of(**engine: object) -> Study:
    return study(ARM, engine=EngineSettings(**{"name": "vllm", **engine}))


def died(*log: str) -> ServerDied:
    return ServerDied(exit_code_of_server=2, after_s=1.0, phase="launch", log_tail=log, cause=log[-1])


def test_the_flag_of_ours_that_a_server_died_of_is_named():
    assert unknown_flag(died(f"vllm: error: unrecognized arguments: --{FLAG} summary"), ARM, of()) == FLAG


@pytest.mark.parametrize(
    "line",
    [
        "vllm: error: unrecognized arguments: --max-modl-len 4096",
        f"RuntimeError: after --{FLAG}: out of memory",
    ],
)
def test_no_other_death_is_ours(line: str):
    assert unknown_flag(died(line), ARM, of()) is None


def test_a_flag_that_the_user_gave_is_the_users():
    given = of(flags={"per_request_spec_decode_metrics": "summary"})
    assert unknown_flag(died(f"error: unrecognized arguments: --{FLAG}"), ARM, given) is None


@pytest.mark.parametrize(("tag", "lacks"), [("v0.28.1", {FLAG}), ("v0.29.0", set()), ("nightly", set())])
def test_an_images_tag_tells_before_the_first_launch(tag: str, lacks: set[str]):
    words = ("docker", "run", "--rm", f"vllm/vllm-openai:{tag}")
    assert asyncio.run(lacking_by_version(of(command=words))) == lacks


def test_what_is_left_out_is_not_the_studys_and_a_users_own_flag_stands():
    original = of(flags={"metrics": False})
    assert without_flags(original, {"slots"}).engine.flags == {"slots": False, "metrics": False}
    assert original.engine.flags == {"metrics": False}


def test_an_old_vllm_is_launched_again_without_it_and_measured_by_its_counters(
    run: Runner,  # noqa: F811
):
    script = run.folder / "old_vllm.py"
    script.write_text(OLD_VLLM, encoding="utf-8")
    command = json.dumps([sys.executable, str(script)])
    run.study(
        f"question: Does it start?\nengine: {{name: vllm, command: {command}}}\ntarget: Org/Model\n"
        "arms: [{method: ngram, num_draft_tokens: 3}]\nnoise_floor: false\nbudget: {max_trials: 2}\n"
        "workload: {prompts: builtin, num_prompts: 3, max_tokens: 24, ignore_eos: true, warmup_requests: 1}\n"
    )
    reply = run("run", "study.yaml", "--no-check")
    report = run.report()
    _, arm = report["trials"]
    assert arm["status"] == "complete", reply.stdout + reply.stderr
    assert arm["acceptance_source"] == "counters"
    assert arm["acceptance_length"]["value"] > 1.2
    assert {f["code"] for f in report["findings"]} & {"launched-again", "speculation-off"} == {
        "launched-again"
    }
