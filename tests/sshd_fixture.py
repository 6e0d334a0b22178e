"""A real ``sshd`` on 127.0.0.1, with keys, configuration and a home folder of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

INSTALL_VARIABLE = "SPECTUNE_TEST_INSTALL"


def sshd_program() -> str:
    """Path of ``sshd``; installs it where that was asked for and can be done, else skips the test."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None and os.environ.get(INSTALL_VARIABLE) and os.getuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=False, timeout=180)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "openssh-server"]
        subprocess.run(
            command, check=True, timeout=300, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
        found = shutil.which("sshd", path="/usr/sbin")
    if found is None or shutil.which("ssh") is None:
        pytest.skip("no OpenSSH here: install openssh-server and openssh-client")
    return found


@dataclass
class Sshd:
    """A running daemon. ``ssh_command`` is a client that knows its key; ``home`` is ``~`` of its sessions."""

    folder: Path
    port: int
    home: Path
    ssh_command: str
    destination: str
    _daemon: subprocess.Popen[bytes]

    def sessions(self) -> list[psutil.Process]:
        """The daemon's processes that serve connections."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._daemon.pid).children(recursive=False)
        return []

    def cut(self) -> int:
        """Ends every connection at once, as a network or a reboot would; returns how many there were."""
        return _kill(self.sessions())

    def stop(self) -> None:
        """No new connections, and the old ones cut: a host that is down."""
        sessions = self.sessions()
        self._daemon.terminate()
        self._daemon.wait(timeout=10)
        _kill(sessions)

    def start_again(self) -> None:
        self._daemon = _start_daemon(self.folder, self.port)


def _kill(sessions: list[psutil.Process]) -> int:
    for session in sessions:
        for process in [*_own_children(session), session]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
    return len(sessions)


def _own_children(session: psutil.Process) -> list[psutil.Process]:
    """The unprivileged half of a session: an ``sshd`` too, not what the user runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in session.children() if child.name().startswith("sshd")]
    return []


@contextmanager
def running_sshd(folder: Path, *, path: str | None = None) -> Iterator[Sshd]:
    """Starts a daemon whose files lie in ``folder``; ``path`` is what sessions get as ``PATH``."""
    sshd_program()
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, capture_output=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    public = (folder / "host_key.pub").read_text(encoding="utf-8").split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n", encoding="utf-8")
    variables = f"HOME={home}" + (f" PATH={path}" if path is not None else f" PATH={os.environ['PATH']}")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
        f"KbdInteractiveAuthentication no\nUsePAM no\nPidFile {folder}/pid\nPermitRootLogin prohibit-password\n"
        f"MaxStartups 100\nMaxSessions 100\nSetEnv {variables}\n",
        encoding="utf-8",
    )
    (folder / "ssh_config").write_text(
        f"Host testhost\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
        "  GlobalKnownHostsFile /dev/null\n",
        encoding="utf-8",
    )
    daemon = _start_daemon(folder, port)
    sshd = Sshd(folder, port, home, f"ssh -F {folder}/ssh_config", "testhost", daemon)
    try:
        yield sshd
    finally:
        with contextlib.suppress(ProcessLookupError):
            sshd.stop()


def _start_daemon(folder: Path, port: int) -> subprocess.Popen[bytes]:
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    log = (folder / "sshd.log").open("ab")
    daemon = subprocess.Popen([sshd_program(), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return daemon
        time.sleep(0.02)
    daemon.kill()
    raise RuntimeError((folder / "sshd.log").read_text(encoding="utf-8", errors="replace")[-1000:])


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as daemon:
        monkeypatch.setenv("SPECTUNE_SSH_COMMAND", daemon.ssh_command)
        yield daemon
