"""The study that most faults befall: two arms of the scripted fake server, three launches."""

from __future__ import annotations

import json
from typing import Any

from faults_place import Place
from faults_table import expect

STUDY = """\
question: Does the server survive?
name: study
engine: {name: fake, flags: {tokens-per-s: 2000, FLAGS}}
target: fake-model
arms:
  - {name: draft, method: eagle3, drafter: fake-draft, num_draft_tokens: 3, flags: {accept: "0.8"}}
workload: {prompts: builtin, num_prompts: 6, max_tokens: 40, ignore_eos: true, warmup_requests: 1}
repetitions: 1
baseline_every: 4
noise_floor: false
budget: {max_trials: 8}
lease_s: 3
"""
MEASURED = STUDY.replace("tokens-per-s: 2000", "tokens-per-s: 60, events: events").replace(
    "num_prompts: 6", "num_prompts: 40"
)
"""A study whose measurement of one arm takes half a minute, and whose server writes down its times."""


def study(place: Place, flags: str = "", *, text: str = STUDY, tok_per_s: int | None = None) -> None:
    """Writes the study file with these further flags of the fake server."""
    if tok_per_s is not None:
        text = text.replace("tokens-per-s: 2000", f"tokens-per-s: {tok_per_s}")
    place.write("study.yaml", text.replace(", FLAGS", f", {flags}" if flags else ""))


def finished(place: Place, *, trials: int = 3, after: str = "") -> list[dict[str, Any]]:
    """The trials of a study that must have run to its end; a noisy machine may have asked for more launches."""
    records = [t for t in place.trials() if t["status"] == "complete"]
    expect(len(records) >= trials, f"{len(records)} of {trials} trials complete {after}")
    return records


def findings(place: Place) -> dict[str, str]:
    """Codes and messages of the study's report."""
    report = json.loads(place("report", "studies/study", "--json").output)
    return {f["code"]: f["message"] for f in report["findings"]}
