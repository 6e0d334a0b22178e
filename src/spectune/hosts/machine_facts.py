"""Facts about this machine for the record."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil

from spectune.domain.machine import Machine


def read_machine() -> Machine:
    """This machine, now. GPU names come from ``nvidia-smi`` where there is one."""
    return Machine(
        hostname=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        cpu=_cpu_model(),
        cores=_usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=_gpu_names(),
        python=platform.python_version(),
    )


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _gpu_names() -> tuple[str, ...] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        reply = subprocess.run(
            [program, "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return tuple(line.strip() for line in reply.stdout.splitlines() if line.strip())
