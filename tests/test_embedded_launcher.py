"""The embedded engine's launcher: its flags, and the real server as a process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spectune
from spectune.embedded.flags import FLAGS, REMOVED
from spectune.embedded.llama_server import configure, make_parser, parse
from spectune.embedded.models import draft_folder, fetch_embedded_target
from spectune.home import data_home

LAUNCHER = [sys.executable, "-m", "spectune.embedded.llama_server"]
STOP_LIMIT_S = 2.0


@pytest.fixture(scope="session")
def package() -> ModuleType:
    module: ModuleType = pytest.importorskip("xllamacpp")
    return module


@pytest.fixture(scope="session")
def target(package: ModuleType) -> Path:
    return fetch_embedded_target(data_home())


class Running:
    """One launched server: its log as it comes, and its address once it listens."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen([*LAUNCHER, *flags], stderr=subprocess.PIPE, text=True)
        self.log = ""
        self.port: int | None = None
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.log += line
                if found := re.search(r"llama_server: listening on http://\S+:(\d+)", line):
                    self.port = int(found[1])
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for_log(self, pattern: str) -> None:
        with self._news:
            self._news.wait_for(lambda: self._ended or re.search(pattern, self.log), timeout=120)
        assert re.search(pattern, self.log), self.log

    def end(self) -> int:
        """Exit code, once the process has ended by itself."""
        code = self.process.wait(timeout=120)
        self._reader.join()
        return code

    def stop(self, number: int) -> tuple[int, float]:
        """Exit code and seconds from the signal to the end of the process."""
        begin = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(timeout=120)
        return code, time.monotonic() - begin

    def open(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        assert self.port is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json"})
        return connection.getresponse()

    def get(self, path: str) -> tuple[int, str]:
        response = self.open("GET", path)
        return response.status, response.read().decode()

    def complete(self, prompt: str, *, max_tokens: int = 32) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "cache_prompt": False}
        response = self.open("POST", "/completion", body)
        assert response.status == 200, response.read()
        answer: dict[str, Any] = json.loads(response.read())
        return answer

    def metric(self, name: str) -> float:
        _, text = self.get("/metrics")
        found = re.search(rf"^llamacpp:{name}\S* (\S+)$", text, re.MULTILINE)
        assert found, text
        return float(found[1])


@contextlib.contextmanager
def serving(target: Path, *flags: str) -> Iterator[Running]:
    running = Running("-m", str(target), "--port", "0", "-t", "1", "-c", "2048", "-np", "1", *flags)
    try:
        running.wait_for_log("llama_server: listening")
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAUNCHER, *flags], capture_output=True, text=True, timeout=120, check=False)


# flags, without a server


def given(line: str) -> dict[str, Any]:
    return parse(make_parser(), line.split())


@pytest.mark.parametrize("old", ["--draft", "--draft-n", "--draft-max"])
def test_removed_draft_maximum_names_its_successor(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        given(f"-m x.gguf {old} 5")
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert f'"{old}": the argument has been removed. use --spec-draft-n-max' in message


def test_removed_draft_minimum_names_its_successor(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        given("--draft-min 1")
    assert "use --spec-draft-n-min or --spec-ngram-mod-n-min" in capsys.readouterr().err


@pytest.mark.parametrize("unknown", ["--bogus", "--ctx", "-ct", "-c4096", "-ctxcp", "--port=80"])
def test_flags_are_never_matched_by_a_prefix(unknown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        given(f"-m x.gguf {unknown} 5")
    assert ended.value.code == 2
    assert f"unrecognized argument: {unknown}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--spec-type eagle3", "'eagle3' is not one of none, draft-simple, draft-eagle3"),
        ("-ctk q5_k", "'q5_k' is not one of f32, f16"),
        ("-fa maybe", "'maybe' is not one of on, off, auto"),
        ("--port 70000", "must be 0..65535, got 70000"),
        ("-np 0", "must be >= 1, or -1"),
        ("--spec-ngram-simple-size-n 0", "must be 1..1024, got 0"),
        ("--spec-draft-p-min nan", "must be 0..1, got nan"),
        ("-c", 'argument "-c": expected value'),
        ("-c ten", "'ten'"),
    ],
)
def test_wrong_values_are_named_with_the_right_ones(
    line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        given(line)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_word_behind_a_flag_is_its_value_even_with_a_dash() -> None:
    assert given("--cache-ram -1 --alias -m") == {"cache_ram": -1, "alias": ["-m"]}


def test_underscores_are_dashes_in_long_flags() -> None:
    assert given("--spec_draft_n_max 4") == {"spec_draft_n_max": 4}


def test_a_flag_given_twice_keeps_its_last_value_and_types_add_up() -> None:
    values = given("-c 1 -c 2 --spec-type ngram-mod --spec-type draft-eagle3")
    assert values == {"ctx_size": 2, "spec_type": ["ngram-mod", "draft-eagle3"]}


def test_switches_go_both_ways() -> None:
    assert given("--slots --no-slots --no-warmup -nocb") == {
        "slots": False,
        "warmup": False,
        "cont_batching": False,
    }


# the launcher as a program, without a model


def test_launcher_needs_nothing_of_spectune_beyond_its_folder() -> None:
    code = "import spectune.embedded.llama_server, sys; print(*(m for m in sys.modules if 'spectune.' in m))"
    assert _bare_python("-c", code).stdout.split() == [
        "spectune.embedded",
        "spectune.embedded.flags",
        "spectune.embedded.llama_server",
    ]


def test_missing_package_is_exit_3_with_the_way_to_get_it() -> None:
    ended = _bare_python("-m", "spectune.embedded.llama_server", "-m", "x.gguf")
    assert ended.returncode == 3
    assert "pip install 'spectune[demo]'" in ended.stderr


def _bare_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This interpreter without its site-packages: only the standard library and spectune."""
    source = str(Path(spectune.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.embedded
def test_version_names_the_package_and_its_build(package: ModuleType) -> None:
    ended = run("--version")
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"xllamacpp {package.__version__}")
    assert "build_target" in ended.stdout


@pytest.mark.embedded
def test_missing_model_file_is_one_clear_line(package: ModuleType) -> None:
    ended = run("-m", "/nowhere/model.gguf")
    assert ended.returncode == 1
    assert ended.stderr == "llama_server: error: --model: no such file: /nowhere/model.gguf\n"


# the table against the package


@pytest.mark.embedded
def test_every_flag_is_a_name_in_the_engine_itself(package: ModuleType) -> None:
    assert package.__file__ is not None
    library = next(Path(package.__file__).parent.glob("*.so")).read_bytes()
    names = [name for flag in FLAGS for name in (*flag.names, *flag.off_names)]
    unknown = [name for name in (*names, *REMOVED) if f"{name}\0".encode() not in library]
    assert unknown == []


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("line", "attribute", "expected"),
    [
        ("", "port", 9931),
        ("", "n_parallel", -1),
        ("", "endpoint_metrics", False),
        ("", "cache_ram_mib", 8192),
        ("", "speculative.draft.n_max", 3),
        ("", "speculative.ngram_simple.size_n", 12),
        ("--host 127.0.0.1,::1", "hostnames", ["127.0.0.1", "::1"]),
        ("--api-key a,b", "api_keys", ["a", "b"]),
        ("--alias one,two", "model_alias", {"one", "two"}),
        ("--ctx-size 0", "fit_params_min_ctx", -1),
        ("-t 3", "cpuparams.n_threads", 3),
        ("-tb 4", "cpuparams_batch.n_threads", 4),
        ("-t 0", "cpuparams.n_threads", os.cpu_count()),
        ("-fa off", "flash_attn_type", 0),
        ("-fa on", "flash_attn_type", 1),
        ("-ctk q8_0", "cache_type_k", 8),
        ("-ctv iq4_nl", "cache_type_v", 20),
        ("-ctkd q4_0", "speculative.draft.cache_type_k", 2),
        ("-ngl all", "n_gpu_layers", -2),
        ("-ngl auto", "n_gpu_layers", -1),
        ("-ngld 7", "speculative.draft.n_gpu_layers", 7),
        ("--seed -1", "sampling.seed", 0xFFFFFFFF),
        ("--no-repack", "no_extra_bufts", True),
        ("--no-jinja", "use_jinja", False),
        ("--fit off", "fit_params", False),
        ("--spec-type draft-eagle3,ngram-map-k4v", "speculative.types", [2, 8]),
        ("-md d.gguf", "speculative.draft.mparams.path", "d.gguf"),
        ("--spec-draft-p-min 0.75", "speculative.draft.p_min", 0.75),
        ("--spec-draft-threads 1", "speculative.draft.cpuparams.n_threads", 1),
        ("--spec-ngram-map-k-size-m 5", "speculative.ngram_map_k.size_m", 5),
        ("--spec-ngram-mod-n-match 6", "speculative.ngram_mod.n_match", 6),
        ("--spec-synth-len 2.5", "speculative.synth_len", 2.5),
        ("--spec-synth-rates 0.5,0.25", "speculative.synth_rates", [0.5, 0.25]),
    ],
)
def test_flags_reach_the_engine(package: ModuleType, line: str, attribute: str, expected: Any) -> None:
    """Expected numbers of enumerations are ggml's and llama.cpp's own."""
    value: Any = configure(package, given(line))
    for name in attribute.split("."):
        value = getattr(value, name)
    assert value == expected


@pytest.mark.embedded
def test_no_flag_names_an_attribute_the_package_lacks(package: ModuleType) -> None:
    samples = {"FILE": "f", "TEMPLATE": "t", "HOST": "h", "NAMES": "n", "KEYS": "k", "TYPE": "f32"}
    samples |= {"WHEN": "on", "TYPES": "none", "P0,P1,...": "1"}
    for flag in FLAGS:
        words = [flag.names[0], *([] if flag.metavar is None else [samples.get(flag.metavar, "1")])]
        configure(package, parse(make_parser(), words))


# the real server


@pytest.mark.embedded
def test_serves_and_greedy_answers_repeat(target: Path) -> None:
    with serving(target) as server:
        assert server.get("/health") == (200, '{"status":"ok"}')
        first = server.complete("The capital of France is")
        second = server.complete("The capital of France is")
        assert first["tokens_predicted"] > 0
        assert first["content"] == second["content"] != ""
        status, _ = server.get("/metrics")
        assert status != 200


@pytest.mark.embedded
def test_eagle3_draft_is_accepted(target: Path) -> None:
    draft = str(draft_folder() / "draft-q8_0.gguf")
    flags = ("-md", draft, "--spec-type", "draft-eagle3", "--spec-draft-n-max", "2", "--metrics")
    with serving(target, *flags) as server:
        server.complete("Once upon a time", max_tokens=48)
        drafts = server.metric("spec_decode_num_drafts_total")
        assert server.metric("spec_decode_num_accepted_tokens_total") > 0
        assert drafts < server.metric("spec_decode_num_draft_tokens_total") <= 2 * drafts


@pytest.mark.embedded
@pytest.mark.parametrize(("length", "accepted_per_draft"), [("1", 0), ("4", 3)])
def test_imposed_acceptance_length_is_what_the_engine_does(
    target: Path, length: str, accepted_per_draft: int
) -> None:
    """At the ends of the range nothing is left to chance: no token of a draft is kept, or each."""
    draft = str(draft_folder() / "draft-q8_0.gguf")
    flags = ("-md", draft, "--spec-type", "draft-eagle3", "--spec-synth-len", length, "--metrics")
    with serving(target, *flags) as server:
        server.complete("Once upon a time", max_tokens=40)
        drafts = server.metric("spec_decode_num_drafts_total")
        assert drafts > 0
        assert server.metric("spec_decode_num_accepted_tokens_total") == pytest.approx(
            drafts * accepted_per_draft, abs=3
        )


@pytest.mark.embedded
def test_ngram_speculation_finds_repeated_text(target: Path) -> None:
    flags = "--metrics --spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 4"
    with serving(target, *flags.split()) as server:
        server.complete("one two three four five six seven eight. " * 6 + "one two three", max_tokens=24)
        assert server.metric("spec_decode_num_accepted_tokens_total") > 0


@pytest.mark.embedded
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_an_idle_server_with_exit_code_0(target: Path, number: int) -> None:
    with serving(target) as server:
        code, took_s = server.stop(number)
    assert code == 0
    assert took_s < STOP_LIMIT_S


@pytest.mark.embedded
def test_sigterm_ends_a_generating_server(target: Path) -> None:
    with serving(target) as server:
        body = {"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": True, "stream": True}
        response = server.open("POST", "/completion", body)
        assert response.readline().startswith(b"data: ")
        code, took_s = server.stop(signal.SIGTERM)
    assert code == 0
    assert took_s < STOP_LIMIT_S


@pytest.mark.embedded
def test_sigterm_ends_a_server_that_reads_a_long_prompt(target: Path) -> None:
    with serving(target, "--verbosity", "4") as server:
        body = json.dumps({"prompt": "word " * 1900, "n_predict": 1}).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head + body)
            server.wait_for_log("processing task")
            code, took_s = server.stop(signal.SIGTERM)
    assert code == 0
    assert took_s < STOP_LIMIT_S


@pytest.mark.embedded
def test_sigterm_ends_a_loading_server(target: Path) -> None:
    running = Running("-m", str(target), "--port", "0", "-t", "1")
    try:
        running.wait_for_log("loading model")
        code, took_s = running.stop(signal.SIGTERM)
    finally:
        running.process.kill()
        running.process.wait()
    assert code in (-signal.SIGTERM, 0)
    assert took_s < STOP_LIMIT_S


@pytest.mark.embedded
@pytest.mark.parametrize("shares", [False, True])
def test_port_in_use_is_refused_and_named(target: Path, shares: bool) -> None:
    with socket.socket() as other:
        if shares:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = run("-m", str(target), "--port", str(port))
    assert ended.returncode == 1
    assert f"error: port {port} on 127.0.0.1 is in use" in ended.stderr


@pytest.mark.embedded
def test_a_file_that_is_no_model_ends_the_launcher(package: ModuleType, tmp_path: Path) -> None:
    model = tmp_path / "bad.gguf"
    model.write_text("this is no model")
    ended = run("-m", str(model), "--port", "0")
    assert ended.returncode == 1
    assert "expected 'GGUF'" in ended.stderr
    assert "llama_server: error: the server did not start" in ended.stderr


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--spec-type ngram-simple --spec-ngram-simple-size-m 11", "size-m 11 below"),
        ("-md {model}", "--spec-draft-model is loaded but not used"),
    ],
)
def test_settings_that_the_engine_ignores_in_silence_are_warned_of(
    package: ModuleType, tmp_path: Path, flags: str, says: str
) -> None:
    model = tmp_path / "bad.gguf"
    model.write_text("this is no model")
    ended = run("-m", str(model), "--port", "0", *flags.format(model=model).split())
    assert re.search(f"llama_server: warning: .*{says}", ended.stderr)


@pytest.mark.embedded
def test_ngram_simple_proposes_nothing_shorter_than_its_match(target: Path) -> None:
    flags = "--metrics --spec-type ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 3"
    with serving(target, *flags.split()) as server:
        server.complete("one two three four five six seven eight. " * 6 + "one two three", max_tokens=24)
        assert server.metric("spec_decode_num_draft_tokens_total") == 0


@pytest.mark.embedded
def test_a_truncated_model_ends_the_launcher(target: Path, tmp_path: Path) -> None:
    model = tmp_path / "half.gguf"
    with target.open("rb") as whole:
        model.write_bytes(whole.read(50_000_000))
    ended = run("-m", str(model), "--port", "0")
    assert ended.returncode == 1
    assert "corrupted or incomplete" in ended.stderr


@pytest.mark.embedded
def test_a_bad_draft_ends_the_launcher(target: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft.gguf"
    draft.write_text("no draft")
    ended = run("-m", str(target), "-md", str(draft), "--spec-type", "draft-eagle3", "--port", "0")
    assert ended.returncode == 1
    assert "failed to load draft model" in ended.stderr


@pytest.mark.embedded
def test_a_draft_method_without_a_draft_is_refused(target: Path) -> None:
    """The engine alone would start, and serve without speculation."""
    ended = run("-m", str(target), "--spec-type", "draft-eagle3")
    assert ended.returncode == 2
    assert "--spec-type draft-eagle3 needs --spec-draft-model" in ended.stderr
