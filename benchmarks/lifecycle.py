"""Start and stop under fire: cycles with the leader killed, how soon readiness and death are known, killed runs.

    python benchmarks/lifecycle.py cycles --count 100      the real llama.cpp server
    python benchmarks/lifecycle.py notice --count 40       the fake server, against its own time stamps
    python benchmarks/lifecycle.py kills --count 20        ``spectune run`` killed at random instants

Each prints a table and, with ``--json FILE``, writes its figures. Exit code 1: something was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from spectune.domain.arm import Arm, Knobs
from spectune.embedded.models import resolve_model
from spectune.engines.adapter import EngineSetup, Launch
from spectune.engines.registry import adapter_for
from spectune.home import data_home
from spectune.hosts.local import local_host
from spectune.hosts.supervisor import MARKER
from spectune.server.lifecycle import Launched, LaunchPlan, Limits, serve
from spectune.server.phases import PhaseClock

STUDY = """
question: Does drafting pay?
engine: {name: fake, flags: {tokens-per-s: 150, startup-delay-s: 0.4}}
target: fake-model
arms:
  - {name: good, method: eagle3, drafter: fake-draft, num_draft_tokens: 3, flags: {accept: "0.8"}}
  - {name: poor, method: eagle3, drafter: fake-draft, num_draft_tokens: 2, flags: {accept: "0.2"}}
workload: {prompts: builtin, num_prompts: 6, max_tokens: 40, ignore_eos: true, warmup_requests: 1}
lease_s: 2
"""
LEASE_S = 2.0
STOP_S = 3.0
"""Beyond the lease: what stopping a server may take."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("cycles", "notice", "kills"))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    bench = {"cycles": cycles, "notice": notice, "kills": kills}[args.what]
    result = bench(args.count, random.Random(args.seed))
    print(json.dumps(result, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["ok"] else 1


def cycles(count: int, rng: random.Random) -> dict[str, Any]:
    """Start, wait until it generates, stop; in half of them the leader is killed first."""
    target = resolve_model("smollm2-135m-instruct", model_format="gguf", home=data_home())
    with decoys("spectune.embedded.llama_server", 3) as neighbours, tempfile.TemporaryDirectory() as folder:
        before = segments()
        rows = []
        for number in range(count):
            kill = number % 2 == 1
            plan = llama_plan(Path(folder), target, number)
            rows.append(asyncio.run(one_cycle(plan, Path(folder) / "home", kill=kill)))
            progress(number + 1, count, f"{rows[-1]['cycle_s']:.1f} s")
        left = left_behind(Path(folder))
        alive = [n.poll() is None for n in neighbours]
        return {
            "cycles": count,
            "leader_killed": count // 2,
            "processes_left": left,
            "segments_left": sorted(segments() - before),
            "ports_open": sum(row["port_open"] for row in rows),
            "proofs": sum(row["no_child_left"] is True for row in rows),
            "neighbours_alive": f"{sum(alive)} of {len(alive)}",
            "cycle_s": spread([row["cycle_s"] for row in rows]),
            "stop_s": spread([row["stop_s"] for row in rows]),
            "ok": not left
            and segments() <= before
            and all(alive)
            and not any(row["port_open"] for row in rows)
            and all(row["no_child_left"] is True for row in rows),
        }


async def one_cycle(plan: LaunchPlan, home: Path, *, kill: bool) -> dict[str, Any]:
    began = time.monotonic()
    launched = Launched()
    async with local_host(home) as host:
        plan = LaunchPlan(
            **{**plan.__dict__, "host": host, "port": (await host.facts(free_ports=1)).free_ports[0]}
        )
        plan = with_command(plan)
        async with serve(plan, clock=PhaseClock(), launched=launched) as handle:
            if kill:
                os.kill(handle.server.leader_pid, signal.SIGKILL)
        facts = await host.facts(ports=[plan.port])
    assert launched.stop is not None
    return {
        "cycle_s": time.monotonic() - began,
        "stop_s": launched.stop.took_s,
        "no_child_left": launched.stop.no_child_left,
        "port_open": facts.port_owners[plan.port] is not None,
    }


def notice(count: int, _rng: random.Random) -> dict[str, Any]:
    """How soon readiness and death are known: against the times that the fake server prints of itself."""
    ready, death = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            row = asyncio.run(one_notice(Path(folder), number))
            ready.append(row["ready_s"])
            death.append(row["death_s"])
            progress(number + 1, count, f"{row['ready_s'] * 1e3:.0f} ms, {row['death_s'] * 1e3:.0f} ms")
    return {
        "n": count,
        "readiness_known_after_s": spread(ready),
        "death_known_after_s": spread(death),
        "ok": statistics.median(ready) < 0.25 and max(death) < 1.0,
    }


async def one_notice(folder: Path, number: int) -> dict[str, float]:
    events = folder / f"{number}.events"
    flags: dict[str, str | float] = {
        "events": str(events),
        "startup-delay-s": 0.3 + 0.07 * (number % 10),
        "die-after-ready-s": 1.0 + 0.09 * (number % 10),
    }
    async with local_host(folder / "home") as host:
        port = (await host.facts(free_ports=1)).free_ports[0]
        arm = Arm(
            name="fake", engine="fake", target="m", knobs=Knobs(), flags={"tokens-per-s": 2000, **flags}
        )
        plan = with_command(
            LaunchPlan(
                command=None,  # type: ignore[arg-type]
                adapter=adapter_for("fake"),
                host=host,
                port=port,
                log_path=folder / f"{number}.log",
                limits=Limits(ready_s=30, settle_s=0.0),
            ),
            arm,
        )
        known: dict[str, float] = {}

        def on_change(phase: str) -> None:
            known.setdefault(phase, time.monotonic())

        clock = PhaseClock(on_change=on_change)
        async with serve(plan, clock=clock, launched=Launched()) as handle:
            await handle.died()
            death_known = time.monotonic()
    at = dict(line.split() for line in events.read_text(encoding="utf-8").splitlines())
    return {"ready_s": known["settle"] - float(at["ready"]), "death_s": death_known - float(at["death"])}


def kills(count: int, rng: random.Random) -> dict[str, Any]:
    """``spectune run`` killed at random instants, then run again: the same trials as an undisturbed study."""
    rows = []
    whole = undisturbed()
    for number in range(count):
        rows.append(one_kill(rng.uniform(0.2, whole["took_s"]), whole["trials"]))
        progress(
            number + 1,
            count,
            f"killed after {rows[-1]['after_s']:.1f} s, gone {rows[-1]['gone_s']:.1f} s later",
        )
    return {
        "n": count,
        "lease_s": LEASE_S,
        "undisturbed_took_s": whole["took_s"],
        "servers_alive_at_the_kill": sum(row["had_server"] for row in rows),
        "gone_after_kill_s": spread([row["gone_s"] for row in rows if row["had_server"]] or [0.0]),
        "outlived_the_lease": sum(row["gone_s"] > LEASE_S + STOP_S for row in rows),
        "same_trials": sum(row["same"] for row in rows),
        "left_behind": sum(row["left"] for row in rows),
        "ok": all(row["same"] and not row["left"] and row["gone_s"] <= LEASE_S + STOP_S for row in rows),
    }


def undisturbed() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        process = start_run(Path(folder))
        assert process.wait(timeout=120) == 0
        return {"took_s": time.monotonic() - began, "trials": trials_of(Path(folder))}


def one_kill(after_s: float, expected: list[tuple[str, int, str]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        process = start_run(Path(folder))
        time.sleep(after_s)
        process.kill()
        process.wait()
        had_server = bool(servers_of(Path(folder)))
        began = time.monotonic()
        while servers_of(Path(folder)) and time.monotonic() - began < 30:
            time.sleep(0.05)
        gone_s = time.monotonic() - began
        assert start_run(Path(folder)).wait(timeout=120) == 0
        left = servers_of(Path(folder))
        return {
            "after_s": after_s,
            "had_server": had_server,
            "gone_s": gone_s,
            "same": trials_of(Path(folder)) == expected,
            "left": len(left),
        }


def start_run(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
    env = {**os.environ, "SPECTUNE_HOME": str(folder / "home")}
    with (folder / "out.txt").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "spectune", "run", "study.yaml"],
            cwd=folder,
            env=env,
            stdout=out,
            stderr=out,
        )


def trials_of(folder: Path) -> list[tuple[str, int, str]]:
    records = [json.loads(path.read_text()) for path in (folder / "studies").glob("*/trials/*/trial.json")]
    return sorted((r["arm"]["name"], r["repetition"], r["status"]) for r in records)


def servers_of(folder: Path) -> list[int]:
    """Living processes that carry a marker and our folder."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            ours = MARKER in environ and environ.get("SPECTUNE_HOME") == str(folder / "home")
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def llama_plan(folder: Path, target: str, number: int) -> LaunchPlan:
    return LaunchPlan(
        command=None,  # type: ignore[arg-type]
        adapter=adapter_for("llamacpp"),
        host=None,  # type: ignore[arg-type]
        port=0,
        log_path=folder / f"{number}.log",
        limits=Limits(ready_s=120, settle_s=0.1),
        subject=target,
    )


def with_command(plan: LaunchPlan, arm: Arm | None = None) -> LaunchPlan:
    arm = arm or Arm(
        name="plain",
        engine="llamacpp",
        target=plan.subject,
        knobs=Knobs(),
        flags={"threads": 1, "ctx-size": 512},
    )
    setup = EngineSetup(name=arm.engine)
    if arm.engine == "llamacpp":
        setup = EngineSetup(name="llamacpp", command=(sys.executable, "-m", "spectune.embedded.llama_server"))
    launch = Launch(
        arm=arm,
        setup=setup,
        host="127.0.0.1",
        port=plan.port,
        target_path=arm.target,
        drafter_path=None,
        max_concurrency=1,
    )
    return LaunchPlan(**{**plan.__dict__, "command": plan.adapter.command(launch)})


@contextmanager
def decoys(name: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes whose command line names the server's program: what a kill by name would hit."""
    code = "import time; time.sleep(36000)"
    started = [subprocess.Popen([sys.executable, "-c", code, "-m", name]) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def left_behind(folder: Path) -> list[str]:
    """Living processes that carry a marker and write to our folder's logs."""
    found = []
    for process in psutil.process_iter():
        try:
            if MARKER in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                logs = [file.path for file in process.open_files() if file.path.startswith(str(folder))]
                if logs:
                    found.append(f"{process.pid}: {' '.join(process.cmdline())[:100]}")
        except (psutil.Error, OSError):
            continue
    return found


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "worst": round(max(values), 3),
        "best": round(min(values), 3),
        "n": len(values),
    }


def progress(done: int, total: int, text: str) -> None:
    sys.stderr.write(f"{done}/{total}: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
