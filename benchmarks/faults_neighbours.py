"""Faults that come from others on the same machine: ports, studies side by side, two of us on one study."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from contextlib import closing

from faults_command import Running, is_alive, wait_until
from faults_place import Place
from faults_serving import FAKE
from faults_study import finished, study
from faults_table import Seen, expect, fault

from spectune.hosts.supervisor import free_ports


@fault(
    "a stale server answers on the port", expected="refused; the owner named by pid and command, left alone"
)
def stale_server(place: Place) -> Seen:
    (port,) = free_ports(1, avoid=set())
    stale = place.neighbour([*FAKE, "--port", str(port)], until="ready")
    study(place)
    up = place("up", "study.yaml", "--port", str(port))
    expect(up.process.returncode == 3, f"exit code {up.process.returncode}: {up.errors[-300:]}")
    expect(f"taken by pid {stale.pid}" in up.errors and "fake.server" in up.errors, up.errors)
    expect(stale.poll() is None, "the stale server was stopped")
    expect(place.servers() == [], "a record was left")
    return Seen("refused: the port is taken by pid and command; that server lives")


@fault("`up --adopt` of a server that runs another model", expected="refused; left alone")
def adopt_wrong_model(place: Place) -> Seen:
    (port,) = free_ports(1, avoid=set())
    other = place.neighbour([*FAKE[:-1], "another-model", "--port", str(port)], until="ready")
    study(place)
    up = place("up", "study.yaml", "--port", str(port), "--adopt")
    expect(up.process.returncode == 3 and "another-model" in up.errors, up.errors[-300:])
    expect(other.poll() is None, "the server was stopped")
    return Seen("refused: it names the model that is served; that server lives")


def _steal_port(place: Place, run: Running) -> int:
    """The port that a study has checked and given to a server, before that server binds it."""
    wait_until(lambda: list(place.home.glob("servers/*/spec.json")) != [], "a server was started")
    (file,) = place.home.glob("servers/*/spec.json")
    ports = json.loads(file.read_text(encoding="utf-8"))["ports"]
    return int(ports[0])


@fault(
    "the port is stolen between check and bind, by one that says nothing",
    expected="launched again on another port",
)
def port_stolen(place: Place) -> Seen:
    study(place, "startup-delay-s: 1.5")
    run = place.start("run", "study.yaml")
    with closing(socket.socket()) as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", _steal_port(place, run)))
        thief.listen()
        code = run.wait(90)
    expect(code == 0, f"exit code {code}: {run.errors[-300:]}")
    expect("again" in run.errors, "it was not said that the arm was launched again")
    finished(place)
    return Seen("the arm was launched again on another port; three trials complete")


@fault(
    "the port is stolen between check and bind, by a server",
    expected="launched again on another port; thief left alone",
)
def port_stolen_by_a_server(place: Place) -> Seen:
    study(place, "startup-delay-s: 6")
    run = place.start("run", "study.yaml")
    thief = place.neighbour([*FAKE, "--port", str(_steal_port(place, run))], until="ready")
    code = run.wait(120)
    expect(thief.poll() is None, "the thief was stopped")
    expect(code == 0, f"exit code {code}: {run.errors[-300:]}")
    finished(place)
    return Seen("the arm was launched again on another port; three trials complete; the thief lives")


@fault("two studies on one machine at once", expected="both complete, on ports of their own")
def two_studies(place: Place) -> Seen:
    study(place, "spawn-child: session", tok_per_s=500)
    runs = [place.start("run", "study.yaml", "--dir", f"studies/{name}") for name in ("a", "b")]
    codes = [run.wait(120) for run in runs]
    expect(codes == [0, 0], f"exit codes {codes}: {runs[0].errors[-200:]} {runs[1].errors[-200:]}")
    ports = []
    for name in ("a", "b"):
        trials = place.trials(f"studies/{name}")
        expect([t["status"] for t in trials] == ["complete"] * 3, f"{name}: {[t['status'] for t in trials]}")
        ports.append({re.findall(r"--port (\d+)", " ".join(t["command"]))[0] for t in trials})
    expect(not ports[0] & ports[1], f"shared ports: {ports}")
    return Seen("six trials complete; no port used by both")


@fault(
    "two spectunes on one study directory",
    expected="the second is refused, names the first by pid; the first goes on",
)
def two_on_one_study(place: Place) -> Seen:
    study(place, tok_per_s=200)
    first = place.start("run", "study.yaml")
    first.line("launch")
    second = place("run", "study.yaml")
    expect(second.process.returncode == 2, f"exit code {second.process.returncode}: {second.errors[-300:]}")
    expect(f"pid {first.pid}" in second.errors, second.errors)
    expect(first.wait(90) == 0, first.errors[-300:])
    finished(place)
    return Seen("refused with exit code 2, the first named by pid; its three trials complete")


@fault("somebody else's process of the same name and command", expected="alive after run, up and down")
def neighbour_of_same_name(place: Place) -> Seen:
    neighbours = [place.neighbour([*FAKE, "--spawn-child"], until="ready") for _ in range(2)]
    study(place)
    expect(place("run", "study.yaml").process.returncode == 0, "`run` failed")
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    (row,) = place.servers()
    os.kill(int(row["pid"]), signal.SIGKILL)
    wait_until(lambda: not is_alive(int(row["pid"])), "the leader is gone")
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    expect(all(n.poll() is None for n in neighbours), "a neighbour was stopped")
    return Seen("both alive")


@fault("a server of another study is alive when a study begins", expected="left alone")
def server_of_another_study(place: Place) -> Seen:
    study(place)
    expect(place("up", "study.yaml").process.returncode == 0, "`up` failed")
    (row,) = place.servers()
    run = place("run", "study.yaml")
    expect(run.process.returncode == 0, run.errors[-300:])
    expect(is_alive(int(row["pid"])) and place.servers()[0]["state"] == "running", "it was stopped")
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    return Seen("three trials complete; it lives until `down`")
