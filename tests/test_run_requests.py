"""Studies whose arms differ in fields of their requests, through the command line."""

from __future__ import annotations

import json
from typing import Any

from test_run_study import Runner, run  # noqa: F401 - a fixture

STUDY = """\
question: Which limit on drafts is fastest?
engine: {name: fake, flags: {tokens-per-s: 1000, draft-cost: 0.1, accept: "0.8"}}
target: fake-model
drafter: fake-draft
arms:
  - {name: three, method: eagle3, num_draft_tokens: 3}
  - {name: one, method: eagle3, num_draft_tokens: 3, request: {speculative.n_max: 1}}
  - {name: other, method: eagle3, num_draft_tokens: 3, request: {speculative.p_min: 0.5}}
workload: {prompts: builtin, num_prompts: 6, max_tokens: 40, ignore_eos: true, warmup_requests: 1}
baseline_every: 3
"""


def trials_of(run: Runner) -> list[dict[str, Any]]:  # noqa: F811
    paths = sorted((run.folder / "studies/study/trials").glob("*/trial.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def test_an_arm_sends_its_fields_and_one_that_the_engine_ignores_is_named(run: Runner) -> None:  # noqa: F811
    run.study(STUDY)
    reply = run("run", "study.yaml")
    assert reply.returncode == 0, reply.stderr + reply.stdout
    drafted = {
        t["arm"]["name"]: t["loads"][0]["acceptance"]["num_draft_tokens"]
        / t["loads"][0]["acceptance"]["num_drafts"]
        for t in trials_of(run)
        if t["arm"]["name"] != "baseline"
    }
    assert drafted == {"three": 3.0, "one": 1.0, "other": 3.0}
    (finding,) = [f for f in run.report()["findings"] if f["code"] == "request-field-ignored"]
    assert finding["subject"] == "three and other"
    assert "speculative.p_min" in finding["message"]
