"""Faults of the way to another machine: a real ``sshd`` on 127.0.0.1, refused, cut, down, or poor.

These rows exist only where OpenSSH's server is installed.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from faults_command import Running, is_alive, wait_until
from faults_place import Place
from faults_study import finished, study
from faults_table import Seen, expect, fault

HOST = "testhost"
LEASE_S = 20
HAS_SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is not None


def _sshd(place: Place, **options: Any) -> Any:
    """A daemon of the place's own, and a client that knows it."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    fixture = importlib.import_module("sshd_fixture")
    stack = ExitStack()
    daemon = stack.enter_context(fixture.running_sshd(place.folder / "sshd", **options))
    place.at_end(stack.close)
    place.env["SPECTUNE_SSH_COMMAND"] = daemon.ssh_command
    place._neighbours.add(daemon._daemon.pid)
    return daemon


def _records(daemon: Any) -> list[Path]:
    return list((daemon.home / ".cache" / "spectune" / "servers").glob("*/status.json"))


def _run(place: Place, *more: str) -> Running:
    return place.start("run", "study.yaml", "--host", HOST, "--set", f"lease_s={LEASE_S}", *more)


def _whole(place: Place, daemon: Any, run: Running) -> None:
    code = run.wait(120)
    expect(code == 0, f"exit code {code}: {run.errors[-400:]}")
    arms = sorted(t["arm"]["name"] for t in finished(place))
    expect(arms == ["baseline", "baseline", "draft"], f"trials: {arms}")
    expect(_records(daemon) == [], "a record of a server is left there")


def _refused(place: Place, words: str, *, code: int = 3) -> Seen:
    study(place, "")
    run = place("run", "study.yaml", "--host", HOST, timeout_s=90)
    expect(run.process.returncode == code, f"exit code {run.process.returncode}: {run.errors[-300:]}")
    expect(words in run.errors, run.errors[-300:])
    expect("Traceback" not in run.errors, run.errors[-300:])
    expect(not (place.folder / "studies").exists(), "a study directory was made")
    return Seen(next(line for line in run.errors.splitlines() if words in line)[-150:])


def _cut_at(
    place: Place, phase: str, *, options: str = "startup-delay-s: 1", after: str | None = None
) -> Seen:
    daemon = _sshd(place)
    study(place, options, tok_per_s=100)
    run = _run(place)
    run.line(phase, after=after)
    if phase == "launch":
        wait_until(lambda: len(_records(daemon)) > 0, "the server was started")
    cut = daemon.cut()
    expect(cut >= 1, "there was no connection")
    _whole(place, daemon, run)
    return Seen(f"{cut} connection cut; made again; three trials complete, nothing left there")


def register() -> None:
    """Adds the rows where there is a daemon to run."""

    @fault("ssh: connection refused", expected="one clear error, exit code 3, nothing made", server="none")
    def ssh_refused(place: Place) -> Seen:
        _sshd(place).stop()
        return _refused(place, "refused")

    @fault(
        "ssh: the key is not accepted", expected="one clear error, exit code 3, nothing made", server="none"
    )
    def ssh_wrong_key(place: Place) -> Seen:
        (_sshd(place).folder / "authorized_keys").write_text("", encoding="utf-8")
        return _refused(place, "Permission denied")

    @fault("ssh: the host's key is not known", expected="refused: never weakened, exit code 3", server="none")
    def ssh_unknown_host(place: Place) -> Seen:
        (_sshd(place).folder / "known_hosts").write_text("", encoding="utf-8")
        return _refused(place, "Host key verification failed")

    @fault(
        "ssh: no python3 on the host", expected="one clear error, exit code 3, nothing made", server="none"
    )
    def ssh_without_python(place: Place) -> Seen:
        poor = place.folder / "poor"
        poor.mkdir()
        (poor / "cat").symlink_to("/bin/cat")
        _sshd(place, path=str(poor))
        return _refused(place, "but python3 3.9")

    @fault("ssh: the host's disk is full", expected="one clear error, exit code 3", server="none")
    def ssh_remote_disk_full(place: Place) -> Seen:
        daemon = _sshd(place)
        _full_disk(place, daemon.home)
        return _refused(place, "No space left on device")

    @fault("ssh: the connection is cut while launching", expected="made again; same trials")
    def ssh_cut_launching(place: Place) -> Seen:
        return _cut_at(place, "launch")

    @fault("ssh: the connection is cut while weights load", expected="made again; same trials")
    def ssh_cut_loading(place: Place) -> Seen:
        return _cut_at(place, "load")

    @fault("ssh: the connection is cut in the warm-up", expected="made again; same trials")
    def ssh_cut_warming_up(place: Place) -> Seen:
        return _cut_at(place, "warm-up", after="settle")

    @fault(
        "ssh: the connection is cut in a measurement",
        expected="made again, the load point measured again on the same server; same trials",
    )
    def ssh_cut_measuring(place: Place) -> Seen:
        return _cut_at(place, "measure")

    @fault("ssh: the connection is cut while stopping", expected="made again; stop proven; same trials")
    def ssh_cut_stopping(place: Place) -> Seen:
        return _cut_at(place, "stop", options="shutdown-delay-s: 1")

    @fault(
        "ssh: the network is away for three seconds in a measurement",
        expected="waits, goes on with the same server; same trials",
    )
    def ssh_away(place: Place) -> Seen:
        daemon = _sshd(place)
        study(place, "", tok_per_s=100)
        run = _run(place)
        run.line("measure")
        daemon.stop()
        time.sleep(3)
        daemon.start_again()
        _whole(place, daemon, run)
        return Seen("connected again; three trials complete, nothing left there")

    @fault(
        "ssh: the host is gone for longer than the lease",
        expected="the server ends by its lease; an error says so; run again: same trials",
        limit_s=120,
    )
    def ssh_host_gone(place: Place) -> Seen:
        daemon = _sshd(place)
        study(place, "", tok_per_s=100)
        run = place.start("run", "study.yaml", "--host", HOST, "--set", "lease_s=2")
        run.line("measure")
        pid = _leader(daemon)
        at = time.monotonic()
        daemon.stop()
        gone = wait_until(lambda: not is_alive(pid), "the server is gone", timeout_s=30)
        code = run.wait(90)
        expect(code == 3, f"exit code {code}: {run.errors[-300:]}")
        daemon.start_again()
        again = place("run", "study.yaml", "--host", HOST, "--set", "lease_s=2", timeout_s=90)
        expect(again.process.returncode == 0, again.errors[-300:])
        place("down", "--all", "--host", HOST)
        finished(place)
        return Seen(f"server gone {gone - at:.1f} s later (lease 2 s); exit code 3; run again: three trials")

    @fault(
        "ssh: the supervisor on the host is killed in a measurement",
        expected="its orphans are swept, the arm launched again; same trials",
    )
    def ssh_supervisor_killed(place: Place) -> Seen:
        daemon = _sshd(place)
        study(place, "spawn-child: quiet", tok_per_s=100)
        run = _run(place)
        run.line("measure")
        (record,) = _records(daemon)
        os.kill(_status(record)["supervisor"][0], signal.SIGKILL)
        _whole(place, daemon, run)
        return Seen("orphans swept, launched again; three trials complete")

    @fault("ssh: spectune is killed in a measurement", expected="the server there is gone by its lease")
    def ssh_spectune_killed(place: Place) -> Seen:
        daemon = _sshd(place)
        study(place, "spawn-child: quiet", tok_per_s=60)
        run = place.start("run", "study.yaml", "--host", HOST, "--set", "lease_s=2")
        run.line("measure")
        pid = _leader(daemon)
        at = time.monotonic()
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        gone = wait_until(lambda: not is_alive(pid), "the server is gone", timeout_s=30)
        wait_until(lambda: daemon.sessions() == [], "the connection is closed", timeout_s=20)
        expect(place("down", "--all", "--host", HOST).process.returncode == 0, "`down` failed")
        expect(_records(daemon) == [], "a record of a server is left there")
        return Seen(f"server gone {gone - at:.1f} s later (lease 2 s), connection closed, record cleared")


def _leader(daemon: Any) -> int:
    wait_until(lambda: len(_records(daemon)) > 0, "a server's record")
    return int(_status(_records(daemon)[0])["leader"][0])


def _status(path: Path) -> dict[str, Any]:
    import json

    status: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return status


def _full_disk(place: Place, home: Path) -> None:
    """A file system of 64 KiB, filled, as the home folder there."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(home)], check=True)

    def unmount() -> None:
        subprocess.run(["umount", "-l", str(home)], check=False)

    place.at_end(unmount)
    filler: Callable[[], int] = lambda: (home / "filler").write_bytes(b"x" * 61_000)  # noqa: E731
    filler()


if HAS_SSHD:
    register()
