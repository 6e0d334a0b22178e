"""The live page: what it tells of a study that another process runs, who may ask, and who may stop it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from report_reading import Page
from report_studies import BASELINE, failed, speculative, study, trial
from watched_study import Client, begin_trial, being_run, served, stored

from spectune.analysis.summary import summarize
from spectune.errors import BadInput
from spectune.report.html import render_html, render_live
from spectune.store.abort import is_abort_asked
from spectune.store.progress import ProgressFile, read_progress
from spectune.store.study_dir import StudyDir, TrialDir
from spectune.watch.log_tail import LINE_CHARS, LINES, log_tail
from spectune.watch.server import WatchServer
from spectune.watch.study_view import StudyView

ARM = speculative("drafting")


@pytest.fixture
def half(tmp_path: Path) -> StudyDir:
    """Baseline measured, the arm loading."""
    of = study(ARM)
    directory = stored(tmp_path / "study", of, [trial(of, BASELINE, 1, speeds=100.0)])
    begin_trial(directory, ARM)
    return directory


@pytest.fixture
def ask(half: StudyDir) -> Iterator[Client]:
    with being_run(half), served(half) as client:
        yield client


class TestWhatItTells:
    def test_names_the_running_trial_its_phase_and_the_end_of_its_log(self, ask: Client) -> None:
        state = ask.state()
        assert (state["state"], state["num_ended"], state["can_abort"]) == ("running", 1, True)
        (running,) = state["running"]
        assert (running["number"], running["arm"], running["phase"]) == (2, "drafting", "load")
        assert (running["hypothesis"], running["log"]) == ("it drafts", ["loading weights ..."])

    def test_a_trial_that_ends_changes_the_report_and_the_state(self, half: StudyDir) -> None:
        view = StudyView(half)
        before = view.snapshot()
        (path,) = [p for p in half.trial_paths() if not (p / "trial.json").exists()]
        ended = trial(half.read_study(), ARM, 2, speeds=250.0)
        for record in ended.loads[0].requests:
            TrialDir(path).append_request(0, record)
        TrialDir(path).finish(ended.model_copy(update={"trial_id": path.name}))
        after = view.snapshot()
        assert before.version != after.version
        assert before.best == "nothing is shown to be faster than plain decoding"
        assert after.best is not None and after.best.startswith("drafting, 2.50x")
        assert (after.num_ended, after.running) == (2, ())

    def test_a_trial_of_a_killed_run_is_not_a_running_one(self, half: StudyDir) -> None:
        (path,) = [p for p in half.trial_paths() if not (p / "trial.json").exists()]
        gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
        gone.wait()
        reading = json.loads((path / "progress.json").read_text(encoding="utf-8"))
        (path / "progress.json").write_text(json.dumps({**reading, "pid": gone.pid}), encoding="utf-8")
        assert StudyView(half).snapshot().state == "stopped"
        with being_run(half):  # by the next run
            assert StudyView(half).snapshot().state == "between"

    def test_a_trial_beside_the_holder_of_the_lock_is_a_running_one(self, half: StudyDir) -> None:
        """Several spectunes may add trials to one study; one of them holds the lock."""
        with being_run(half):
            (half.path / "lock").write_text(f"1 {socket.gethostname()}", encoding="utf-8")
            assert StudyView(half).snapshot().state == "running"

    def test_one_that_holds_the_study_and_says_nothing_is_shown_with_its_silence(
        self, half: StudyDir
    ) -> None:
        late = datetime.now(UTC) + timedelta(minutes=5)
        assert StudyView(half, now=lambda: late).snapshot().state == "stopped"
        with being_run(half):
            (running,) = StudyView(half, now=lambda: late).snapshot().running
        assert running.silent_s == pytest.approx(300, abs=30)

    def test_a_runner_on_another_machine_is_known_by_its_beats_whatever_its_clock_says(
        self, tmp_path: Path
    ) -> None:
        of = study(ARM)
        directory = stored(tmp_path / "study", of, [])
        hours_behind = datetime.now(UTC) - timedelta(hours=3)
        folder, _ = begin_trial(directory, BASELINE)
        passed = [0.0]
        view = StudyView(directory, clock=lambda: passed[0])
        writer = ProgressFile(
            folder.path, clock=lambda: 1e9 + passed[0], now=lambda: hours_behind, hostname="another-machine"
        )
        writer.note_phase("load")
        assert view.snapshot().state == "stopped"  # one old reading may be of a dead runner
        hours_behind += timedelta(seconds=6)
        passed[0] = 6.0
        writer.beat()
        assert view.snapshot().state == "running"
        passed[0] = 40.0
        assert view.snapshot().state == "stopped"

    def test_a_study_that_cannot_be_read_is_said_and_comes_back(self, half: StudyDir) -> None:
        view, file = StudyView(half), half.path / "study.json"
        text = file.read_text(encoding="utf-8")
        file.write_text("{", encoding="utf-8")
        snapshot = view.snapshot()
        assert snapshot.state == "unreadable" and "study.json" in (snapshot.problem or "")
        file.write_text(text, encoding="utf-8")
        assert view.snapshot().state == "running"

    def test_a_failed_trial_is_counted_and_time_is_not_guessed_before_one_was_measured(
        self, tmp_path: Path
    ) -> None:
        of = study(ARM)
        directory = stored(tmp_path / "study", of, [failed(of, BASELINE, 1)])
        begin_trial(directory, BASELINE)
        snapshot = StudyView(directory).snapshot()
        assert (snapshot.num_failed, snapshot.left_s) == (1, None)

    def test_the_live_page_is_the_report_with_one_script(self, half: StudyDir) -> None:
        summary = summarize(half.read_study(), half.read_trials())
        live, report = render_live(summary, version="v", nonce="n"), render_html(summary)
        assert Page(live).tags.count("script") == 1
        assert '<script nonce="n">' in live
        main = re.compile(r"<main>.*</main>", re.DOTALL)
        assert main.findall(live) == main.findall(report) != []


class TestWhoMayAsk:
    @pytest.mark.parametrize("path", ["/", "/state", "/report"])
    @pytest.mark.parametrize("token", [None, "wrong", "\xfc"])
    def test_nobody_without_the_token(self, ask: Client, path: str, token: str | None) -> None:
        status, _, text = ask("GET", path, token=token)
        assert status == 403
        assert "drafting" not in text

    def test_the_address_alone_opens_the_page(self, ask: Client) -> None:
        path = ask.server.url.split(str(ask.server.port))[1]
        status, headers, text = ask("GET", path, token=None)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "drafting" in text
        nonce = re.findall(r"script-src 'nonce-([\w-]+)'", headers["content-security-policy"])
        assert re.findall(r'<script nonce="([\w-]+)">', text) == nonce != []
        assert headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("127.0.0.1:{port}", 200),
            ("localhost:{port}", 200),
            ("LOCALHOST:{port}", 200),
            ("[::1]:{port}", 200),
            ("localhost:9999", 200),  # the near end of an ssh tunnel
            ("192.0.2.7:{port}", 200),  # an address is no name that could be pointed here
            ("rebound.example:{port}", 421),
            ("localhost.example", 421),
            ("127.0.0.1.nip.example:{port}", 421),
            ("[::1", 421),
            ("localhost:99999", 421),
        ],
    )
    def test_no_name_that_a_stranger_could_point_here(self, ask: Client, host: str, status: int) -> None:
        assert ask("GET", "/state", Host=host.format(port=ask.server.port))[0] == status

    def test_no_page_of_another_site(self, ask: Client) -> None:
        ours = f"http://127.0.0.1:{ask.server.port}"
        body = json.dumps({"trial_id": None})
        assert ask("POST", "/abort", body=body, Origin="https://evil.example")[0] == 403
        assert ask("POST", "/abort", body=body, Origin="null")[0] == 403
        assert not is_abort_asked(ask.server.view.directory.path)
        assert ask("POST", "/abort", body=body, Origin=ours)[0] == 202

    def test_a_form_of_another_site_has_no_token(self, ask: Client) -> None:
        path = f"/abort?token={ask.server.token}"
        assert ask("POST", path, body='{"trial_id": null}', token=None)[0] == 403

    @pytest.mark.parametrize("path", ["/../study.json", "/study.yaml", "/trials", "/state/", "/abort"])
    def test_no_file_is_served(self, ask: Client, path: str) -> None:
        assert ask("GET", path)[0] == 404


class TestWhoMayStop:
    def test_a_request_for_the_running_trial_is_left_in_its_folder(self, ask: Client) -> None:
        (running,) = ask.state()["running"]
        assert ask("POST", "/abort", body=json.dumps({"trial_id": running["trial_id"]}))[0] == 202
        assert is_abort_asked(ask.server.view.directory.trials_path / running["trial_id"])
        assert not is_abort_asked(ask.server.view.directory.path)
        assert ask.state()["running"][0]["abort_asked"] is True

    @pytest.mark.parametrize("name", ["0001-none", "../../etc", "0001-" + "a" * 500, ""])
    def test_no_other_folder_can_be_named(self, ask: Client, name: str) -> None:
        before = sorted(ask.server.view.directory.path.rglob("*"))
        assert ask("POST", "/abort", body=json.dumps({"trial_id": name}))[0] == 409
        assert sorted(ask.server.view.directory.path.rglob("*")) == before

    def test_nothing_is_left_where_no_spectune_runs(self, tmp_path: Path) -> None:
        of = study(ARM)
        directory = stored(tmp_path / "study", of, [trial(of, BASELINE, 1, speeds=100.0)])
        with served(directory) as client:
            assert client("POST", "/abort", body='{"trial_id": null}')[0] == 409
        assert not is_abort_asked(directory.path)

    @pytest.mark.parametrize(
        ("body", "status"),
        [("", 400), ("[]", 400), ("{}", 400), ('{"trial_id": 3}', 400), ("[" * 4000, 400), ("x" * 5000, 413)],
    )
    def test_a_body_that_is_no_request_is_refused(self, ask: Client, body: str, status: int) -> None:
        assert ask("POST", "/abort", body=body)[0] == status

    @pytest.mark.parametrize("length", ["9" * 5000, "²", "-1", "1_0", ""])
    def test_a_length_that_is_none_is_answered(self, ask: Client, length: str) -> None:
        assert ask("POST", "/abort", Content_Length=length)[0] == 413


class TestLogTail:
    def test_is_the_end_without_control_codes_and_bounded(self, tmp_path: Path) -> None:
        log = tmp_path / "server.log"
        log.write_bytes(b"\x1b[31mred\x1b[0m \xff\n" * 20_000 + b"load 1 %\rload 99 %\n" + b"x" * 5000)
        lines = log_tail(log)
        assert len(lines) == LINES
        assert lines[-2] == "load 99 %"
        assert len(lines[-1]) == LINE_CHARS
        assert lines[0] == "red �"

    def test_no_log_has_no_lines(self, tmp_path: Path) -> None:
        assert log_tail(tmp_path / "none") == []


class TestProgressFile:
    def test_is_written_at_most_once_a_second_and_at_every_change_of_phase(self, tmp_path: Path) -> None:
        passed = [0.0]
        file = ProgressFile(tmp_path, clock=lambda: passed[0])

        def seen() -> tuple[str | None, int | None]:
            read = read_progress(tmp_path)
            assert read is not None
            return read.phase, read.requests_done

        file.note_phase("measure")
        file.note_requests(1, 9)
        assert seen() == ("measure", None)
        passed[0] = 1.0
        file.note_requests(2, 9)
        file.note_requests(3, 9)
        assert seen() == ("measure", 2)
        file.note_phase("stop")
        assert seen() == ("stop", None)

    def test_a_disk_that_refuses_ends_no_trial(self, tmp_path: Path) -> None:
        file = ProgressFile(tmp_path / "gone")
        file.note_phase("load")
        file.beat()
        assert read_progress(tmp_path / "gone") is None

    @pytest.mark.parametrize("text", ["", "{", '{"phase": 3}', "[" * 5000])
    def test_a_torn_or_foreign_file_is_unknown(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "progress.json").write_text(text, encoding="utf-8")
        assert read_progress(tmp_path) is None


class TestBadInput:
    def test_a_port_in_use_is_said(self, half: StudyDir) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(BadInput, match=f"--port {port}: is taken"):
                WatchServer(StudyView(half), port=port)

    @pytest.mark.parametrize("address", ["no.such.name.invalid", "192.0.2.1", "300.1.1.1"])
    def test_an_address_that_is_not_ours_is_said(self, half: StudyDir, address: str) -> None:
        with pytest.raises(BadInput, match=re.escape(f"--bind {address}")):
            WatchServer(StudyView(half), address=address)

    def test_the_command_line_says_it_in_one_line(self, tmp_path: Path) -> None:
        reply = subprocess.run(
            [sys.executable, "-m", "spectune", "watch", str(tmp_path / "none")],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
            timeout=60,
        )
        assert (reply.returncode, reply.stdout) == (2, "")
        assert reply.stderr.count("\n") == 1 and "not a study directory" in reply.stderr
