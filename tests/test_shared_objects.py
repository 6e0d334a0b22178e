"""A study in an object store, over TCP against an S3-compatible server that also goes away."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from appending import append_trials, one_trial
from exchange_studies import drawn
from report_studies import BASELINE
from s3_server import BUCKET, S3Server, s3_server

from spectune.cli.main import main
from spectune.domain.study import Study
from spectune.errors import BadInput, EnvironmentFailed, StoreUnreachable
from spectune.exchange.query import run_query
from spectune.store import objects
from spectune.store.lease import Lease
from spectune.store.objects import ObjectStore
from spectune.store.opening import create_study, live_study, open_study, study_exists, work_on
from spectune.store.places import Bucket
from spectune.store.shared import SharedStudyDir
from spectune.store.study_dir import TrialDir, rank_log, rank_logs

pytestmark = [pytest.mark.stores, pytest.mark.timeout(900)]
pytest.importorskip("s3fs", reason="needs the extra s3 (make test-stores)")
pytest.importorskip("moto", reason="needs moto's S3 server (make test-stores)")

EACH = 10
STUDY = """\
question: Does the fake drafter pay?
engine:
  name: fake
  flags: {tokens-per-s: 400}
target: fake-model
arms:
  - {name: good, method: eagle3, drafter: fake-draft, num_draft_tokens: 3, flags: {accept: "0.8"}}
workload: {prompts: builtin, num_prompts: 3, max_tokens: 20, warmup_requests: 1}
"""


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def server(running: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPECTUNE_HOME", str(tmp_path / "home"))
    yield running
    running.stop()
    running.start()


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """Nothing is there yet."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())
    return f"s3://{BUCKET}/team/{name}"


def a_study(**changes: Any) -> Study:
    return drawn(random.Random(1)).study.model_copy(update=changes)


def copied_to(place: str, *, seed: int = 1) -> str:
    """A study with trials, written there trial by trial."""
    made = drawn(random.Random(seed))
    directory = create_study(place, study=made.study, source="question: drawn\n")
    with directory.lock():
        for trial in made.trials:
            folder = TrialDir(directory.trials_path / trial.trial_id)
            folder.path.mkdir()
            folder.replace_requests([load.requests for load in trial.loads])
            folder.finish(trial)
    return place


def add_trial(directory: SharedStudyDir, text: str, *, log: str = "") -> None:
    study = directory.read_study()
    number, folder = directory.new_trial(BASELINE.arm_id)
    made = one_trial(study, BASELINE, number, text, trial_id=folder.path.name)
    folder.replace_requests([load.requests for load in made.loads])
    if log:
        folder.log_path.write_text(log)
    folder.finish(made)


def texts(place: str) -> list[str]:
    return sorted(r.text for t in open_study(place).read_trials() for r in t.loads[0].requests)


def test_two_processes_lose_no_trial_and_write_none_twice(
    server: S3Server, place: str, tmp_path: Path
) -> None:
    create_study(place, study=a_study(), source="question: q\n")
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(2)
    workers = [
        context.Process(target=append_trials, args=(place, tmp_path / name, name, EACH, gate))
        for name in "ab"
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(400)
        assert worker.exitcode == 0
    assert texts(place) == sorted(f"answer {i} of {name}" for name in "ab" for i in range(EACH))
    assert [t.number for t in open_study(place).read_trials()] == list(range(1, 2 * EACH + 1))


def test_every_reading_command_takes_the_address(
    server: S3Server, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = copied_to(f"{place}/one"), copied_to(f"{place}/two", seed=2)

    def said(*args: str, code: int = 0) -> str:
        assert main(list(args)) == code, capsys.readouterr().err
        return capsys.readouterr().out

    listed = json.loads(said("ls", place, "--json"))["studies"]
    assert {(s["study_dir"], s["num_trials"]) for s in listed} == {(one, 10), (two, 10)}
    assert re.search(r"^ ?one ", said("ls", place), re.MULTILINE)
    report = json.loads(said("report", one, "--json"))
    assert len(report["trials"]) == 10
    assert f"{one}/report.html" in said("report", one)
    stored = ObjectStore(Bucket(BUCKET, one.removeprefix(f"s3://{BUCKET}/")))
    assert b"<html" in (stored.get("report.html") or b"")[:400]
    assert "eagle3-k3" in said("explain", one)
    assert "eagle3-k3" in said("compare", one, two)
    assert main(["gate", one, "--against", one]) == 2, "one study named twice"
    assert "same study" in capsys.readouterr().err
    assert said("gate", two, "--against", one, "--max-slowdown", "99%")
    assert said("export", one, "--as", "csv", "--rows", "requests").count("\n") == 121
    sql = "SELECT study_dir, count(*) FROM requests GROUP BY 1 ORDER BY 1"
    assert json.loads(said("query", sql, place, "--json"))["rows"] == [
        {"study_dir": one, "count_star()": 120},
        {"study_dir": two, "count_star()": 120},
    ]
    assert json.loads(said("diagnose", one, "--json"))["schema_version"] == 1
    plan = json.loads(said("plan", one, "--from", two, "--nodes", "2", "--json"))
    assert plan["arm_launch_s"]["n"] > 0


def test_a_reader_sees_what_was_added_and_loses_what_was_taken_out(server: S3Server, place: str) -> None:
    copied_to(place)
    assert run_query("SELECT count(*) FROM trials", [place]).rows == ((10,),)
    directory = work_on(place)
    assert isinstance(directory, SharedStudyDir)
    with directory.lock():
        add_trial(directory, "added")
    assert run_query("SELECT count(*) FROM trials", [place]).rows == ((11,),)
    gone = open_study(place).trial_paths()[0].name
    for name in directory.store.listing(f"trials/{gone}"):
        directory.store.delete(name)
    assert run_query("SELECT count(*) FROM trials", [place]).rows == ((10,),)
    with directory.lock():
        assert gone not in {p.name for p in directory.trial_paths()}, "nor does a writer bring it back"
    assert len(open_study(place).read_trials()) == 10


def test_what_lies_there_is_a_study_directory_for_any_tool(
    server: S3Server, place: str, tmp_path: Path
) -> None:
    """Copied down as ``aws s3 cp --recursive`` does, it reads as a folder."""
    copied_to(place)
    store = ObjectStore(Bucket(BUCKET, place.removeprefix(f"s3://{BUCKET}/")))
    for name in store.listing():
        target = tmp_path / "down" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.get(name) or b"")
    assert open_study(str(tmp_path / "down")).read_trials() == open_study(place).read_trials()


def test_a_study_runs_there_and_resumes_from_another_machine(
    server: S3Server, place: str, tmp_path: Path
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)

    def run(*args: str, home: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SPECTUNE_HOME": str(tmp_path / home), "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-m", "spectune", "run", *args],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
        )

    first = run("study.yaml", "--dir", place, "--set", "budget.max_trials=1", home="one")
    assert first.returncode == 0, first.stderr
    assert "stopped by the budget" in first.stdout
    assert len(open_study(place).read_trials()) == 1
    second = run("study.yaml", "--dir", place, home="two")
    assert second.returncode == 0, second.stderr
    assert f"report: {place}/report.html" in second.stdout
    trials = open_study(place, whole=True).read_trials()
    assert [t.status for t in trials] == ["complete"] * len(trials) and len(trials) >= 3
    assert len({t.trial_id[-6:] for t in trials}) == 2, "two sessions"
    assert (open_study(place).trial_paths()[0] / "server.log").exists()
    third = run(place, home="three")
    assert "nothing left to do" in third.stdout
    kept = ObjectStore(Bucket(BUCKET, place.removeprefix(f"s3://{BUCKET}/"))).listing()
    assert not [name for name in kept if name.startswith("writers/")], "nobody is said to work on it"
    assert {"report.html", "study.yaml"} <= kept.keys()


def test_a_store_that_goes_away_loses_nothing_and_gets_it_later(server: S3Server, place: str) -> None:
    create_study(place, study=a_study(), source="question: q\n")
    directory = work_on(place)
    assert isinstance(directory, SharedStudyDir)
    told: list[str | None] = []
    with pytest.raises(StoreUnreachable) as raised, directory.lock():
        add_trial(directory, "before")
        told.append(asyncio.run(directory.settle()))
        server.stop()
        add_trial(directory, "meanwhile")
        told.append(asyncio.run(directory.settle()))
    assert told[0] is None
    assert f"kept in {directory.path}" in str(told[1])
    assert "1 finished trials are only in" in str(raised.value)
    assert f"spectune run {place}" in str(raised.value)
    server.start()
    assert texts(place) == ["before"]
    again = work_on(place)
    with again.lock():
        pass
    assert texts(place) == ["before", "meanwhile"]


def test_a_log_that_grows_after_its_trial_and_an_interrupted_trial_are_there_at_the_end(
    server: S3Server, place: str
) -> None:
    create_study(place, study=a_study(), source="question: q\n")
    directory = work_on(place)
    assert isinstance(directory, SharedStudyDir)
    with directory.lock():
        add_trial(directory, "one", log="ready\n")
        directory.bring_over()
        (path,) = directory.trial_paths()
        with (path / "server.log").open("a") as log:
            log.write("stopped\n")
        _, begun = directory.new_trial(BASELINE.arm_id)
        begun.write_plan({"schema_version": 1})
        (begun.path / "progress.json").write_text("{}")
    store = directory.store
    assert store.get(f"trials/{path.name}/server.log") == b"ready\nstopped\n"
    assert list(store.listing(f"trials/{begun.path.name}")) == [f"trials/{begun.path.name}/plan.json"]
    assert texts(place) == ["one"]


def test_the_log_of_every_rank_comes_back_with_the_rest(server: S3Server, place: str) -> None:
    """Of a server over several nodes: `diagnose` and MLflow read them."""
    create_study(place, study=a_study(), source="question: q\n")
    directory = work_on(place)
    with directory.lock():
        add_trial(directory, "one", log="rank 0\n")
        (path,) = directory.trial_paths()
        rank_log(TrialDir(path).log_path, 1).write_text("rank 1\n")
    (copy,) = open_study(place, whole=True).trial_paths()
    assert {rank: log.read_text() for rank, log in rank_logs(copy).items()} == {1: "rank 1\n"}


def test_an_error_in_the_work_tells_too_what_stayed_here(server: S3Server, place: str) -> None:
    create_study(place, study=a_study(), source="question: q\n")
    directory = work_on(place)
    assert isinstance(directory, SharedStudyDir)
    with (
        pytest.raises(EnvironmentFailed, match=r"(?s)the GPU fell off.*1 finished trials are only in"),
        directory.lock(),
    ):
        add_trial(directory, "kept")
        server.stop()
        raise EnvironmentFailed("the GPU fell off")


class TestLease:
    def test_the_second_is_told_who_works_there(
        self, server: S3Server, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        create_study(place, study=a_study(), source="question: q\n")
        one, two = work_on(place, copy=tmp_path / "1"), work_on(place, copy=tmp_path / "2")
        with one.lock():
            with pytest.raises(BadInput, match=f"pid {os.getpid()} on .* last heard of"), two.lock():
                pass
            assert main(["ls", place, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["studies"][0]["state"] == "running"
        with two.lock():
            pass

    def test_of_two_at_once_never_both_win(self, server: S3Server, place: str) -> None:
        """However their steps interleave: here every step of one is followed by one of the other."""
        store = ObjectStore(Bucket(BUCKET, place.removeprefix(f"s3://{BUCKET}/")))

        async def both() -> list[object]:
            leases = [Lease(store, writer=w, pause=lambda s: None) for w in ("a", "b")]
            tried = await asyncio.gather(
                *(asyncio.to_thread(lease.acquire) for lease in leases), return_exceptions=True
            )
            for lease in leases:
                lease.release()
            return [result for result in tried if result is None]

        for _ in range(8):
            assert len(asyncio.run(both())) <= 1

    def test_one_that_died_is_forgotten_by_the_stores_clock(self, server: S3Server, place: str) -> None:
        store = ObjectStore(Bucket(BUCKET, place.removeprefix(f"s3://{BUCKET}/")))
        dead = Lease(store, writer="a", renew_s=1000)
        dead.acquire()
        waiting = Lease(store, writer="b", renew_s=1000, pause=lambda s: None)
        with pytest.raises(BadInput):
            waiting.acquire()
        later = Lease(store, writer="b", lease_s=0.0, renew_s=1000)
        later.acquire()
        assert dead.taken_by() is not None, "and it learns of it"
        dead.release()
        later.release()

    def test_one_copys_own_dead_session_is_no_hindrance(self, server: S3Server, place: str) -> None:
        store = ObjectStore(Bucket(BUCKET, place.removeprefix(f"s3://{BUCKET}/")))
        Lease(store, writer="a", renew_s=1000).acquire()
        Lease(store, writer="a", renew_s=1000).acquire()

    def test_it_is_renewed(self, server: S3Server, place: str) -> None:
        store = ObjectStore(Bucket(BUCKET, place.removeprefix(f"s3://{BUCKET}/")))
        lease = Lease(store, writer="a", renew_s=0.05)
        lease.acquire()
        name = next(iter(store.listing("writers")))
        store.delete(name)
        for _ in range(200):
            if store.get(name) is not None:
                break
        else:
            pytest.fail("never written again")
        lease.release()
        assert store.listing("writers") == {}


class TestBadInput:
    def said(self, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
        code = main(list(args))
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert said.count("spectune: ") == 1, said
        return code, said

    def test_no_study_no_bucket_no_keys_no_server(
        self,
        server: S3Server,
        place: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "study.yaml").write_text(STUDY)
        code, said = self.said(capsys, "report", place)
        assert code == 2 and f"spectune run STUDY.yaml --dir {place}" in said
        for command in (["report"], ["ls"], ["run", str(tmp_path / "study.yaml"), "--dir"]):
            code, said = self.said(capsys, *command, "s3://no-such-bucket/x")
            assert code == 2 and "there is no bucket 'no-such-bucket'" in said
        server.stop()
        for command in (["report"], ["run", str(tmp_path / "study.yaml"), "--dir"]):
            code, said = self.said(capsys, *command, place)
            assert code == 3 and "does not answer" in said and server.url in said
        server.start()
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        code, said = self.said(capsys, "report", place)
        assert code == 2 and "no keys for the object store" in said and "AWS_PROFILE" in said

    def test_a_study_is_watched_where_it_runs(
        self, server: S3Server, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        copied_to(place)
        assert len(live_study(place).read_trials()) == 10, "it was made here"
        code, said = self.said(capsys, "watch", f"{place}/other")
        assert code == 2 and "has not been run on this machine" in said

    def test_a_store_that_is_silent_is_given_up(
        self,
        server: S3Server,
        place: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """It accepts the connection and never answers."""
        monkeypatch.setattr(objects, "READ_TIMEOUT_S", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            code, said = self.said(capsys, "report", place)
        assert code == 3 and "does not answer" in said

    def test_without_the_extra_it_says_what_to_install(
        self,
        server: S3Server,
        place: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setitem(sys.modules, "s3fs", None)
        code, said = self.said(capsys, "report", place)
        assert code == 2 and "pip install 'spectune[s3]'" in said

    def test_import_goes_there_and_not_over_a_study(
        self, server: S3Server, place: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = next(Path(__file__).parent.glob("imported/**/*.json"))
        assert main(["import", str(result), "--dir", place]) == 0, capsys.readouterr().err
        assert study_exists(place) and open_study(place).read_trials()
        capsys.readouterr()
        code, said = self.said(capsys, "import", str(result), "--dir", place)
        assert code == 2 and "holds a study" in said
