"""Faults of the process tree: children that hide, do not end, or are left by who should have ended them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any

from faults_command import is_alive, wait_until
from faults_place import Place
from faults_serving import FAKE, death_words, play, until_lost_after
from faults_study import finished, study
from faults_table import Seen, expect, fault

from spectune.hosts import supervisor
from spectune.server.lifecycle import ServerHandle


def _stopped_whole(place: Place, kind: str) -> Seen:
    """Starts a server with such a child, stops it, and looks for the child."""
    served = play(place, f"--spawn-child={kind}", "--startup-delay-s=0.6")
    expect(served.error is None and served.stop is not None, f"{served.outcome}: {served.error}")
    assert served.stop is not None
    (child,) = place.pids_in_log(place.folder / "server.log")
    expect(not is_alive(child), f"child {child} lives")
    expect(child in served.stop.killed, f"killed: {served.stop.killed}, child {child}")
    expect(served.stop.no_child_left is True, str(served.stop))
    return Seen(f"killed after it ignored SIGTERM; no child left; stop took {served.stop.took_s:.1f} s")


@fault("a child ignores SIGTERM", expected="killed; proof of the stop")
def child_ignores_sigterm(place: Place) -> Seen:
    return _stopped_whole(place, "group")


@fault("a child in a session of its own ignores SIGTERM", expected="killed; proof of the stop")
def child_in_own_session(place: Place) -> Seen:
    return _stopped_whole(place, "session")


@fault("a child forks twice, clears its environment, ignores SIGTERM", expected="killed; proof of the stop")
def child_hidden(place: Place) -> Seen:
    return _stopped_whole(place, "hidden")


@fault("a child takes another name and overwrites its arguments", expected="killed; proof of the stop")
def child_renamed(place: Place) -> Seen:
    return _stopped_whole(place, "renamed")


@fault("the server ignores SIGTERM", expected="killed after the grace; proof of the stop")
def server_ignores_sigterm(place: Place) -> Seen:
    served = play(place, "--ignore-sigterm")
    expect(served.error is None and served.stop is not None, f"{served.outcome}: {served.error}")
    assert served.stop is not None
    expect(served.stop.killed == (served.pids[0],), str(served.stop))
    return Seen(f"killed after {served.stop.took_s:.1f} s; the grace was 2 s")


@fault("a child has ended and is a zombie", expected="no death; proof of the stop")
def child_zombie(place: Place) -> Seen:
    at: list[str | None] = []

    async def look(handle: ServerHandle) -> None:
        (zombie,) = place.pids_in_log(place.folder / "server.log")
        found = supervisor.read_process(zombie)
        at.append(found.state if found is not None else None)

    served = play(place, "--zombie", during=look)
    expect(at == ["Z"], f"the child was not a zombie: {at}")
    expect(served.outcome == "ready" and served.stop is not None, f"{served.outcome}: {served.error}")
    return Seen("ready; stopped; the zombie was collected with its parent")


@fault("its leader is killed and leaves shared memory", expected="died; the segment is removed, and named")
def shared_memory_left(place: Place) -> Seen:
    segment = f"psm_{secrets.token_hex(4)}"
    served = play(
        place,
        f"--shm-segment={segment}",
        during=until_lost_after(lambda handle: os.kill(handle.server.leader_pid, signal.SIGKILL)),
    )
    served.died()
    assert served.stop is not None
    expect(served.stop.segments_removed == (f"/dev/shm/{segment}",), str(served.stop))
    expect(not Path("/dev/shm", segment).exists(), "the segment is there")
    return Seen("died; 1 segment removed, named in the record")


def _up(place: Place, *args: str) -> dict[str, Any]:
    """A server of ``spectune up``, by its line in ``ps``."""
    up = place("up", "study.yaml", *args)
    expect(up.process.returncode == 0, up.errors[-300:])
    (row,) = place.servers()
    return row


@fault(
    "the supervisor is killed",
    expected="`ps`: orphaned; `down` stops exactly them, not a neighbour of the same name",
)
def supervisor_killed(place: Place) -> Seen:
    neighbour = place.neighbour([*FAKE, "--spawn-child"], until="ready")
    study(place, "spawn-child: session")
    row = _up(place)
    pids = _tree(place)
    os.kill(_supervisor(place), signal.SIGKILL)
    wait_until(lambda: place.servers()[0]["state"] == "orphaned", "ps says orphaned")
    orphans = place.servers()[0]["orphans"]
    expect(sorted(orphans) == pids, f"orphans {orphans}, the tree was {pids}")
    down = place("down", row["server_id"])
    expect(down.process.returncode == 0, down.errors)
    expect(not any(map(is_alive, pids)), "some of the tree is alive")
    expect(neighbour.poll() is None, "the neighbour was stopped")
    expect(place.servers() == [], "a record is left")
    return Seen(f"orphaned, {len(orphans)} pids named; gone after `down`; the neighbour lives")


@fault(
    "the supervisor is killed while a study measures",
    expected="orphans stopped, the arm launched again",
    is_timed=True,
)
def supervisor_killed_in_study(place: Place) -> Seen:
    study(place, "spawn-child: hidden", tok_per_s=100)
    run = place.start("run", "study.yaml")
    run.line("measure")
    pids = _tree(place)
    place.note(*pids)
    at = time.monotonic()
    os.kill(_supervisor(place), signal.SIGKILL)
    stop = run.line("stop", after="measure")
    code = run.wait()
    expect(code == 0, f"exit code {code}: {run.errors[-300:]}")
    expect("supervisor of the server" in run.errors, f"it was not said: {run.errors[-300:]}")
    expect(not any(map(is_alive, pids)), f"alive: {[p for p in pids if is_alive(p)]}")
    finished(place)
    return Seen(
        f"{len(pids)} orphans stopped, the arm launched again; three trials complete", stop - at, True
    )


@fault("the supervisor is told to end (SIGTERM)", expected="it stops its server first; the record says why")
def supervisor_terminated(place: Place) -> Seen:
    study(place, "spawn-child: session")
    row = _up(place)
    pids = _tree(place)
    os.kill(_supervisor(place), signal.SIGTERM)
    wait_until(lambda: not any(map(is_alive, pids)), "its server is gone")
    wait_until(lambda: place.servers()[0]["state"] == "ended", "ps says ended")
    ended = place.servers()[0]["ended"]
    expect("signal 15" in ended, str(ended))
    place("down", row["server_id"])
    return Seen(f"server gone; record: {ended}")


@fault("the supervisor is told to end (SIGTERM) while a study measures", expected="the arm is launched again")
def supervisor_terminated_in_study(place: Place) -> Seen:
    study(place, "spawn-child: session", tok_per_s=60)
    run = place.start("run", "study.yaml")
    run.line("measure")
    place.note(*_tree(place))
    os.kill(_supervisor(place), signal.SIGTERM)
    code = run.wait()
    expect(code == 0, f"exit code {code}: {run.errors[-300:]}")
    finished(place)
    return Seen("the arm launched again; three trials complete")


@fault(
    "the supervisor and the leader are killed, a hidden child lives", expected="`ps` names it; `down` ends it"
)
def supervisor_and_leader_killed(place: Place) -> Seen:
    study(place, "spawn-child: hidden, startup-delay-s: 2")
    row = _up(place)
    (child,) = place.pids_in_log(Path(row["log_path"]))
    place.note(child)
    supervisor_pid = _supervisor(place)
    os.kill(supervisor_pid, signal.SIGKILL)
    os.kill(row["pid"], signal.SIGKILL)
    wait_until(lambda: not is_alive(row["pid"]), "the leader is gone")
    (after,) = place.servers()
    expect(after["orphans"] == [child], f"orphans {after['orphans']}, the child is {child}")
    down = place("down", row["server_id"])
    expect(down.process.returncode == 0 and not is_alive(child), down.errors)
    return Seen("orphaned: the child by its pid and start time; gone after `down`")


@fault("the server's worker dies, its exit code 0", expected="died; names the worker", is_timed=True)
def worker_ends_quietly(place: Place) -> Seen:
    at: list[float] = []

    def kill(handle: ServerHandle) -> None:
        at.append(time.monotonic())
        os.kill(handle.workers[0], signal.SIGUSR1)

    served = play(place, "--spawn-child=quiet", during=until_lost_after(kill))
    error = served.died()
    expect(error.exit_code_of_server == 0, death_words(error))
    return Seen(death_words(error), served.entered["stop"] - at[0], True)


def _supervisor(place: Place) -> int:
    return int(only_status(place)["supervisor"][0])


def _tree(place: Place) -> list[int]:
    """Pids of the living processes of the one server of this place."""
    known = [(pid, start) for pid, start, _ in only_status(place)["known"]]
    alive = [
        p for p in map(supervisor.read_process, [pid for pid, _ in known]) if p is not None and p.is_alive
    ]
    return sorted(p.pid for p in alive if p.key in known)


def only_status(place: Place) -> dict[str, Any]:
    """The record of the one server of this place."""
    (file,) = place.home.glob("servers/*/status.json")
    status: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return status
