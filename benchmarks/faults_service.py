"""Faults of a server that serves: it dies, falls silent, or runs what was not asked for."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace

from faults_command import Running, is_alive
from faults_place import Place
from faults_serving import LIMITS, death_words, play, until_lost_after
from faults_study import MEASURED, findings, finished, study
from faults_table import Seen, expect, fault

from spectune.server.lifecycle import ServerHandle


@fault(
    "dies 9 s after it was ready, in a measurement",
    expected="died while measuring; records kept",
    is_timed=True,
)
def dies_nine_seconds_after_ready(place: Place) -> Seen:
    study(place, "die-after-ready-s: 9", text=MEASURED)
    return _dies_in_measurement(place, place.start("run", "study.yaml"))


@fault(
    "dies in the middle of a request",
    expected="died while measuring; the client stops within 2 s",
    is_timed=True,
)
def dies_in_benchmark(place: Place) -> Seen:
    study(place, "die-at-request: 6", text=MEASURED)
    return _dies_in_measurement(place, place.start("run", "study.yaml"))


def _dies_in_measurement(place: Place, run: Running) -> Seen:
    stop = run.line("stop", after="measure")
    died = place.events()["death"]
    expect(run.wait() == 1, f"exit code {run.process.returncode}: {run.errors[-300:]}")
    expect(stop - died < 2, f"the client went on for {stop - died:.1f} s")
    (trial,) = place.trials()
    failure, load = trial["failure"], trial["loads"][0]
    expect(failure["phase"] == "measuring" and "scripted death" in failure["cause"], str(failure))
    kept = len(
        (next((place.folder / "studies/study/trials").glob("*/requests.jsonl"))).read_text().splitlines()
    )
    expect(load["cut_short"] and kept >= 3, f"{kept} requests kept, cut_short {load['cut_short']}")
    return Seen(
        f"died while measuring: {failure['cause']}; {kept} requests kept, marked cut short", stop - died, True
    )


@fault("dies as it is told to stop", expected="stopped and proven all the same")
def dies_at_shutdown(place: Place) -> Seen:
    served = play(place, "--die-at-shutdown", "--exit-code=-11", "--spawn-child")
    expect(served.error is None and served.stop is not None, f"{served.outcome}: {served.error}")
    assert served.stop is not None
    expect(served.stop.no_child_left is True and len(served.stop.killed) == 1, str(served.stop))
    return Seen("a segmentation fault at SIGTERM; its child was killed, no child left")


@fault("/health says 200, its worker was killed", expected="died; names the worker", is_timed=True)
def worker_killed(place: Place) -> Seen:
    at: list[float] = []

    def kill(handle: ServerHandle) -> None:
        at.append(time.monotonic())
        os.kill(handle.workers[0], signal.SIGKILL)

    served = play(place, "--spawn-child", during=until_lost_after(kill))
    error = served.died()
    expect(f"its process {served.pids[1]} ended" in (error.cause or ""), death_words(error))
    return Seen(death_words(error), served.entered["stop"] - at[0], True)


@fault(
    "its worker is killed while a study measures", expected="died while measuring; trial kept", is_timed=True
)
def worker_killed_in_benchmark(place: Place) -> Seen:
    study(place, "spawn-child: session", text=MEASURED)
    run = place.start("run", "study.yaml")
    run.line("measure")
    log = next((place.folder / "studies/study/trials").glob("*/server.log"))
    (worker,) = place.pids_in_log(log)
    place.note(worker)
    time.sleep(1)
    at = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    stop = run.line("stop", after="measure")
    expect(run.wait() == 1, f"exit code {run.process.returncode}: {run.errors[-300:]}")
    (trial,) = place.trials()
    expect(f"its process {worker} ended" in trial["failure"]["cause"], str(trial["failure"]))
    return Seen(f"died while {trial['failure']['phase']}: {trial['failure']['cause']}", stop - at, True)


@fault("its leader is killed while it serves", expected="died, exit code -9", is_timed=True)
def leader_killed(place: Place) -> Seen:
    at: list[float] = []

    def kill(handle: ServerHandle) -> None:
        at.append(time.monotonic())
        os.kill(handle.server.leader_pid, signal.SIGKILL)

    served = play(place, during=until_lost_after(kill))
    error = served.died()
    expect(error.exit_code_of_server == -9, death_words(error))
    return Seen(death_words(error), served.entered["stop"] - at[0], True)


@fault("its leader is killed, its workers live on", expected="died; every worker is gone too", is_timed=True)
def leader_killed_workers_left(place: Place) -> Seen:
    at: list[float] = []

    def kill(handle: ServerHandle) -> None:
        at.append(time.monotonic())
        os.kill(handle.server.leader_pid, signal.SIGKILL)

    served = play(place, "--spawn-child=session", during=until_lost_after(kill))
    error = served.died()
    expect(not any(map(is_alive, served.pids)), f"alive: {[p for p in served.pids if is_alive(p)]}")
    assert served.stop is not None
    return Seen(
        f"{death_words(error).split(' (SIG')[0]}; worker gone, no child left: {served.stop.no_child_left}",
        served.entered["stop"] - at[0],
        True,
    )


@fault(
    "says `[Errno 98] error while attempting to bind` and lives on",
    expected="died by its own word; its main process is stopped",
    is_timed=True,
)
def fatal_line_lives_on(place: Place) -> Seen:
    study(place, "fatal-line-at-request: 6", text=MEASURED)
    run = place.start("run", "study.yaml")
    stop = run.line("stop", after="measure")
    died = place.events()["death"]
    expect(run.wait() == 1, f"exit code {run.process.returncode}: {run.errors[-300:]}")
    (trial,) = place.trials()
    expect("its main process lives on" in trial["failure"]["cause"], str(trial["failure"]))
    return Seen(trial["failure"]["cause"], stop - died, True)


@fault(
    "one request and /health fail once under load", expected="no death: the trial is complete, and a finding"
)
def one_probe_fails(place: Place) -> Seen:
    study(place, "fail-request: 5")
    run = place("run", "study.yaml")
    expect(run.process.returncode == 0, f"exit code {run.process.returncode}: {run.errors[-300:]}")
    finished(place)
    found = findings(place)
    expect("requests-failed" in found, f"findings: {sorted(found)}")
    return Seen(f"three trials complete; finding: {found['requests-failed']}")


@fault(
    "falls silent while it serves (SIGSTOP)",
    expected="stuck, after the limit; stopped although it is suspended",
)
def suspended_while_serving(place: Place) -> Seen:
    at: list[float] = []

    def suspend(handle: ServerHandle) -> None:
        at.append(time.monotonic())
        os.kill(handle.server.leader_pid, signal.SIGSTOP)

    limits = replace(LIMITS, stuck_s=2.0)
    served = play(place, limits=limits, during=until_lost_after(suspend))
    expect(served.outcome == "ServerStuck", f"{served.outcome}: {served.error}")
    return Seen("stuck; the limit was 2 s; it ended on SIGTERM and SIGCONT", served.entered["stop"] - at[0])


@fault("is ready with another model", expected="finding served-model-differs")
def wrong_model(place: Place) -> Seen:
    study(place, "served-model-suffix: .old")
    place("run", "study.yaml")
    found = findings(place)
    expect("served-model-differs" in found, f"findings: {sorted(found)}")
    return Seen(f"finding served-model-differs: {found['served-model-differs']}")


@fault("is ready with other settings than its flags", expected="finding effective-settings-differ")
def flags_rewritten(place: Place) -> Seen:
    study(place, "effective-num-draft-tokens: 2")
    place("run", "study.yaml")
    found = findings(place)
    expect("effective-settings-differ" in found, f"findings: {sorted(found)}")
    return Seen(f"finding effective-settings-differ: {found['effective-settings-differ']}")


@fault(
    "is ready without the speculation that was asked for",
    expected="finding effective-settings-differ: method",
)
def speculation_off(place: Place) -> Seen:
    study(place, "effective-method: none")
    run = place("run", "study.yaml")
    found = findings(place)
    expect("method" in found.get("effective-settings-differ", ""), f"findings: {found} {run.errors[-200:]}")
    return Seen(f"finding effective-settings-differ: {found['effective-settings-differ']}")


@fault("`up` of a server with other settings", expected="ready, with a warning on the terminal")
def up_warns_of_rewritten_flags(place: Place) -> Seen:
    study(place, "effective-num-draft-tokens: 2")
    up = place("up", "study.yaml", "--arm", "draft")
    expect(up.process.returncode == 0 and "asked for 3, runs 2" in up.errors, up.errors[-300:])
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    return Seen("ready; warning: num_draft_tokens: asked for 3, runs 2")


@fault(
    "dies while nobody looks, after `up`", expected="`ps` says so; `wait` says why; `down` removes its record"
)
def dies_after_up(place: Place) -> Seen:
    study(place, "die-after-ready-s: 2")
    up = place("up", "study.yaml", "--json")
    server = json.loads(up.output)["server_id"]
    time.sleep(2.5)
    (row,) = place.servers()
    expect(row["state"] == "ended" and row["ended"] == "exited", str(row))
    wait = place("wait", server)
    expect(wait.process.returncode == 3, f"exit code {wait.process.returncode}: {wait.errors}")
    expect("scripted death" in wait.errors, f"`wait` does not say why: {wait.errors}")
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    return Seen("ended: exited; `wait` gave its last words; the record was removed")
