"""A load point measured from a full prefix cache is no result, through the command line on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_run_study import Runner, run  # noqa: F401

STUDY = """\
question: Is the cache empty?
engine:
  name: fake
  flags: {tokens-per-s: 2000, no-flush-route: true}
target: fake-model
arms: [{method: ngram, num_draft_tokens: 3}]
workload: {prompts: long.jsonl, max_tokens: 8, ignore_eos: true, concurrency: [1, 2], warmup_requests: 1}
noise_floor: false
budget: {max_trials: 1}
"""


def _write_prompts(folder: Path) -> None:
    texts = [f"Document {i}. " + f"lorem ipsum dolor sit amet {i} " * 40 for i in range(4)]
    lines = [json.dumps({"prompt": text}) for text in texts]
    (folder / "long.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("is_caching", [True, False])
def test_a_cache_that_is_not_emptied_fails_the_trial_only_if_it_gave_prompts(
    run: Runner,  # noqa: F811
    is_caching: bool,
) -> None:
    _write_prompts(run.folder)
    run.study(
        STUDY if is_caching else STUDY.replace("no-flush-route", "no-prefix-caching: true, no-flush-route")
    )
    reply = run("run", "study.yaml")
    trial = run.report()["trials"][0]
    assert trial["status"] == ("failed" if is_caching else "complete"), reply.stdout + reply.stderr
    if is_caching:
        assert "at c=2" in trial["failure"]["cause"]
        assert "POST /reset_prefix_cache: status 404" in trial["failure"]["cause"]
