"""Faults of whoever watches: supervisors that cannot be asked, records that are gone, odd clients and odd shells."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults_command import Running, is_alive, wait_until
from faults_place import Place
from faults_serving import FAKE
from faults_study import finished, study
from faults_table import Seen, expect, fault
from faults_tree import only_status


def _down_after(place: Place, harm: Callable[[Path, dict[str, Any]], None]) -> Seen:
    """A server with a child in a session of its own is harmed so, and must be found and ended; a neighbour is not."""
    neighbour = place.neighbour([*FAKE, "--spawn-child"], until="ready")
    study(place, "spawn-child: session")
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    status = only_status(place)
    (file,) = place.home.glob("servers/*/status.json")
    pids = [int(pid) for pid, _, _ in status["known"]]
    place.note(int(status["supervisor"][0]), *pids)
    harm(file.parent, status)
    down = place("down", "--all")
    expect(down.process.returncode == 0, down.errors[-300:])
    expect(not any(map(is_alive, pids)), f"alive: {[p for p in pids if is_alive(p)]}")
    expect(neighbour.poll() is None, "the neighbour was stopped")
    return Seen(f"found; its {len(pids)} processes gone after `down`; a neighbour of the same name lives")


@fault("the supervisor is suspended (SIGSTOP), then `down`", expected="the server is found and ended")
def down_suspended(place: Place) -> Seen:
    return _down_after(place, lambda _, status: os.kill(int(status["supervisor"][0]), signal.SIGSTOP))


@fault("the supervisor's socket is deleted, then `down`", expected="the server is found and ended")
def down_without_socket(place: Place) -> Seen:
    return _down_after(place, lambda folder, _: (folder / "control.sock").unlink())


@fault("the folder of a server's record is deleted, then `down`", expected="the server is found and ended")
def down_without_folder(place: Place) -> Seen:
    return _down_after(place, lambda folder, _: shutil.rmtree(folder))


@fault(
    "the status file is garbled while its server runs, then `down`", expected="the server is found and ended"
)
def down_garbled(place: Place) -> Seen:
    return _down_after(place, lambda folder, _: (folder / "status.json").write_text('{"known": 7') and None)


def _kill_and_delete(folder: Path, status: dict[str, Any]) -> None:
    os.kill(int(status["supervisor"][0]), signal.SIGKILL)
    shutil.rmtree(folder)


@fault(
    "the supervisor is killed and its record deleted, then `down`", expected="the server is found and ended"
)
def down_killed_and_deleted(place: Place) -> Seen:
    return _down_after(place, _kill_and_delete)


@fault(
    "a client sends odd numbers and 100,000 levels of JSON", expected="the supervisor and its server go on"
)
def odd_client(place: Place) -> Seen:
    study(place)
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    (file,) = place.home.glob("servers/*/status.json")
    requests = [
        '{"id": 1, "do": "renew", "lease_s": "for ever"}',
        '{"id": 1, "do": "renew", "lease_s": NaN}',
        '{"id": 1, "do": "stop", "grace_s": Infinity}',
        '{"id": 1, "do": "port", "port": 1e999}',
        "[" * 100_000,
    ]
    for request in requests:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(file.parent / "control.sock"))
            client.sendall(request.encode() + b"\n")
            expect(b"error" in client.recv(4096), f"no refusal of {request[:60]}")
    (row,) = place.servers()
    expect(row["state"] == "running", str(row))
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    return Seen(f"{len(requests)} requests refused; it serves until `down`")


@fault("`down --all` in another terminal while a study measures", expected="the arm is launched again")
def down_while_measuring(place: Place) -> Seen:
    study(place, tok_per_s=20)
    run = place.start("run", "study.yaml", "--noisy")
    run.line("measure")
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    code = run.wait(150)
    expect(code == 0 and "another command" in run.errors, f"exit code {code}: {run.errors[-300:]}")
    finished(place)
    return Seen("launched again; its trials complete")


@fault(
    "the lock file is deleted while a study measures, and it is run again", expected="the second is refused"
)
def lock_deleted(place: Place) -> Seen:
    study(place, tok_per_s=100)
    first = place.start("run", "study.yaml", "--noisy")
    first.line("measure")
    (place.folder / "studies/study/lock").unlink()
    second = place("run", "study.yaml")
    expect(second.process.returncode == 2, f"exit code {second.process.returncode}: {second.errors[-300:]}")
    expect(first.wait(90) == 0, first.errors[-300:])
    finished(place)
    return Seen("refused with exit code 2; the trials of the first are complete")


def _in_shell(place: Place, words: str) -> Running:
    shell = ("sh", "-c", f'exec "$@" {words}', "sh")
    return place.start("run", "study.yaml", "--noisy", program=(*shell, *_spectune()))


def _spectune() -> tuple[str, ...]:
    return (sys.executable, "-m", "spectune")


@fault("stdin, stdout and stderr are closed", expected="the study runs to its end")
def streams_closed(place: Place) -> Seen:
    study(place)
    run = _in_shell(place, "<&- >&- 2>&-")
    expect(run.wait(90) == 0, f"exit code {run.process.returncode}")
    finished(place)
    return Seen("exit code 0; its trials complete")


@fault("nobody reads its progress any more (`2>&1 | head -1`)", expected="the study runs to its end")
def reader_gone(place: Place) -> Seen:
    study(place)
    code = place.folder / "code"
    script = f'(trap "" CHLD; "$@"; echo $? > {code}) 2>&1 | head -1'
    run = place.start("run", "study.yaml", "--noisy", program=("sh", "-c", script, "sh", *_spectune()))
    run.wait(90)
    wait_until(code.exists, "the study has ended", timeout_s=90)
    expect(code.read_text().strip() == "0", f"exit code {code.read_text()}")
    finished(place)
    return Seen("exit code 0; its trials complete")


@fault("64 descriptors (`ulimit -n 64`)", expected="the study runs to its end")
def few_descriptors(place: Place) -> Seen:
    study(place, "spawn-child: session")
    program = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *_spectune())
    run = place.start("run", "study.yaml", "--noisy", program=program)
    expect(run.wait(90) == 0, f"exit code {run.process.returncode}: {run.errors[-300:]}")
    finished(place)
    return Seen("exit code 0; its trials complete")


@fault("/proc is missing", expected="refused: nothing could be found or proven gone; no traceback")
def without_proc(place: Place) -> Seen:
    study(place)
    hide = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
    said = []
    for command in (("up", "study.yaml"), ("down", "--all")):
        run = place.start(*command, program=(*hide, *_spectune()))
        code = run.wait(60)
        expect(code == 3 and "/proc is missing" in run.errors, f"{code}: {run.errors[-300:]}")
        expect("Traceback" not in run.errors, run.errors[-300:])
        said.append(command[0])
    return Seen(f"{' and '.join(said)} refused, exit code 3: /proc is missing, mount it")


@fault("another user asks for the servers of this one", expected="refused; no traceback; the server lives")
def another_user(place: Place) -> Seen:
    study(place)
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    as_other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    run = place.start("down", "--all", program=(*as_other, *_spectune()))
    code = run.wait(60)
    expect(code == 3 and "ermission denied" in run.errors, f"{code}: {run.errors[-300:]}")
    expect("Traceback" not in run.errors, run.errors[-300:])
    (row,) = place.servers()
    expect(row["state"] == "running", json.dumps(row))
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    return Seen("refused: permission denied; the server lives until its own user's `down`")
