"""Faults of what programs lean on without thinking: the wall clock, and the resolution of names."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from faults_command import wait_until
from faults_place import Place
from faults_spectune import LEASE_S
from faults_study import finished, study
from faults_table import Seen, Unexpected, expect, fault
from faults_tree import only_status

_JUMPING_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long offset(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec % 2 ? 86400 : -86400;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    long failed = syscall(SYS_clock_gettime, id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += offset();
    return (int)failed;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
_SLOW_NAMES = """
import socket, time
_getaddrinfo = socket.getaddrinfo
def getaddrinfo(host, *args, **more):
    with open({log!r}, "a") as file:
        file.write(f"{{host}}\\n")
    time.sleep(5)
    return _getaddrinfo(host, *args, **more)
socket.getaddrinfo = getaddrinfo
"""


def _let_clock_jump(place: Place) -> None:
    """Every program of the place sees a clock that is a day ahead and a day behind by turns."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Unexpected("no C compiler here: the clock could not be made to jump")
    source, library = place.write("clock.c", _JUMPING_CLOCK), place.folder / "clock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, capture_output=True
    )
    place.env["LD_PRELOAD"] = str(library)
    code = "import time; a = time.time(); time.sleep(1); print(abs(time.time() - a) > 80000)"
    reply = subprocess.run(
        [sys.executable, "-c", code], env=place.env, capture_output=True, text=True, check=True
    )
    expect(reply.stdout.strip() == "True", "the clock does not jump")


@fault(
    "the clock jumps by two days every second while a study runs",
    expected="complete; no lease is lost; sane times",
)
def clock_jumps(place: Place) -> Seen:
    _let_clock_jump(place)
    study(place, "startup-delay-s: 1, spawn-child: quiet", tok_per_s=100)
    began = time.monotonic()
    run = place.start("run", "study.yaml")
    code = run.wait(90)
    took_s = time.monotonic() - began
    expect(code == 0, f"exit code {code}: {run.errors[-300:]}")
    trials = finished(place)
    worst = max(max(trial["phases_s"].values()) for trial in trials)
    expect(worst < took_s, f"a phase of {worst} s")
    lowest = min(min(trial["phases_s"].values()) for trial in trials)
    expect(lowest >= 0, f"a phase of {lowest} s")
    return Seen(f"three trials complete; longest phase {worst:.1f} s of {took_s:.0f} s")


@fault("the clock jumps, spectune is killed", expected="server gone by its lease, not before, not after")
def clock_jumps_and_spectune_is_killed(place: Place) -> Seen:
    _let_clock_jump(place)
    study(place, "spawn-child: quiet", tok_per_s=60)
    run = place.start("run", "study.yaml")
    run.line("measure")
    leader, _start = only_status(place)["leader"]
    at = time.monotonic()
    os.kill(run.pid, signal.SIGKILL)
    gone = wait_until(lambda: not Path(f"/proc/{leader}/exe").exists(), "the server is gone") - at
    expect(LEASE_S - 1.5 < gone < LEASE_S + 5, f"gone after {gone:.1f} s")
    again = place("run", "studies/study", timeout_s=60)
    expect(again.process.returncode == 0, again.errors[-300:])
    return Seen(f"server gone {gone:.1f} s later (lease {LEASE_S:g} s); run again: complete")


@fault(
    "the clock jumps, the leader is killed and leaves shared memory",
    expected="the segment is removed, and named",
)
def clock_jumps_and_segment_is_left(place: Place) -> Seen:
    _let_clock_jump(place)
    segment = f"psm_{secrets.token_hex(4)}"
    study(place, f"shm-segment: {segment}, die-at-request: 4, exit-code: -9")
    run = place.start("run", "study.yaml")
    code = run.wait(60)
    expect(code == 1, f"exit code {code}: {run.errors[-300:]}")
    expect(not Path("/dev/shm", segment).exists(), f"/dev/shm/{segment} is there, and no error said so")
    (trial,) = place.trials()
    expect(trial["stop"]["segments_removed"] == [f"/dev/shm/{segment}"], str(trial["stop"]))
    return Seen("died; 1 segment removed, named in the record")


@fault(
    "DNS answers after 5 s", expected="complete in the usual time: no name is looked up for a local server"
)
def slow_names(place: Place) -> Seen:
    log = place.folder / "looked-up"
    folder = place.folder / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SLOW_NAMES.format(log=str(log)), encoding="utf-8")
    place.env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), place.env.get("PYTHONPATH", "")]))
    study(place)
    run = place("run", "study.yaml", timeout_s=90)
    expect(run.process.returncode == 0, run.errors[-300:])
    asked = log.read_text(encoding="utf-8").split() if log.exists() else []
    expect(not asked, f"{len(asked)} look-ups: {sorted(set(asked))}")
    finished(place)
    return Seen("three trials complete; not one name looked up, by spectune, supervisor or server")
