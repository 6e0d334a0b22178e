"""Faults of the real llama.cpp server with the embedded model."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Thread

from faults_command import is_alive, wait_until
from faults_place import Place
from faults_serving import (
    LIMITS,
    Served,
    death_words,
    embedded_model,
    expect_death,
    llama,
    play,
    until_lost_after,
)
from faults_table import Seen, expect, fault
from faults_tree import only_status

from spectune.home import data_home
from spectune.hosts.supervisor import free_ports, port_owner
from spectune.server.lifecycle import ServerHandle

REAL = replace(LIMITS, ready_s=60.0, stuck_s=30.0, settle_s=0.5, stop_grace_s=8.0)
_STUDY = """\
question: Does the server survive?
name: study
engine: {name: llamacpp, flags: {ctx-size: 512, threads: 1}}
target: smollm2-135m-instruct
arms:
  - {method: ngram, num_draft_tokens: 4}
workload: {prompts: builtin, num_prompts: 2, max_tokens: 24, warmup_requests: 1}
repetitions: 1
baseline_every: 4
noise_floor: false
lease_s: 3
"""


def _study(place: Place) -> None:
    """A study of the real server; the model lies where this machine's user has it."""
    embedded_model()
    place.home.mkdir(exist_ok=True)
    (place.home / "models").symlink_to(data_home() / "models")
    place.write("study.yaml", _STUDY)


def _while_it_loads(place: Place, number: signal.Signals, *, cause: str) -> Seen:
    """Signals the server once its log speaks of the model."""
    at: list[float] = []

    def act() -> None:
        log = place.folder / "server.log"
        wait_until(lambda: log.exists() and b"load" in log.read_bytes(), "it loads")
        pid = int(only_status(place)["leader"][0])
        at.append(time.monotonic())
        os.kill(pid, number)

    served = _play_beside(place, act)
    error = served.died()
    expect(error.exit_code_of_server == -number and cause in (error.cause or ""), death_words(error))
    return Seen(death_words(error), served.entered["stop"] - at[0], True)


def _play_beside(place: Place, act: Callable[[], None]) -> Served:
    """``play`` of the real server, with ``act`` in a thread of its own."""
    thread = Thread(target=act, daemon=True)
    thread.start()
    served = play(place, *llama(), engine="llamacpp", limits=REAL)
    thread.join(30)
    return served


@fault("an unknown flag", expected="died; names the flag, and a remedy", server="llama.cpp")
def llama_bad_flag(place: Place) -> Seen:
    served = play(place, *llama("--no-such-flag"), engine="llamacpp", limits=REAL)
    error = expect_death(served, phase="launching", code=2, cause="--no-such-flag")
    expect("--help" in (error.remedy or ""), f"remedy: {error.remedy}")
    return Seen(death_words(error))


@fault("the model file is missing", expected="died; names the file, and a remedy", server="llama.cpp")
def llama_missing_model(place: Place) -> Seen:
    served = play(place, *llama(model=place.folder / "none.gguf"), engine="llamacpp", limits=REAL)
    error = expect_death(served, phase="launching", code=1, cause="no such file")
    expect("paths of target and drafter" in (error.remedy or ""), f"remedy: {error.remedy}")
    return Seen(death_words(error))


@fault(
    "the model file is cut short", expected="died; says that the model cannot be loaded", server="llama.cpp"
)
def llama_damaged_model(place: Place) -> Seen:
    damaged = place.folder / "damaged.gguf"
    with embedded_model().open("rb") as file:
        damaged.write_bytes(file.read(3_000_000))
    served = play(place, *llama(model=damaged), engine="llamacpp", limits=REAL)
    error = served.died()
    expect("load" in (error.cause or ""), death_words(error))
    return Seen(death_words(error))


@fault("killed while it loads", expected="died, exit code -9", server="llama.cpp", is_timed=True)
def llama_killed_loading(place: Place) -> Seen:
    return _while_it_loads(place, signal.SIGKILL, cause="killed by signal 9")


@fault("killed while it serves", expected="died, exit code -9", server="llama.cpp", is_timed=True)
def llama_killed_serving(place: Place) -> Seen:
    at: list[float] = []

    def kill(handle: ServerHandle) -> None:
        at.append(time.monotonic())
        os.kill(handle.server.leader_pid, signal.SIGKILL)

    served = play(place, *llama(), engine="llamacpp", limits=REAL, during=until_lost_after(kill))
    error = expect_death(served, phase="measuring", code=-9, cause="killed by signal 9")
    return Seen(death_words(error), served.entered["stop"] - at[0], True)


@fault("falls silent while it serves (SIGSTOP)", expected="stuck, after the limit", server="llama.cpp")
def llama_suspended(place: Place) -> Seen:
    at: list[float] = []

    def suspend(handle: ServerHandle) -> None:
        at.append(time.monotonic())
        os.kill(handle.server.leader_pid, signal.SIGSTOP)

    limits = replace(REAL, stuck_s=3.0)
    served = play(place, *llama(), engine="llamacpp", limits=limits, during=until_lost_after(suspend))
    expect(served.outcome == "ServerStuck", f"{served.outcome}: {served.error}")
    return Seen("stuck; the limit was 3 s", served.entered["stop"] - at[0])


@fault(
    "killed while a study measures",
    expected="that trial failed, its records kept; the others complete",
    server="llama.cpp",
    is_timed=True,
)
def llama_killed_in_study(place: Place) -> Seen:
    _study(place)
    run = place.start("run", "study.yaml")
    run.line("measure", nth=2, timeout_s=60)
    pid = int(only_status(place)["leader"][0])
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    stop = run.line("stop", nth=2)
    run.wait(150)
    first, trial, last = place.trials()
    expect(first["status"] == last["status"] == "complete", f"{first['status']}, {last['status']}")
    expect("killed by signal 9" in trial["failure"]["cause"], str(trial["failure"]))
    expect(trial["failure"]["phase"] == "measuring", str(trial["failure"]))
    return Seen(
        f"failed in measuring: {trial['failure']['cause'].split(':')[0]}; the other two are complete",
        stop - at,
        True,
    )


@fault(
    "spectune is killed while it measures",
    expected="server gone by its lease; run again: three trials",
    server="llama.cpp",
)
def llama_spectune_killed(place: Place) -> Seen:
    _study(place)
    run = place.start("run", "study.yaml")
    run.line("measure", timeout_s=60)
    pid = int(only_status(place)["leader"][0])
    at = time.monotonic()
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    gone = wait_until(lambda: not is_alive(pid), "the server is gone") - at
    expect(gone < 12, f"gone after {gone:.1f} s")
    again = place("run", "studies/study", timeout_s=150)
    expect(again.process.returncode == 0, again.errors[-300:])
    expect([t["status"] for t in place.trials()] == ["complete"] * 3, str(place.trials())[:200])
    return Seen(f"server gone {gone:.1f} s later (lease 3 s); run again: three trials complete")


@fault(
    "its supervisor is killed",
    expected="`ps`: orphaned; `down` stops exactly it, not one of the same name",
    server="llama.cpp",
)
def llama_supervisor_killed(place: Place) -> Seen:
    _study(place)
    (port,) = free_ports(1, avoid=set())
    neighbour = place.neighbour([*llama(), "--port", str(port)], until="load")
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    (row,) = place.servers()
    os.kill(int(only_status(place)["supervisor"][0]), signal.SIGKILL)
    wait_until(lambda: place.servers()[0]["state"] == "orphaned", "ps says orphaned")
    down = place("down", row["server_id"])
    expect(down.process.returncode == 0 and not is_alive(int(row["pid"])), down.errors)
    expect(neighbour.poll() is None, "the neighbour was stopped")
    return Seen("orphaned; gone after `down`; the neighbour lives")


@fault(
    "another llama.cpp server holds the port",
    expected="refused; the owner named, left alone",
    server="llama.cpp",
)
def llama_stale_server(place: Place) -> Seen:
    _study(place)
    (port,) = free_ports(1, avoid=set())
    stale = place.neighbour([*llama(), "--port", str(port)], until="model loaded")
    wait_until(lambda: _listens(port), "it listens")
    up = place("up", "study.yaml", "--port", str(port))
    expect(up.process.returncode == 3 and f"taken by pid {stale.pid}" in up.errors, up.errors[-300:])
    expect(stale.poll() is None, "the stale server was stopped")
    return Seen("refused: the port is taken by pid and command; that server lives")


def _listens(port: int) -> bool:
    return port_owner(port) is not None
