"""A study in a real MLflow server: a run per trial, and no run twice."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exchange_studies import K3, drawn, written
from report_studies import failed

from spectune.cli.main import main
from spectune.exchange.exports import mlflow as mlflow_export
from spectune.exchange.whole_study import LoadedStudy, load_study
from spectune.store.study_dir import StudyDir, TrialDir

pytestmark = [pytest.mark.stores, pytest.mark.timeout(600)]
pytest.importorskip("mlflow.server", reason="needs MLflow with its server (make test-stores)")

START_S = 500


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``mlflow server`` as a process of its own, artifacts through it."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    log = (folder / "server.log").open("wb")
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment = {**os.environ, **quiet}
    server = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment, cwd=folder
    )
    try:
        _wait_until_it_answers(f"http://127.0.0.1:{port}/health", server, folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
        log.close()


def _wait_until_it_answers(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + START_S
    while time.monotonic() < limit:
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"no MLflow server after {START_S} s: {log.read_text()[-2000:]}")


@pytest.fixture
def place(tmp_path: Path) -> str:
    made = drawn(random.Random(1), launches=2)
    broken = failed(made.study, K3, 99)
    place = written(tmp_path / "study", LoadedStudy("x", made.study, (*made.trials, broken)))
    log = Path(place) / "trials" / broken.trial_id / "server.log"
    log.write_text("loading model\nerror: out of memory\n")
    return place


def exported(place: str, uri: str, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    arguments = ["export", place, "--as", "mlflow", "--tracking-uri", uri, "--experiment", name]
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def runs(uri: str, name: str) -> tuple[Any, Any, dict[str, Any]]:
    """The client, the study's run, and the trials' runs by trial id: as many as there are, or this fails."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    trials = [run for run in found if run.data.tags["spectune.kind"] == "trial"]
    (parent,) = (run for run in found if run.data.tags["spectune.kind"] == "study")
    by_id = {run.data.tags["spectune.trial_id"]: run for run in trials}
    assert len(by_id) == len(trials), "a trial has two runs"
    return client, parent, by_id


def test_each_trial_is_a_run_with_parameters_metrics_and_artifacts(
    uri: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = exported(place, uri, "one", capsys)
    loaded = load_study(place)
    assert f"{len(loaded.trials)} trials added, 0 known already" in said
    client, parent, found = runs(uri, "one")
    assert found.keys() == {t.trial_id for t in loaded.trials}
    assert all(run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in found.values())

    trial = next(t for t in loaded.trials if t.arm_id == K3.arm_id and t.status == "complete")
    run = found[trial.trial_id]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"{trial.number:04d} eagle3-k3"
    assert run.data.params["method"] == "eagle3"
    assert run.data.params["num_draft_tokens"] == "3"
    assert run.data.params["drafter"] == "draft"
    assert "num_steps" not in run.data.params, "what is unknown is no parameter"
    requests = trial.loads[0].requests
    assert run.data.metrics["completed"] == len(requests)
    tokens = sum(r.output_tokens or 0 for r in requests)
    assert run.data.metrics["total_output_tokens"] == tokens
    counts = trial.loads[0].acceptance
    assert counts is not None and counts.num_drafts and counts.accepted_per_position
    assert run.data.metrics["spec_decode_acceptance_length"] == pytest.approx(
        1 + counts.num_accepted_tokens / counts.num_drafts
    )
    steps = client.get_metric_history(run.info.run_id, "accepted_at_position")
    assert {m.step: m.value for m in steps} == {
        i: pytest.approx(n / counts.num_drafts) for i, n in enumerate(counts.accepted_per_position)
    }
    assert run.data.metrics["phase_s/measure"] == trial.phases_s["measure"]
    assert run.info.end_time - run.info.start_time == 16_000
    assert {a.path for a in client.list_artifacts(run.info.run_id)} == {"trial.json", "requests.jsonl"}
    got = client.download_artifacts(run.info.run_id, "trial.json", str(tmp_path))
    assert json.loads(Path(got).read_text())["trial_id"] == trial.trial_id

    (broken,) = (found[t.trial_id] for t in loaded.trials if t.status == "failed")
    assert broken.info.status == "FAILED"
    assert broken.data.tags["mlflow.note.content"] == "out of memory"
    assert "e2e_tok_per_s" not in broken.data.metrics, "what was not measured is no metric"
    got = client.download_artifacts(broken.info.run_id, "server.log", str(tmp_path))
    assert "out of memory" in Path(got).read_text()
    names = {a.path for a in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "report.md", "report.json", "study.yaml", "study.json"} == names
    assert parent.data.params["workload_hash"] == loaded.study.workload.workload_hash


def test_a_repeated_export_adds_what_is_new_and_repeats_nothing(
    uri: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(place, uri, "again", capsys)
    _, parent, before = runs(uri, "again")
    copy = tmp_path / "copied elsewhere"
    Path(place).rename(copy)
    said = exported(str(copy), uri, "again", capsys)
    assert f"0 trials added, {len(before)} known already" in said
    directory = StudyDir.open(copy)
    new = failed(load_study(str(copy)).study, K3, 100, cause="no such file")
    folder = TrialDir(directory.trials_path / new.trial_id)
    folder.path.mkdir()
    folder.finish(new)
    assert "1 trial added" in exported(str(copy), uri, "again", capsys)
    client, same, after = runs(uri, "again")
    assert same.info.run_id == parent.info.run_id
    assert after.keys() - before.keys() == {new.trial_id}
    assert {k: run.info.run_id for k, run in after.items() if k in before} == {
        k: run.info.run_id for k, run in before.items()
    }
    one = next(iter(before.values())).info.run_id
    for metric in client.get_run(one).data.metrics:
        if metric != "accepted_at_position":
            assert len(client.get_metric_history(one, metric)) == 1, f"{metric} was logged again"


def test_an_export_that_was_cut_short_is_finished(
    uri: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = 2

    class Cut(Exception):
        pass

    whole = mlflow_export._fill

    def fill_then_die(client: Any, run_id: str, *rest: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Cut
        whole(client, run_id, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(mlflow_export, "_fill", fill_then_die)
        with pytest.raises(Cut):
            exported(place, uri, "cut", capsys)
    _, _, found = runs(uri, "cut")
    assert len(found) == 3, "two whole, one begun"
    exported(place, uri, "cut", capsys)
    _, _, found = runs(uri, "cut")
    assert found.keys() == {t.trial_id for t in load_study(place).trials}
    assert all(run.data.tags["spectune.exported"] == "complete" for run in found.values())


class TestBadInput:
    def said(self, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
        code = main(list(args))
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return code, said

    def test_nowhere_to_go(
        self, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        code, said = self.said(capsys, "export", place, "--as", "mlflow")
        assert code == 2 and "--tracking-uri http://" in said

    def test_nobody_answers(self, place: str, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            there = f"http://me:hunter2@127.0.0.1:{free.getsockname()[1]}"
        code, said = self.said(capsys, "export", place, "--as", "mlflow", "--tracking-uri", there)
        assert code == 3 and said.startswith("spectune: MLflow at http://me:***@127.0.0.1")
        assert "hunter2" not in said

    def test_a_deleted_experiment_is_not_written_to(
        self, uri: str, place: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        client.delete_experiment(client.create_experiment("gone"))
        code, said = self.said(
            capsys, "export", place, "--as", "mlflow", "--tracking-uri", uri, "--experiment", "gone"
        )
        assert code == 2 and "was deleted in MLflow" in said

    def test_without_the_extra(
        self, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "mlflow", None)
        code, said = self.said(
            capsys, "export", place, "--as", "mlflow", "--tracking-uri", "http://127.0.0.1:1"
        )
        assert code == 2 and "pip install 'spectune[mlflow]'" in said
