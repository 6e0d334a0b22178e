"""Faults of the GPUs. There is none here: a shell script called ``nvidia-smi`` is first on the PATH."""

from __future__ import annotations

import os
from pathlib import Path

from faults_place import Place
from faults_study import finished, study
from faults_table import Seen, expect, fault

_SCRIPT = """\
#!/bin/sh
# Not the real one: it prints what lies beside it. Part of a test of spectune.
here=$(dirname "$0")
[ -e "$here/broken" ] && { echo "Failed to initialize NVML: Driver/library version mismatch"; exit 9; }
case "$*" in
  *query-gpu*) cat "$here/devices" ;;
  *query-compute-apps*) cat "$here/holders" ;;
  *) exit 6 ;;
esac
"""


class FakeGpus:
    """Two devices that use as much memory as they are told, for every program of the place."""

    def __init__(self, place: Place) -> None:
        self.folder = place.folder / "nvidia"
        self.folder.mkdir()
        program = self.folder / "nvidia-smi"
        program.write_text(_SCRIPT, encoding="utf-8")
        program.chmod(0o755)
        place.env["PATH"] = f"{self.folder}:{os.environ['PATH']}"
        self.use(0, 0)
        self.hold("")

    def use(self, first_mib: int, second_mib: int, *, busy_percent: int = 0) -> None:
        rows = [
            f"{index}, GPU-fake-{index}, Fake GPU, 1.0, {used}, 81920, {busy_percent}\n"
            for index, used in enumerate((first_mib, second_mib))
        ]
        temporary = self.folder / "devices.new"
        temporary.write_text("".join(rows), encoding="utf-8")
        temporary.replace(self.folder / "devices")

    def hold(self, text: str) -> None:
        (self.folder / "holders").write_text(text, encoding="utf-8")


@fault(
    "GPU memory comes back (fake nvidia-smi)",
    expected="proven: use per device before and after, in the record",
)
def gpu_memory_returned(place: Place) -> Seen:
    gpus = FakeGpus(place)
    gpus.use(500, 3)
    study(place)
    run = place.start("run", "study.yaml")
    run.line("measure")
    gpus.use(60_000, 60_000)
    run.line("stop")
    gpus.use(520, 3)
    expect(run.wait(150) == 0, run.errors[-300:])
    proof = finished(place)[0]["stop"]["gpu"]
    expect(proof == "GPU 0: 500 MiB before, 520 after, GPU 1: 3 MiB before, 3 after", proof)
    return Seen(proof)


@fault(
    "GPU memory does not come back (fake nvidia-smi)",
    expected="exit code 3, names device and amounts; nothing more is launched; run again when it is free: completes",
)
def gpu_memory_not_returned(place: Place) -> Seen:
    gpus = FakeGpus(place)
    study(place)
    run = place.start("run", "study.yaml")
    run.line("measure")
    gpus.use(3, 9000)
    code = run.wait(150)
    expect(code == 3 and "GPU 1: 9000 MiB in use, 0 MiB before" in run.errors, f"{code}: {run.errors[-400:]}")
    expect("[2/3]" not in run.errors, "the next arm was launched")
    gpus.use(0, 0)
    again = place("run", "studies/study", timeout_s=150)
    expect(again.process.returncode in (0, 1), again.errors[-300:])
    finished(place, after="after the second run")
    return Seen(
        "exit code 3: GPU 1: 9000 MiB in use, 0 MiB before the launch; nothing more launched; later: completes"
    )


@fault(
    "a GPU is held by another process before a launch (fake nvidia-smi)",
    expected="refused: device, pid, amount, command",
)
def gpu_busy(place: Place) -> Seen:
    gpus = FakeGpus(place)
    gpus.use(0, 40_000)
    gpus.hold(f"GPU-fake-1, {os.getpid()}, 40000\n")
    study(place)
    up = place("up", "study.yaml")
    expect(up.process.returncode == 3, f"exit code {up.process.returncode}: {up.errors[-300:]}")
    expect(f"GPU 1: pid {os.getpid()} holds 40000 MiB" in up.errors, up.errors)
    expect(not list(place.home.glob("servers/*/status.json")), "something was started")
    allowed = place("up", "study.yaml", "--set", "engine.env.CUDA_VISIBLE_DEVICES=0")
    expect(allowed.process.returncode == 0, f"on the free one: {allowed.errors[-300:]}")
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    return Seen("refused: GPU 1, pid, 40000 MiB and command; with the other device alone it starts")


@fault(
    "nvidia-smi fails before the launch (fake nvidia-smi)",
    expected="it runs; the record says unknown, not ok",
)
def gpu_unknown(place: Place) -> Seen:
    gpus = FakeGpus(place)
    (gpus.folder / "broken").touch()
    study(place)
    run = place("run", "study.yaml", timeout_s=150)
    expect(run.process.returncode == 0, run.errors[-300:])
    proof = finished(place)[0]["stop"]["gpu"]
    expect(proof.startswith("unknown"), proof)
    return Seen(f"three trials complete; GPU: {proof}")


@fault(
    "a neighbour takes a GPU that the server may not use (fake nvidia-smi)",
    expected="complete: it is nobody's fault, and not the server's device",
)
def gpu_neighbour(place: Place) -> Seen:
    gpus = FakeGpus(place)
    study(place)
    place.env["CUDA_VISIBLE_DEVICES"] = "0"
    run = place.start("run", "study.yaml")
    run.line("measure")
    gpus.use(0, 70_000)
    gpus.hold(f"GPU-fake-1, {os.getpid()}, 69990\n")
    expect(run.wait(150) == 0, run.errors[-300:])
    proof = finished(place)[0]["stop"]["gpu"]
    expect(proof == "GPU 0: 0 MiB before, 0 after", proof)
    return Seen(f"three trials complete; {proof}")


@fault(
    "a GPU without memory figures, as GB10 (fake nvidia-smi)",
    expected="complete; the record says unknown",
)
def gpu_without_figures(place: Place) -> Seen:
    gpus = FakeGpus(place)
    (gpus.folder / "devices").write_text(
        "0, GPU-fake-0, NVIDIA GB10, 580, [N/A], [N/A], 0\n", encoding="utf-8"
    )
    study(place)
    run = place("run", "study.yaml", timeout_s=150)
    expect(run.process.returncode == 0, run.errors[-300:])
    proof = finished(place)[0]["stop"]["gpu"]
    expect(proof.startswith("unknown"), proof)
    return Seen(f"three trials complete; GPU: {proof}")


@fault("an AMD GPU (fake rocm-smi)", expected="the record tells its use before and after")
def gpu_of_amd(place: Place) -> Seen:
    gpus = FakeGpus(place)
    (gpus.folder / "nvidia-smi").unlink()
    program = gpus.folder / "rocm-smi"
    lines = "GPU[0] : VRAM Total Memory (B): 206141652992\nGPU[0] : VRAM Total Used Memory (B): 180388626432"
    program.write_text(f"#!/bin/sh\necho '{lines}'\n", encoding="utf-8")
    program.chmod(0o755)
    study(place)
    run = place("run", "study.yaml", timeout_s=150)
    expect(run.process.returncode == 0, run.errors[-300:])
    proof = finished(place)[0]["stop"]["gpu"]
    expect(proof == "GPU 0: 172032 MiB before, 172032 after", proof)
    return Seen(f"three trials complete; {proof}")


@fault("no GPU", expected="the record says: no GPU")
def gpu_none(place: Place) -> Seen:
    study(place)
    place.env["PATH"] = os.pathsep.join(
        folder for folder in place.env["PATH"].split(os.pathsep) if not Path(folder, "nvidia-smi").exists()
    )
    run = place("run", "study.yaml", timeout_s=150)
    expect(run.process.returncode == 0, run.errors[-300:])
    proof = finished(place)[0]["stop"]["gpu"]
    expect(proof == "no GPU", proof)
    return Seen("three trials complete; GPU: no GPU")


@fault("silent for long, but a GPU computes (fake nvidia-smi)", expected="not stuck: it becomes ready")
def gpu_is_life(place: Place) -> Seen:
    gpus = FakeGpus(place)
    gpus.use(0, 0, busy_percent=97)
    study(place, "ready-delay-s: 7")
    up = place("up", "study.yaml", "--set", "engine.stuck_after_s=2", timeout_s=60)
    expect(up.process.returncode == 0, up.errors[-300:])
    expect(place("down", "--all").process.returncode == 0, "`down` failed")
    return Seen("7 s of silence with a limit of 2 s, a GPU at 97 %: ready")
