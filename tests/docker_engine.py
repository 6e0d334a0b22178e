"""A real Docker engine for tests, and an image of nothing but mount points, in which this machine's Python runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

IMAGE = "spectune-test/empty:1"
_FOLDERS = ("tmp", "etc", "proc", "sys", "dev", "var", "root", "run", "usr")


def docker(*words: str, check: bool = True) -> str:
    """What the client prints."""
    reply = subprocess.run(["docker", *words], capture_output=True, text=True, check=check, timeout=60)
    return reply.stdout.strip()


def why_no_engine() -> str | None:
    """Why no container can be run here; ``None``: one can."""
    if sys.platform != "linux":
        return "containers of this machine's own Python run on Linux alone"
    if shutil.which("docker") is None:
        return "no docker client here (tools/docker_engine.sh brings one)"
    try:
        docker("version", "--format", "{{.Server.Version}}")
        make_image()
        docker("run", "--rm", "--network", "host", *mounts(), IMAGE, program(), "-c", "pass")
    except subprocess.CalledProcessError as error:
        return f"this machine runs no container: {error.stderr.strip()[-200:]}"
    return None


def make_image() -> None:
    if docker("image", "ls", "--quiet", IMAGE):
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "image.tar"
        with tarfile.open(archive, "w") as tar:
            for name in _FOLDERS:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            for name in ("bin", "lib", "lib64"):  # /sbin is where --init is mounted
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(link)
        docker("import", str(archive), IMAGE)


def program() -> str:
    """The real file of this interpreter: a link of an environment would point out of the image."""
    return os.path.realpath(sys.executable)


def mounts(*more: Path) -> list[str]:
    """Options that give a container what this interpreter needs, and ``more``."""
    home = Path(program()).parent.parent
    folders = {Path("/usr"), home, *more} - ({home} if home.is_relative_to("/usr") else set())
    return [word for folder in sorted(folders) for word in ("-v", f"{folder}:{folder}:ro")]
