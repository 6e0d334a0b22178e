"""Faults of what is written down: records that are damaged, deleted, of another boot, or used by two at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

from faults_command import is_alive, wait_until
from faults_place import Place
from faults_serving import FAKE
from faults_study import finished, study
from faults_table import Seen, expect, fault
from faults_tree import only_status

from spectune.hosts.supervisor import free_ports, read_process


@fault(
    "spectune and the supervisor are killed while it measures",
    expected="run again: orphans stopped, same trials",
)
def spectune_and_supervisor_killed(place: Place) -> Seen:
    study(place, "spawn-child: session", tok_per_s=100)
    run = place.start("run", "study.yaml")
    run.line("measure")
    status = only_status(place)
    pids = [pid for pid, _, _ in status["known"]]
    place.note(*pids)
    os.kill(run.pid, signal.SIGKILL)
    os.kill(status["supervisor"][0], signal.SIGKILL)
    run.wait()
    expect(any(map(is_alive, pids)), "the tree ended by itself")
    again = place("run", "studies/study", timeout_s=90)
    expect(again.process.returncode == 0, again.errors[-300:])
    expect(not any(map(is_alive, pids)), "some of the tree is alive")
    finished(place)
    return Seen("the orphans were stopped before anything was launched; three trials complete")


def _dead_record(place: Place) -> Path:
    """The record of a server whose every process, the supervisor too, is gone."""
    study(place)
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    status = only_status(place)
    os.kill(status["supervisor"][0], signal.SIGKILL)
    os.kill(status["leader"][0], signal.SIGKILL)
    wait_until(lambda: not is_alive(status["leader"][0]), "the leader is gone")
    (file,) = place.home.glob("servers/*/status.json")
    return file


def _rewrite(file: Path, **fields: object) -> None:
    status = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**status, **fields}), encoding="utf-8")


@fault(
    "the machine was restarted: its records are of another boot",
    expected="`ps`: ended; `down` signals nobody",
)
def another_boot(place: Place) -> Seen:
    neighbour = place.neighbour([*FAKE], until="ready")
    file = _dead_record(place)
    process = read_process(neighbour.pid)
    assert process is not None
    _rewrite(file, boot_id="another", known=[[process.pid, process.start, "?"]])
    (row,) = place.servers()
    expect(row["state"] == "ended" and not row["orphans"], str(row))
    down = place("down", "--all")
    expect(down.process.returncode == 0, down.errors)
    expect(neighbour.poll() is None, "a process of this boot was stopped")
    return Seen("ended; its record was removed; a process that has the pid and start time now lives")


@fault(
    "the pids of a dead server were given to others", expected="`ps` lists no orphan; `down` signals nobody"
)
def pids_given_again(place: Place) -> Seen:
    neighbour = place.neighbour([*FAKE], until="ready")
    file = _dead_record(place)
    process = read_process(neighbour.pid)
    assert process is not None
    _rewrite(
        file, known=[[process.pid, process.start - 1000, "?"]], leader=[process.pid, process.start - 1000]
    )
    (row,) = place.servers()
    expect(not row["orphans"], str(row))
    down = place("down", "--all")
    expect(down.process.returncode == 0, down.errors)
    expect(neighbour.poll() is None, "the new owner of the pid was stopped")
    return Seen("no orphan; its record was removed; the new owner of the pid lives")


@fault("two `down` of one server at once", expected="gone; neither fails with a traceback")
def two_downs(place: Place) -> Seen:
    study(place, "spawn-child: session, shutdown-delay-s: 1")
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    pid = only_status(place)["leader"][0]
    downs = [place.start("down", "--all") for _ in range(2)]
    codes = sorted(down.wait(60) for down in downs)
    words = " / ".join(down.errors.strip() for down in downs)
    expect("Traceback" not in words and codes[0] == 0, f"exit codes {codes}: {words[-300:]}")
    expect(codes[1] in (0, 3), f"exit codes {codes}: {words[-300:]}")
    expect(not is_alive(pid), "the server lives")
    return Seen(f"gone; exit codes {codes[0]} and {codes[1]}")


@fault(
    "two `up` on one port at once",
    expected="one is ready; the other is refused or told that the port is taken",
)
def two_ups(place: Place) -> Seen:
    study(place, "startup-delay-s: 1")
    (port,) = free_ports(1, avoid=set())
    place.ports.add(port)
    ups = [place.start("up", "study.yaml", "--port", str(port)) for _ in range(2)]
    codes = sorted(up.wait(60) for up in ups)
    words = " / ".join(up.errors.strip()[-300:] for up in ups)
    expect(codes == [0, 3], f"exit codes {codes}: {words}")
    expect("Traceback (most recent call last):\n  File" not in words, words)
    down = place("down", "--all")
    expect(down.process.returncode == 0, down.errors)
    return Seen("exit codes 0 and 3; the one that was ready is stopped by `down`")


@fault("the server's log is deleted while a study measures", expected="complete")
def log_deleted(place: Place) -> Seen:
    study(place, tok_per_s=200)
    run = place.start("run", "study.yaml")
    run.line("measure")
    next((place.folder / "studies/study/trials").glob("0001-*/server.log")).unlink()
    code = run.wait(90)
    expect(code == 0, f"exit code {code}: {run.errors[-300:]}")
    finished(place)
    return Seen("three trials complete")


@fault(
    "the study's directory is deleted while it measures",
    expected="exit code 3, names it; the server is stopped",
)
def study_deleted(place: Place) -> Seen:
    study(place, "spawn-child: session", tok_per_s=100)
    run = place.start("run", "study.yaml")
    run.line("measure")
    shutil.rmtree(place.folder / "studies")
    code = run.wait(60)
    expect("Traceback" not in run.errors, run.errors[-400:])
    expect(code == 3 and "No such file or directory" in run.errors, f"{code}: {run.errors[-300:]}")
    return Seen(f"exit code 3: {run.errors.strip().splitlines()[-2][:160]}")


@fault(
    "the servers' records are deleted while a study measures",
    expected="the server is stopped; nothing is left",
)
def server_records_deleted(place: Place) -> Seen:
    study(place, "spawn-child: session", tok_per_s=100)
    run = place.start("run", "study.yaml")
    run.line("measure")
    status = only_status(place)
    place.note(status["supervisor"][0], *(pid for pid, _, _ in status["known"]))
    shutil.rmtree(place.home / "servers")
    code = run.wait(90)
    expect("Traceback" not in run.errors, run.errors[-400:])
    expect(code in (0, 3), f"{code}: {run.errors[-300:]}")
    return Seen(f"exit code {code}; {len(place.trials())} trials recorded")


@fault("the record of a server is damaged", expected="`ps` and `run` go on; the other servers are listed")
def damaged_record(place: Place) -> Seen:
    study(place)
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    folder = place.home / "servers" / "damaged000"
    folder.mkdir()
    (folder / "status.json").write_text('{"state": "running", "supervisor": [', encoding="utf-8")
    ps = place("ps", "--json")
    expect(ps.process.returncode == 0, ps.errors)
    expect(len(json.loads(ps.output)["servers"]) == 1, ps.output)
    expect(place("run", "study.yaml").process.returncode == 0, "`run` failed")
    down = place("down", "--all")
    expect(down.process.returncode == 0, down.errors)
    _remove(folder)
    return Seen("the healthy server was listed and stopped; a study ran beside it")


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
