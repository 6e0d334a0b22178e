"""``spectune run`` checks before it launches, and reads its servers' logs afterwards: real processes and files."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from healthy.models import eagle3_head, make_model
from report_studies import BASELINE, counts, load_result, request, speculative, study, trial

from spectune.analysis.findings import _BETTER
from spectune.analysis.summary import summarize
from spectune.check.check import CheckResult, without_refused
from spectune.domain.findings import Finding
from spectune.domain.study import Study
from spectune.domain.trial import Trial
from spectune.findings.catalogue import all_kinds
from spectune.runner import log_findings as own_log
from spectune.runner.log_findings import findings_of_own_log

HERE = Path(__file__).parent
LOGS = HERE / "logs"
PAIRS = json.loads((HERE / "healthy" / "pairs.json").read_text())
STUDY = """\
question: Which chain is fastest?
name: s
engine: {{name: sglang, python: {python}, flags: {flags}}}
target: {target}
drafter: {draft}
arms:
  - {{name: wrong, method: {method}, num_draft_tokens: 2}}
  - {{name: plain-ngram, method: ngram, num_draft_tokens: 4}}
workload: {{prompts: builtin, num_prompts: 1, max_tokens: 8, concurrency: [4]}}
repetitions: 1
"""


class Runner:
    """The command line in a folder of its own; the interpreter given for SGLang has no SGLang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SPECTUNE_HOME": str(folder / "home"), "COLUMNS": "100"}
        self.target = make_model(folder / "target", PAIRS["targets"]["qwen3-8b"])
        self.draft = eagle3_head(folder / "draft", PAIRS["drafts"]["H11-qwen3-8b"]["config"])

    def __call__(self, *args: str, method: str = "eagle", flags: str = "{}") -> Any:
        text = STUDY.format(
            python=sys.executable, target=self.target, draft=self.draft, method=method, flags=flags
        )
        (self.folder / "study.yaml").write_text(text, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-m", "spectune", "run", "study.yaml", *args],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )

    @property
    def studies(self) -> Path:
        return self.folder / "studies"

    def contents(self) -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in self.studies.rglob("*") if p.is_file() and p.name != "lock"}

    def trials(self) -> list[Trial]:
        paths = sorted(self.studies.glob("s/trials/*/trial.json"))
        return [Trial.model_validate_json(path.read_text()) for path in paths]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


class TestBeforeTheLaunch:
    def test_an_error_in_one_arm_refuses_the_study_and_leaves_nothing_behind(self, run: Runner) -> None:
        reply = run()
        assert reply.returncode == 1
        assert "error draft-algorithm-mismatch: wrong: " in reply.stdout
        assert "nothing was launched: 1 error in wrong" in reply.stdout
        assert "--allow draft-algorithm-mismatch" in reply.stdout
        assert not run.studies.exists()

    def test_with_json_the_findings_are_the_document(self, run: Runner) -> None:
        reply = run("--json")
        assert reply.returncode == 1
        document = json.loads(reply.stdout)
        assert {f["code"] for f in document["findings"] if f["severity"] == "error"} == {
            "draft-algorithm-mismatch"
        }
        assert "nothing was launched" in reply.stderr

    @pytest.mark.parametrize("option", [["--allow", "draft-algorithm-mismatch"], ["--no-check"]])
    def test_allowed_or_not_checked_it_is_launched(self, run: Runner, option: list[str]) -> None:
        reply = run(*option)
        assert "nothing was launched" not in reply.stdout + reply.stderr
        (baseline,) = run.trials()
        assert baseline.failure is not None and "No module named" in baseline.failure.cause

    def test_a_code_that_does_not_exist_is_bad_input(self, run: Runner) -> None:
        reply = run("--allow", "draft-algorithm-mismatched")
        assert reply.returncode == 2 and "near: draft-algorithm-mismatch" in reply.stderr
        assert not run.studies.exists()

    def test_warnings_are_shown_once_and_kept_in_trials_and_report(self, run: Runner) -> None:
        reply = run(method="eagle3", flags="{max-running-requests: 1}")
        warned = [f.code for t in run.trials() for f in t.findings if f.severity == "warning"]
        assert len(warned) == 1
        assert reply.stderr.count(f"warning {warned[0]}: ") == 1
        report = json.loads((run.studies / "s" / "report.json").read_text())
        assert [f["code"] for f in report["findings"]].count(warned[0]) == 1

    def test_a_study_that_exists_is_refused_as_it_is(self, run: Runner) -> None:
        run("--no-check", method="eagle3")
        before = run.contents()
        reply = run(method="eagle")
        assert reply.returncode == 1 and "nothing was launched" in reply.stdout
        assert run.contents() == before


def of_log(name: str, *, engine: str = "sglang", **changes: Any) -> tuple[Finding, ...]:
    """Findings of a trial whose server wrote this log."""
    arm = speculative("arm", engine=engine)
    of = study(arm)
    made = trial(of, arm, 2, loads=(load_result([request(of.workload.prompts[0], 100)]),), **changes)
    return findings_of_own_log(made, LOGS / name)


class TestOfItsOwnLog:
    def test_a_fault_is_found_and_carries_the_arms_name(self) -> None:
        (finding,) = [f for f in of_log("A01.log") if f.severity == "error"]
        assert (finding.code, finding.subject) == ("eagle3-draft-under-eagle", "arm")

    def test_notes_are_left_to_diagnose(self) -> None:
        assert of_log("A38.log", engine="llamacpp") == ()

    def test_how_it_ended_is_the_trials_own_to_say(self) -> None:
        assert {f.code for f in of_log("C21.log")} & {"server-died", "server-died-after-ready"} == set()

    def test_what_the_trial_measured_itself_is_not_judged_from_the_log(self) -> None:
        assert "prompts-repeated" not in {f.code for f in of_log("E22.log", engine="llamacpp")}
        assert "compiled-while-serving" not in {f.code for f in of_log("E09.log")}

    def test_what_check_said_before_is_not_said_again(self) -> None:
        said = Finding(code="speculative-number-rewritten", severity="warning", subject="arm", message="m")
        assert "draft-tokens-rewritten" in {f.code for f in of_log("B01.log")}
        assert "draft-tokens-rewritten" not in {f.code for f in of_log("B01.log", findings=(said,))}

    def test_a_scripted_server_is_not_judged(self) -> None:
        assert of_log("A01.log", simulated=True) == ()

    @pytest.mark.parametrize(
        "content", [None, b"", b"\x00\xff" * 5000, b"\x1f\x8bnot gzip", gzip.compress(b"x", mtime=0)[:9]]
    )
    def test_a_log_that_is_none_gives_nothing(self, tmp_path: Path, content: bytes | None) -> None:
        log = tmp_path / "server.log"
        if content is not None:
            log.write_bytes(content)
        arm = speculative("arm", engine="vllm")
        assert findings_of_own_log(trial(study(arm), arm, 2), log) == ()

    def test_of_a_long_log_the_beginning_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log, arm = tmp_path / "server.log", speculative("arm", engine="sglang")
        log.write_bytes((LOGS / "A01.log").read_bytes() + b"filler\n" * 10_000)
        monkeypatch.setattr(own_log, "READ_BYTES", 20_000)
        assert "eagle3-draft-under-eagle" in {
            f.code for f in findings_of_own_log(trial(study(arm), arm, 2), log)
        }
        monkeypatch.setattr(own_log, "READ_BYTES", 100)
        assert findings_of_own_log(trial(study(arm), arm, 2), log) == ()


class TestInTheReport:
    ARM = speculative("arm")
    OF = study(ARM)

    def found(self, *recorded: tuple[Finding, ...]) -> list[Finding]:
        """Findings of a study whose arm kept nothing in two launches, each with these records."""
        dead = [request(p, 90, acceptance=counts(99, 0)) for p in self.OF.workload.prompts]
        trials = [
            trial(self.OF, BASELINE, 1, speeds=100.0),
            *(
                trial(self.OF, self.ARM, i + 2, loads=(load_result(dead),), findings=kept)
                for i, kept in enumerate(recorded)
            ),
            trial(self.OF, BASELINE, 9, speeds=100.0),
        ]
        return list(summarize(self.OF, trials).findings)

    def test_one_fact_is_one_finding_and_the_one_with_the_cause_stays(self) -> None:
        cause = Finding(code="eagle3-draft-under-eagle", severity="error", subject="arm", message="m")
        assert [f.code for f in self.found((cause,), ())] == ["eagle3-draft-under-eagle"]
        assert [f.code for f in self.found((), ())] == ["dead-drafter"]

    def test_launches_of_one_arm_say_a_thing_once_whatever_their_figures(self) -> None:
        def low(figure: float) -> Finding:
            return Finding(
                code="little-memory-left", severity="warning", subject="arm", message=f"{figure} GB"
            )

        found = [f for f in self.found((low(2.8),), (low(2.7),)) if f.code == "little-memory-left"]
        assert [f.message for f in found] == ["2.8 GB"]

    def test_two_findings_of_one_code_in_one_trial_both_stand(self) -> None:
        two = tuple(
            Finding(code="flag-removed", severity="warning", subject="arm", message=flag) for flag in "ab"
        )
        assert [f.message for f in self.found(two, two) if f.code == "flag-removed"] == ["a", "b"]

    def test_codes_that_stand_for_each_other_exist(self) -> None:
        named = {code for kept, others in _BETTER.items() for code in (kept, *others)}
        named |= own_log._KNOWN_BETTER | {c for pair in own_log._FORESEEN.items() for c in pair}
        assert named <= {kind.code for kind in all_kinds()}


class TestSearchesLeaveOutWhatCheckRefuses:
    def made(self, search: str | None) -> Study:
        good, bad = speculative("good", length=2), speculative("bad", length=9)
        return study(good, bad, search=search)

    def checked(self, of: Study, *names: str) -> CheckResult:
        error = Finding(code="too-long", severity="error", subject="bad", message="9 are too many")
        by_arm = {arm.arm_id: (error,) for arm in of.arms if arm.name in names}
        return CheckResult((error,), (), {}, by_arm)

    def test_a_search_goes_on_without_them_and_keeps_the_reason(self) -> None:
        of = self.made("predict")
        left, checked = without_refused(of, self.checked(of, "bad"), allowed=())
        assert [arm.name for arm in left.arms] == ["baseline", "good"]
        assert left.pruned_arms == {"bad": "check: too-long: 9 are too many"}
        assert not checked.errors()

    def test_a_list_of_wanted_arms_stays_refused(self) -> None:
        of = self.made(None)
        assert without_refused(of, self.checked(of, "bad"), allowed=())[1].errors()

    def test_so_does_a_search_of_which_nothing_or_no_baseline_would_be_left(self) -> None:
        of = self.made("grid")
        for names in (("good", "bad"), ("baseline",)):
            left, checked = without_refused(of, self.checked(of, *names), allowed=())
            assert left == of
            assert checked.errors()

    def test_what_is_allowed_stays_in(self) -> None:
        of = self.made("predict")
        left, _ = without_refused(of, self.checked(of, "bad"), allowed=("too-long",))
        assert left == of


def test_a_check_that_takes_long_says_what_is_being_done(tmp_path: Path) -> None:
    """The engine's Python answers only once the words were seen."""
    go, python = tmp_path / "go", tmp_path / "python"
    python.write_text(f'#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    run = Runner(tmp_path)
    text = STUDY.format(python=python, target=run.target, draft=run.draft, method="eagle", flags="{}")
    (tmp_path / "study.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "spectune", "run", "study.yaml"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=run.env, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        go.touch()
        process.communicate(timeout=60)
    assert first.startswith("checking the study against its engine, models and machine")
    assert process.returncode == 1  # the draft is refused
