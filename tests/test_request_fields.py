"""Arms that differ in fields of their requests: one server command, and each field named where it matters."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_studies import BASELINE, counts, speculative, study, trial

from spectune.analysis.summary import summarize
from spectune.domain.acceptance import AcceptanceCounts
from spectune.domain.arm import Arm, Knobs, differing_factors
from spectune.domain.findings import Finding
from spectune.domain.trial import Trial, num_launches
from spectune.domain.workload import Sampling
from spectune.engines.registry import adapter_for
from spectune.errors import StudyFileError
from spectune.models.arm_shape import arm_facts
from spectune.runner.log_findings import _Head
from spectune.runner.plan import resolve_study, sample_launch
from spectune.study_file.load import load_study_file

FILE = """\
question: Which limit?
engine: fake
target: fake-model
drafter: fake-draft
"""


def resolved(tmp_path: Path, text: str):
    path = tmp_path / "study.yaml"
    path.write_text(FILE + text, encoding="utf-8")
    spec, _, document = load_study_file(path)
    return resolve_study(spec, document, path=path, machine=study().machine)


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(StudyFileError) as caught:
        resolved(tmp_path, text)
    (only,) = caught.value.problems
    return f"{only.where}: {only.message}"


def asking(name: str, **request: object) -> Arm:
    return speculative(name, length=8, request={k.replace("__", "."): v for k, v in request.items()})


def test_arms_without_fields_keep_the_ids_that_older_records_hold() -> None:
    # Both ids were written by the version before there were fields.
    assert BASELINE.arm_id == "c50989b6"
    knobs = Knobs(method="eagle3", drafter="d", num_draft_tokens=3)
    arm = Arm(name="x", engine="vllm", target="t", knobs=knobs, flags={"a": 1}, env={"B": "c"})
    assert arm.arm_id == "e717571d"
    body = arm.model_dump(mode="json")
    del body["request"]
    assert Arm.model_validate(body).arm_id == "e717571d"
    assert arm.model_copy(update={"request": {"x": 1}}).arm_id != arm.arm_id


def test_a_field_is_a_factor_and_predicts_nothing_for_other_values() -> None:
    short, long = asking("a", speculative__n_max=2), asking("b", speculative__n_max=4)
    assert differing_factors(short, long) == ("request.speculative.n_max",)
    assert differing_factors(short, asking("c")) == ("request.speculative.n_max",)
    assert arm_facts(asking("a", p=1)).setting != arm_facts(asking("b", p=2)).setting


def test_a_limit_on_drafts_is_a_shorter_chain_to_the_models() -> None:
    """So that one measured limit tells the others; a build that ignores it shows as a large residual."""
    limited, plain = asking("a", speculative__n_max=2), speculative("b", length=2)
    assert arm_facts(limited).shape == arm_facts(plain).shape
    assert (arm_facts(limited).family, arm_facts(limited).setting) == (
        arm_facts(plain).family,
        arm_facts(plain).setting,
    )
    assert arm_facts(asking("c", speculative__n_max=16)).shape.tokens == 8
    thresholds = asking("d", speculative__p_min=0.4), asking("e", speculative__p_min=0.0)
    assert [arm_facts(arm).stops_early for arm in thresholds] == [True, False]


def test_arms_that_differ_in_fields_alone_have_one_command(tmp_path: Path) -> None:
    made = resolved(
        tmp_path,
        "factors: {method: [eagle3], num_draft_tokens: [8], request.speculative.n_max: [2, 4, null]}\n",
    )
    _, *arms = made.arms
    assert [a.name for a in arms] == ["eagle3-k8-n_max=2", "eagle3-k8-n_max=4", "eagle3-k8"]
    assert [a.request for a in arms] == [{"speculative.n_max": 2}, {"speculative.n_max": 4}, {}]
    commands = {adapter_for("fake").command(sample_launch(a, made.engine, made.workload)).argv for a in arms}
    assert len(commands) == 1


@pytest.mark.parametrize(
    ("request_text", "words"),
    [
        ("{max_tokens: 3}", "max_tokens is the workload's"),
        ("{stream: false}", "stream is the workload's"),
        ("{api_key: hunter2secret}", "api_key looks like a credential"),
        ("{nested: {authorization: hunter2secret}}", "authorization looks like a credential"),
        ("{speculative.p_min: .inf}", "a request body is JSON"),
    ],
)
def test_fields_that_no_arm_may_have_are_refused(tmp_path: Path, request_text: str, words: str) -> None:
    text = f"arms:\n  - {{method: eagle3, num_draft_tokens: 3, request: {request_text}}}\n"
    told = problem(tmp_path, text)
    assert told.startswith("arms.0.request: ")
    assert words in told
    assert "hunter2secret" not in told


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        ("request.api-key: [hunter2]", "api-key looks like a credential"),
        ("flags.api-key: [hunter2]", "api-key looks like a credential"),
        ("request.temperature: [0.5]", "temperature is the workload's"),
    ],
)
def test_such_fields_are_no_factors_either(tmp_path: Path, factor: str, words: str) -> None:
    told = problem(tmp_path, f"factors: {{method: [eagle3], num_draft_tokens: [3], {factor}}}\n")
    assert words in told
    assert "hunter2" not in told


def test_an_arms_fields_go_over_the_workloads_own() -> None:
    of = study(sampling=Sampling(extra_body={"a": 1, "b": 2}))
    merged = of.workload.with_fields({"b": 3, "c": 4})
    assert merged.sampling.extra_body == {"a": 1, "b": 3, "c": 4}
    assert of.workload.with_fields({}) is of.workload


def found(*arms: tuple[Arm, AcceptanceCounts]) -> list[Finding]:
    of = study(*(arm for arm, _ in arms))
    trials = [trial(of, BASELINE, 1, speeds=100.0)]
    trials += [
        trial(of, arm, number, speeds=120.0, acceptance=acceptance)
        for number, (arm, acceptance) in enumerate(arms, start=2)
    ]
    return [f for f in summarize(of, trials).findings if f.code == "request-field-ignored"]


SAME, OTHER = counts(200, 300), counts(250, 250)


def test_a_field_whose_values_draft_exactly_alike_is_ignored_by_the_engine() -> None:
    (finding,) = found(
        (asking("two", speculative__n_max=2), SAME), (asking("four", speculative__n_max=4), SAME)
    )
    assert finding.severity == "warning"
    assert finding.subject == "two and four"
    assert finding.message.startswith("speculative.n_max of the requests changed nothing")
    assert [e.detail for e in finding.evidence] == [
        "speculative.n_max 2: 900 of 1800 drafted tokens kept",
        "speculative.n_max 4: 900 of 1800 drafted tokens kept",
    ]


def test_a_field_that_is_heeded_at_one_value_is_not_ignored() -> None:
    """A limit at or above the server's own changes nothing, and should not."""
    assert not found(
        (asking("two", speculative__n_max=2), OTHER),
        (asking("eight", speculative__n_max=8), SAME),
        (asking("own"), SAME),
    )


def test_two_fields_are_judged_each_by_itself() -> None:
    (finding,) = found(
        (asking("a", speculative__n_max=2, p=1), SAME),
        (asking("b", speculative__n_max=2, p=2), SAME),
        (asking("c", speculative__n_max=4, p=2), OTHER),
    )
    assert finding.subject == "a and b"
    assert finding.message.startswith("p of the requests")


def test_arms_with_other_flags_or_few_drafts_are_not_judged() -> None:
    assert not found(
        (asking("a", n=2), SAME), (asking("b", n=4).model_copy(update={"flags": {"x": 1}}), SAME)
    )
    few = counts(10, 12)
    assert not found((asking("a", n=2), few), (asking("b", n=4), few))


def test_trials_of_older_records_had_a_launch_each() -> None:
    of = study(asking("a"))
    body = trial(of, asking("a"), 3, speeds=1.0).model_dump(mode="json")
    del body["launch"], body["arm"]["request"]
    assert Trial.model_validate(body).launch_number == 3
    shared = trial(of, asking("b", p=1), 4, speeds=1.0, launch=3)
    assert num_launches([Trial.model_validate(body), shared]) == 1


def test_what_other_arms_left_in_the_log_of_a_shared_server_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"start\n" + b"others\n" * 3 + b"own\n")
    with log.open("rb") as file:
        head = _Head(file, (6, 27))
        parts = iter(lambda: head.read(4), b"")
        assert b"".join(parts) == b"start\nown\n"
    with log.open("rb") as file:
        assert _Head(file, None).read() == log.read_bytes()
