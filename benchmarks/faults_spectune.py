"""Faults of spectune itself: it is killed, suspended, or loses its terminal while a server runs."""

from __future__ import annotations

import json
import os
import pty
import signal
import time
from typing import Any

from faults_command import Running, is_alive, wait_until
from faults_place import Place
from faults_study import finished, study
from faults_table import Seen, expect, fault

LEASE_S = 3.0
SLOW = "startup-delay-s: 1, shutdown-delay-s: 1, spawn-child: quiet"
_STOP_S = 8.0
"""What the supervisor may take to stop the server after its lease has run out."""


def _servers_on_disk(place: Place) -> list[dict[str, Any]]:
    found = []
    for file in place.home.glob("servers/*/status.json"):
        found.append(json.loads(file.read_text(encoding="utf-8")))
    return found


def _leader(place: Place) -> int:
    wait_until(lambda: len(_servers_on_disk(place)) > 0, "a server's record")
    (status,) = _servers_on_disk(place)
    return int(status["leader"][0])


def _kill(run: Running) -> float:
    at = time.monotonic()
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    return at


def _wait_gone(place: Place, pid: int, at: float) -> float:
    """Seconds until the whole tree was gone."""
    gone = wait_until(lambda: not is_alive(pid) and not _workers(place), "the server is gone", timeout_s=40)
    expect(gone - at < LEASE_S + _STOP_S, f"the server outlived the lease: {gone - at:.1f} s")
    return gone - at


def _workers(place: Place) -> list[int]:
    logs = place.folder.glob("studies/study/trials/*/server.log")
    return [pid for log in logs for pid in place.pids_in_log(log) if is_alive(pid)]


def _killed_in(place: Place, phase: str, *, after: str | None = None) -> Seen:
    """Kills spectune as it enters the phase, sees the server end by its lease, and runs the study again."""
    study(place, SLOW, tok_per_s=300)
    run = place.start("run", "study.yaml")
    run.line(phase, after=after)
    if phase == "launch":
        wait_until(lambda: len(_servers_on_disk(place)) > 0, "the server was started")
    pid = _leader(place)
    took_s = _wait_gone(place, pid, _kill(run))
    again = place("run", "studies/study", timeout_s=90)
    expect(again.process.returncode == 0, f"again: {again.process.returncode}: {again.errors[-300:]}")
    arms = sorted(t["arm"]["name"] for t in finished(place, after="after the second run"))
    expect(arms == ["baseline", "baseline", "draft"], f"trials: {arms}")
    return Seen(
        f"server gone {took_s:.1f} s later (lease {LEASE_S:g} s); the study run again has the same trials"
    )


@fault("spectune is killed while it launches", expected="server gone by its lease; run again: same trials")
def spectune_killed_launching(place: Place) -> Seen:
    return _killed_in(place, "launch")


@fault("spectune is killed while weights load", expected="server gone by its lease; run again: same trials")
def spectune_killed_loading(place: Place) -> Seen:
    return _killed_in(place, "load")


@fault("spectune is killed while it warms up", expected="server gone by its lease; run again: same trials")
def spectune_killed_warming_up(place: Place) -> Seen:
    return _killed_in(place, "warm-up", after="settle")


@fault("spectune is killed while it measures", expected="server gone by its lease; run again: same trials")
def spectune_killed_measuring(place: Place) -> Seen:
    return _killed_in(place, "measure")


@fault("spectune is killed while it stops the server", expected="server gone; run again: same trials")
def spectune_killed_stopping(place: Place) -> Seen:
    return _killed_in(place, "stop")


@fault(
    "spectune is killed while it measures, and run again at once", expected="it takes hold of the live server"
)
def spectune_killed_and_run_again(place: Place) -> Seen:
    study(place, "spawn-child: quiet", tok_per_s=200)
    run = place.start("run", "study.yaml", "--set", "lease_s=20")
    run.line("measure")
    pid = _leader(place)
    _kill(run)
    again = place("run", "studies/study", timeout_s=90)
    expect(again.process.returncode == 0, f"again: {again.process.returncode}: {again.errors[-300:]}")
    expect(f"(pid {pid})" in again.errors and "taking hold" in again.errors, again.errors[-300:])
    trials = finished(place)
    expect(trials[0]["reattached"] and not trials[1]["reattached"], str([t["reattached"] for t in trials]))
    return Seen("took hold of it, measured it, stopped it; three trials complete")


@fault(
    "spectune is suspended (SIGSTOP) past the lease, then goes on",
    expected="server gone by its lease; measured again",
)
def spectune_suspended(place: Place) -> Seen:
    study(place, "spawn-child: quiet", tok_per_s=60)
    run = place.start("run", "study.yaml")
    run.line("measure")
    pid = _leader(place)
    at = time.monotonic()
    os.kill(run.pid, signal.SIGSTOP)
    took_s = _wait_gone(place, pid, at)
    os.kill(run.pid, signal.SIGCONT)
    code = run.wait(90)
    expect(code == 0, f"exit code {code}: {run.errors[-400:]}")
    expect("without a sign of life from spectune" in run.errors, run.errors[-300:])
    finished(place)
    return Seen(
        f"server gone {took_s:.1f} s later; it said so, launched the arm again; three trials complete"
    )


def _in_terminal(place: Place, *args: str) -> tuple[Running, int]:
    """A spectune whose controlling terminal is ours to close; its standard error is read."""
    import fcntl
    import termios

    leader, follower = pty.openpty()
    run = place.start(
        *args,
        stdin=follower,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(follower)
    return run, leader


@fault("its terminal is closed (SIGHUP)", expected="server stopped, exit code 130; run again: same trials")
def terminal_closed(place: Place) -> Seen:
    study(place, "spawn-child: session", tok_per_s=100)
    run, terminal = _in_terminal(place, "run", "study.yaml")
    run.line("measure")
    pid = _leader(place)
    os.close(terminal)
    code = run.wait(30)
    expect(code == 130 and "Resume with" in run.errors, f"exit code {code}: {run.errors[-300:]}")
    expect(not is_alive(pid) and not _workers(place), "the server lives")
    again = place("run", "studies/study", timeout_s=90)
    expect(again.process.returncode == 0, again.errors[-300:])
    finished(place)
    return Seen(
        "server stopped before spectune ended; exit code 130; the study run again has its three trials"
    )


@fault(
    "Ctrl-C three times while it waits for a server that ignores SIGTERM",
    expected="server gone, exit code 130",
)
def impatient_interrupts(place: Place) -> Seen:
    study(place, "ready-delay-s: 60, spawn-child: session")
    run = place.start("up", "study.yaml")
    run.line("load")
    pid = _leader(place)
    for _ in range(3):
        os.kill(run.pid, signal.SIGINT)
        time.sleep(0.1)
    code = run.wait(60)
    expect(code == 130, f"exit code {code}: {run.errors[-300:]}")
    expect(not is_alive(pid), "the server lives")
    return Seen("server and its stubborn child gone; exit code 130")


@fault(
    "`spectune up` is killed before its server is ready",
    expected="server gone by its lease; `down` clears the record",
)
def up_killed(place: Place) -> Seen:
    study(place, "ready-delay-s: 60, spawn-child: quiet")
    run = place.start("up", "study.yaml")
    run.line("load")
    pid = _leader(place)
    took_s = _wait_gone(place, pid, _kill(run))
    wait_until(lambda: place.servers()[0]["state"] == "ended", "ps says ended")
    (row,) = place.servers()
    expect(row["ended"] == "nobody renewed the lease", str(row))
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    return Seen(f"server gone {took_s:.1f} s later; record: {row['ended']}")


@fault(
    "the supervisor is suspended (SIGSTOP) past its lease",
    expected="the study does not hang; nothing is left",
)
def supervisor_suspended(place: Place) -> Seen:
    study(place, "spawn-child: quiet", tok_per_s=60)
    run = place.start("run", "study.yaml")
    run.line("measure")
    (status,) = _servers_on_disk(place)
    supervisor_pid = int(status["supervisor"][0])
    place.note(supervisor_pid, int(status["leader"][0]))
    os.kill(supervisor_pid, signal.SIGSTOP)
    time.sleep(LEASE_S + 2)
    os.kill(supervisor_pid, signal.SIGCONT)
    code = run.wait(90)
    expect("Traceback" not in run.errors, run.errors[-300:])
    if code != 0:
        again = place("run", "studies/study", timeout_s=90)
        expect(again.process.returncode == 0, f"again: {again.process.returncode}: {again.errors[-300:]}")
    finished(place)
    return Seen(f"exit code {code}; three trials complete")
