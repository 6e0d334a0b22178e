"""What diagnose can be pointed at: files as they are found, pipes, running servers, studies."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from diagnose_logs import (
    LOGS,
    RECORDED,
    SGLANG_ARGS,
    SGLANG_READY,
    codes,
    command,
    decode_line,
    judged,
    run_of,
    runs_of,
)
from report_realistic import realistic

from spectune.diagnose.inputs import read_log
from spectune.diagnose.log import lines
from spectune.diagnose.log.lines import clean
from spectune.diagnose.verdict import NotChecked
from spectune.domain.trial import RankRecord
from spectune.errors import BadInput
from spectune.store.study_dir import StudyDir, rank_log

GOOD = "\n".join([SGLANG_ARGS, SGLANG_READY, *[decode_line(2.5)] * 5]) + "\n"
DEAD = "\n".join([SGLANG_ARGS, SGLANG_READY, *[decode_line(1.0)] * 5]) + "\n"


def length_of(path: Path) -> float | None:
    (run,) = read_log(path, engine=None, skipped=NotChecked())
    assert run.acceptance is not None
    return run.acceptance.length


# Files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "packed",
    [GOOD.encode(), gzip.compress(GOOD.encode(), mtime=0), bz2.compress(GOOD.encode()), lzma.compress(GOOD.encode()),
     GOOD.replace("\n", "\r\n").encode(), b"\xff\xfe" + GOOD.encode("utf-16-le"), GOOD.rstrip("\n").encode()],
    ids=["plain", "gzip", "bzip2", "xz", "crlf", "utf-16", "no-last-newline"],
)  # fmt: skip
def test_a_file_is_read_for_what_it_is_and_not_for_its_name(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "a name that tells nothing"
    path.write_bytes(packed)
    assert length_of(path) == 2.5


def test_compressed_data_that_end_early_are_used_and_said(tmp_path: Path) -> None:
    path = tmp_path / "growing.gz"
    path.write_bytes(gzip.compress((GOOD + decode_line(2.5) * 3000).encode())[:-12])
    skipped = NotChecked()
    (run,) = read_log(path, engine=None, skipped=skipped)
    assert run.acceptance is not None and run.acceptance.length == 2.5
    assert any("not read: Compressed file ended" in item for item in skipped.items)


def test_a_bomb_is_read_no_further_than_real_logs_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "FREE_BYTES", 2 << 20)
    monkeypatch.setattr(lines, "MAX_EXPANSION", 50)
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(GOOD.encode())
        file.write(b"\n" * (8 << 20))
    skipped = NotChecked()
    runs = read_log(path, engine=None, skipped=skipped)
    assert runs[0].engine == "sglang"
    (said,) = skipped.items
    assert "grow more than 50 times" in said
    assert int(said.split("line ")[1].split()[0]) < 6 << 20


def test_of_very_many_lines_a_fixed_number_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINES", 10**6)
    path = tmp_path / "long.log"
    path.write_bytes(GOOD.encode() + b"\n" * (2 << 20))
    skipped = NotChecked()
    read_log(path, engine=None, skipped=skipped)
    assert any("1 million lines are read" in item for item in skipped.items)


def test_a_device_is_no_log_and_a_pipe_without_a_writer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "PIPE_WAIT_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match="a pipe that nobody wrote to"):
        read_log(pipe, engine=None, skipped=NotChecked())
    with pytest.raises(BadInput, match="a device, not a log"):
        read_log(Path("/dev/zero"), engine=None, skipped=NotChecked())


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as file:
            file.write(GOOD.encode())
        runs = read_log(Path(f"/dev/fd/{reader}"), engine=None, skipped=NotChecked())
        assert runs[0].engine == "sglang"
    finally:
        os.close(reader)


def test_a_growing_file_is_read_to_its_present_end(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(GOOD + decode_line(2.5)[:70], encoding="utf-8")  # a line being written
    assert length_of(path) == 2.5


def test_zstd_is_read_or_refused_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "server.log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\x00" * 20)
    with contextlib.suppress(ImportError):
        import zstandard  # noqa: F401

        pytest.skip("this Python reads zstd")
    with pytest.raises(BadInput, match="zstd -dc"):
        read_log(path, engine=None, skipped=NotChecked())


def test_progress_bars_do_not_hide_the_line_behind_them() -> None:
    bar = "Multi-thread loading shards:   0% Completed\rMulti-thread loading shards: 100% Completed\r"
    run = run_of(SGLANG_ARGS, bar + SGLANG_READY, bar + decode_line(2.5))
    assert run.ready and run.acceptance is not None and run.acceptance.windows == 1


def test_a_line_of_megabytes_is_cut_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"x" * 5_000_000 + b"\n" + GOOD.encode())
    assert length_of(path) == 2.5


# Wrapping ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "text", "stream", "rank"),
    [
        ("[2026-05-17 11:04:29 DP1 TP0] hello", "[2026-05-17 11:04:29 DP1 TP0] hello", "", "DP1 TP0"),
        ("(EngineCore pid=1) INFO x", "INFO x", "", None),
        ("(EngineCore_DP0 pid=1) (Worker_TP1 pid=2) INFO x", "INFO x", "", None),
        ("(RayWorkerWrapper pid=12, ip=10.0.0.1) INFO x", "INFO x", "", None),
        ("[53409] srv init: x", "srv init: x", "[53409]", None),
        ("2026-05-17 11:04:29.854 | [53409] srv x", "srv x", "[53409]", None),
        ("vllm-2  | INFO x", "INFO x", "vllm-2", None),
        ("May 17 11:04:29 host sglang[4711]: hello", "hello", "sglang", None),
        ("2026-05-17T11:04:29.854123456Z stderr F hello", "hello", "", None),
        ("[pod/a-0/server] 2026-05-17T11:04:29Z hello", "hello", "[pod/a-0/server]", None),
        ('{"log":"hello\\n","stream":"stdout","time":"2026-05-17T11:04:29Z"}', "hello", "", None),
        ("\x1b[31mhel\x1b[0mlo\x07", "hello", "", None),
        ("\x1b]0;title\x07hello", "hello", "", None),
        ("1.12.931.215 I slot x", "slot x", "", None),
    ],
)
def test_wrapping_is_taken_off(raw: str, text: str, stream: str, rank: str | None) -> None:
    line = clean(raw.encode(), number=1)
    assert (line.text, line.stream, line.rank) == (text, stream, rank)


def test_ranks_that_say_the_same_count_once() -> None:
    lines = [decode_line(2.0, head=f"[2026-03-24 10:05:00 TP{rank}]") for rank in (0, 1, 2, 3)] * 5
    run = run_of(SGLANG_ARGS, SGLANG_READY, *lines)
    assert run.acceptance is not None and run.acceptance.windows == 5


def test_data_ranks_are_pooled_by_their_requests() -> None:
    lines = [
        decode_line(2.0, running=3, head="[2026-03-24 10:05:00 DP0 TP0]"),
        decode_line(3.0, running=1, head="[2026-03-24 10:05:00 DP1 TP4]"),
    ]
    run = run_of(SGLANG_ARGS, SGLANG_READY, *lines * 4)
    assert run.acceptance is not None
    assert run.acceptance.windows == 8
    assert run.acceptance.length == pytest.approx((2.0 * 3 + 3.0) / 4)


def test_servers_that_share_a_file_are_told_apart() -> None:
    mixed = []
    for good, dead in zip(GOOD.splitlines(), DEAD.splitlines(), strict=True):
        mixed += [f"good-1  | {good}", f"dead-1  | {dead}"]
    runs = runs_of(mixed)
    assert [run.acceptance.length for run in runs if run.acceptance is not None] == [2.5, 1.0]
    (error,) = (f for f in judged(runs).findings if f.severity == "error")
    assert "dead-1" in error.subject


def test_restarts_are_runs_of_their_own_and_keep_lines_before_their_marker() -> None:
    stop = "[2026-03-24 10:06:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
    reset = "[2026-03-24 10:07:00] Max running requests is reset to 48 for speculative decoding. You can override this"
    runs = runs_of([*GOOD.splitlines(), stop, reset, *DEAD.splitlines()])
    assert [run.acceptance.length for run in runs if run.acceptance is not None] == [2.5, 1.0]
    assert [run.notice("running-reset") is not None for run in runs] == [False, True]
    assert runs[0].stopped and not runs[1].stopped
    assert runs[1].first_line == 10


# The command ---------------------------------------------------------------------------------------


def test_json_is_the_promised_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log"
    path.write_text(DEAD, encoding="utf-8")
    assert command(str(path), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"schema_version", "facts", "findings", "not_checked"}
    assert document["schema_version"] == 1
    (error,) = (f for f in document["findings"] if f["severity"] == "error")
    assert set(error) == {"code", "severity", "subject", "message", "evidence", "effect", "remedy"}
    assert set(error["evidence"][0]) == {"source", "detail"}
    (run,) = document["facts"]["runs"]
    assert run["engine"] == "sglang" and run["acceptance"]["length"] == 1.0


def test_a_healthy_log_exits_with_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.log"
    path.write_text(GOOD, encoding="utf-8")
    assert command(str(path)) == 0
    assert "acceptance length 2.50" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["no-such.log", "."])
def test_what_is_no_input_is_bad_input(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as error:
        command(given)
    assert error.value.exit_code == 2
    assert "give a log" in str(error.value) or "name the log files" in str(error.value)


def test_a_file_without_a_known_line_is_bad_input_not_a_clean_bill(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk\nbread\n", encoding="utf-8")
    with pytest.raises(BadInput, match="no line of it is of a server's log"):
        command(str(path))


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(DEAD.encode()))))
    assert command("-") == 1
    assert "draft-contributes-nothing" in capsys.readouterr().out


def test_nothing_that_a_terminal_would_obey_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evil\x1b[2Jname.log"
    evil = SGLANG_ARGS.replace("'draft'", "'eagle3\u202edraft\x1b]52;c;aGk=\x07[bold red]'").replace(
        "EAGLE3", "EAGLE"
    )
    path.write_text("\n".join([evil, SGLANG_READY, *[decode_line(1.0)] * 5]), encoding="utf-8")
    assert command(str(path)) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\x07" not in printed and "\u202e" not in printed
    assert "[bold red]" in printed


def test_a_secret_in_a_pasted_command_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        "+ python -m sglang.launch_server --model-path m --api-key s3cr3t\n" + GOOD, encoding="utf-8"
    )
    command(str(path), "--json")
    assert "s3cr3t" not in capsys.readouterr().out


# A study -------------------------------------------------------------------------------------------


def test_a_study_is_judged_by_its_report_and_its_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, trials = realistic()
    directory = StudyDir.create(tmp_path / "study", study=study, source="question: q\n")
    for i, trial in enumerate(trials):
        _, folder = directory.new_trial(trial.arm_id)
        for index, load in enumerate(trial.loads):
            for request in load.requests:
                folder.append_request(index, request)
        folder.finish(trial)
        if i == 0:
            log = RECORDED / "bad-starts" / "llamacpp-xllamacpp-2026.10.11549-draft-is-no-draft.log"
            folder.log_path.write_bytes(log.read_bytes())
    assert command(str(directory.path), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    subjects = {f["code"]: f["subject"] for f in document["findings"]}
    assert trials[0].trial_id in subjects["speculation-silently-off"]
    assert any("there is no server.log" in item for item in document["not_checked"])


def test_the_log_of_a_rank_that_died_is_judged_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a server over several nodes; a rank that was stopped with the others has no fault of its own to tell."""
    study, trials = realistic()
    directory = StudyDir.create(tmp_path / "study", study=study, source="question: q\n")
    died = RECORDED / "bad-starts" / "vllm-0.32.0-draft-missing.log"
    for i, ended in enumerate(("exited, exit code 1", None)):
        ranks = tuple(
            RankRecord(rank=n, node=f"node-{n}", command=(), log=log, ended=ended if n else None)
            for n, log in enumerate(("server.log", "server-rank1.log"))
        )
        arm = trials[i].arm.model_copy(update={"engine": "vllm"})
        _, folder = directory.new_trial(trials[i].arm_id)
        folder.replace_requests([load.requests for load in trials[i].loads])
        folder.finish(trials[i].model_copy(update={"ranks": ranks, "arm": arm}))
        rank_log(folder.log_path, 1).write_bytes(died.read_bytes())
    assert command(str(directory.path), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    deaths = [f for f in document["findings"] if "rank 1" in f["subject"]]
    assert {(f["code"], f["severity"]) for f in deaths} == {("server-died", "error")}
    assert {f["subject"].partition("), ")[2] for f in deaths} == {"rank 1 on node-1"}
    assert trials[0].trial_id in deaths[0]["subject"] and trials[1].trial_id not in deaths[0]["subject"]


# A running server ----------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(bodies: dict[str, bytes]) -> Iterator[str]:
    """A server that gives recorded bodies, and 404 for the rest."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def recorded_bodies(folder: Path) -> dict[str, bytes]:
    paths = {
        "/v1/models": "models.json", "/metrics": "metrics-after.txt", "/version": "version.json",
        "/props": "props.json", "/slots": "slots.json", "/server_info": "server_info-after.json",
        "/server_info?config_format=json": "server_info.json",
    }  # fmt: skip
    found = {url: folder / name for url, name in paths.items() if (folder / name).exists()}
    bodies = {url: file.read_bytes() for url, file in found.items()}
    return {url: body for url, body in bodies.items() if b'"status": 404' not in body[:100]}


RUNNING = [
    ("sglang-0.5.23/eagle3", "sglang", []),
    ("sglang-0.5.23/none", "sglang", []),
    ("sglang-0.5.23/eagle3-random-draft", "sglang", ["draft-contributes-nothing"]),
    ("vllm-0.32.0/eagle3", "vllm", []),
    ("vllm-0.32.0/none", "vllm", []),
    ("vllm-0.32.0/eagle3-random-draft", "vllm", ["draft-contributes-nothing"]),
    ("llamacpp-xllamacpp-2026.10.11549/eagle3", "llamacpp", []),
    ("llamacpp-xllamacpp-2026.10.11549/none", "llamacpp", []),
    ("llamacpp-xllamacpp-2026.10.11549/eagle3-random-draft", "llamacpp", ["draft-contributes-nothing"]),
]


@pytest.mark.parametrize(("folder", "engine", "expected"), RUNNING, ids=[folder for folder, _, _ in RUNNING])
def test_a_running_server_is_judged_by_what_it_reports(
    folder: str, engine: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(recorded_bodies(RECORDED / folder)) as url:
        assert command(url + "/v1", "--json") == (1 if expected else 0)
    document = json.loads(capsys.readouterr().out)
    assert document["facts"]["runs"][0]["engine"] == engine
    assert [f["code"] for f in document["findings"] if f["severity"] != "note"] == expected


def test_a_running_server_and_its_log_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    folder = RECORDED / "sglang-0.5.23" / "eagle3"
    with serving(recorded_bodies(folder)) as url:
        assert command(url, str(folder / "server.log"), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["facts"]["runs"]) == 2
    assert [f["code"] for f in document["findings"] if f["severity"] == "error"] == []


def test_several_logs_are_compared_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(LOGS / f"{name}.log") for name in ("A27", "E11")]
    command(*files, "--json")
    document = json.loads(capsys.readouterr().out)
    assert any("A27.log and E11.log" in item for item in document["not_checked"])
    assert codes(judged(runs_of(GOOD.splitlines()), runs_of(GOOD.splitlines())), "warning") == []
