"""Faults of the disk: full, or read-only. The file systems are small tmpfs mounts in a mount namespace of their own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from faults_place import Place
from faults_study import study
from faults_table import Seen, Unexpected, expect, fault

_SIZE = "300M"
"""A launch asks for 256 MiB."""


class SmallDisk:
    """A tmpfs on a folder of the place, seen only inside its namespace, where every command of the place then runs."""

    def __init__(self, place: Place, folder: str, *, size: str = _SIZE) -> None:
        self.path = place.folder / folder
        self.path.mkdir(parents=True, exist_ok=True)
        script = f"mount -t tmpfs -o size={size} tmpfs '{self.path}' && echo mounted && exec sleep 600"
        self._holder = place.neighbour(["unshare", "-rm", "sh", "-c", script], until="mounted")
        if self._holder.poll() is not None:
            raise Unexpected("no namespace could be made: `unshare -rm` is not permitted here")
        self._enter = (
            "nsenter",
            f"--target={self._holder.pid}",
            "--user",
            "--mount",
            "--preserve-credentials",
        )
        place.prefix = (*self._enter, "sh", "-c", 'cd "$0" && exec "$@"', str(place.folder))
        self.inside = Path(f"/proc/{self._holder.pid}/root{self.path}")
        place.store = lambda: list(self.inside.glob("**/study.json"))

    def sh(self, script: str) -> None:
        subprocess.run([*self._enter, "sh", "-c", script], check=False, capture_output=True, timeout=60)

    def fill(self) -> None:
        """Until not a byte is left."""
        self.sh(f"cat /dev/zero > '{self.path}/filler'; cat /dev/zero > '{self.path}/filler2'")

    def empty(self) -> None:
        self.sh(f"rm -f '{self.path}/filler' '{self.path}/filler2'")

    def read_only(self, yes: bool) -> None:
        self.sh(f"mount -o remount,{'ro' if yes else 'rw'} '{self.path}'")

    def trials(self) -> list[str]:
        return sorted(path.parent.name for path in self.inside.glob("**/trial.json"))


@fault("the disk is nearly full before a launch", expected="refused: how much is left and how much is needed")
def disk_nearly_full(place: Place) -> Seen:
    disk = SmallDisk(place, "studies", size="4M")
    study(place)
    run = place("run", "study.yaml")
    expect("MiB left" in run.errors + run.output, f"{run.process.returncode}: {run.errors[-400:]}")
    expect(run.process.returncode in (1, 3), f"exit code {run.process.returncode}")
    return Seen(f"refused with exit code {run.process.returncode}; {len(disk.trials())} trials recorded")


@fault(
    "the disk fills while the server logs",
    expected="a cause that names the disk; server gone; run again: completes",
)
def disk_full_while_logging(place: Place) -> Seen:
    disk = SmallDisk(place, "studies")
    study(place, "talk-in: compile")
    run = place.start("run", "study.yaml", "--set", "engine.ready_timeout_s=12")
    run.line("compile")
    disk.fill()
    code = run.wait(60)
    expect(
        code in (1, 3) and "Traceback (most recent call last):\n  File" not in run.errors, run.errors[-400:]
    )
    expect("No space left" in run.errors + run.output, f"{code}: {(run.errors + run.output)[-400:]}")
    disk.empty()
    study(place)
    again = place("run", "study.yaml", "--dir", "studies/again", timeout_s=60)
    expect(again.process.returncode == 0, again.errors[-300:])
    return Seen(
        f"exit code {code}: No space left on device; the server was stopped; the next study completes"
    )


@fault(
    "the disk fills while results are stored",
    expected="exit code 3, names the disk; server gone; run again: completes",
)
def disk_full_while_storing(place: Place) -> Seen:
    disk = SmallDisk(place, "studies")
    study(place, "spawn-child: session", tok_per_s=60)
    run = place.start("run", "study.yaml", "--set", "workload.num_prompts=12")
    run.line("measure")
    time.sleep(1)
    disk.fill()
    code = run.wait(60)
    expect(code == 3 and "No space left on device" in run.errors, f"{code}: {run.errors[-400:]}")
    expect("Traceback" not in run.errors, run.errors[-400:])
    disk.empty()
    again = place("run", "studies/study", timeout_s=90)
    expect(again.process.returncode == 0, again.errors[-300:])
    expect(len(disk.trials()) >= 3, f"trials: {disk.trials()}")
    return Seen("exit code 3: No space left on device; server stopped; three trials after it was run again")


@fault(
    "the disk of the servers' records fills while one runs",
    expected="the trial is not harmed; nothing is left",
)
def disk_full_for_server_records(place: Place) -> Seen:
    disk = SmallDisk(place, "home")
    place.store = lambda: list(place.folder.glob("studies/**/study.json"))
    study(place, "spawn-child: session", tok_per_s=100)
    run = place.start("run", "study.yaml", "--set", "budget.max_trials=1")
    run.line("measure")
    disk.fill()
    code = run.wait(60)
    expect(code == 0, f"exit code {code}: {run.errors[-400:]}")
    disk.empty()
    left = list(disk.inside.glob("servers/*/status.json"))
    expect(not left, f"records of servers: {left}")
    return Seen("the trial is complete; server stopped and proven")


@fault("the study's directory is read-only", expected="exit code 3, names the directory; nothing is launched")
def store_read_only(place: Place) -> Seen:
    disk = SmallDisk(place, "studies")
    study(place)
    run = place("run", "study.yaml", "--set", "budget.max_trials=1")
    expect(run.process.returncode == 0, run.errors[-300:])
    disk.read_only(True)
    run = place("run", "studies/study")
    expect(run.process.returncode == 3 and "Read-only file system" in run.errors, run.errors[-300:])
    expect("Traceback" not in run.errors and "launch" not in run.errors, run.errors[-300:])
    report = place("report", "studies/study", "--out", "elsewhere")
    expect(report.process.returncode == 0, f"`report --out`: {report.errors[-300:]}")
    disk.read_only(False)
    expect(len(disk.trials()) == 1, f"trials: {disk.trials()}")
    return Seen("exit code 3: Read-only file system; nothing launched; its report can be written elsewhere")


@fault(
    "the folder of the servers' records is read-only",
    expected="exit code 3, names the folder; nothing is launched",
)
def home_read_only(place: Place) -> Seen:
    disk = SmallDisk(place, "home")
    disk.sh(f"mkdir '{disk.path}/servers'")
    disk.read_only(True)
    study(place)
    up = place("up", "study.yaml")
    expect(
        up.process.returncode == 3 and "Read-only file system" in up.errors,
        f"{up.process.returncode}: {up.errors}",
    )
    expect("Traceback" not in up.errors, up.errors)
    return Seen("exit code 3: the folder and `Read-only file system`")
